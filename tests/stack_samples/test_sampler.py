"""Which rank is sampled and when: nothing where no rank is idle, turns, pauses, and the bound of the CPU time."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support.node.node_rank import Rank

from goodput.stack_samples import sample_file
from goodput.stack_samples.beside_run import is_descendant
from goodput.stack_samples.py_spy import Recording
from goodput.stack_samples.sampler import (
    BUILT_IN,
    CPU_SHARE_MAX,
    PAUSE_SECONDS,
    RETRY_SECONDS,
    StackSampler,
    shares,
)

RAW = "thread (7): MainThread;next_batch (data.py:41) 46"
MS = 1_000_000


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Standin:
    """A recorder that returns `given` and notes the processes."""

    def __init__(self, **given):
        self.given, self.pids, self.is_stopped = {"raw": RAW, **given}, [], False
        self.meanwhile = lambda: None

    def record(self, pid: int) -> Recording:
        self.pids.append(pid)
        self.meanwhile()
        return Recording(**self.given)


def seen(none: int, forward: int, steps: int = 9) -> SimpleNamespace:
    """A snapshot of a rank that is over, so that no phase goes on."""
    return SimpleNamespace(
        phases=("none", "forward"), totals=(none, forward), steps_done=steps, ended="finished"
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def page(tmp_path) -> Rank:
    """A page in use: `ended`, so that its fixed clock does not go on."""
    rank = Rank(tmp_path, pid=os.getpid())
    rank.many(6, {"none": 10 * MS, "forward": 90 * MS})
    rank.end("finished")
    return rank


def sampler_of(clock, **given) -> tuple[StackSampler, Standin]:
    recorder = Standin(**given)
    return StackSampler(recorder, monotonic=clock), recorder


def test_busy_ranks_are_never_sampled(clock):
    sampler, recorder = sampler_of(clock)
    for second in range(300):
        clock.now += 1
        ranks = [(f"{rank}.page", seen(second * MS, second * 99 * MS)) for rank in range(8)]
        assert sampler.choose(ranks) is None
    assert recorder.pids == []


def test_idle_rank_is_chosen_by_its_recent_time(clock):
    """An hour without a phase long ago does not count, nor the set-up before the first steps."""
    sampler, _ = sampler_of(clock)
    hour = 3_600_000 * MS
    assert sampler.choose([("a", seen(hour, 0, steps=2))]) is None
    assert sampler.choose([("a", seen(hour, 0))]) is None
    clock.now += 1
    assert sampler.choose([("a", seen(hour, 1000 * MS))]) is None
    assert sampler.choose([("a", seen(hour + 30 * MS, 1000 * MS))]) == "a"


def test_first_burst_waits_for_another_sampler(clock):
    sampler = StackSampler(Standin(), delay_seconds=10, monotonic=clock)
    sampler.choose([("a", seen(0, 0))])
    clock.now += 9
    assert sampler.choose([("a", seen(10, 10))]) is None
    clock.now += 1
    assert sampler.choose([("a", seen(10, 10))]) == "a"


def test_pauses_between_bursts_grow(clock, page):
    sampler, recorder = sampler_of(clock)
    sampler.choose([(page.path, seen(0, 0))])
    taken = []
    for second in range(600):
        clock.now += 1
        path = sampler.choose([(page.path, seen((second + 1) * 10**9, 10**9))])
        if path is not None:
            sampler.sample(path, 42)
            taken.append(second)
            os.utime(sample_file.path_of(path), (1, 1))
    assert taken == [0, PAUSE_SECONDS, 3 * PAUSE_SECONDS, 7 * PAUSE_SECONDS]
    assert recorder.pids == [42] * 4
    start_ns = page.identity["start_unix_ns"]
    assert sample_file.read(page.path, start_ns) == ({"data.py:next_batch, line 41": 4 * 46}, 4 * 46, "")


def test_cpu_time_of_all_bursts_is_bounded(clock, tmp_path):
    """However many ranks are idle, bursts of 0.5 s of CPU time leave 100 s between them."""
    sampler, recorder = sampler_of(clock, cpu_seconds=0.5)
    paths = [Rank(tmp_path, rank=rank).path for rank in range(8)]
    for second in range(1000):
        clock.now += 1
        path = sampler.choose((path, seen(second * 10**9, 0)) for path in paths)
        if path is not None:
            sampler.sample(path, 1)
            os.utime(sample_file.path_of(path), (1, 1))
    assert 0.5 * len(recorder.pids) <= CPU_SHARE_MAX * 1000 + 0.5
    assert len(recorder.pids) == 10 == sampler.outcomes["taken"]
    assert all(sample_file.written_ns(path) for path in paths), "each has its turn"


def test_burst_in_another_phase_is_discarded(clock, page):
    """Stacks of an evaluation look like no phase; the next burst is soon."""
    sampler, recorder = sampler_of(clock)
    sampler.choose([(page.path, seen(0, 0))])
    recorder.meanwhile = lambda: page.spend({"evaluation": 200 * MS, "none": 800 * MS})
    sampler.sample(page.path, 1)
    assert sampler.outcomes == {"taken": 0, "discarded": 1, "failed": 0, "refused": 0}
    assert not sample_file.written_ns(page.path)
    later = seen(10**12, 10**12)
    assert sampler.choose([(page.path, later)]) is None
    clock.now += RETRY_SECONDS
    assert sampler.choose([(page.path, later)]) == page.path


def test_reason_does_not_replace_samples(clock, page):
    start_ns = page.identity["start_unix_ns"]
    refused, _ = sampler_of(clock, raw="", reason="py-spy: no")
    refused.sample(page.path, 1)
    assert sample_file.read(page.path, start_ns) == ({}, 0, "py-spy: no")
    sampler_of(clock)[0].sample(page.path, 1)
    refused.sample(page.path, 1)
    assert sample_file.read(page.path, start_ns) == ({"data.py:next_batch, line 41": 46}, 46, "")


def test_rank_that_another_sampler_follows_waits(clock, page):
    one, _ = sampler_of(clock)
    other, _ = sampler_of(clock)
    for sampler in (one, other):
        sampler.choose([(page.path, seen(0, 0))])
    assert one.choose([(page.path, seen(1, 1))]) == page.path
    one.sample(page.path, 1)
    assert other.choose([(page.path, seen(2, 2))]) is None


def test_shares_tell_idle_time_from_other_phases():
    before = dict.fromkeys(BUILT_IN, 0)
    after = before | {
        "none": 20,
        "loader_estimated": 4,
        "before_forward": 6,
        "forward": 50,
        "render": 15,
        "evaluation": 5,
    }
    assert shares(before, after) == (0.3, 0.2)
    assert shares(after, after) == (0.0, 0.0)


def test_descendants_are_found():
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        assert is_descendant(child.pid, os.getpid())
        assert not is_descendant(os.getpid(), child.pid)
    finally:
        child.communicate()
