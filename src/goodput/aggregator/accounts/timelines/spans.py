"""Where the time of attempts lies: spans with their time by state, as the core tells of each row.

How much of an attempt's first step was compiling is known some steps later, what of a row's communication was waiting
once it was compared, and what devices were idle at last. Then each state's time in all spans is that of the account.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from goodput._core import ROW_STATES, WatchedFirst, WatchedMove, WatchedRow
from goodput.account.attempts import Attempt
from goodput.account.by_core.attempt_sums import AttemptSums
from goodput.account.by_core.engine import CoreEngine
from goodput.account.facts import Bound, Key
from goodput.account.hardware import idle_part
from goodput.account.states import STATES

# The states of a row first, in the core's order.
SPAN_STATES = (*ROW_STATES, *(state for state in STATES if state not in ROW_STATES))
# Columns of a span: whose it is, from when to when, then ns by SPAN_STATES.
OWNER, BEGIN, END, STATES_FROM = range(4)
COLUMN = {state: STATES_FROM + at for at, state in enumerate(SPAN_STATES)}
_WIDTH = STATES_FROM + len(SPAN_STATES)
_NO_OTHERS = (0,) * (len(SPAN_STATES) - len(ROW_STATES))


@dataclass(slots=True)
class _Attempt:
    """What is known of an attempt while its rows are folded."""

    bound: Bound
    end_ns: int  # of its newest row
    held: int | None = None  # the span of its first step until its compiling is known
    # Rows that may be compared: the first step and the span of each.
    firsts: array[int] = field(default_factory=lambda: array("q"))
    spans: array[int] = field(default_factory=lambda: array("q"))
    top_step: int = -1


class Spans:
    """The spans of the attempts of an engine, whose places are their owners, and of other owners."""

    def __init__(self, engine: CoreEngine):
        self._engine, self._origin_ns = engine, engine.origin_ns
        self._values, self._steps = array("q"), array("d")
        self._of = {
            place: _Attempt(engine.facts.bounds[key], engine.run.attempts[key].start_ns)
            for key, place in engine.places.items()
        }
        engine.core.watch(self._row, self._first, self._moved)

    def add(self, owner: int, begin_ns: int, end_ns: int, states: Mapping[str, int]) -> None:
        """Add a span that these states fill."""
        self._values.extend((owner, begin_ns, end_ns, *(states.get(state, 0) for state in SPAN_STATES)))
        self._steps.append(0.0)

    def _row(self, row: WatchedRow) -> None:
        own, end_ns = self._of[row.attempt], row.end_ns + self._origin_ns
        began_ns, own.end_ns = own.end_ns, end_ns
        low, high = max(began_ns, own.bound.from_ns), min(end_ns, own.bound.to_ns)
        middle = low + sum(row.outside)
        if low < middle:
            self._add_row(row.attempt, low, middle, row.outside, 0.0)
        if middle >= high:
            return
        length = high - middle
        lost = length - sum(row.inside)
        # What of the steps lies outside the bound.
        beyond = end_ns - high + (low - began_ns if low == middle else 0)
        self._add_row(row.attempt, middle, high, row.inside, row.count * (length - lost) / (length + beyond))
        if row.is_first:
            own.held = len(self._steps) - 1
        if lost:
            self._values[COLUMN["lost"] - _WIDTH] = lost
        elif row.step - row.count >= own.top_step:
            own.firsts.append(row.step - row.count + 1)
            own.spans.append(len(self._steps) - 1)
            own.top_step = row.step

    def _add_row(self, place: int, begin_ns: int, end_ns: int, states: Sequence[int], steps: float) -> None:
        self._values.extend((place, begin_ns, end_ns, *states, *_NO_OTHERS))
        self._steps.append(steps)

    def _first(self, first: WatchedFirst) -> None:
        span = self._of[first.attempt].held
        if span is not None:
            begin = span * _WIDTH + STATES_FROM
            self._values[begin : begin + len(ROW_STATES)] = array("q", first.after)

    def _moved(self, moved: WatchedMove) -> None:
        own = self._of[moved.attempt]
        spans = own.spans[bisect_left(own.firsts, moved.first) : bisect_right(own.firsts, moved.last)]
        self._move(spans, COLUMN["straggler"], moved.straggler_ns)
        self._move(spans, COLUMN["bubble"], moved.bubble_ns)

    def _move(self, spans: array[int], column: int, ns: int) -> None:
        """In proportion to the communication of each."""
        values, at = self._values, COLUMN["communication"]
        known = [values[span * _WIDTH + at] for span in spans]
        whole, passed, done = sum(known), 0, 0
        for span, communication in zip(spans if ns else (), known, strict=False):
            passed += communication
            moved = ns * passed // whole - done
            done += moved
            values[span * _WIDTH + at] -= moved
            values[span * _WIDTH + column] += moved

    def finish(self, sums: Mapping[Key, AttemptSums]) -> None:
        """Add the time after the last rows, and divide compute from what devices were idle in it. Call it once, at last."""
        self._engine.core.watch()
        for key, own in sums.items():
            begin_ns = max(own.end_ns, self._engine.facts.bounds[key].from_ns)
            if length := sum(own.tail):
                tail = dict(zip(STATES, own.tail, strict=True))
                self.add(self._engine.places[key], begin_ns, begin_ns + length, tail)
        owners = self.values()[:, OWNER]
        order = np.argsort(owners, kind="stable")
        for key, own in sums.items():
            attempt, place = self._engine.run.attempts[key], self._engine.places[key]
            if attempt.hardware.get("idle_ns"):
                begin, end = np.searchsorted(owners, (place, place + 1), sorter=order).tolist()
                self._divide(order[begin:end].tolist(), attempt, own.compute_ns)

    def _divide(self, spans: Sequence[int], attempt: Attempt, compute_ns: int) -> None:
        """As hardware.states_of does for an attempt's sums: the same share of compute is `launch` everywhere."""
        values, at, launch = self._values, COLUMN["productive"], COLUMN["launch"]
        passed = done = 0
        for span in spans:
            passed += values[span * _WIDTH + at]
            moved = idle_part(attempt, compute_ns, passed) - done
            done += moved
            values[span * _WIDTH + at] -= moved
            values[span * _WIDTH + launch] += moved

    def values(self) -> np.ndarray:
        """A row for each span, with the columns above. No span may be added while it is used."""
        return np.frombuffer(self._values, np.int64).reshape(-1, _WIDTH)

    def steps(self) -> np.ndarray:
        """Of each span the kept steps, those that cross a bound in part; 0 but for the time inside steps."""
        return np.frombuffer(self._steps)
