"""What a session is told after its page was opened: it goes into the page; until the first step also who it is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.sdk import sdk_process
from support.sdk.checks import check

STEPS = "\nfor i in goodput.steps(range(3)): work()\n"
EARLY = "with goodput.phase('restore'): spin(2000)\n"


def test_what_is_found_out_holds_from_then_on_and_the_users_word_holds_over_it(sdk):
    out = sdk(
        """
        said = goodput._session
        said.tell(device="H100", devices=8)                     # before anything has started
        goodput.start(run="r", dtype="fp8", gpu_hour_cost=2)
        tell(snapshot().identity)
        with goodput.step(): work()
        said.tell(dtype="bf16", flops_per_step=1e12, device="H200", world_size=4, gpu_power_watts=-1)
        tell(snapshot().identity)
        said.tell(flops_per_step=2e12, world_size=2, stage=None)
        goodput.start(run="r", dtype="int8", peak_flops_per_second=1e15, flops_per_step=3e12)
        goodput.start(flops_per_step=4e12)
    """
    )
    snapshot = check(out.snapshot())
    first, second = out.told
    assert (first["device"], first["devices"], first["dtype"], first["gpu_hour_cost"]) == (
        "H100",
        8,
        "fp8",
        2.0,
    )
    assert (second["dtype"], second["flops_per_step"], second["device"], second["world_size"]) == (
        "fp8", 1e12, "H200", 4,
    )  # fmt: skip
    last = snapshot.identity
    assert (last["dtype"], last["flops_per_step"], last["peak_flops_per_second"]) == ("fp8", 3e12, 1e15)
    assert last["world_size"] == 4 and last["gpu_power_watts"] is None
    assert len(out.said()) == 1 and "gpu_power_watts" in out.errors


def test_nothing_new_writes_nothing(sdk):
    out = sdk("""
        from goodput.rank_page import page
        goodput.start(run="r", dtype="bf16")
        words = goodput._session.writer.words
        for i in range(3):
            goodput._session.tell(dtype="fp8", devices=1)
            goodput.start(run="r", dtype="fp8")
            goodput._session.place(0, 1)
        tell(words[page.W_REVISION])
    """)
    assert out.told == [0] and not out.errors


@pytest.mark.parametrize(
    "early", [EARLY, "with goodput.step():\n  goodput.start('mine', 3, 8, attempt=5)\n  work()\n"]
)
def test_a_start_after_the_session_began_by_itself_still_says_who_this_is(sdk, early):
    """The page is the same, with all its time; no other is left behind."""
    out = sdk(
        "began = time.perf_counter_ns()\n" + early + """\
