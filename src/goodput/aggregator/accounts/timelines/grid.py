"""Spans of time by state, spread over the equal buckets of a timeline."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from goodput._core import ROW_STATES
from goodput.account.states import STATES
from goodput.aggregator.accounts.timelines.spans import (
    BEGIN,
    COLUMN,
    END,
    OWNER,
    SPAN_STATES,
    STATES_FROM,
    SpanTable,
)

_AT_ONCE = 4096
_TO_STATES = [SPAN_STATES.index(state) for state in STATES]
_NOT_OWN = ("communication", "straggler", "bubble", "compile", "stall", "lost")
_OWN = np.array([COLUMN[state] for state in ROW_STATES if state not in _NOT_OWN])


class Grid:
    """Equal buckets of a time span, at least a nanosecond each."""

    def __init__(self, start_ns: int, end_ns: int, points: int):
        length = end_ns - start_ns
        self.points = max(min(points, length), 0)
        self.edges = [start_ns + i * length // self.points for i in range(self.points + 1)] if length else []

    def overlaps(
        self, begin: np.ndarray, end: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(spans, buckets, ns) for the first bucket that each span overlaps, then for the second, and so on.

        Spans are given by their place; they must lie in the grid.
        """
        edges = np.array(self.edges, np.int64)
        spans = np.flatnonzero(end > begin)
        at, to = begin[spans], end[spans]
        bucket = edges.searchsorted(at, side="right") - 1
        while len(spans):
            until = np.minimum(edges[bucket + 1], to)
            yield spans, bucket, until - at
            left = until < to
            spans, at, to, bucket = spans[left], until[left], to[left], bucket[left] + 1

    def sums(self, begin: np.ndarray, end: np.ndarray, weights: np.ndarray) -> list[int]:
        """Sum weights x ns of spans by bucket. Weights are of dtype object, so that no sum overflows."""
        found = np.zeros(self.points, object)
        for spans, buckets, ns in self.overlaps(begin, end):
            np.add.at(found, buckets, ns * weights[spans])
        return found.tolist()


def cells_of(spans: np.ndarray, grid: Grid, groups: np.ndarray, weights: np.ndarray) -> list[list[list[int]]]:
    """Sum weights x ns of spans by group, bucket and state; `groups` (0 or 1) and `weights` (dtype object) are by owner.

    A bucket's part of a span is exactly as long as their overlap, and has the span's states in proportion; the parts of
    a span sum to it. The part before the grid is dropped.
    """
    cells = np.zeros((2, grid.points, len(SPAN_STATES)), object)
    for first in range(0, len(spans), _AT_ONCE):
        some = spans[first : first + _AT_ONCE]
        some = some[some[:, END] > np.maximum(some[:, BEGIN], grid.edges[0])]
        begin, end = np.maximum(some[:, BEGIN], grid.edges[0]), some[:, END]
        length = end - begin
        left = _shared(some[:, STATES_FROM:], length, end - some[:, BEGIN])
        for rows, buckets, ns in grid.overlaps(begin, end):
            part = _shared(left[rows], ns, length[rows])
            left[rows] -= part
            length[rows] -= ns
            at, state = np.nonzero(part)
            owner = some[rows[at], OWNER]
            np.add.at(cells, (groups[owner], buckets[at], state), part[at, state] * weights[owner])
    return cells[:, :, _TO_STATES].tolist()


def _shared(states: np.ndarray, part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Scale states from the sum `whole` to exactly the sum `part`; the largest state gets what rounding leaves."""
    scaled = np.minimum((states * (part / whole)[:, None]).astype(np.int64), states)
    lacking = np.where(part < whole, part - scaled.sum(axis=1), 0)
    scaled[np.arange(len(part)), states.argmax(axis=1)] += lacking
    return np.where((part < whole)[:, None], scaled, states)


def own_times(
    spans: SpanTable, columns: Grid, places: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Own ns (without waiting for others) and kept steps of `count` ranks by column; `places` of ranks are by owner.

    A step counts in every column that it overlaps, in proportion, so that a long one leaves no gap.
    """
    found = np.zeros((count, columns.points)), np.zeros((count, columns.points))
    values, steps = spans
    some = np.flatnonzero((steps > 0) & (values[:, END] > columns.edges[0]))
    begin, end, place = values[some, BEGIN], values[some, END], places[values[some, OWNER]]
    sums = values[np.ix_(some, _OWN)].sum(axis=1), steps[some]
    for rows, column, ns in columns.overlaps(np.maximum(begin, columns.edges[0]), end):
        part = ns / (end - begin)[rows]
        for into, value in zip(found, sums, strict=True):
            np.add.at(into, (place[rows], column), value[rows] * part)
    return found
