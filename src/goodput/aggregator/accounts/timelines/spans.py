"""Spans of time by state, one for the steps of each row and one for the time before them, from the core's events.

The core reports a row when it is folded, how much of an attempt's first step was compilation some steps later, and which
communication was waiting when the step has been compared. The time after the last row and the idle time of devices are
known at the end. With all of them, the spans of an attempt sum to its account.
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
from goodput.account.hardware import idle_share
from goodput.account.states import STATES

# The states of a row first, in the core's order.
SPAN_STATES = (*ROW_STATES, *(state for state in STATES if state not in ROW_STATES))
# Columns of a span: its owner, begin and end in unix ns, its first step (-1 if it is not compared), ns by SPAN_STATES.
OWNER, BEGIN, END, FIRST, STATES_FROM = range(5)
COLUMN = {state: STATES_FROM + at for at, state in enumerate(SPAN_STATES)}
_WIDTH, _ROW_END = STATES_FROM + len(SPAN_STATES), STATES_FROM + len(ROW_STATES)
_COMMUNICATION, _LOST = COLUMN["communication"], COLUMN["lost"]
_ROWS_AT_ONCE = 4096


def _event(*fields: str) -> np.dtype:
    """A struct of core.h: the attempt, and integers or vectors of ROW_STATES."""
    vectors, flags = {"inside", "outside", "before", "after"}, {"is_first"}
    types = [
        (name, "i4" if name in flags else "i8", (len(ROW_STATES),) if name in vectors else ())
        for name in fields
    ]
    return np.dtype([("attempt", "i4"), *types], align=True)


_ROW = _event("step", "count", "end_ns", "inside", "outside", "is_first")
_FIRST = _event("step", "before", "after")
_MOVE = _event("first", "last", "straggler", "bubble")


class SpanTable(NamedTuple):
    """`values` has a row per span with the columns above, `steps` its number of kept steps (0 outside of steps)."""

    values: np.ndarray
    steps: np.ndarray


class Spans:
    """Collects the spans of an engine's attempts, which are owned by their places in it, and those of other owners."""

    def __init__(self, engine: CoreEngine):
        self._engine = engine
        bounds = [engine.facts.bounds[key] for key in engine.places]
        self._from_ns = np.array([one.from_ns for one in bounds], np.int64)
        self._to_ns = np.array([one.to_ns for one in bounds], np.int64)
        # End of the newest row, by attempt.
        self._end_ns = np.array([engine.run.attempts[key].start_ns for key in engine.places], np.int64)
        self._values, self._steps = array("q"), array("d")
        self._held: dict[int, int] = {}  # span of the first step, by attempt
        self._rows, self._firsts, self._moves = bytearray(), bytearray(), bytearray()
        engine.core.watch_bytes(self._add_event, self._firsts.extend, self._moves.extend)

    def add(self, owner: int, begin_ns: int, end_ns: int, states: Mapping[str, int]) -> None:
        """Add a span whose length is the sum of its states."""
        self._values.extend((owner, begin_ns, end_ns, -1, *(states.get(state, 0) for state in SPAN_STATES)))
        self._steps.append(0.0)

    def _add_event(self, row: bytes) -> None:
        self._rows.extend(row)
        if len(self._rows) >= _ROWS_AT_ONCE * _ROW.itemsize:
            self._flush()

    def _flush(self) -> None:
        """Add the spans of the rows that were reported since the last call."""
        rows = np.frombuffer(bytes(self._rows), _ROW)
        self._rows.clear()
        rows = rows[np.argsort(rows["attempt"], kind="stable")]
        place, end = rows["attempt"], rows["end_ns"] + self._engine.origin_ns
        began = np.where(np.diff(place, prepend=-1) > 0, self._end_ns[place], np.roll(end, 1))
        self._end_ns[place] = end
        # The parts of a row that lie in the bound: `low` to `middle` before its steps, `middle` to `high` inside them.
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

    def _extend(
        self,
        states: np.ndarray,
        owner: np.ndarray,
        begin: np.ndarray,
        end: np.ndarray,
        first: np.ndarray | int = -1,
        lost: np.ndarray | int = 0,
        steps: np.ndarray | float = 0.0,
    ) -> None:
        values = np.zeros((len(states), _WIDTH), np.int64)
        values[:, STATES_FROM:_ROW_END] = states
        for column, own in ((OWNER, owner), (BEGIN, begin), (END, end), (FIRST, first), (_LOST, lost)):
            values[:, column] = own
        self._values.frombytes(values.tobytes())
        self._steps.frombytes(np.broadcast_to(np.asarray(steps, float), len(values)).tobytes())

    def finish(self, sums: Mapping[Key, AttemptSums]) -> SpanTable:
        """All spans, including the time after the last rows. Call it once; no span may be added afterwards."""
        self._engine.core.watch()
        self._flush()
        for key, own in sums.items():
            if length := sum(own.tail):
                begin_ns = max(own.end_ns, self._engine.facts.bounds[key].from_ns)
                tail = dict(zip(STATES, own.tail, strict=True))
                self.add(self._engine.places[key], begin_ns, begin_ns + length, tail)
        values = np.frombuffer(self._values, np.int64).reshape(-1, _WIDTH)
        for event in np.frombuffer(self._firsts, _FIRST):
            if (span := self._held.get(int(event["attempt"]))) is not None:
                values[span, STATES_FROM:_ROW_END] = event["after"]
        _move_waiting(values, np.frombuffer(self._moves, _MOVE))
        _move_idle(values, self._engine, sums)
        return SpanTable(values, np.frombuffer(self._steps))


