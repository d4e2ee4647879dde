"""Moves the base of a run that is not over on, so that its older steps may be thinned; see ledger/bases.py.

A base is a state of the run's fold that is right under its facts. From then on it fits any stall threshold, as do those
before it: to judge their steps once more all of them would have to be read. The later states need to agree with it, so
those that judge their steps by another threshold are dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from goodput.aggregator.accounts.past import Past
from goodput.aggregator.accounts.stored_states import States
from goodput.aggregator.ledger import bases, segments
from goodput.aggregator.ledger.bases import Base
from goodput.aggregator.ledger.compaction import SEGMENT_ROWS
from goodput.aggregator.ledger.ledger import Ledger
from goodput.columns.snapshot import settled

# So many are in memory until the base is set: 3 MB each with 10 000 ranks.
STATES_MAX = 32


class Move:
    """Of a run's base of a tier, on to the newest state that ends before a time and serves, of the next STATES_MAX ones.

    Methods raise LedgerError.
    """

    def __init__(self, ledger: Ledger, past: Past, tier: int, before_ns: int):
        self._ledger, self._past, self._tier, self._before_ns = ledger, past, tier, before_ns
        self._run = past.run.name
        # By rows, of the base and of states before it that serve too.
        self._bodies: dict[int, bytes] = {}
        self._dropped: list[int] = []
        self.has_more = False  # whether later states may serve as well

    def preparing(self) -> Iterator[None]:
        """Find the base; yields after each state.

        Of the states between the last base and this one those are dropped that do not serve, or are closer to a later one than
        SEGMENT_ROWS rows of the tier.
        """
        stored = bases.stored(self._ledger.fetch, self._run)
        before = max((one.rows for one in stored if one.tier == self._tier), default=0)
        states = States(self._ledger, self._past.run)
        first, count = bisect_right(states.rows, before), states.count_before(self._before_ns)
        while first < count and not self._bodies:
            yield from self._choose(states, range(first, min(count, first + STATES_MAX)))
            first += STATES_MAX
        self.has_more = first < count
        if self._bodies:
            yield from self._drop_later(states, bisect_right(states.rows, max(self._bodies)))

    def _choose(self, states: States, places: range) -> Iterator[None]:
        facts, next_ns = self._past.facts((None, None)), self._before_ns
        last = {key: attempt.top_number for key, attempt in self._past.run.attempts.items()}
        for at in reversed(places):
            yield
            rows, state = states.rows[at], states.state(at)
            if state is None:
                continue
            border = segments.border_of(state, last)
            serves = border.spans is not None and border.end_ns <= next_ns and states.follows(state, facts)
            body = self._ledger.segment(self._run, rows) if serves else None
            if body is not None:
                self._bodies[rows] = settled(body)
                next_ns = border.end_ns - SEGMENT_ROWS * self._tier * 10**9
            elif self._bodies:
                self._dropped.append(rows)

    def _drop_later(self, states: States, first: int) -> Iterator[None]:
        for at in range(first, len(states.rows)):
            state = states.state(at)
            if state is not None and not state.is_judged_by(self._past.threshold_ns):
                self._dropped.append(states.rows[at])
            yield

    def has_found(self) -> bool:
        return bool(self._bodies)

    def finish(self) -> None:
        """Set the base, if one was found. Only where the run was not folded again since `past` was taken, and is not meanwhile:
        see Accounts.holding."""
        if self._bodies:
            base = Base(self._run, self._tier, max(self._bodies))
            bases.put(self._ledger, base, self._bodies, self._dropped)
