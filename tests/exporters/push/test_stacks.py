"""Stack dumps on request: which processes, isolation from the push, and the real py-spy on a stuck process."""

import io
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from support.node.aggregator import Aggregator
from support.node.node_command import run
from support.node.node_rank import PID, Rank
from support.node.node_tree import collect, wait_until

from goodput.wire import schema
from goodput_exporters.agent import Agent
from goodput_exporters.push import stacks as stacks_module
from goodput_exporters.push.stacks import Stacks, find_py_spy, printable, without_command

ONE = schema.StackRequest("r1", 0, "n0", 4242, 7)


@pytest.fixture
def made(tmp_path):
    """`make(script, …)` gives Stacks whose py-spy is that shell script; all are stopped at the end."""
    started = []

    def make(script: str, owns=lambda process: True, **given) -> Stacks:
        path = tmp_path / f"py-spy-{len(started)}"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        started.append(Stacks(owns, command=str(path), **given))
        return started[-1]

    yield make
    for one in started:
        one.stop()


def outcomes(stacks: Stacks) -> dict:
    return {name[1][0]: value for name, value in collect(stacks).items()}


def only(stacks: Stacks) -> schema.Stack:
    wait_until(stacks.pending)
    (stack,) = stacks.pending()
    return stack


# ---- Dumps


def test_stack_is_pending_until_acknowledged(made):
    stacks = made('echo "Process 1: python t.py --token secret"; echo "$@"', unix_ns=lambda: 5)
    stacks.request([ONE])
    stack = only(stacks)
    assert stack == schema.Stack(ONE, 5, "Process 1\ndump --pid 4242 --nonblocking")
    assert schema.is_stack(stack)
    assert stacks.pending() == [stack], "until it is acknowledged"
    stacks.acknowledge([schema.Stack(ONE, 5, "another")])
    stacks.acknowledge([stack])
    assert stacks.pending() == []
    assert outcomes(stacks) == {"taken": 1, "failed": 0, "ignored": 0, "refused": 0}


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo 'Error: Permission denied (os error 13)' >&2; exit 1", "py-spy: Error: Permission denied (os error 13)"),
        ("exit 3", "py-spy: exit status 3"),
        ("kill -9 $$", "py-spy: exit status -9"),
        ("exit 0", "py-spy: the process has no Python stack"),
    ],
)  # fmt: skip
def test_py_spy_error_becomes_the_text(made, script, text):
    stacks = made(script)
    stacks.request([ONE])
    assert only(stacks).text == text


def test_missing_py_spy_gives_install_advice(monkeypatch):
    monkeypatch.setattr(stacks_module, "find_py_spy", lambda: None)
    stacks = Stacks(lambda process: True)
    stacks.request([ONE])
    assert "not installed on this node" in only(stacks).text
    stacks.stop()


def test_unrunnable_command_becomes_the_text(tmp_path):
    stacks = Stacks(lambda process: True, command=str(tmp_path / "nowhere"))
    stacks.request([ONE])
    assert only(stacks).text == "py-spy: cannot run: No such file or directory"
    stacks.stop()


def test_hanging_dump_is_killed_with_its_children(made, tmp_path):
    stacks = made(f"sleep 300 & echo $! > {tmp_path}/child; wait", seconds_max=0.3)
    stacks.request([ONE])
    assert only(stacks).text == "py-spy: no stack within 0.3 s"
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not os.path.exists(f"/proc/{child}") or _is_zombie(child))
    assert outcomes(stacks)["failed"] == 1


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_running_dump_blocks_no_caller(made):
    stacks = made("sleep 300", seconds_max=600)
    began = time.monotonic()
    stacks.request([ONE])
    stacks.request([ONE])
    assert stacks.pending() == []
    outcomes(stacks)
    assert time.monotonic() - began < 10, "the dump takes five minutes"
    wait_until(lambda: stacks._child)
    stacks.stop()
    wait_until(stacks.pending)
    assert stacks.pending()[0].text == "py-spy: exit status -9"


def test_endless_unprintable_output_is_truncated(made):
    stacks = made("yes 'frame\033[31m \t é' | head -c 1000000")
    stacks.request([ONE])
    stack = only(stacks)
    assert schema.is_stack(stack)
    assert 60_000 < len(stack.text) <= schema.STACK_CHARS_MAX
    assert stack.text.startswith("frame?[31m") and "é" in stack.text


