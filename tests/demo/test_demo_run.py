"""The demo from outside, as a user runs it: what it measures against what was truly planted."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from goodput.child_processes import Child
from goodput.demo import run

CASES = [  # ranks, slow rank, delay in seconds, step of the kill, seconds
    pytest.param((2, 0, 0.005, 60, 3), id="two ranks, least delay"),
    pytest.param((4, 1, 0.02, 10, 3), id="killed before the first checkpoint"),
    pytest.param((3, 2, 0.05, 26, 3), id="largest delay, killed just after a checkpoint"),
    pytest.param((6, 5, 0.05, 26, 3), id="six ranks", marks=pytest.mark.more_seeds),
]


def demo(*arguments: str, timeout: float = 600) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "goodput", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)


def processes_of(marker: str) -> list[str]:
    """Command lines of processes that mention `marker`, other than pytest's own."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in line and int(path.parent.name) != os.getpid():
            found.append(line)
    return found


@pytest.fixture(scope="module", params=CASES)
def found(request, tmp_path_factory):
    """The demo's JSON for one choice of trouble."""
    ranks, slow, delay, kill, seconds = request.param
    file = tmp_path_factory.mktemp("demo") / "demo.json"
    done = demo(
        *f"--ranks {ranks} --slow-rank {slow} --loader-delay {delay} --kill-at {kill} --seconds {seconds}".split(),
        *("--json", str(file)),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(file.read_text())
    assert result["planted"]["slow_rank"] == slow and result["planted"]["kill_step"] == kill
    assert len(result["account"]["ranks"]) == ranks
    return result


def test_states_of_each_rank_sum_to_wall_time(found):
    account = found["account"]
    wall_ns = round(1e9 * (account["gpu_seconds"] / account["world_size"]))
    for rank in account["ranks"]:
        assert sum(round(1e9 * seconds) for seconds in rank["states"].values()) == wall_ns
    assert sum(account["states"].values()) == pytest.approx(account["gpu_seconds"], abs=1e-6)


def test_planted_loader_time_is_within_five_percent(found):
    planted = found["planted"]
    slow = found["account"]["ranks"][planted["slow_rank"]]
    assert slow["states"]["loader"] == pytest.approx(planted["loader_seconds"], rel=0.05)
    assert planted["loader_seconds"] > 20 * planted["loader_delay_seconds"]


def test_lost_steps_are_those_done_again(found):
    assert found["account"]["steps"]["lost"] == found["planted"]["steps_redone"]
    assert [r["lost_steps"] for r in found["account"]["restarts"]] == [found["planted"]["steps_redone"]]


def test_down_is_the_real_gap(found):
    planted, account = found["planted"], found["account"]
    assert planted["down_seconds"] > 1
    assert account["restarts"][0]["down_seconds"] == pytest.approx(planted["down_seconds"], abs=1)
    ranks = account["world_size"]
    assert account["states"]["down"] == pytest.approx(ranks * planted["down_seconds"], abs=1.0 * ranks)


def test_the_slow_rank_is_named(found):
    assert found["account"]["straggler"]["culprit"] == found["planted"]["slow_rank"]


def test_the_run_declares_its_length(found):
    whole = found["account"]["whole_run"]
    assert (whole["basis"], whole["steps"]) == ("declared", whole["done"])


def test_run_without_faults_loses_nothing_and_keeps_its_server(tmp_path):
    arguments = "--ranks 2 --slow-rank none --kill-at none --seconds 3 --keep --json"
    done = demo(*arguments.split(), str(tmp_path / "demo.json"))
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "demo.json").read_text())
    assert result["planted"]["kill_step"] is None and result["planted"]["slow_rank"] is None
    account = result["account"]
    assert account["steps"]["lost"] == 0 and account["restarts"] == [] and account["states"]["lost"] == 0
    assert account["states"]["loader"] < 0.02 * account["gpu_seconds"]
    line = next(line for line in done.stdout.splitlines() if "page: http" in line)
    address, pid = line.split()[1], int(re.search(r"kill (\d+);", line).group(1))
    folder = Path(re.search(r"its files: (\S+)\)", line).group(1))
    try:
        assert httpx.get(address, trust_env=False).status_code == 200
        runs = httpx.get(f"{address}api/v1/runs", trust_env=False).json()["runs"]
        assert [run["status"] for run in runs] == ["finished"]
        assert f"run {runs[0]['run']}" in done.stdout
        assert "100.0%" in done.stdout and "next: " in done.stdout
        assert len(processes_of(runs[0]["run"])) == 0
    finally:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline, "the server did not end"
        time.sleep(0.05)
    shutil.rmtree(folder)


def test_interrupted_it_leaves_nothing_running():
    command = [sys.executable, "-m", "goodput", "demo", "--seconds", "60"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for line in running.stderr:
            if "training on" in line:
                break
        children = [line for line in processes_of("goodput.demo.rank") if f"-{running.pid}" in line]
        assert len(children) <= 4
        running.send_signal(signal.SIGTERM)
        assert running.wait(120) == 143
    finally:
        running.kill()
        running.wait()
    assert [line for line in processes_of("goodput.demo.rank") if f"-{running.pid}" in line] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_started_when_interrupted_is_ended(monkeypatch, number):
    """A signal between the start of a process and its place in the list of those to end."""
    started = []

    class Interrupted(Child):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            started.append(self)
            demo.interrupt(number)

    monkeypatch.setattr(run, "Child", Interrupted)
    demo = run.Demo(run.Options(2, 2, None, 0.0, None, False))
    with pytest.raises(SystemExit) as ended:
        demo.run()
    assert ended.value.code == 128 + number
    assert [child.name for child in started] == ["serve"] and started[0].poll() is not None


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--ranks", "1"], "--ranks: '1': expected 2 to 16"),
        (["--slow-rank", "9"], "--slow-rank 9: expected a rank from 0 to 3"),
        (["--loader-delay", "nan"], "--loader-delay: 'nan': expected 0 to 10 seconds"),
        (["--kill-at", "soon"], "--kill-at: 'soon': expected a step from 0"),
        (["--seconds", "-3"], "--seconds: '-3': expected 2 to 600"),
        (["--json", "/proc/no/such/file"], "--json /proc/no/such/file"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(arguments, message):
    done = demo(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
