"""Runs are kept as logs by the process beside `goodput run`, or of their pages by the next command, and listed."""

from __future__ import annotations

import gzip
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from goodput.sdk.reports.local_accounts import is_without_gpu

GOODPUT = [sys.executable, "-c", "import sys; from goodput.cli import main; sys.exit(main())"]
TRAIN = """
    import os, sys, time, goodput
    for step in goodput.steps(range(int(sys.argv[1]))):
        with goodput.phase("loader"):
            time.sleep(0.001)
        with goodput.phase("forward"):
            time.sleep(0.001)
    if len(sys.argv) > 2:
        exec(sys.argv[2])
"""
WAIT_SECONDS = 60


class Home:
    """A user's folders in a test."""

    def __init__(self, path: Path):
        self.path, self.runs, self.pages = path, path / "data" / "goodput" / "runs", path / "pages"
        self.environ = {**os.environ, "XDG_DATA_HOME": str(path / "data"), "GOODPUT_DIR": str(self.pages)}
        del self.environ["GOODPUT_RUNS"]
        self.train = path / "train.py"
        self.train.write_text(textwrap.dedent(TRAIN))

    def call(self, *words, status: int | None = 0, **environ) -> subprocess.CompletedProcess:
        given = {**self.environ, **environ}
        done = subprocess.run(
            [*GOODPUT, *map(str, words)],
            cwd=self.path,
            env=given,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert status is None or done.returncode == status, done.stdout + done.stderr
        return done

    def keep(self, *words, status: int | None = 0, **environ) -> str:
        """Train under `goodput run`; returns standard error."""
        return self.call("run", "--no-progress", *words, status=status, **environ).stderr

    def listed(self) -> list[dict]:
        return [json.loads(line) for line in self.call("runs", "--all", "--json").stdout.splitlines()]

    def log(self) -> list[dict]:
        """The lines of the only log."""
        (path,) = self.runs.glob("*.jsonl.gz")
        with gzip.open(path) as file:
            return [json.loads(line) for line in file]


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def test_run_is_kept_with_all_its_steps(home):
    """More steps than a page holds: those that its ring has lost are in the log too."""
    home.keep(home.train, 3000)
    (row,) = home.listed()
    assert row["run"].startswith("train-") and row["status"] == "finished" and row["ranks"] == 1
    assert row["steps"] == row["steps_kept_singly"] == 3000 and row["note"] == ""
    steps = [one for one in home.log() if one["kind"] == "step"]
    assert [one["step"] for one in steps] == list(range(3000))
    assert row["largest_loss"]["state"] in ("loader", "startup") and 0 < row["goodput"] < 1
    replayed = json.loads(home.call("replay", next(home.runs.glob("*.gz")), "--json").stdout)
    assert replayed["steps"]["kept"] == 3000 and replayed["status"] == "finished"


def test_run_without_gpus_is_told_in_process_seconds(home):
    """On a machine with GPUs, or another one later, too."""
    home.keep("--name", "first", home.train, 30)
    for page in home.pages.iterdir():
        page.unlink()
    here = is_without_gpu()
    (head, *_) = home.log()
    assert head.get("without_gpu", False) is here
    (path,) = home.runs.glob("*.gz")
    text = path.with_name("with.jsonl")
    for value, unit in ((True, "process-seconds"), (False, "GPU-seconds")):
        lines = [{**head, "without_gpu": value}, *home.log()[1:]]
        text.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert f" {unit}" in home.call("replay", text).stdout
        two = [{**head, "without_gpu": True}, *lines]
        text.write_text("".join(json.dumps(line) + "\n" for line in two))
        assert f" {unit}" in home.call("replay", text).stdout
    text.unlink()
    assert f" {'process' if here else 'GPU'}-seconds" in home.call("report", "first").stdout


def test_list_is_a_table(home):
    assert "no run is kept yet" in home.call("runs").stdout
    home.keep("--name", "first", home.train, 30)
    home.keep("--name", "second", home.train, 30)
    lines = home.call("runs").stdout.splitlines()
    assert lines[0].split()[:2] == ["run", "when"] and "goodput" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["second", "first"]
    assert all(line.endswith("finished") for line in lines[1:])


def test_files_are_private(home):
    home.keep(home.train, 20)
    assert stat.S_IMODE(home.runs.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in home.runs.iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("last", "status"), [("raise SystemExit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("1/0", 1)]
)
def test_what_ends_badly_is_kept(home, last, status):
    home.keep(home.train, 50, last, status=status)
    (row,) = home.listed()
    assert row["status"] == "failed" and row["steps"] == 50
    said = home.call("replay", row["run"]).stdout
    assert ("ZeroDivisionError" in said) == (last == "1/0") and "failed" in said


@pytest.mark.parametrize("words", [["runs"], ["report"], ["top", "--once"]])
def test_pages_of_a_plain_program_are_kept_by_the_next_command(home, words):
    """`python train.py` keeps nothing by itself; the list says how many steps its page still had."""
    done = subprocess.run(
        [sys.executable, home.train, "2000", "os.kill(os.getpid(), 9)"],
        env=home.environ,
        timeout=300,
        cwd=home.path,
    )
    assert done.returncode == -signal.SIGKILL and not home.runs.exists()
    said = home.call(*words).stderr
    assert "kept run train-" in said and "held the last 1,024 steps" in said
    (row,) = home.listed()
    assert (row["steps"], row["steps_kept_singly"], row["status"]) == (2000, 1023, "failed")
    assert home.call("runs").stderr == ""
    assert len(list(home.runs.glob("*.gz"))) == 1


def test_second_launch_of_a_name_is_another_attempt(home):
    """Also where the pages of the first are gone, as on another node."""
    home.keep("--name", "exp", home.train, 30, "1/0", status=1)
    for page in home.pages.iterdir():
        page.unlink()
    home.keep("--name", "exp", home.train, 40)
    (row,) = home.listed()
    assert (row["run"], row["steps"], row["status"]) == ("exp", 70, "finished")
    found = json.loads(home.call("replay", "exp", "--json").stdout)
    assert [one["attempt"] for one in found["restarts"]] == [2] and found["steps"]["kept"] == 40


KEPT = '"$@"; for _ in $(seq 300); do [ "$(ls "$RUNS"/*.gz | grep -vc draft)" = "$COUNT" ] && break; sleep 0.1; done'


def test_made_up_name_that_comes_again_is_another_run(home):
    """In containers a process often has the same pid; these last until the process beside has kept the run."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc"]
    if os.geteuid() != 0 or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("needs namespaces")
    for count in (1, 2):
        environ = {**home.environ, "RUNS": str(home.runs), "COUNT": str(count)}
        command = [*inside, "sh", "-c", KEPT, "sh", *GOODPUT, "run", home.train, "300"]
        subprocess.run(command, env=environ, cwd=home.path, check=True, capture_output=True, timeout=300)
        for page in home.pages.iterdir():
            page.unlink()
    assert [row["run"] for row in home.listed()] == ["train-2.2", "train-2"]
    assert [(row["steps"], row["status"]) for row in home.listed()] == [(300, "finished")] * 2


def test_living_run_is_listed_and_never_removed(home):
    """Even where the folder may have one byte."""
    command = [*GOODPUT, "run", "--quiet", home.train, "1000000"]
    environ = {**home.environ, "GOODPUT_RUNS_SIZE": "1"}
    with subprocess.Popen(command, env=environ, cwd=home.path) as process:
        try:
            end = time.monotonic() + WAIT_SECONDS
            while not list(home.runs.glob("*.draft.gz")) and time.monotonic() < end:
                time.sleep(0.1)
            home.keep("--name", "other", home.train, 30, GOODPUT_RUNS_SIZE="1")
            rows = {row["run"]: row["status"] for row in home.listed()}
            assert rows[f"train-{process.pid}"] == "running"
        finally:
            process.kill()
    assert {row["run"]: row["status"] for row in home.listed()}[f"train-{process.pid}"] == "failed"


def test_size_and_age_bound_the_folder(home):
    for name in ("one", "two", "three"):
        home.keep("--name", name, home.train, 200)
    assert len(home.listed()) == 3  # Which waits for the last.
    size = sum(path.stat().st_size for path in home.runs.iterdir())
    home.keep("--name", "four", home.train, 200, GOODPUT_RUNS_SIZE=str(int(1.1 * size)))
    assert [row["run"] for row in home.listed()] == ["four", "three", "two"]
    home.keep("--name", "five", home.train, 20, GOODPUT_RUNS_DAYS="0.000001")
    assert "two" not in [row["run"] for row in home.listed()]


def test_long_log_is_thinned(home):
    """A log stays below its share of the folder: a line stands for several steps, and the sums are exact."""
    home.keep("--name", "long", home.train, 8000, GOODPUT_RUNS_SIZE="200K")
    (row,) = home.listed()
    assert row["steps"] == 8000 and 0 < row["steps_kept_singly"] < 8000 and "sums" in row["note"]
    steps = [one for one in home.log() if one["kind"] == "step"]
    assert sum(one.get("count", 1) for one in steps) == 8000 and steps[-1]["step"] == 7999


def test_off_and_another_folder(home):
    home.keep(home.train, 20, GOODPUT_RUNS="0")
    assert not home.runs.exists()
    assert "GOODPUT_RUNS" in home.call("runs", status=1, GOODPUT_RUNS="off").stderr
    home.keep(home.train, 20, GOODPUT_RUNS=str(home.path / "elsewhere"))
    assert list((home.path / "elsewhere").glob("*.jsonl.gz")) and not home.runs.exists()


@pytest.mark.parametrize("place", ["/proc/none/runs", "/dev/null/runs"])
def test_folder_that_cannot_be_written_is_said_once(home, place):
    """The training goes on."""
    said = home.keep(home.train, 300, GOODPUT_RUNS=place)
    assert said.count("log is not kept") == 1 and ": finished, 1 rank" in said


def test_full_disk_is_said_once_and_training_goes_on(home):
    """As root the test has a file system of its own, which is too small for the log."""
    place = home.path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k,mode=0700", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs to mount a file system")
    try:
        done = home.call("run", "--no-progress", home.train, 6000, GOODPUT_RUNS=str(place))
        assert done.stderr.count("log is not kept") == 1 and "No space left" in done.stderr
        assert ": finished, 1 rank" in done.stderr
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_ranks_of_several_launches_are_one_run(home):
    """As with mpirun: each rank has a `goodput run` of its own."""
    environ = {**home.environ, "GOODPUT_RUN": "pair", "GOODPUT_WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            [*GOODPUT, "run", "--quiet", home.train, "100"],
            env={**environ, "GOODPUT_RANK": str(rank)},
            cwd=home.path,
        )
        for rank in range(2)
    ]
    assert [one.wait(120) for one in started] == [0, 0]
    (row,) = home.listed()
    assert (row["run"], row["ranks"], row["steps"], row["status"]) == ("pair", 2, 200, "finished")
    found = json.loads(home.call("replay", "pair", "--json").stdout)
    assert [one["steps"]["kept"] for one in found["ranks"]] == [100, 100] and found["restarts"] == []


def test_killed_writer_leaves_what_it_wrote(home):
    """The container ends with its first process, and the process beside it has no time to finish the log."""
    command = [*GOODPUT, "run", "--quiet", home.train, "1000000"]
    with subprocess.Popen(command, env=home.environ, cwd=home.path) as process:
        end = time.monotonic() + WAIT_SECONDS
        while not list(home.runs.glob("*.draft.gz")) and time.monotonic() < end:
            time.sleep(0.1)
        (part,) = (json.loads(path.read_text()) for path in home.runs.glob("*.json"))
        os.kill(part["pid"], signal.SIGKILL)
        process.kill()
    for page in home.pages.iterdir():
        page.unlink()
    (row,) = home.listed()
    assert row["steps"] > 0 and row["status"] == "unknown"
    assert "its end was not seen" in home.call("runs").stdout
    assert json.loads(home.call("replay", row["run"], "--json").stdout)["steps"]["kept"] > 0


def test_kept_run_is_found_by_every_command(home):
    """Also when its pages are gone; an unknown name says where was looked and what there is."""
    for name, steps in (("a", 200), ("b", 300)):
        home.keep("--name", name, home.train, steps)
    home.listed()
    for page in home.pages.iterdir():
        page.unlink()
    assert json.loads(home.call("report", "a", "--json").stdout)["steps"]["kept"] == 200
    assert json.loads(home.call("replay", "b", "--json").stdout)["steps"]["kept"] == 300
    compared = home.call("compare", "a", "b").stdout
    assert compared.startswith("base  a: 1 rank, ") and "new   b: 1 rank, " in compared
    assert json.loads(home.call("whatif", "a", "--json").stdout)["run"] == "a"
    lines = [json.loads(line) for line in home.call("export", "b").stdout.splitlines()]
    assert sum(line["kind"] == "step" for line in lines) == 300
    assert home.call("export").stdout.splitlines() == ["a", "b"]
    home.call("export", "a", "--perfetto", home.path / "a.pftrace")
    home.call("report", "a", "--html", home.path / "a.html")
    assert "<html" in (home.path / "a.html").read_text()
    for words in (["report", "c"], ["replay", "c"], ["whatif", "c"], ["compare", "a", "c"], ["export", "c"]):
        said = home.call(*words, status=1).stderr
        assert f"kept runs ({home.runs})" in said and f"pages in {home.pages}" in said, words
        assert "no run 'c'" in said and "the runs there: b, a" in said


def test_living_run_is_reported_of_its_pages(home):
    command = [*GOODPUT, "run", "--quiet", "--name", "live", home.train, "1000000"]
    with subprocess.Popen(command, env=home.environ, cwd=home.path) as process:
        try:
            end = time.monotonic() + WAIT_SECONDS
            while not list(home.runs.glob("*.draft.gz")) and time.monotonic() < end:
                time.sleep(0.1)
            kept = [json.loads(home.call(word, "live", "--json").stdout) for word in ("replay", "report")]
            assert [one["status"] for one in kept] == ["running", "running"]
            assert 0 < kept[0]["steps"]["kept"] <= kept[1]["steps"]["kept"]
        finally:
            process.kill()


@pytest.mark.parametrize("words", [["report", "--run", "old"], ["top", "--once", "--run", "old"]])
def test_old_spellings_go_on_with_a_warning(home, words):
    home.keep("--name", "old", home.train, 30)
    done = home.call(*words)
    assert "old" in done.stdout and "--run is an old spelling of RUN" in done.stderr
    new = home.call(*[one for one in words if one != "--run"])
    assert "old spelling" not in new.stderr


def test_report_of_an_aggregator(home):
    """`--url` prints the account that a server has."""
    ledger = f"sqlite:///{home.path / 'ledger.db'}"
    server = subprocess.Popen(
        [*GOODPUT, "serve", "--listen", "127.0.0.1:0", "--ledger", ledger],
        env=home.environ, cwd=home.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        url = next(word for word in server.stdout.readline().split() if word.startswith("http://"))
        said = home.call("report", "none", "--url", url, status=1).stderr
        assert "run 'none' at http://127.0.0.1" in said and "404" in said
        assert "one run's account" in home.call("report", "--url", url, status=2).stderr
    finally:
        server.kill()
        server.communicate()
