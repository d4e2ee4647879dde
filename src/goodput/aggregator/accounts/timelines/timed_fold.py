"""A fold that also records when each state occurred, in the buckets of a grid."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, MutableSequence
from dataclasses import dataclass
from operator import add, sub

from goodput.account.states import PRODUCTIVE, STALL, share, vector
from goodput.columns.fold_table import FoldTable, RowFold

STALL_SPANS_MAX = 10_000
Span = tuple[int, int]  # unix ns


class Grid:
    """Equal buckets of a time span, at least a nanosecond each. Exact integer arithmetic."""

    def __init__(self, start_ns: int, end_ns: int, points: int):
        length = end_ns - start_ns
        self.points = max(min(points, length), 0)
        self.edges = [start_ns + i * length // self.points for i in range(self.points + 1)] if length else []

    def parts(self, from_ns: int, to_ns: int) -> Iterator[tuple[int, int]]:
        """(bucket, ns) for each bucket that a span overlaps, in order; time outside of the grid is left out."""
        edges = self.edges
        from_ns, to_ns = max(from_ns, edges[0]), min(to_ns, edges[-1])
        i = bisect_right(edges, from_ns) - 1
        while from_ns < to_ns:
            until = min(edges[i + 1], to_ns)
            yield i, until - from_ns
            from_ns, i = until, i + 1


class BucketSums:
    """GPU-ns by bucket and state."""

    def __init__(self, grid: Grid):
        self.grid = grid
        self.cells = [vector() for _ in range(grid.points)]

    def add_span(self, states: list[int], from_ns: int, to_ns: int, devices: int) -> None:
        """Spread states that fill a span over its buckets in proportion; each bucket gets exactly its overlap."""
        left, length = states, to_ns - from_ns
        for bucket, ns in self.grid.parts(from_ns, to_ns):
            part = left if ns == length else share(left, ns, length)
            if ns != length:
                left, length = list(map(sub, left, part)), length - ns
            cell = self.cells[bucket]
            for i, value in enumerate(part):
                if value:
                    cell[i] += value * devices

    def move(self, source: int, target: int, ns: int, from_ns: int, to_ns: int, devices: int) -> None:
        """Move `ns`, spread evenly over a span, from one state to another."""
        done, passed, length = 0, 0, to_ns - from_ns
        for bucket, part in self.grid.parts(from_ns, to_ns):
            passed += part
            now = ns * passed // length - done
            done += now
            self.cells[bucket][source] -= now * devices
            self.cells[bucket][target] += now * devices


@dataclass
class Own:
    """A rank's own time (steps without waiting for others) and steps, by column, in proportion to their overlap."""

    ns: MutableSequence[int]
    steps: MutableSequence[float]

    @classmethod
    def empty(cls, columns: int) -> Own:
        return cls(array("q", bytes(8 * columns)), array("d", bytes(8 * columns)))


class TimedFold(RowFold):
    """A fold that also records when each state occurred."""

    sums: BucketSums
    columns: Grid
    own: Own
    stalls: list[Span]
    devices = 1
    compute: array[int] | None = None  # productive ns by bucket, if a part of it will become `launch`
    span: Span = (0, 0)  # of the last step, within the bound

    def __init__(self, table: FoldTable, at: int):
        super().__init__(table, at)
        self.__dict__ = table.attributes.setdefault(at, {})

    def _settle(self, step, count, end_ns, length, inside, samples):
        before = list(map(add, self.kept, self.rest))
        compared = super()._settle(step, count, end_ns, length, inside, samples)
        self._lay(map(sub, map(add, self.kept, self.rest), before), end_ns - length, end_ns)
        self.span = self._within(end_ns - length, end_ns)
        if compared is not None and count:
            # Over every column it overlaps, so that a step longer than a column leaves no gap.
            for column, ns in self.columns.parts(*self.span):
                self.own.ns[column] += compared[2] * ns // length
                self.own.steps[column] += count * ns / length
        return compared

    def _rest(self, states, began, end_ns):
        added = super()._rest(states, began, end_ns)
        self._lay(added, began, end_ns)
        return added

    def _within(self, began: int, end_ns: int) -> Span:
        return max(began, self.bound.from_ns), min(end_ns, self.bound.to_ns)

    def _lay(self, grown, began: int, end_ns: int) -> None:
        grown = list(grown)
        span = self._within(began, end_ns)
        if span[0] >= span[1]:
            return
        self.sums.add_span(grown, *span, self.devices)
        if self.compute is not None and grown[PRODUCTIVE]:
            for bucket, ns in self.sums.grid.parts(*span):
                self.compute[bucket] += grown[PRODUCTIVE] * ns // (span[1] - span[0])
        if grown[STALL] and len(self.stalls) < STALL_SPANS_MAX:
            self.stalls.append(span)