with goodput.phase("mine", "productive"): spin(50)
goodput.mark("before")
goodput.start("mine", 3, 8, attempt=5, flops_per_step=1e9)
goodput.mark("after")
tell(goodput.report().account["ranks"][0]["rank"])
""" + STEPS,
        RANK="1", WORLD_SIZE="2", TORCHELASTIC_RUN_ID="job",
    )  # fmt: skip
    snapshot = check(out.snapshot())
    found = snapshot.identity
    assert [found[name] for name in ("run", "rank", "world_size", "attempt")] == ["mine", 3, 8, 5]
    assert out.told == [3] and found["flops_per_step"] == 1e9 and not out.errors
    assert [event.text for event in snapshot.events] == ["before", "after"]
    assert snapshot.steps_done == 3 + ("step" in early) and not any(snapshot.drops.values())
    assert snapshot.totals[snapshot.phases.index("restore")] >= (2_000_000 if early == EARLY else 0)
    assert snapshot.phase_states == {"mine": "productive"} and not snapshot.provisional
    assert os.listdir(out.directory) == [out.paths()[0].name]


def test_after_the_first_step_it_is_too_late_to_be_another_but_not_to_be_told(sdk):
    out = sdk("""
        with goodput.step(): work()
        goodput.start(run="other", rank=2, world_size=4, dtype="bf16")
        goodput._session.place(1, 8)
        with goodput.step(): work()
    """, GOODPUT_RUN="r")  # fmt: skip
    snapshot = check(out.snapshot())
    assert (snapshot.identity["run"], snapshot.identity["rank"], snapshot.steps_done) == ("r", 0, 2)
    assert snapshot.identity["dtype"] == "bf16"
    assert len(out.said()) == 1 and "after the first step" in out.errors


def test_an_attempt_that_followed_in_the_same_process_settles_who_it_is(sdk):
    out = sdk("""
        with goodput.step(): work()
        goodput.resumed(-1)
        goodput.start(run="other")
    """, GOODPUT_RUN="r")  # fmt: skip
    assert {s.identity["run"] for s in out.snapshots()} == {"r"} and "after the first step" in out.errors


def test_the_place_found_out_counts_where_nobody_says_otherwise(sdk):
    code = "{first}goodput._session.place(3, 8, run='common')\ngoodput.start(){rest}" + STEPS
    for first in ("", EARLY):
        out = sdk(code.format(first=first, rest=""))
        assert check(out.snapshots()[-1]).identity["run"] == "common"
        assert [out.snapshots()[-1].identity[name] for name in ("rank", "world_size")] == [3, 8]
        out.paths()[0].unlink()
    out = sdk(code.format(first=EARLY, rest=""), RANK="1", WORLD_SIZE="2", TORCHELASTIC_RUN_ID="job")
    found = check(out.snapshot()).identity
    assert [found[name] for name in ("run", "rank", "world_size")] == ["job", 1, 2] and not out.errors


def test_the_users_rank_holds_over_the_one_found_out(sdk):
    out = sdk("goodput.start(run='r', rank=5, world_size=6)\ngoodput._session.place(3, 8)" + STEPS)
    found = check(out.snapshot()).identity
    assert (found["rank"], found["world_size"]) == (5, 6) and not out.errors


def test_a_page_can_be_moved_to_another_directory(sdk, directory, tmp_path):
    there = directory.parent / "there"
    out = sdk(EARLY + f"goodput.start(run='r', directory={str(there)!r})" + STEPS)
    snapshot = check(sdk_process.Outcome(there, 0, [], "").snapshot())
    assert (snapshot.identity["run"], snapshot.steps_done) == ("r", 3) and not out.paths() and not out.errors


def test_a_page_that_cannot_be_moved_stays_and_has_the_new_name(sdk):
    """Another file system cannot have it, nor a directory that cannot be."""
    for impossible in ("/proc/nowhere", "/proc"):
        out = sdk(EARLY + f"goodput.start(run='r', directory={impossible!r})" + STEPS)
        (path,) = out.paths()
        snapshot = check(out.snapshot())
        assert (snapshot.identity["run"], snapshot.steps_done) == ("r", 3) and path.name == "r.0.1.page"
        assert len(out.said()) == 1 and "cannot move" in out.errors
        path.unlink()


def test_a_world_that_was_found_larger_stays_so(sdk):
    out = sdk(
        EARLY + "goodput._session.tell(world_size=16)\ngoodput._session.place(1, 2)" + STEPS,
        RANK="1",
        WORLD_SIZE="2",
    )
    assert check(out.snapshot()).identity["world_size"] == 16


def test_a_rank_that_another_process_has_is_not_taken(sdk, directory, pure):
    holder = subprocess.Popen(
        [*sdk_process.command("goodput.start(run='r', rank=3, world_size=4); tell(1); sys.stdin.read()")],
        env=sdk_process.environment(directory, pure, {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        holder.stdout.readline()
        out = sdk(
            EARLY
            + "goodput.start(run='r', rank=3, world_size=4)\ntell(bool(goodput.report().account))"
            + STEPS
        )
        assert out.told == [True] and "already writes" in out.errors
        snapshot = out.snapshot()
        assert snapshot.identity["pid"] == holder.pid and snapshot.drops["claim"] == 1
        out = sdk("tell(1)")  # the holder's lock is still seen
        from goodput.rank_page.page import is_locked

        assert is_locked(str(out.paths()[0]))
    finally:
        holder.communicate()


def test_the_lock_is_kept_when_the_page_is_moved(sdk):
    out = sdk(EARLY + """
