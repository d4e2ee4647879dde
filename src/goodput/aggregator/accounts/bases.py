"""Moves the base of a run that is not over on, so that its older steps may be thinned; see ledger/bases.py.

A base is a state of the run's fold that is right under its facts. From then on it fits any stall threshold, as do those
before it: to judge their steps once more all of them would have to be read. The later states need to agree with it, so
those that judge their steps by another threshold are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from goodput.aggregator.accounts.past import Past
from goodput.aggregator.accounts.stored_states import States
from goodput.aggregator.ledger import bases, segments
from goodput.aggregator.ledger.bases import Base
from goodput.aggregator.ledger.compaction import SEGMENT_ROWS
from goodput.aggregator.ledger.ledger import Ledger
from goodput.columns.snapshot import FoldState, SnapshotError, decode, settled

log = logging.getLogger("goodput.aggregator")


class Move:
    """Of a run's base of a tier, on to the newest state that ends before a time and serves. Methods raise LedgerError."""

    def __init__(self, ledger: Ledger, past: Past, tier: int, before_ns: int):
        self._ledger, self._past, self._tier, self._before_ns = ledger, past, tier, before_ns
        self._run = past.run.name
        self._base: tuple[int, bytes] | None = None  # rows and body
        self._dropped: list[int] = []

    def preparing(self) -> Iterator[None]:
        """Find the base; yields after each state.

        Of the states between the last base and this one those are dropped that do not serve, or are closer to a later one than
        SEGMENT_ROWS rows of the tier.
        """
        stored = bases.stored(self._ledger.fetch, self._run)
        before = max((one.rows for one in stored if one.tier == self._tier), default=0)
        facts, states = self._past.facts((None, None)), States(self._ledger, self._past.run)
        last = {key: attempt.top_number for key, attempt in self._past.run.attempts.items()}
        count, next_ns = states.count_before(self._before_ns), self._before_ns
        for at in reversed(range(count)):
            rows = states.rows[at]
            if rows <= before:
                break
            yield
            body = self._body(rows)
            border = None if body is None else segments.border_of(body, last)
            if body is None or border is None:
                continue
            if border.spans is not None and border.end_ns <= next_ns and states.engine(at, facts) is not None:
                next_ns = border.end_ns - SEGMENT_ROWS * self._tier * 10**9
                self._settle(rows, settled(body))
            elif self._base is not None:
                self._dropped.append(rows)
        if self._base is not None:
            yield from self._drop_later(states.rows[states.rows.index(self._base[0]) + 1 :])

    def _settle(self, rows: int, body: bytes) -> None:
        if self._base is None:
            self._base = rows, body
            return
        with self._ledger.transaction({self._run}) as connection:
            segments.replace(connection, self._run, rows, body)

    def _drop_later(self, later: list[int]) -> Iterator[None]:
        for rows in later:
            state = self._state(rows)
            if state is not None and not state.is_judged_by(self._past.threshold_ns):
                self._dropped.append(rows)
            yield

    def finish(self) -> None:
        """Set the base, if one was found. Meanwhile the run must not be folded again, nor have been since its facts."""
        if self._base is not None:
            rows, body = self._base
            bases.put(self._ledger, Base(self._run, self._tier, rows), body, self._dropped)

    def _body(self, rows: int) -> bytes | None:
        return self._ledger.segment(self._run, rows)

    def _state(self, rows: int) -> FoldState | None:
        body = self._body(rows)
        try:
            return None if body is None else decode(body)
        except SnapshotError as error:
            log.warning("run %r: a segment in the ledger is not used: %s", self._run, error)
            return None
