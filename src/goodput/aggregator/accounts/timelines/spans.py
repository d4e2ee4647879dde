"""Where the time of attempts lies: spans with their time by state, as the core tells of each row.

How much of an attempt's first step was compiling is known some steps later, what of a row's communication was waiting
once it was compared, and what devices were idle at last. Then each state's time in all spans is that of the account.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from goodput._core import ROW_STATES
from goodput.account.by_core.attempt_sums import AttemptSums
from goodput.account.by_core.engine import CoreEngine
from goodput.account.facts import Key
from goodput.account.states import STATES

# The states of a row first, in the core's order.
SPAN_STATES = (*ROW_STATES, *(state for state in STATES if state not in ROW_STATES))
# Columns of a span: whose it is, from when to when, the first of the steps that are compared, else -1, ns by SPAN_STATES.
OWNER, BEGIN, END, FIRST, STATES_FROM = range(5)
COLUMN = {state: STATES_FROM + at for at, state in enumerate(SPAN_STATES)}
_WIDTH, _ROW_END = STATES_FROM + len(SPAN_STATES), STATES_FROM + len(ROW_STATES)
_COMMUNICATION, _LOST = COLUMN["communication"], COLUMN["lost"]
_ROWS_AT_ONCE = 4096
# What the core tells, see core.h.
_STATES = ("i8", len(ROW_STATES))
_TOLD_ROW = np.dtype(
    [
        ("place", "i4"),
        *((name, "i8") for name in ("step", "count", "end")),
        *(("inside", *_STATES), ("outside", *_STATES), ("is_first", "i4")),
    ],
    align=True,
)
_TOLD_FIRST = np.dtype(
    [("place", "i4"), ("step", "i8"), ("before", *_STATES), ("after", *_STATES)], align=True
)
_TOLD_MOVE = np.dtype(
    [("place", "i4"), *((name, "i8") for name in ("first", "last", "straggler", "bubble"))], align=True
)


class SpanTable(NamedTuple):
    """A row for each span with the columns above, and how many kept steps it is, 0 but for the time inside steps."""

    values: np.ndarray
    steps: np.ndarray


class Spans:
    """The spans of the attempts of an engine, whose places are their owners, and of other owners."""

    def __init__(self, engine: CoreEngine):
        self._engine = engine
        bounds = [engine.facts.bounds[key] for key in engine.places]
        self._from_ns, self._to_ns = (
            np.array([getattr(one, name) for one in bounds], np.int64) for name in ("from_ns", "to_ns")
        )
        # The end of each attempt's newest row.
        self._end_ns = np.array([engine.run.attempts[key].start_ns for key in engine.places], np.int64)
        self._values, self._steps = array("q"), array("d")
        self._held: dict[int, int] = {}  # the span of an attempt's first step
        self._rows, self._firsts, self._moves = bytearray(), bytearray(), bytearray()
        engine.core.watch_bytes(self._row, self._firsts.extend, self._moves.extend)

    def add(self, owner: int, begin_ns: int, end_ns: int, states: Mapping[str, int]) -> None:
        """Add a span that these states fill."""
        self._values.extend((owner, begin_ns, end_ns, -1, *(states.get(state, 0) for state in SPAN_STATES)))
        self._steps.append(0.0)

    def _row(self, told: bytes) -> None:
        self._rows.extend(told)
        if len(self._rows) >= _ROWS_AT_ONCE * _TOLD_ROW.itemsize:
            self._take_rows()

    def _take_rows(self) -> None:
        rows = np.frombuffer(bytes(self._rows), _TOLD_ROW)
        self._rows.clear()
        rows = rows[np.argsort(rows["place"], kind="stable")]
        place, end = rows["place"], rows["end"] + self._engine.origin_ns
        began = np.where(np.diff(place, prepend=-1) > 0, self._end_ns[place], np.roll(end, 1))
        self._end_ns[place] = end
        low, high = np.maximum(began, self._from_ns[place]), np.minimum(end, self._to_ns[place])
        middle = low + rows["outside"].sum(axis=1)
        before, within = np.flatnonzero(middle > low), np.flatnonzero(high > middle)
        self._extend(rows["outside"][before], place[before], low[before], middle[before])
        length, beyond = (high - middle)[within], (end - high)[within]
        inside, count = rows["inside"][within], rows["count"][within]
        lost = length - inside.sum(axis=1)
        for at in np.flatnonzero(rows["is_first"][within]).tolist():
            self._held[int(place[within[at]])] = len(self._steps) + at
        first = np.where(lost > 0, -1, rows["step"][within] - count + 1)
        steps = count * (length - lost) / (length + beyond)
        self._extend(inside, place[within], middle[within], high[within], first, lost, steps)

    def _extend(self, states: np.ndarray, owner, begin, end, first=-1, lost=0, steps=0.0) -> None:
        values = np.zeros((len(states), _WIDTH), np.int64)
        values[:, STATES_FROM:_ROW_END] = states
        for column, own in ((OWNER, owner), (BEGIN, begin), (END, end), (FIRST, first), (_LOST, lost)):
            values[:, column] = own
        self._values.frombytes(values.tobytes())
        self._steps.frombytes(np.broadcast_to(np.asarray(steps, float), len(values)).tobytes())

    def finish(self, sums: Mapping[Key, AttemptSums]) -> SpanTable:
        """All spans, with the time after the last rows; no more may be added."""
        self._engine.core.watch()
        self._take_rows()
        for key, own in sums.items():
            if length := sum(own.tail):
                begin_ns = max(own.end_ns, self._engine.facts.bounds[key].from_ns)
                tail = dict(zip(STATES, own.tail, strict=True))
                self.add(self._engine.places[key], begin_ns, begin_ns + length, tail)
        values = np.frombuffer(self._values, np.int64).reshape(-1, _WIDTH)
        for told in np.frombuffer(self._firsts, _TOLD_FIRST):
            if (span := self._held.get(int(told["place"]))) is not None:
                values[span, STATES_FROM:_ROW_END] = told["after"]
        _move(values, np.frombuffer(self._moves, _TOLD_MOVE))
        _divide(values, self._engine, sums)
        return SpanTable(values, np.frombuffer(self._steps))


def _move(values: np.ndarray, moves: np.ndarray) -> None:
    """Communication of these steps was waiting."""
    rows = np.flatnonzero(values[:, FIRST] >= 0)
    order = rows[np.lexsort((values[rows, FIRST], values[rows, OWNER]))]
    owner, first = values[order, OWNER], values[order, FIRST]
    # Of a step that a rank made again the first one was compared.
    is_new = np.ones(len(order), bool)
    is_new[1:] = (np.diff(owner) != 0) | (np.diff(first) != 0)
    order, known = order[is_new], (owner[is_new], first[is_new])
    begin = _count_before(known, (moves["place"], moves["first"]), False)
    end = _count_before(known, (moves["place"], moves["last"]), True)
    for state in ("straggler", "bubble"):
        one = np.flatnonzero((end - begin == 1) & (moves[state] > 0))
        values[order[begin[one]], COLUMN[state]] += moves[state][one]
        values[order[begin[one]], _COMMUNICATION] -= moves[state][one]
        for at in np.flatnonzero((end - begin > 1) & (moves[state] > 0)).tolist():
            _move_sum(values, order[begin[at] : end[at]], COLUMN[state], int(moves[state][at]))


def _count_before(known: tuple[np.ndarray, ...], of: tuple[np.ndarray, ...], with_equal: bool) -> np.ndarray:
    """How many of the pairs `known`, which are in order, come before each of these pairs."""
    is_known = np.repeat([True, False], [len(known[0]), len(of[0])])
    owner, step = (np.concatenate(both) for both in zip(known, of, strict=True))
    order = np.lexsort((is_known != with_equal, step, owner))
    count = np.empty(len(order), np.int64)
    count[order] = np.cumsum(is_known[order])
    return count[len(known[0]) :]


def _move_sum(values: np.ndarray, spans: np.ndarray, column: int, ns: int) -> None:
    """Of several rows together: in proportion to the communication of each."""
    passed = np.cumsum(values[spans, _COMMUNICATION]).astype(object)
    moved = np.diff(ns * passed // passed[-1], prepend=0).astype(np.int64)
    values[spans, _COMMUNICATION] -= moved
    values[spans, column] += moved


def _divide(values: np.ndarray, engine: CoreEngine, sums: Mapping[Key, AttemptSums]) -> None:
    """As hardware.states_of does for an attempt's sums: the same share of compute is `launch` everywhere."""
    order = np.argsort(values[:, OWNER], kind="stable")
    for key, own in sums.items():
        hardware, place = engine.run.attempts[key].hardware, engine.places[key]
        covered = hardware.get("compute_ns", 0)
        if idle := min(hardware.get("idle_ns", 0), covered):
            spans = order[slice(*np.searchsorted(values[:, OWNER], (place, place + 1), sorter=order))]
            passed = np.cumsum(values[spans, COLUMN["productive"]]).astype(object)
            moved = np.diff(passed * idle // max(covered, own.compute_ns), prepend=0).astype(np.int64)
            values[spans, COLUMN["productive"]] -= moved
            values[spans, COLUMN["launch"]] += moved
