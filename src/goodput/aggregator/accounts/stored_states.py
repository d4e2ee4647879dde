"""The states of a run's account in the ledger: the newest one from which an account goes on."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator

from goodput.account import Run
from goodput.account.by_core.engine import CoreEngine
from goodput.account.facts import Facts
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.run_states import RunState, StateError, decode

log = logging.getLogger("goodput.aggregator")


class States:
    """The states of a run in the ledger, oldest first, with so many `rows`; each is read when it is needed, and none is
    held."""

    def __init__(self, ledger: Ledger, run: Run):
        self._ledger, self._run = ledger, run
        self.rows = ledger.segment_rows(run.name)
        self._ends: dict[int, int | None] = {}  # the last end of a row in a state

    def state(self, at: int) -> RunState | None:
        """A state, None for one that cannot be used."""
        body, name = self._ledger.segment(self._run.name, self.rows[at]), self._run.name
        try:
            return None if body is None else decode(body)
        except StateError as error:
            log.warning("run %r: a segment in the ledger is not used, more rows are read: %s", name, error)
            return None

    def engines(self, facts: Facts, stall_seconds: float) -> Iterator[CoreEngine]:
        """Of the states whose rows all lie in these facts' time, those that are right under them, the newest first."""
        for at in reversed(range(self.count_before(facts.end_ns))):
            engine = self.engine(at, facts, stall_seconds)
            if engine is not None:
                yield engine

    def engine(self, at: int, facts: Facts, stall_seconds: float) -> CoreEngine | None:
        """A state's engine, None where its sums are not right under these facts."""
        state = self.state(at)
        try:
            return None if state is None else state.engine(self._run, facts, stall_seconds)
        except StateError:
            return None

    def count_before(self, until_ns: int) -> int:
        """How many of the states, from the oldest on, have no row that ends after this time; few are read that are far from it."""
        if not self.rows:
            return 0
        start_ns = min(attempt.start_ns for attempt in self._run.attempts.values())
        last_ns = self._end_of(len(self.rows) - 1) or start_ns
        share = (until_ns - start_ns) / max(last_ns - start_ns, 1)
        near = bisect_left(self.rows, share * self.rows[-1])
        return first_of(len(self.rows), lambda at: (self._end_of(at) or 0) > until_ns, near)

    def _end_of(self, at: int) -> int | None:
        if at not in self._ends:
            state = self.state(at)
            self._ends[at] = None if state is None else state.end_ns
        return self._ends[at]


def first_of(count: int, is_right: Callable[[int], bool], near: int) -> int:
    """The first of `count` places for which it is right, as for all after it; `count` where there is none.

    The farther it is from `near`, the more places are asked about: twice the logarithm of the distance.
    """
    low, high, step = -1, count, 1
    while high - low > 1:
        near = min(max(near, low + 1), high - 1)
        if is_right(near):
            high, near = near, near - step
        else:
            low, near = near, near + step
        step *= 2
        if low >= 0 and high < count:
            near = (low + high) // 2
    return high
