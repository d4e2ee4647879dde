"""Equal buckets of a time, and states of GPU time laid over them: arithmetic of integers, nothing is lost.

In: spans of unix ns with the ns per state that fill them. Out: ns by bucket and state; each bucket has exactly the
time that was laid into it. It knows no run.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import sub

from goodput.account.fold import share
from goodput.account.states import vector

STALLS_SHOWN = 50
Span = tuple[int, int]  # unix ns


class Grid:
    """The buckets: equal parts of a time, at least a nanosecond each."""

    def __init__(self, start_ns: int, end_ns: int, points: int):
        length = end_ns - start_ns
        self.points = max(min(points, length), 0)
        self.edges = [start_ns + i * length // self.points for i in range(self.points + 1)] if length else []

    def parts(self, from_ns: int, to_ns: int) -> Iterator[tuple[int, int]]:
        """(bucket, ns of it) that a time lies in, in order; what lies outside of all of them is left out."""
        edges = self.edges
        from_ns, to_ns = max(from_ns, edges[0]), min(to_ns, edges[-1])
        i = self.at(from_ns)
        while from_ns < to_ns:
            until = min(edges[i + 1], to_ns)
            yield i, until - from_ns
            from_ns, i = until, i + 1

    def at(self, ns: int) -> int:
        first, last = self.edges[0], self.edges[-1]
        i = min((ns - first) * self.points // (last - first), self.points - 1)
        # An edge is rounded down, so the one before may be meant or the one after.
        while i > 0 and ns < self.edges[i]:
            i -= 1
        while i < self.points - 1 and ns >= self.edges[i + 1]:
            i += 1
        return i


class Sheet:
    """GPU-ns by bucket and state."""

    def __init__(self, grid: Grid):
        self.grid = grid
        self.cells = [vector() for _ in range(grid.points)]

    def lay(self, states: list[int], from_ns: int, to_ns: int, devices: int) -> None:
        """Spread these states, which fill this time, over its buckets in proportion, each filled exactly."""
        left, length = states, to_ns - from_ns
        if states.count(0) == len(states) - 1:
            (only,) = (i for i, ns in enumerate(states) if ns)
            for bucket, ns in self.grid.parts(from_ns, to_ns):
                self.cells[bucket][only] += ns * devices
            return
        for bucket, ns in self.grid.parts(from_ns, to_ns):
            part = left if ns == length else share(left, ns, length)
            if ns != length:
                left, length = list(map(sub, left, part)), length - ns
            cell = self.cells[bucket]
            for i, value in enumerate(part):
                if value:
                    cell[i] += value * devices

    def move(self, source: int, target: int, ns: int, from_ns: int, to_ns: int, devices: int) -> None:
        """Move time that is spread over this time from one state to another."""
        done, passed, length = 0, 0, to_ns - from_ns
        for bucket, part in self.grid.parts(from_ns, to_ns):
            passed += part
            now = ns * passed // length - done
            done += now
            self.cells[bucket][source] -= now * devices
            self.cells[bucket][target] += now * devices


def merged(spans: list[Span]) -> list[Span]:
    """The STALLS_SHOWN longest times that these cover together, in order."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return sorted(sorted(found, key=lambda span: span[0] - span[1])[:STALLS_SHOWN])
