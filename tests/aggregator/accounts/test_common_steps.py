"""Alerts compare ranks over the steps that all of them have completed, whatever was reported of the moment."""

from __future__ import annotations

import msgspec
import pytest
from goodput.aggregator.accounts.common_steps import WAITING_ROWS_MAX
from support.account.account_history import Process, ns
from support.aggregator.exports import STALE
from support.aggregator.random_runs import process_after
from support.aggregator.reports import rank_report

from goodput.account.states import INDEX
from goodput.aggregator.accounts.live import IncrementalAccount
from goodput.aggregator.accounts.recent_stragglers import RecentStragglers
from goodput.aggregator.api.stored_accounts import bodies_of
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import closed_runs


class Training:
    """Ranks on nodes of two, whose steps are as long for all; the last one is waited for by 10 ms in each."""

    def __init__(self, ranks: int):
        self.ranks = [Process(rank, world_size=ranks, host=f"n{rank // 2}") for rank in range(ranks)]
        self.store, self.recent = Store(), RecentStragglers()
        self.live: IncrementalAccount | None = None

    @property
    def now_ns(self) -> int:
        return self.ranks[0].now_ns

    def train(self, steps: int, forward: float) -> None:
        """Steps of 510 ms more than `forward`."""
        for one in self.ranks:
            late = 0.01 * (one is self.ranks[-1])
            one.steps(steps, forward=forward + late, communication=0.51 - late)

    def report(self, only=range(99), seen=lambda one: one) -> None:
        """Push what `seen` makes of some ranks."""
        for one in map(seen, (one for one in self.ranks if one.rank in only)):
            self.store.merge(rank_report(one), self.now_ns)
        run = self.store.runs["r1"]
        self.live = self.live or IncrementalAccount(run, stall_seconds=60.0, stale_seconds=STALE)

    def last_minutes(self):
        assert self.live is not None
        return self.recent.of("r1", self.now_ns, self.live.account(self.now_ns).straggler)


def in_last_step(one: Process) -> Process:
    """A rank 8 s after its last but one step."""
    return process_after(one, len(one.rows) - 1, 8.0)


def test_step_known_of_one_rank_alone_does_not_count():
    """Two thirds of a step of 12.5 s lie before the account's end; of the other ranks its row is not known yet."""
    training = Training(4)
    training.train(20, forward=1.5)
    training.report()
    assert training.last_minutes() is None
    training.train(10, forward=1.5)
    training.train(1, forward=12.0)
    training.report({0, 1, 2}, in_last_step)
    training.report({3})
    found = training.last_minutes()
    assert found.steps == {(rank, 1): 10 for rank in range(4)}
    assert found.slowness(3) == pytest.approx(1.51 / 1.5) and found.slow_rank() is None
    # Nor does its part in the account's own comparison.
    whole = training.live.last
    assert whole.straggler.steps == {(rank, 1): 30 for rank in range(4)} and whole.straggler.culprit() is None
    spent_ns = ns(30 * 1.51 + 12.01 * 8 / 12.51)
    assert whole.ranks[3].states[INDEX["productive"]] == pytest.approx(spent_ns, abs=1)


def test_step_known_of_all_but_one_begins_the_minutes():
    """Where the last minutes begin, two thirds of a long step are known of all ranks but one."""
    training = Training(4)
    training.train(20, forward=1.5)
    training.train(1, forward=12.0)
    training.report({0, 1, 2})
    training.report({3}, in_last_step)
    assert training.last_minutes() is None
    training.train(10, forward=1.5)
    training.report()
    found = training.last_minutes()
    assert found.steps == {(rank, 1): 11 for rank in range(4)}
    assert found.slowness(3) == pytest.approx((12.01 + 15.1) / (12 + 15)) and found.slow_rank() is None


def test_node_that_was_silent_is_compared_over_its_own_steps():
    """When the last minutes began, nothing was known of 40 steps of the last node, in which the loader was slow."""
    training = Training(6)
    training.train(20, forward=1.5)
    training.report()
    training.train(40, forward=3.0)
    training.report(range(4))
    assert training.last_minutes() is None
    training.train(40, forward=1.5)
    training.report()
    found = training.last_minutes()
    assert {rank: steps for (rank, _), steps in found.steps.items()} == {
        **dict.fromkeys(range(4), 40),
        **dict.fromkeys((4, 5), 80),
    }
    assert found.slowness(5) == pytest.approx(2.26 / ((2.25 + 2.26) / 2)) and found.slow_rank() is None
    assert found.slowness(0) == 1.0


def test_thinned_rows_are_compared_up_to_a_common_one():
    """Of two ranks other rows are known; the last step of which both have one is the 24th."""
    training, kept = Training(2), ((1, 12, 24, 29), (1, 18, 24, 28, 30))
    training.train(30, forward=1.0)

    def thinned(one: Process) -> Process:
        found = process_after(one, len(one.rows), 0.0)
        found.rows = [row for row in one.rows if row.number in kept[one.rank]]
        return found

    training.report(seen=thinned)
    training.last_minutes()
    sums = training.live.last.straggler.comparable
    assert sums.until == {(0, 1): 23, (1, 1): 23} and sums.steps == {(0, 1): 23, (1, 1): 23}
    assert sums.own_ns == {(0, 1): ns(23), (1, 1): ns(23 * 1.01)}


def test_rank_without_further_steps_holds_back_few_rows():
    training = Training(2)
    training.train(5, forward=1.0)
    training.report()
    for _ in range(3):
        training.train(100, forward=1.0)
        training.ranks[0].rows = training.ranks[0].rows[:5]
        training.report()
        training.last_minutes()
    until = training.live.last.straggler.comparable.until
    assert until == {(0, 1): 4, (1, 1): 304 - WAITING_ROWS_MAX}


def test_account_in_the_ledger_has_no_comparable_sums():
    training = Training(2)
    training.train(9, forward=1.0)
    training.report()
    training.last_minutes()
    account = training.live.last
    assert account.straggler.comparable.steps == {(0, 1): 8, (1, 1): 8}
    stored = msgspec.msgpack.decode(bodies_of(account)[closed_runs.ACCOUNT])["straggler"]
    assert stored["comparable"] is None and stored["waited_ns"] == account.straggler.waited_ns > 0