for i in range(3): goodput._session.place(i + 1, 8)
goodput.start(run="r")
goodput.start(run="r", attempt=1)
from subprocess import run
probe = "import sys\\nfrom goodput.rank_page.page import is_locked\\nprint(int(is_locked(sys.argv[1])))"
print(run([sys.executable, "-S", "-c", probe, goodput._session.writer.path], capture_output=True, text=True).stdout, end="", flush=True)
""")  # fmt: skip
    assert out.told == [1] and out.snapshot().identity["rank"] == 3 and not out.errors


def test_provisional_until_the_user_or_a_step_has_spoken(sdk):
    out = sdk("""
        with goodput.phase("restore"): tell(snapshot().provisional)
        goodput._session.place(1, 2); tell(snapshot().provisional)
        with goodput.step(): tell(snapshot().provisional)
        tell(snapshot().provisional)
        goodput.stop(); goodput.start(run="r"); tell(snapshot().provisional)
    """)
    assert out.told == [True, True, True, False, False]


def test_a_call_that_comes_while_another_is_under_way_is_not_lost(sdk):
    """From a signal handler inside `start`, and from threads all at once."""
    out = sdk("""
        said = goodput._session
        opened = said.open
        def open(*arguments, **more):
            said.tell(dtype="bf16")                   # as a signal handler would
            said.start(explicit=True, gpu_hour_cost=2)
            for i in range(100): work()
            opened(*arguments, **more)
        said.open = open
        goodput.start(run="r")
        names = ("group", "device", "device_uuid")
        numbers = ("stage", "tensor", "microbatches")
        def told(name, value): said.tell(**{name: value})
        threads = [threading.Thread(target=told, args=(n, f"v{i}")) for i, n in enumerate(names)]
        threads += [threading.Thread(target=told, args=(n, i + 1)) for i, n in enumerate(numbers)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """)
    found = out.snapshot().identity
    assert (found["dtype"], found["gpu_hour_cost"]) == ("bf16", 2.0)
    assert [found[n] for n in ("group", "device", "device_uuid", "stage", "tensor", "microbatches")] == [
        "v0", "v1", "v2", 1, 2, 3,
    ]  # fmt: skip


def test_junk_is_said_and_hurts_nothing(sdk):
    junk = """
        class Bad:
            def __str__(self): raise RuntimeError("no")
            __repr__ = __float__ = __index__ = __str__
        for value in (Bad(), [], b"x", float("nan"), 10 ** 400, -1):
            goodput._session.tell(flops_per_step=value, devices=value, stage=value)
            goodput._session.place(value, value, run=value)
        goodput._session.place(Bad(), 8)
        goodput._session.tell(nonsense=1, run="x", rank=7, pid=3)
        goodput._session.tell(device=Bad(), dtype=Bad())
        goodput.start(rank=Bad(), world_size="x", flops_per_step="many", run=Bad())
        goodput.start(rank=Bad(), run=Bad(), directory=7)
        for i in goodput.steps(range(3)): work()
    """
    for early in ("", "        with goodput.phase('h2d'): pass\n"):
        out = sdk(early + junk)
        snapshot = check(out.snapshots()[-1])
        found = snapshot.identity
        assert (snapshot.steps_done, found["rank"], found["devices"], found["stage"]) == (3, 0, 1, None)
        assert 0 < len(out.said()) <= 20
        out.paths()[-1].unlink()


def test_disabled_and_forked_processes_are_told_nothing(sdk):
    out = sdk("""
        goodput._session.tell(dtype="bf16"); goodput._session.place(2, 4)
        if os.fork() == 0:
            goodput._session.tell(device="x")
            goodput.start(run="child"); goodput.stop(); os._exit(0)
        os.wait()
        goodput.start(run="parent")
    """)
    found = {s.identity["run"]: s.identity for s in out.snapshots()}
    assert (found["parent"]["rank"], found["parent"]["dtype"]) == (2, "bf16")
    assert (found["child"]["rank"], found["child"]["dtype"], found["child"]["device"]) == (0, "", "x")
    out = sdk(
        "goodput._session.tell(dtype='bf16'); goodput._session.place(2, 4); goodput.start()",
        GOODPUT_DISABLE="1",
    )
    assert not out.errors and len(out.paths()) == 2


SPAWNED = """
import multiprocessing, sys
import goodput

def child(rank):
    with goodput.phase("restore"): pass
    if rank < 2:
        goodput._session.place(rank, 2)
    for i in goodput.steps(range(2)): pass

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    children = [context.Process(target=child, args=(rank,)) for rank in range(3)]
    for one in children: one.start()
    for one in children: one.join()
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ranks_that_one_process_spawned_share_its_run(tmp_path, directory, pure, method):
    """And a child that is no rank has a run of its own, as before."""
    script = tmp_path / "train.py"
    script.write_text(SPAWNED)
    process = subprocess.Popen(
        [sys.executable, "-S", str(script), method],
        env=sdk_process.environment(directory, pure, {}),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.communicate(timeout=60)[1] == ""
    found = [check(s).identity for s in sdk_process.Outcome(directory, 0, [], "").snapshots()]
    ranks = [one for one in found if one["world_size"] == 2]
    assert sorted((one["run"], one["rank"]) for one in ranks) == [
        (f"train-{process.pid}", 0),
        (f"train-{process.pid}", 1),
    ]
    (alone,) = (one for one in found if one["world_size"] == 1)
    assert alone["run"] == f"train-{alone['pid']}"
