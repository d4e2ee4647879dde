"""Set operations on time spans, in exact integer arithmetic and one pass over both sides.

A set is a flat `array("q")` of start, end, start, end, ...: sorted, non-empty, half-open spans in nanoseconds that
neither overlap nor touch, 16 bytes a span.

    subtract(array("q", [0, 10]), array("q", [4, 6]))   # array("q", [0, 4, 6, 10])"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import reduce

PENDING_MAX = 1 << 14  # Sorting temporarily takes 150 bytes a span.
_NEVER = 1 << 63  # later than any time


class Gathered:
    """A union of spans added in any order; a span inside the newest one is not stored."""

    def __init__(self):
        self._pending = array("q")
        self._runs: list[array] = []

    def add(self, start: int, end: int) -> None:
        pending = self._pending
        if pending and pending[-2] <= start and end <= pending[-1]:
            return
        if start < end:
            pending.append(start)
            pending.append(end)
            if len(pending) >= 2 * PENDING_MAX:
                self._settle()

    def _settle(self) -> None:
        """Merge the pending spans into sorted runs; there are O(log n) runs, so that merging is O(n log n) in total."""
        if not self._pending:
            return
        run, self._pending = flatten(self._pending), array("q")
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = merge(self._runs.pop(), run)
        self._runs.append(run)

    def spans(self) -> array:
        self._settle()
        while len(self._runs) > 1:
            self._runs.append(merge(self._runs.pop(), self._runs.pop()))
        return self._runs[0] if self._runs else array("q")


def flatten(pairs: Sequence[int]) -> array:
    """The union of (start, end) pairs in any order."""
    out = array("q")
    for start, end in sorted(zip(pairs[::2], pairs[1::2], strict=True)):
        if start >= end:
            continue
        if out and start <= out[-1]:
            if end > out[-1]:
                out[-1] = end
        else:
            out.append(start)
            out.append(end)
    return out


def merge(a: array, b: array) -> array:
    """a ∪ b."""
    return _combine(a, b, (0, 1, 1, 1)) if a and b else a or b


def union(sets: Iterable[array]) -> array:
    """The union of all sets."""
    return reduce(merge, sets, array("q"))


def subtract(a: array, b: array) -> array:
    """a \\ b."""
    return _combine(a, b, (0, 1, 0, 0)) if a and b else a


def intersect(a: array, b: array) -> array:
    """a ∩ b."""
    return _combine(a, b, (0, 0, 0, 1)) if a and b else array("q")


def _combine(a: array, b: array, kept: tuple[int, int, int, int]) -> array:
    """The times for which `kept` is 1, by whether they are in neither set, in a only, in b only, or in both."""
    out, i, j = array("q"), 0, 0
    last_a, last_b = len(a), len(b)
    next_a, next_b = a[0], b[0]
    while i < last_a or j < last_b:
        at = min(next_a, next_b)
        # At an odd index the next boundary is an end, so the time from here on is inside.
        if next_a == at:
            i += 1
            next_a = a[i] if i < last_a else _NEVER
        if next_b == at:
            j += 1
            next_b = b[j] if j < last_b else _NEVER
        if kept[(i & 1) + 2 * (j & 1)] != len(out) & 1:
            out.append(at)
    return out


def length(spans: array) -> int:
    return sum(spans[1::2]) - sum(spans[::2])


def length_before(spans: array) -> Callable[[int], int]:
    """A function of time that gives the length of the spans before it; its differences are lengths inside."""
    starts, ends, before, total = spans[::2], spans[1::2], array("q"), 0
    for start, end in zip(starts, ends, strict=True):
        before.append(total)
        total += end - start

    def covered(at: int) -> int:
        i = bisect_right(starts, at) - 1
        return before[i] + min(at, ends[i]) - starts[i] if i >= 0 else 0

    return covered


def lengths_in(spans: array, windows: Sequence[tuple[int, int]]) -> list[int]:
    """The length of `spans` inside each window."""
    covered = length_before(spans)
    return [covered(end) - covered(start) for start, end in windows]
