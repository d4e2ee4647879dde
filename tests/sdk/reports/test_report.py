"""`goodput.report()` and `goodput report`: the account of what lies on this machine, which closes to 100.0 %."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest
from support.sdk import sdk_process
from support.sdk.checks import check

from goodput.rank_page import page
from goodput.sdk.reports.local_accounts import runs_in

TRAIN = """
goodput.start(run="r", rank={rank}, world_size=2, flops_per_step=1e6, peak_flops_per_second=1e12, gpu_hour_cost=2.0)
for i in goodput.steps(range(20), samples=4):
    with goodput.phase("h2d"): spin(50)
    work()
    with goodput.phase("mine", "productive"): spin(50)
    with goodput.phase("communication"): spin(20)
    if i == 10:
        with goodput.checkpoint(): spin(100)
with goodput.phase("evaluation"): spin(300)
"""


def percents(text: str) -> list[float]:
    """The percents of a printed table's states, and of its total."""
    return [float(found) for found in re.findall(r"^  \S+ +\d+\.\d+ +(\d+\.\d)%", text, re.M)]


def check_closed(account: dict) -> None:
    assert abs(sum(account["states"].values()) - account["gpu_seconds"]) < 1e-6
    assert abs((account["end"] - account["start"]) * len(account["ranks"]) - account["gpu_seconds"]) < 1e-6
    for rank in account["ranks"]:
        assert abs(sum(rank["states"].values()) - (account["end"] - account["start"])) < 1e-6
        assert min(rank["states"].values()) >= 0


def check_table(text: str) -> None:
    *states, total = percents(text)
    assert total == 100.0 and round(sum(states), 1) == 100.0, text


@pytest.mark.parametrize(
    "moment",
    [
        "", "goodput.stop()", "with goodput.phase('h2d'): ask()", "with goodput.step(): ask()",
        "for i in goodput.steps([1]): ask()", "goodput.phase('forward').__enter__()", "goodput.resumed(3)",
        "goodput.resumed(3)\nfor i in goodput.steps(range(9)): work()\nask()", "goodput.stop('failed')",
    ],
)  # fmt: skip
def test_report_sums_to_wall_time_at_any_moment(sdk, moment):
    out = sdk(f"""
def ask():
    report = goodput.report()
    emit([report.account, str(report), repr(report) == str(report)])
{TRAIN.format(rank=0)}
{moment}
ask()
""")
    for account, text, same in out.emitted:
        check_closed(account)
        check_table(text)
        assert same and "goodput itself cost" in text and account["run"] == "r"
        assert [rank["rank"] for rank in account["ranks"]] == [0]
    # A page of its own for what follows resumed(); of a run that failed, what the checkpoint at step 10 kept.
    kept = 9 * moment.count("range(9)") if "resumed" in moment else 11 if "failed" in moment else 20
    assert out.emitted[-1][0]["steps"]["kept"] in (kept, kept + 1) and not out.errors


def test_report_without_steps_or_measurement(sdk):
    out = sdk("""
        emit([goodput.report().account, str(goodput.report())])
        goodput.start(run="r")
        report = goodput.report()
        emit([report.account["states"]["startup"] > 0, report.account["steps"]])
        goodput.report().account["run"] = "mine"  # a copy of the user's own
        emit(goodput.report().account["run"])
    """)
    assert out.emitted[0] == [{}, "goodput: nothing is measured in this process"]
    assert out.emitted[1] == [True, {"kept": 0, "lost": 0}] and out.emitted[2] == "r"


def test_report_lists_dropped_records(sdk):
    out = sdk("""
        goodput.phase("x" * 99)
        with goodput.step(): pass
        goodput.phase("x" * 99)
        emit(str(goodput.report()))
    """)
    assert "dropped: 1 phase, 2 error" in out.emitted[0]


