"""The slow rank of the last minutes, which alerts use, by the same rule as the account's."""

from __future__ import annotations

import pytest
from support.account.account_history import Process, account_of, ns
from support.account.pipeline_simulator import Training

from goodput.aggregator.accounts.recent_stragglers import RecentStragglers


def grown(ranks: list[Process], steps: int, slow: int, factor: float = 1.5):
    """The sums after further steps in which one rank is slow."""
    for _ in range(steps):
        for one in ranks:
            busy = factor if one.rank == slow else 1.0
            one.step(forward=busy, communication=0.1 + factor - busy)
    return account_of(*ranks, now=ranks[0].now_ns / 1e9).straggler


def test_rank_that_is_slow_now_is_named():
    recent, ranks = RecentStragglers(), [Process(rank) for rank in range(4)]
    assert recent.of("r", 0, grown(ranks, 1000, slow=0)) is None, "nothing was seen before"
    for minute in range(1, 30):
        sums = grown(ranks, 20, slow=2)
        found = recent.of("r", ns(60 * minute), sums)
        assert found is not None and found.slow_rank() == 2
        assert sums.slow_rank() == 0, "over the whole life"
        assert found.slowness(2) == pytest.approx(1.5)
        # 20 steps a minute of two minutes at least and 15 at most.
        assert found.steps[2, 1] <= 20 * 15


def test_lost_steps_begin_anew():
    recent, ranks = RecentStragglers(), [Process(rank) for rank in range(4)]
    long = grown(ranks, 20, slow=1)
    short = grown([Process(rank) for rank in range(4)], 10, slow=1)
    assert recent.of("r", 0, long) is None
    assert recent.of("r", 1, short) is None, "fewer steps than before: some were lost"
    assert recent.of("r", 2, long).slow_rank() == 1
    recent.keep([])
    assert recent.of("r", 3, long) is None


def test_sums_before_lost_steps_are_left_out_alone():
    """A restart makes 40 of 100 steps lost; sums with these are no measure, later ones are."""
    recent, ranks = RecentStragglers(), [Process(rank) for rank in range(4)]
    recent.of("r", 0, grown(ranks, 20, slow=0))
    recent.of("r", ns(300), grown(ranks, 80, slow=0))
    for one in ranks:
        one.saved(59).killed()
    again = [Process(one.rank, 2, start=one.now_ns / 1e9 + 5).resumed(59) for one in ranks]

    def further(steps: int):
        grown(again, steps, slow=2)
        return account_of(*ranks, *again, now=again[0].now_ns / 1e9).straggler

    for seconds in (600, 890, 900, 910):
        found = recent.of("r", ns(seconds), further(20))
        assert found is not None and found.slow_rank() == (0 if seconds < 900 else 2)
    # Since 600 s.
    assert found.steps == {(rank, number): 60 * (number == 2) for rank in range(4) for number in (1, 2)}


def test_slow_stage_of_the_last_minutes():
    recent = RecentStragglers()

    def work(step, stage, replica, microbatch):
        return 1.5 if stage == 3 and step >= 20 else 1.0

    training = Training(4, 8, 2)
    for steps in (20, 30):
        account = account_of(*training.processes(steps, work), now=1e6)
        found = recent.of("r", steps, account.straggler)
    assert found.culprit_stage() == 3 and found.slow_rank() is None
    assert found.stage_slowness(3) == pytest.approx(1.5)


def test_few_steps_name_nobody():
    recent, ranks = RecentStragglers(), [Process(rank) for rank in range(4)]
    recent.of("r", 0, grown(ranks, 20, slow=0))
    assert recent.of("r", 1, grown(ranks, 7, slow=2)) is None
    found = recent.of("r", 2, grown(ranks, 1, slow=2))
    assert found is not None and found.slow_rank() == 2


def test_ranks_that_left_are_no_measure():
    """Six of ten ranks leave an elastic run; then the loader becomes slower for all who stay."""
    recent, ranks = RecentStragglers(), [Process(rank) for rank in range(10)]
    recent.of("r", 0, grown(ranks, 10, slow=0, factor=1.0))
    grown(ranks, 30, slow=0, factor=1.0)
    for _ in range(200):
        for at, one in enumerate(ranks[:4]):
            one.step(forward=1.0, loader=0.3 + 0.02 * (at == 1), communication=0.12 - 0.02 * (at == 1))
    found = recent.of("r", ns(60), account_of(*ranks, now=ranks[0].now_ns / 1e9).straggler)
    assert found is not None and found.slow_rank() is None
    assert found.slowness(1) == pytest.approx(1.0 + 0.02 / 1.3, rel=0.01)
