"""Processes without ranks that have one run's name: each takes a number, and a restart takes its own again."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.sdk import sdk_process

WORKERS = """
import multiprocessing, sys
import goodput

def train(number, barrier):
    with goodput.phase("h2d"):
        barrier.wait()
    for i in goodput.steps(range(2 + number)): pass
    barrier.wait()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    barrier = context.Barrier(3)
    children = [context.Process(target=train, args=(number, barrier)) for number in range(3)]
    for one in children: one.start()
    for one in children: one.join()
    if "test" in sys.argv:
        with goodput.phase("evaluation"): pass
"""


def run_workers(tmp_path, directory, pure, *arguments, **given) -> subprocess.CompletedProcess:
    script = tmp_path / "train.py"
    script.write_text(WORKERS)
    return subprocess.run(
        [sys.executable, "-S", str(script), *arguments],
        env=sdk_process.environment(directory, pure, given),
        capture_output=True,
        text=True,
        timeout=300,
    )


def identities(directory) -> list[dict]:
    return [one.identity for one in sdk_process.Outcome(directory, 0, [], "").snapshots()]


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_children_are_numbered_in_one_run(tmp_path, directory, pure, method):
    """Their parent evaluates at the end: it is in their run, under a number of its own."""
    done = run_workers(tmp_path, directory, pure, method, "test")
    assert done.stderr == ""
    found = identities(directory)
    assert [(one["rank"], one["attempt"]) for one in found] == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert len({one["run"] for one in found}) == 1 and found[3]["worker"] == "MainProcess"
    assert len({one["worker"] for one in found}) == 4
    assert [one["group"] for one in found] == ["", "process 1", "process 2", "process 3"]


def test_rerun_takes_the_numbers_again(tmp_path, directory, pure):
    for launch in ("a", "b"):
        run_workers(tmp_path, directory, pure, "fork", GOODPUT_RUN="r", GOODPUT_LAUNCH=launch)
    found = identities(directory)
    assert [(one["rank"], one["attempt"]) for one in found] == [(r, a) for r in range(3) for a in (1, 2)]
    workers = [(one["rank"], one["worker"]) for one in found]
    assert workers[::2] == workers[1::2]


HOLDER = "goodput.start(run='r')\nwith goodput.step(): pass\nemit(1)\nsys.stdin.read()"


def hold(directory, pure, launch: str, code: str = HOLDER) -> subprocess.Popen:
    """A process that trains until its input is closed; it has its page on return."""
    process = subprocess.Popen(
        sdk_process.command(code),
        env=sdk_process.environment(directory, pure, {"GOODPUT_LAUNCH": launch}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout and process.stdout.readline()
    return process


def test_two_launches_never_share_a_run(directory, pure):
    """Two scripts of one name from two terminals: the second is refused and says so."""
    first = hold(directory, pure, "terminal 1")
    second = hold(directory, pure, "terminal 2")
    third = hold(directory, pure, "terminal 1")
    _, errors = second.communicate(timeout=300)
    assert b"already writes this rank's page" in errors
    for one in (first, third):
        assert one.communicate(timeout=300)[1] == b""
    found = identities(directory)
    assert [(one["rank"], one["pid"]) for one in found] == [(0, first.pid), (1, third.pid)]


def test_restart_takes_its_number_while_others_live(directory, pure):
    """The first process is killed and started again; the second lives on."""
    first, second = (hold(directory, pure, "a") for _ in range(2))
    first.kill()
    first.communicate(timeout=300)
    again = hold(directory, pure, "a")
    for one in (again, second):
        one.communicate(timeout=300)
    found = [(one["rank"], one["attempt"], one["pid"]) for one in identities(directory)]
    assert found == [(0, 1, first.pid), (0, 2, again.pid), (1, 1, second.pid)]


def test_other_work_takes_another_number(directory, pure):
    """A script with other arguments that follows one that has finished is no restart."""
    for fold in "12":
        subprocess.run(
            [*sdk_process.command("goodput.start(run='r')\nwith goodput.step(): pass"), fold],
            env=sdk_process.environment(directory, pure, {"GOODPUT_LAUNCH": "a"}),
            check=True,
            timeout=300,
        )
    assert [(one["rank"], one["attempt"]) for one in identities(directory)] == [(0, 1), (1, 1)]


def test_unrelated_scripts_are_two_runs(tmp_path, directory, pure):
    """Without a name for the run each has its own, whatever the script is called."""
    for _ in range(2):
        run_workers(tmp_path, directory, pure, "fork")
    found = identities(directory)
    assert len({one["run"] for one in found}) == 2 and {one["attempt"] for one in found} == {1}


NESTED = """
import multiprocessing, os, sys
import goodput

def train(context):
    for i in goodput.steps(range(2)): pass
    if context:
        start(context, None)

def start(context, inner):
    one = context.Process(target=train, args=(inner,))
    one.start(); one.join()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    start(context, context)
    print(os.getpid())
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_process_of_a_process_has_the_root_of_both(tmp_path, directory, pure, method):
    """A fork server lies between the two in the kernel's tree of processes."""
    script = tmp_path / "train.py"
    script.write_text(NESTED)
    done = subprocess.run(
        [sys.executable, str(script), method],
        env=sdk_process.environment(directory, pure, {}),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found = identities(directory)
    assert [one["root_pid"] for one in found] == [int(done.stdout)] * 2
    assert len({one["run"] for one in found}) == 1
