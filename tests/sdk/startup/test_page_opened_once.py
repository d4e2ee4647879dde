"""The page is opened once: what opens it, whose it is, and what a later contradiction changes (nothing)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.sdk import sdk_process
from support.sdk.checks import check

STEPS = "\nfor i in goodput.steps(range(3)): work()\n"
OPENED_BY = {
    "a loader": "for i in goodput.loader(range(2)): work()\n",
    "a phase": "with goodput.phase('restore'): spin(2000)\n",
    "a step": "with goodput.step(): work()\n",
    "a start": "goodput.start()\n",
}
JOB = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job"}
WHO = ("run", "rank", "world_size", "attempt")


@pytest.mark.parametrize("first", OPENED_BY)
def test_launcher_rank_holds_for_any_first_call(sdk, first):
    out = sdk(OPENED_BY[first] + "goodput.start()" + STEPS, **JOB)
    found = check(out.snapshot()).identity
    assert [found[name] for name in WHO] == ["job", 1, 2, 1] and not out.errors
    assert os.listdir(out.directory) == [out.paths()[0].name]


@pytest.mark.parametrize("first", OPENED_BY)
@pytest.mark.parametrize(
    "arguments",
    ["'mine'", "rank=0", "world_size=1", "attempt=5", "directory='/tmp/elsewhere'", "run=object()"],
)
def test_later_start_with_another_identity_is_refused(sdk, first, arguments):
    """It is reported once; the page keeps its identity and its time, and takes the declared fields."""
    out = sdk(
        OPENED_BY[first]
        + f"goodput.start({arguments}, dtype='bf16', flops_per_step=1e9)\n"
        + "goodput.start('third', 7, 8)\n"
        + "emit(goodput.report().account['ranks'][0]['rank'])"
        + STEPS,
        **JOB,
    )
    snapshot = check(out.snapshot())
    assert [snapshot.identity[name] for name in WHO] == ["job", 1, 2, 1] and out.emitted == [1]
    assert (snapshot.identity["dtype"], snapshot.identity["flops_per_step"]) == ("bf16", 1e9)
    assert len(out.messages()) == 1 and "already measured as run 'job', rank 1" in out.errors
    assert snapshot.drops["error"] == 2 and snapshot.steps_done == 3 + (first == "a step")
    assert os.listdir(out.directory) == [out.paths()[0].name]


def test_later_start_with_the_same_identity_is_silent(sdk, directory):
    out = sdk(
        OPENED_BY["a phase"] + f"goodput.start('job', 1, 2, attempt=1, directory={str(directory)!r})" + STEPS,
        **JOB,
    )
    snapshot = check(out.snapshot())
    assert not out.errors and snapshot.totals[snapshot.phases.index("restore")] >= 2_000_000


def test_group_rank_opens_the_page_where_nobody_names_one(sdk):
    """A process group made first, as in scripts that spawn their ranks."""
    out = sdk("goodput._session.set_rank(3, 8)\ngoodput.start()" + STEPS)
    found = check(out.snapshot()).identity
    assert (found["rank"], found["world_size"]) == (3, 8) and not out.errors


def test_last_group_before_the_page_opens_counts(sdk):
    out = sdk("for i in range(3): goodput._session.set_rank(i + 1, 8)" + STEPS)
    assert check(out.snapshot()).identity["rank"] == 3 and not out.errors


@pytest.mark.parametrize("variables", [{}, JOB], ids=["user", "launcher"])
def test_user_and_launcher_rank_win_over_the_group(sdk, variables):
    start = "" if variables else "goodput.start(run='r', rank=5, world_size=6)\n"
    for code in (start + "goodput._session.set_rank(3, 8)", "goodput._session.set_rank(3, 8)\n" + start):
        out = sdk(code + STEPS, **variables)
        found = check(out.snapshots()[-1]).identity
        assert (found["rank"], found["world_size"]) == ((1, 2) if variables else (5, 6)) and not out.errors
        out.paths()[0].unlink()


def test_group_made_after_a_loader_cannot_change_the_rank(sdk):
    """Nobody named a rank, so the loader opened rank 0's page; the group's rank is reported and not taken."""
    out = sdk(OPENED_BY["a loader"] + "for i in range(2): goodput._session.set_rank(3, 8)" + STEPS)
    found = check(out.snapshot()).identity
    assert (found["rank"], found["world_size"]) == (0, 1)
    assert len(out.messages()) == 1 and "the process group has rank 3 of 8" in out.errors


def test_group_of_the_same_rank_enlarges_the_world(sdk):
    out = sdk(OPENED_BY["a loader"] + "goodput._session.set_rank(0, 8)\ngoodput.start()" + STEPS)
    found = check(out.snapshot()).identity
    assert (found["rank"], found["world_size"]) == (0, 8) and not out.errors


def test_world_size_only_grows(sdk):
    out = sdk(
        OPENED_BY["a phase"]
        + "goodput._session.declare(world_size=16)\ngoodput._session.set_rank(1, 2)"
        + STEPS,
        **JOB,
    )
    assert check(out.snapshot()).identity["world_size"] == 16


def test_next_attempt_in_the_same_process_keeps_the_identity(sdk):
    out = sdk("""
        with goodput.step(): work()
        goodput.resumed(-1)
        goodput.start(run="other")
    """, GOODPUT_RUN="r")  # fmt: skip
    assert {(s.identity["run"], s.identity["attempt"]) for s in out.snapshots()} == {("r", 1), ("r", 2)}
    assert len(out.messages()) == 1 and "already measured" in out.errors


def test_restart_after_stop_may_be_another_rank(sdk):
    out = sdk("""
        with goodput.step(): work()
        goodput.stop()
        goodput.start("other", 2, 4)
        with goodput.step(): work()
    """, GOODPUT_RUN="r")  # fmt: skip
    found = [(s.identity["run"], s.identity["rank"], s.steps_done) for s in map(check, out.snapshots())]
    assert found == [("r", 0, 1), ("other", 2, 1)] and not out.errors


def test_implicit_page_of_a_rank_that_another_process_has(sdk, directory, pure):
    holder = subprocess.Popen(
        [*sdk_process.command("goodput.start(run='r', rank=3, world_size=4); emit(1); sys.stdin.read()")],
        env=sdk_process.environment(directory, pure, {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        holder.stdout.readline()
        code = OPENED_BY["a phase"] + "emit(bool(goodput.report().account))" + STEPS
        out = sdk(code, GOODPUT_RUN="r", RANK="3", WORLD_SIZE="4")
        assert out.emitted == [True] and "already writes" in out.errors
        snapshot = out.snapshot()
        assert snapshot.identity["pid"] == holder.pid and snapshot.drops["claim"] == 1
        from goodput.rank_page.page import is_locked

        assert is_locked(str(out.paths()[0])), "the holder's lock is kept"
    finally:
        holder.communicate()


SPAWNED = """
import multiprocessing, sys
import goodput

def child(rank):
    if rank < 2:
        goodput._session.set_rank(rank, 2)
    with goodput.phase("restore"): pass
    for i in goodput.steps(range(2)): pass

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    children = [context.Process(target=child, args=(rank,)) for rank in range(3)]
    for one in children: one.start()
    for one in children: one.join()
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_spawned_ranks_share_their_parents_run(tmp_path, directory, pure, method):
    """A child that is no rank gets a run without them."""
    script = tmp_path / "train.py"
    script.write_text(SPAWNED)
    process = subprocess.Popen(
        [sys.executable, "-S", str(script), method],
        env=sdk_process.environment(directory, pure, {}),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.communicate(timeout=300)[1] == ""
    found = [check(s).identity for s in sdk_process.Outcome(directory, 0, [], "").snapshots()]
    ranks = [one for one in found if one["world_size"] == 2]
    assert sorted((one["run"], one["rank"]) for one in ranks) == [
        (f"train-{process.pid}", 0),
        (f"train-{process.pid}", 1),
    ]
    (alone,) = (one for one in found if one["world_size"] == 1)
    assert alone["run"] == f"train-{process.pid}-workers"