def test_report_from_other_threads_keeps_the_step_thread(sdk):
    out = sdk("""
        goodput.start(run="r")
        over, accounts = threading.Event(), []
        def report_often():
            while not over.is_set(): accounts.append(goodput.report().account)
        def background():
            while not over.is_set():
                with goodput.phase("h2d"): pass
        threads = [threading.Thread(target=target) for target in (report_often, report_often, background)]
        sys.setswitchinterval(1e-5)
        for thread in threads: thread.start()
        # A busy machine may give the other threads their first turn after 3000 steps.
        steps = 0
        deadline = time.monotonic() + 60
        for i in goodput.steps(range(10**9)):
            work()
            steps += 1
            if steps >= 3000 and (len(accounts) > 2 or time.monotonic() > deadline): break
        over.set()
        for thread in threads: thread.join()
        emit([steps, len(accounts), all(account for account in accounts)])
    """)
    ((steps, looks, whole),) = out.emitted
    assert looks > 2 and whole
    snapshot = check(out.snapshot())
    assert snapshot.steps_done == steps and snapshot.drops["phase"] == 0


def test_report_from_another_thread_leaves_the_queue(sdk):
    out = sdk("""
        goodput.start(run="r")
        def other():
            with goodput.phase("h2d"): pass
            goodput.mark("other")
            assert goodput.report().account
            emit([snapshot().background, len(snapshot().events)])
        thread = threading.Thread(target=other)
        thread.start(); thread.join()
        goodput.report()
        emit([snapshot().background, len(snapshot().events)])
    """)
    assert out.emitted == [[0, 0], [1, 1]]


# -- the command


def command(directory, *arguments, **given) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-S", "-m", "goodput", "report", *arguments], capture_output=True, text=True, timeout=300,
        env=sdk_process.environment(directory, False, given), errors="replace",
    )  # fmt: skip


@pytest.fixture
def trained(directory, pure):
    """Two ranks of a run, and another run whose name is not for terminals."""
    for rank in (0, 1):
        assert sdk_process.run(TRAIN.format(rank=rank), directory, pure).status == 0
    other = "goodput.start(run='other\\x1b[31m run')\nfor i in goodput.steps(range(3)): work()\nos._exit(0)"
    sdk_process.run(other, directory, pure)
    return directory


def test_the_command_prints_a_table_for_each_run(trained):
    done = command(trained)
    assert done.returncode == 0 and not done.stderr
    tables = done.stdout.split("run ")[1:]
    assert [table.split(":")[0] for table in done.stdout.split("\nrun ")] == [
        "run other?[31m run",
        "r",
    ] and tables
    for table in re.split(r"^run ", done.stdout, flags=re.M)[1:]:
        check_table(table)


def test_the_command_prints_documents(trained):
    done = command(trained, "--json", "r")
    (document,) = map(json.loads, done.stdout.splitlines())
    check_closed(document)
    assert document["steps"] == {"kept": 40, "lost": 0} and [r["rank"] for r in document["ranks"]] == [0, 1]
    # The excess of each rank's first step is called compilation.
    assert document["states"]["productive"] + document["states"]["compile"] > 40 * 70e-6
    assert document["states"]["checkpoint"] > 2 * 100e-6 and document["factors"]["mfu"] > 0
    everything = command(trained, "--json")
    assert [json.loads(line)["run"] for line in everything.stdout.splitlines()] == ["other?[31m run", "r"]


def test_the_command_takes_its_directory_from_the_arguments_or_the_environment(trained, tmp_path):
    assert command(tmp_path, "--directory", str(trained), "--json").stdout.count("\n") == 2
    assert command(trained, "--json").stdout.count("\n") == 2


def test_hostile_pages_beside_good_ones_are_skipped_and_named(trained):
    good = command(trained, "--json").stdout.count("\n")
    (trained / "empty.page").write_bytes(b"")
    (trained / "noise.page").write_bytes(os.urandom(5000))
    (trained / "terminal\x1b[2J\n.page").write_bytes(b"\0" * 100)
    (trained / "folder.page").mkdir()
    (trained / "link.page").symlink_to("/dev/zero")
    os.mkfifo(trained / "fifo.page")
    (trained / ".draft.page").write_bytes(b"")
    (trained / "notes.txt").write_bytes(b"")
    newer = bytearray((trained / "r.0.1.page").read_bytes())
    newer[8:16] = (99).to_bytes(8, "little")
    (trained / "newer.page").write_bytes(newer)
    done = command(trained, "--json")
    assert done.returncode == 0 and done.stdout.count("\n") == good
    lines = done.stderr.splitlines()
    assert len(lines) == 7 and all(line.startswith("goodput report: skipped ") for line in lines)
    assert all(line.isprintable() for line in lines)