def _move_waiting(values: np.ndarray, moves: np.ndarray) -> None:
    """Move communication to `straggler` and `bubble` in the spans of the steps that were compared."""
    rows = np.flatnonzero(values[:, FIRST] >= 0)
    order = rows[np.lexsort((values[rows, FIRST], values[rows, OWNER]))]
    owner, first = values[order, OWNER], values[order, FIRST]
    # The first one of repeated steps was compared.
    is_new = np.ones(len(order), bool)
    is_new[1:] = (np.diff(owner) != 0) | (np.diff(first) != 0)
    order, known = order[is_new], (owner[is_new], first[is_new])
    begin = _count_before(known, (moves["attempt"], moves["first"]), False)
    end = _count_before(known, (moves["attempt"], moves["last"]), True)
    for state in ("straggler", "bubble"):
        single = np.flatnonzero((end - begin == 1) & (moves[state] > 0))
        values[order[begin[single]], COLUMN[state]] += moves[state][single]
        values[order[begin[single]], _COMMUNICATION] -= moves[state][single]
        for at in np.flatnonzero((end - begin > 1) & (moves[state] > 0)).tolist():
            _move_sum(values, order[begin[at] : end[at]], COLUMN[state], int(moves[state][at]))


def _count_before(
    known: tuple[np.ndarray, np.ndarray], wanted: tuple[np.ndarray, np.ndarray], with_equal: bool
) -> np.ndarray:
    """How many (owner, step) pairs of `known`, which is sorted, come before each pair of `wanted`."""
    is_known = np.repeat([True, False], [len(known[0]), len(wanted[0])])
    owner, step = (np.concatenate(both) for both in zip(known, wanted, strict=True))
    order = np.lexsort((is_known != with_equal, step, owner))
    count = np.empty(len(order), np.int64)
    count[order] = np.cumsum(is_known[order])
    return count[len(known[0]) :]


def _move_sum(values: np.ndarray, spans: np.ndarray, column: int, ns: int) -> None:
    """Move a part of the communication of several spans, in proportion to it. Exact: Python's integers."""
    passed = np.cumsum(values[spans, _COMMUNICATION]).astype(object)
    moved = np.diff(ns * passed // passed[-1], prepend=0).astype(np.int64)
    values[spans, _COMMUNICATION] -= moved
    values[spans, column] += moved


def _move_idle(values: np.ndarray, engine: CoreEngine, sums: Mapping[Key, AttemptSums]) -> None:
    """Move compute to `launch` as hardware.states_of does for an attempt: the same share everywhere."""
    order = np.argsort(values[:, OWNER], kind="stable")
    for key, own in sums.items():
        place, (idle, whole) = engine.places[key], idle_share(engine.run.attempts[key], own.compute_ns)
        if idle:
            spans = order[slice(*np.searchsorted(values[:, OWNER], (place, place + 1), sorter=order))]
            passed = np.cumsum(values[spans, COLUMN["productive"]]).astype(object)
            moved = np.diff(passed * idle // whole, prepend=0).astype(np.int64)
            values[spans, COLUMN["productive"]] -= moved
            values[spans, COLUMN["launch"]] += moved