@pytest.mark.parametrize(
    "output", [b"", b"\xff\xfe\x00", b"\t" * 70_000, "\u202eé\u2028".encode(), bytes(range(256))]
)
def test_arbitrary_bytes_become_printable_text(output):
    stack = schema.Stack(ONE, 1, printable(output))
    assert schema.is_stack(stack)
    report = schema.NodeReport("n0", 1, [], stacks=[stack])
    assert schema.decode(schema.encode(report)).stacks == [stack]


def test_command_line_is_removed():
    text = "Process 12: python train.py --api-key hunter2\nPython v3.11\n\nThread 1"
    assert without_command(text) == "Process 12\nPython v3.11\n\nThread 1"
    assert without_command("Process 12: x") == "Process 12" and without_command("other: x") == "other: x"


# ---- Which processes are dumped, and how often


def test_process_is_dumped_at_most_once_a_minute(made, tmp_path):
    now = [0.0]
    stacks = made(f"echo one >> {tmp_path}/calls", monotonic=lambda: now[0])
    calls = lambda: (tmp_path / "calls").read_text().count("one")  # noqa: E731
    stacks.request([ONE, ONE])
    stacks.acknowledge([only(stacks)])
    now[0] = 59.9
    stacks.request([ONE])
    now[0] = 60.1
    stacks.request([ONE])
    stacks.acknowledge([only(stacks)])
    stacks.request([replace(ONE, pid=5)])
    assert only(stacks).of.pid == 5, "dumps run one after the other, so the earlier ones are done"
    assert calls() == 3


def test_queue_and_history_are_bounded(made, monkeypatch):
    blocked = made("sleep 300")
    blocked.request([replace(ONE, pid=pid) for pid in range(16)])
    assert len(blocked._queue) <= stacks_module.QUEUE_MAX
    monkeypatch.setattr(stacks_module, "KNOWN_MAX", 3)
    quick = made("exit 0")
    for pid in range(6):
        quick.request([replace(ONE, pid=pid)])
        stack = only(quick)
        assert stack.of.pid == pid
        quick.acknowledge([stack])
    assert [process.pid for process in quick._begun] == [3, 4, 5]


def test_long_output_is_truncated_while_read():
    length = 3 * schema.STACK_CHARS_MAX
    child = SimpleNamespace(stdout=io.BytesIO(b"x" * length))
    assert len(stacks_module._read(child)) == schema.STACK_CHARS_MAX
    assert len(printable("é".encode() * length).encode()) == schema.STACK_CHARS_MAX


def test_foreign_processes_are_ignored_and_counted(made):
    stacks = made("echo never", owns=lambda process: False)
    stacks.request([ONE] * 3)
    assert outcomes(stacks) == {"taken": 0, "failed": 0, "ignored": 3, "refused": 0}
    assert stacks._thread is None and stacks.pending() == []
    stacks.request([ONE] * 1000)
    assert outcomes(stacks)["ignored"] == 3 + schema.STACK_REQUESTS_MAX


def test_ended_process_is_not_dumped(made):
    answers = iter([True, False])
    stacks = made("echo never", owns=lambda process: next(answers))
    stacks.request([ONE])
    assert only(stacks).text == "py-spy: the process has ended"


def test_only_living_ranks_of_this_node_are_dumped(tree, ranks):
    page = Rank(tree / "pages")
    (report,) = ranks.poll()
    ours = schema.stack_request(report.identity)
    assert ours.pid == PID and ranks.owns(ours)
    for wrong in ({"pid": 1}, {"pid": -1}, {"run": "r2"}, {"rank": 1}, {"host": "n1"}, {"start_ns": 0}):
        assert not ranks.owns(replace(ours, **wrong)), wrong
    stat = tree / "proc" / str(PID) / "stat"
    text = stat.read_text()
    assert "777" in text
    stat.write_text(text.replace("777", "778"))
    assert not ranks.owns(ours), "another process has this pid now"
    stat.unlink()
    assert not ranks.owns(ours)
    assert page


# ---- The agent


