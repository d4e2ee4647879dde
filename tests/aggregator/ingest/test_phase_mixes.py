"""Which runs began to spend their time differently, from the rows that their ranks report."""

from __future__ import annotations

import numpy as np
import pytest
from support.account.account_history import Process
from support.aggregator.reports import rank_report

from goodput.aggregator.ingest.recent.phase_mixes import SAMPLED_EACH, WINDOW_SECONDS, PhaseMixes
from goodput.aggregator.ingest.store import Store
from goodput.wire.step_blocks import TOTALS

S = 10**9


def row(*seconds: float) -> bytes:
    """A row with these totals, with time outside of steps beside each, which is in the totals too."""
    values = np.full(TOTALS + 2 * len(seconds), 7, np.int64)
    values[TOTALS::2] = [int(one * S) for one in seconds]
    return values.tobytes()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def mixes(clock):
    return PhaseMixes(clock)


class Ranks:
    """Ranks of a run, each reported once in a window, one after the other."""

    def __init__(self, mixes: PhaseMixes, clock: Clock, count: int = 10):
        self.mixes, self.clock, self.count = mixes, clock, count
        self.totals = [[0.0, 0.0, 0.0] for _ in range(count)]

    def spend(self, seconds: float, *shares: float) -> list[float]:
        """When the run was found to be changed, from the begin."""
        begun, found = self.clock.now, []
        self.mixes.changed.clear()
        while self.clock.now < begun + seconds:
            for at, before in enumerate(self.totals):
                self.clock.now += WINDOW_SECONDS / self.count
                after = [old + share for old, share in zip(before, shares, strict=True)]
                self.mixes.add("r", SAMPLED_EACH * at, row(*before), row(*after))
                self.totals[at] = after
                if self.mixes.changed.pop("r", None) is not None:
                    found.append(self.clock.now - begun)
        return found


def test_change_is_noticed_within_a_window_and_once(mixes, clock):
    ranks = Ranks(mixes, clock)
    assert ranks.spend(60, 0.03, 0.9, 0.07) == []
    found = ranks.spend(60, 0.33, 0.6, 0.07)
    assert found[0] <= WINDOW_SECONDS and found[-1] <= 2 * WINDOW_SECONDS
    assert ranks.spend(60, 0.36, 0.57, 0.07) == [], "a change by 3 % of the time"


def test_pace_alone_is_no_change(mixes, clock):
    ranks = Ranks(mixes, clock)
    ranks.spend(20, 0.1, 0.8, 0.1)
    assert ranks.spend(20, 0.2, 1.6, 0.2) == ranks.spend(20, 0.0, 0.0, 0.0) == []


def test_first_reports_and_other_widths_are_no_change(mixes):
    mixes.add("r", 0, None, row(1, 1))
    mixes.add("r", 0, row(1, 1), row(2, 2))
    mixes.add("r", 0, row(2, 2), row(3, 9, 1))
    mixes.add("r", 0, row(3, 9, 1), row(4, 9, 9))
    assert not mixes.changed


def test_totals_that_fall_or_stay_say_nothing(mixes):
    mixes.add("r", 0, row(1, 1), row(2, 2))
    for after in (row(5, 0), row(2, 2)):
        mixes.add("r", 0, row(2, 2), after)
    assert not mixes.changed and not mixes._mixes
    mixes.add("r", 0, row(2, 2), row(2, 9))
    assert mixes.changed


def test_ranks_that_differ_are_compared_with_themselves(mixes, clock):
    """Stages of a pipeline, of which now one reports, now the other."""
    totals = {0: np.zeros(2), SAMPLED_EACH: np.zeros(2)}
    for at in (0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 1, 1, 0):
        rank = SAMPLED_EACH * at
        after = totals[rank] + ((9, 1), (1, 9))[at]
        mixes.add("r", rank, row(*totals[rank]), row(*after))
        totals[rank] = after
        clock.now += WINDOW_SECONDS / 3
    assert not mixes.changed


def test_only_some_ranks_are_sampled(mixes):
    for rank in range(1, SAMPLED_EACH):
        mixes.add("r", rank, row(0, 0), row(1, 0))
    assert not mixes._spent


def test_phases_of_long_steps_are_no_change(clock):
    """Reports in the midst of a step have no row; only what whole steps took counts."""
    store, process = Store(), Process()
    store.mixes = PhaseMixes(clock)
    for _ in range(4):
        for phase in ("forward", "communication"):
            for _ in range(3):
                process.begun(**{phase: 4})
                store.merge(rank_report(process, "r"), 0)
                clock.now += WINDOW_SECONDS
        process.steps(1, forward=12, communication=12)
        store.merge(rank_report(process, "r"), 0)
    assert not store.mixes.changed


def test_store_notices_a_change_and_forgets_the_run(clock):
    store, process = Store(), Process()
    store.mixes = PhaseMixes(clock)
    for forward, loader in ((1, 0), (1, 0), (1, 0), (0.2, 0.8)):
        process.steps(10, forward=forward, loader=loader)
        store.merge(rank_report(process, "r"), 0)
        assert not store.mixes.changed or loader
        clock.now += WINDOW_SECONDS
    assert store.mixes.changed == {"r": clock.now - WINDOW_SECONDS}
    store.forget("r")
    assert not (store.mixes.changed or store.mixes._mixes or store.mixes._spent)
