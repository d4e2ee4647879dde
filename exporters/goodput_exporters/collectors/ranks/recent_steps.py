"""Quantiles of a rank's step and phases over its last steps: STEPS_MAX of them, of at most SECONDS_MAX.

A quantile is the sample that NumPy's `method="inverted_cdf"` returns. A phase counts with its time within a step, in the
steps that have it; a step whose predecessor was not seen is left out. Times are sorted once in blocks of BLOCK_STEPS, and
merged on request. Cost: 1 us a step, and 0.1 ms at a scrape of a rank with 512 steps of six phases.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from itertools import zip_longest
from operator import sub

from goodput.rank_page.reader import StepRecord

STEPS_MAX, SECONDS_MAX = 512, 300
BLOCK_STEPS = 64
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class _Block:
    """Consecutive steps: when each ended, on the page's clock; its length and its time in each phase but the first.

    A step whose predecessor was not seen has no times.
    """

    def __init__(self):
        self.ends_ns: list[int] = []
        self.times: list[tuple[int, ...]] = []
        self._sorted: list[list[int]] | None = None  # once it is full

    def sorted_columns(self, left_out: int) -> list[list[int]]:
        """Step lengths, and the times in each phase of the steps that have it, but for the first `left_out` steps."""
        if left_out or len(self.times) < BLOCK_STEPS:
            return _sorted_columns(self.times[left_out:])
        if self._sorted is None:
            self._sorted = _sorted_columns(self.times)
        return self._sorted


class RecentSteps:
    def __init__(self):
        self._blocks = deque([_Block()])  # oldest first; all but the last are full
        # Of the step before: its number, and the time in each phase until then, in all and outside steps.
        self._last: tuple[int, tuple[int, ...], tuple[int, ...]] = (0, (), ())

    def add(self, records: Iterable[StepRecord]) -> None:
        """Take steps in ascending number."""
        before, known, apart = self._last
        block = self._blocks[-1]
        for number, _, start_ns, end_ns, _, totals, outside, _ in records:
            times = ()
            if number == before + 1:
                more = (0,) * (len(totals) - len(known))  # Of phases that were defined since.
                spent = map(sub, totals[1:], (known + more)[1:])
                if outside != apart:
                    spent = map(sub, spent, map(sub, outside[1:], (apart + more)[1:]))
                times = end_ns - start_ns, *spent
            if len(block.times) == BLOCK_STEPS:
                block = _Block()
                self._blocks.append(block)
            block.ends_ns.append(end_ns)
            block.times.append(times)
            before, known, apart = number, totals, outside
        self._last = before, known, apart
        while (len(self._blocks) - 2) * BLOCK_STEPS + len(block.times) >= STEPS_MAX:
            self._blocks.popleft()

    def quantiles(self, now_ns: int) -> dict[int, list[float]]:
        """Seconds at each of QUANTILES by index of the phase; 0 is the whole step."""
        oldest_ns = now_ns - SECONDS_MAX * 10**9
        while len(self._blocks) > 1 and self._blocks[0].ends_ns[-1] < oldest_ns:
            self._blocks.popleft()
        excess = sum(len(block.times) for block in self._blocks) - STEPS_MAX
        found: dict[int, list[int]] = {}
        for block in self._blocks:
            # Only the first one has steps that are too many or too old.
            too_old = sum(end_ns < oldest_ns for end_ns in block.ends_ns) if block is self._blocks[0] else 0
            for index, times in enumerate(block.sorted_columns(max(excess, too_old))):
                if times:
                    found.setdefault(index, []).extend(times)
            excess = 0
        return {index: _quantiles(sorted(found[index])) for index in sorted(found)}


def _sorted_columns(steps: list[tuple[int, ...]]) -> list[list[int]]:
    columns = [sorted(column) for column in zip_longest(*filter(None, steps), fillvalue=0)]
    phases = (column if column[0] > 0 else column[bisect_right(column, 0) :] for column in columns[1:])
    return [*columns[:1], *phases]


def _quantiles(ordered: list[int]) -> list[float]:
    return [ordered[max(math.ceil(q * len(ordered)), 1) - 1] / 1e9 for q in QUANTILES.values()]