def test_page_with_wrong_times_keeps_account_sums(trained):
    """Its numbers pass for numbers; what they add up to must still be the time."""
    path = trained / "r.1.1.page"
    content = bytearray(path.read_bytes())
    for word, value in (
        (page.W_TOTALS + 3, 1 << 61),
        (page.W_LAST, 1 << 61),
        (page.W_STEP_RING + page.R_END, 1 << 61),
    ):
        content[8 * word : 8 * word + 8] = value.to_bytes(8, "little")
    path.write_bytes(content)
    done = command(trained, "--json", "r")
    assert done.returncode == 0
    check_closed(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("arguments", "status", "output"),
    [
        (["--directory", "nowhere"], 1, "No such file"),
        (["--directory", __file__], 1, "Not a directory"),
        (["nobody"], 1, "no run 'nobody': looked in"),
        (["--json", "nobody"], 1, "no run 'nobody': looked in"),
        (["--nonsense"], 2, "unrecognized"),
        (["one", "extra"], 2, "unrecognized"),
        (["--directory"], 2, "expected one argument"),
    ],
)
def test_command_fails_without_matching_runs(tmp_path, arguments, status, output):
    done = command(tmp_path, *arguments)
    assert done.returncode == status and output in done.stderr and not done.stdout
    assert "Traceback" not in done.stderr


def test_an_empty_directory_has_no_run(tmp_path):
    done = command(tmp_path)
    assert done.returncode == 1 and done.stderr == f"goodput report: no run in {tmp_path}\n"


@pytest.mark.parametrize("arguments", [["report", "--help"], ["--help"], ["--version"]])
def test_help(tmp_path, arguments):
    done = subprocess.run(
        [sys.executable, "-m", "goodput", *arguments], capture_output=True, text=True, timeout=300,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0 and (
        "examples: goodput" in done.stdout or "example: goodput" in done.stdout or "goodput 0." in done.stdout
    )


def test_closed_output_pipe_is_no_error(trained):
    """`goodput report | head -0`"""
    process = subprocess.Popen(
        [sys.executable, "-S", "-m", "goodput", "report"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=sdk_process.environment(trained, False, {}),
    )  # fmt: skip
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait(timeout=300) == 1
    process.stderr.close()


def test_a_live_rank_is_reported_without_disturbing_it(directory, pure):
    code = f"{TRAIN.format(rank=0)}\nemit(1)\nsys.stdin.read()\nwith goodput.step(): pass"
    process = subprocess.Popen(
        sdk_process.command(code), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=sdk_process.environment(directory, pure, {}),
    )  # fmt: skip
    try:
        process.stdout.readline()
        documents = [json.loads(command(directory, "--json").stdout) for _ in range(2)]
        runs, errors = runs_in(str(directory), time.perf_counter_ns())
    finally:
        process.communicate(timeout=300)
    assert [document["status"] for document in documents] == ["running", "running"]
    assert documents[1]["gpu_seconds"] > documents[0]["gpu_seconds"] and documents[0]["steps"]["kept"] == 20
    assert errors == [] and runs[0].attempts[0, 1].alive
    (snapshot,) = sdk_process.Outcome(directory, 0, [], "").snapshots()
    assert check(snapshot).steps_done == 21 and snapshot.ended == "finished"


@pytest.mark.torch
def test_backward_passes_are_those_of_now(tmp_path):
    """The page has their number every 64 steps only."""
    pytest.importorskip("torch")
    code = """
import torch, goodput.auto, goodput
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(75):
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(goodput.report())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ, GOODPUT_DIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "\n  2 backward passes a step" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("first", "text"),
    [
        ("goodput", "; goodput.auto counts those of PyTorch models."),
        ("goodput.auto", ": goodput.auto counts them after the first step of a PyTorch model, and has seen no such step."),
    ],
)  # fmt: skip
def test_unknown_mfu_has_the_reason_of_this_run(tmp_path, first, text):
    script = f"import {first}\nfor _ in goodput.steps(range(3)):\n    sum(range(9999))\n"
    environ = os.environ | {"GOODPUT_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], env=environ, check=True, timeout=60)
    done = subprocess.run(
        [sys.executable, "-m", "goodput", "report", "--full"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert f"MFU unknown: the FLOPs of a step are not known{text}" in " ".join(done.stdout.split()), (
        done.stderr
    )
