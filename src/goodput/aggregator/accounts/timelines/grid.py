"""Spans of time by state, spread over the equal buckets of a timeline."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from goodput._core import ROW_STATES
from goodput.account.states import STATES
from goodput.aggregator.accounts.timelines.spans import BEGIN, COLUMN, END, OWNER, SPAN_STATES, STATES_FROM

_AT_ONCE = 4096
_TO_STATES = [SPAN_STATES.index(state) for state in STATES]
_OWN_NOT = ("communication", "straggler", "bubble", "compile", "stall", "lost")
_OWN = [COLUMN[state] for state in ROW_STATES if state not in _OWN_NOT]


class Grid:
    """Equal buckets of a time span, at least a nanosecond each."""

    def __init__(self, start_ns: int, end_ns: int, points: int):
        length = end_ns - start_ns
        self.points = max(min(points, length), 0)
        self.edges = [start_ns + i * length // self.points for i in range(self.points + 1)] if length else []

    def overlaps(
        self, begin: np.ndarray, end: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For spans in the grid: those that have a first, second ... bucket, the buckets, and the ns there."""
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
        """The weighted ns of spans by bucket; weights are objects, so that no sum is too large."""
        found = np.zeros(self.points, object)
        for spans, buckets, ns in self.overlaps(begin, end):
            np.add.at(found, buckets, ns * weights[spans])
        return found.tolist()


def cells_of(spans: np.ndarray, grid: Grid, groups: np.ndarray, weights: np.ndarray) -> list[list[list[int]]]:
    """Weighted ns by group, bucket and state; `groups`, 0 or 1, and `weights`, objects, are by owner.

    Each bucket gets exactly its overlap with a span, in proportion to the span's states, and all buckets get these.
    """
    cells = np.zeros((2, grid.points, len(SPAN_STATES)), object)
    for first in range(0, len(spans), _AT_ONCE):
        some = spans[first : first + _AT_ONCE]
        left, length = some[:, STATES_FROM:].copy(), some[:, END] - some[:, BEGIN]
        for rows, buckets, ns in grid.overlaps(some[:, BEGIN], some[:, END]):
            part = _shared(left[rows], ns, length[rows])
            left[rows] -= part
            length[rows] -= ns
            at, state = np.nonzero(part)
            owner = some[rows[at], OWNER]
            np.add.at(cells, (groups[owner], buckets[at], state), part[at, state] * weights[owner])
    return cells[:, :, _TO_STATES].tolist()


def _shared(states: np.ndarray, part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """States scaled from the sum `whole` to the sum `part`, exactly: what rounding leaves is the largest's."""
    scaled = np.minimum((states * (part / whole)[:, None]).astype(np.int64), states)
    lacking = np.where(part < whole, part - scaled.sum(axis=1), 0)
    scaled[np.arange(len(part)), states.argmax(axis=1)] += lacking
    return np.where((part < whole)[:, None], scaled, states)


def own_times(
    spans: np.ndarray, steps: np.ndarray, columns: Grid, places: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The own ns (without waiting for others) and the kept steps of `count` ranks by column; `places` are theirs by owner.

    By every column that a step overlaps, so that one longer than a column leaves no gap.
    """
    found = np.zeros((count, columns.points)), np.zeros((count, columns.points))
    some = np.flatnonzero(steps)
    begin, end, place = spans[some, BEGIN], spans[some, END], places[spans[some, OWNER]]
    values = spans[np.ix_(some, _OWN)].sum(axis=1), steps[some]
    for rows, column, ns in columns.overlaps(begin, end):
        part = ns / (end - begin)[rows]
        for into, value in zip(found, values, strict=True):
            np.add.at(into, (place[rows], column), value[rows] * part)
    return found
