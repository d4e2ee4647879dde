"""Processes without ranks: each is counted while it lives, and restarts by itself."""

import json

from support.account.account_history import Process, account_of, of_rank, run_of

from goodput.account import document
from goodput.account.text import render
from goodput.runlog import replay


def worker(rank: int, name: str = "", **given) -> Process:
    group = f"process {rank}" if rank else ""
    return Process(rank, worker=name or f"Process-{rank + 1}", group=group, world_size=rank + 1, **given)


def test_workers_are_counted_while_they_live():
    """One lives from 0 to 6 s, the other from 4 to 14 s: neither waits, is down or unobserved."""
    first = worker(0).between(none=1).steps(5, forward=1).finished()
    second = worker(1, start=4).between(none=2).steps(4, forward=2).finished()
    account = account_of(first, second, elastic=True)
    assert account.status == "finished" and account.world_size == 2
    assert of_rank(account, 0) == {"startup": 1, "productive": 5}
    assert of_rank(account, 1) == {"startup": 2, "productive": 8}
    found = document(account)
    assert found["gpu_seconds"] == 16 and found["workers"] == {"counted": 2, "left_out": 0}
    text = " ".join(render(found, full=True).split())
    assert "covers 2 processes without ranks, numbered (0 is Process-1, 1 is Process-2)" in text


def test_restart_loses_no_step_of_others():
    """The second is killed after four steps and resumes after its second; it is down for 3 s."""
    first = worker(0).steps(30, forward=1)
    killed = worker(1).steps(4, forward=1).killed()
    again = worker(1, attempt=2, start=7).resumed(1).steps(16, forward=1)
    account = account_of(first, killed, again, now=30, elastic=True)
    assert [(rank.kept_steps, rank.lost_steps) for rank in account.ranks] == [(30, 0), (18, 2)]
    assert of_rank(account, 1) == {"productive": 18, "lost": 2, "down": 3, "unattributed": 7}
    (restart,) = account.restarts
    assert (restart.resume_step, restart.lost_steps, restart.down_gpu_ns) == (1, 2, 3 * 10**9)


def test_failure_without_launcher_ends_the_run():
    """Nothing restarts it: the run is not down until someone does, and then it was."""
    failed = worker(0, "MainProcess").steps(5, forward=1).begun(forward=1).failed()
    account = account_of(failed, now=30, elastic=True)
    assert (account.status, account.end_ns - account.start_ns) == ("failed", 6 * 10**9)
    assert of_rank(account, 0) == {"productive": 5, "lost": 1}
    again = worker(0, "MainProcess", attempt=2, start=20).resumed(4).steps(5, forward=1)
    assert of_rank(account_of(failed, again, now=25, elastic=True), 0)["down"] == 14


def test_killed_worker_ends_the_run_too():
    failed = worker(0).steps(5, forward=1).failed()
    killed = worker(1).steps(5, forward=1).killed()
    for account in (
        account_of(failed, killed, now=30, elastic=True),
        account_of(killed, now=30, elastic=True),
    ):
        assert (account.status, account.end_ns) == ("failed", 5 * 10**9)


def test_number_of_another_worker_is_no_restart():
    """A pool's next worker has the number of one whose page is gone; it repeats no step of that one."""
    first = worker(0).steps(20, forward=1).finished()
    one = worker(1, "Process-2").steps(4, forward=1).finished()
    other = worker(1, "Process-3", attempt=2, start=7).steps(5, forward=1).finished()
    account = account_of(first, one, other, elastic=True)
    assert account.ranks[1].kept_steps == 9 and account.ranks[1].lost_steps == 0
    assert of_rank(account, 1) == {"productive": 9}


def test_rerun_repeats_all_workers():
    lives = [worker(rank, attempt=n, start=10 * n).steps(3, forward=1) for rank in (0, 1) for n in (1, 2)]
    account = account_of(*(one.finished() for one in lives), elastic=True)
    assert [(rank.kept_steps, rank.lost_steps) for rank in account.ranks] == [(3, 3), (3, 3)]


def test_parent_without_steps_is_left_out():
    """It is counted as long as nobody has made a step, since it may be the one that trains."""
    parent = worker(0, "MainProcess").between(none=3, evaluation=2)
    child = worker(1, "Process-1", start=1).between(none=4)
    assert len(account_of(parent, child, now=5, elastic=True).ranks) == 2
    child.steps(3, forward=1)
    account = account_of(parent, child, now=8, elastic=True)
    assert [rank.rank for rank in account.ranks] == [1] and account.left_out == 1
    assert "1 without a step is left out" in " ".join(render(document(account), full=True).split())


def test_generator_without_steps_is_counted():
    trainer = worker(0).steps(5, forward=1).finished()
    generator = worker(1).between(none=1, rollout=4).finished()
    account = account_of(trainer, generator, elastic=True)
    assert of_rank(account, 1) == {"startup": 1, "rollout": 4} and account.left_out == 0


def test_ranked_run_is_not_of_workers():
    """The first process began before its rank was known."""
    ranks = [Process(0, worker="MainProcess"), Process(1)]
    assert not run_of(*ranks).is_of_workers()
    assert not run_of(Process(0, worker="MainProcess")).is_of_workers()


def test_log_of_workers(tmp_path):
    """A log by hand: the parent's line is there, its time is not."""
    lines = [
        {"kind": "attempt", "time": 0, "rank": 0, "worker": "MainProcess"},
        {"kind": "attempt", "time": 1, "rank": 1, "worker": "Process-1", "group": "process 1"},
        {"kind": "step", "time": 3, "rank": 1, "step": 0, "seconds": 1, "phases": {"forward": 1}},
        {"kind": "end", "time": 3, "rank": 1},
        {"kind": "end", "time": 5, "rank": 0},
    ]
    log = tmp_path / "run.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (one,) = replay(str(log))
    assert [rank.rank for rank in one.account.ranks] == [1] and one.account.left_out == 1
    assert of_rank(one.account) == {"startup": 1, "productive": 1} and one.hang is None