def test_no_stacks_without_py_spy_option(tree, clock):
    arguments = {"sysfs": str(tree / "sys"), "procfs": str(tree / "proc"), "aggregator": "http://127.0.0.1:1"}
    assert Agent(str(tree / "pages"), **arguments).stacks is None
    with_stacks = Agent(str(tree / "pages"), py_spy=True, **arguments)
    assert b'goodput_node_stacks_total{outcome="taken"} 0.0' in with_stacks.exposition()
    assert Agent(str(tree / "pages"), py_spy=True, **{**arguments, "aggregator": None}).stacks is None


def test_py_spy_option_needs_an_aggregator():
    done = run("--py-spy")
    assert (done.returncode, "--py-spy needs --aggregator" in done.stderr) == (2, True)
    help_ = " ".join(run("--help").stdout.split())
    assert "ptrace_scope" in help_ and "no variables, no command line" in help_


STUCK = """
import sys, time
def read_shard_that_never_comes():
    print("in", flush=True)
    while True:
        time.sleep(1000)
read_shard_that_never_comes()
"""


@pytest.fixture
def stuck():
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "in\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_py_spy_shows_a_stuck_process(stuck):
    if find_py_spy() is None:
        pytest.skip("py-spy is not installed (the extra `stacks`)")
    stacks = Stacks(lambda process: True)
    stacks.request([replace(ONE, pid=stuck.pid), replace(ONE, pid=2**22 + 5)])
    wait_until(lambda: len(stacks.pending()) == 2, seconds=30)
    real, absent = stacks.pending()
    assert real.text.startswith(f"Process {stuck.pid}\n"), real.text
    assert "read_shard_that_never_comes" in real.text and "time.sleep" not in real.text.splitlines()[0]
    assert absent.text.startswith("py-spy: ") and "rror" in absent.text
    assert stuck.poll() is None
    stacks.stop()


@pytest.fixture
def open_folder():
    """A directory that every user may enter, which tmp_path is not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_py_spy_without_permission(stuck, open_folder):
    """A process of another user, as seen by one without CAP_SYS_PTRACE."""
    setpriv = shutil.which("setpriv")
    if find_py_spy() is None or setpriv is None or os.getuid() != 0:
        pytest.skip("needs py-spy, setpriv and root, to give the right up")
    call, real = open_folder / "py-spy", open_folder / "real"
    shutil.copy(find_py_spy(), real)
    call.write_text(
        f'#!/bin/sh\nexec {setpriv} --reuid=65534 --regid=65534 --clear-groups --no-new-privs {real} "$@"\n'
    )
    call.chmod(0o755)
    stacks = Stacks(lambda process: True, command=str(call))
    stacks.request([replace(ONE, pid=stuck.pid)])
    wait_until(stacks.pending, seconds=30)
    assert "ermission" in stacks.pending()[0].text
    stacks.stop()


def test_requested_stack_is_sent_with_next_push(tmp_path, processes):
    """Old agents and old aggregators know neither field; processes that are not ranks are not dumped."""
    if find_py_spy() is None:
        pytest.skip("py-spy is not installed (the extra `stacks`)")
    (tmp_path / "pages").mkdir()
    aggregator, answered = Aggregator(), threading.Event()

    def answer(report, body):
        if not report.ranks:  # An agent's first push.
            return 200, schema.encode(schema.Ack(0))
        wanted = [schema.stack_request(rank.identity) for rank in report.ranks]
        wanted += [
            replace(wanted[0], pid=os.getpid()),
            replace(wanted[0], pid=1),
            replace(wanted[0], start_ns=0),
        ]
        answered.set()
        return 200, schema.encode(schema.Ack(len(report.ranks), wanted=wanted))

    aggregator.answer = answer
    rank = processes(tmp_path / "pages")
    rank.do("beat")
    try:
        timing = {"interval_seconds": 0.05, "push_interval_seconds": 0.05}
        with Agent(str(tmp_path / "pages"), aggregator=aggregator.url, py_spy=True, **timing) as agent:
            assert answered.wait(120)
            received = lambda: [stack for report in list(aggregator.reports) for stack in report.stacks]  # noqa: E731
            wait_until(received, seconds=30)
            (stack,) = received()
            assert stack.of.pid == rank.pid and f"Process {rank.pid}" in stack.text
            assert "main (" in stack.text, stack.text
            wait_until(lambda: agent.stacks.pending() == [])
            assert outcomes(agent.stacks)["taken"] == 1 and outcomes(agent.stacks)["ignored"] >= 3
    finally:
        aggregator.close()
