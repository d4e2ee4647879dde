"""Quantiles of a rank's step and phases over its last steps: STEPS_MAX of them, of at most SECONDS_MAX.

A quantile is the sample that NumPy's `method="inverted_cdf"` returns. A phase counts with its time within a step, in the
steps that have it; a step whose predecessor was not seen is left out. Times in phases are kept cumulative, and their
differences taken a phase at a time when asked for. Cost: 0.5 us a step, and 0.5 ms at a scrape of a rank with 512
steps of six phases.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from itertools import compress, pairwise, zip_longest
from operator import sub

from goodput.rank_page.reader import StepRecord

STEPS_MAX, SECONDS_MAX = 512, 300
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class RecentSteps:
    def __init__(self):
        # (number, end, length, time in each phase until now), on the page's clock; the first is what the next follows.
        self._steps: deque[tuple[int, int, int, tuple[int, ...]]] = deque([(0, 0, 0, ())], STEPS_MAX + 1)

    def add(self, records: Iterable[StepRecord]) -> None:
        """Take steps in ascending number."""
        self._steps += [
            (number, end_ns, end_ns - start_ns, tuple(map(sub, totals, outside)))
            for number, _, start_ns, end_ns, _, totals, outside, _ in records
        ]

    def quantiles(self, now_ns: int) -> dict[int, list[float]]:
        """Seconds at each of QUANTILES by index of the phase; 0 is the whole step."""
        steps = self._steps
        while len(steps) > 1 and now_ns - steps[1][1] > SECONDS_MAX * 10**9:
            steps.popleft()
        if len(steps) < 2 or now_ns - steps[1][1] > SECONDS_MAX * 10**9:
            return {}
        numbers, _, lengths, inside = zip(*steps, strict=True)
        follows = [after == before + 1 for before, after in pairwise(numbers)]
        columns = {0: list(lengths[1:])}
        # The first phase is none: it is outside any.
        for index, column in enumerate(zip_longest(*inside, fillvalue=0)):
            if index and max(column) > 0:
                columns[index] = list(map(sub, column[1:], column))
        found = {}
        for index, own in columns.items():
            own = own if all(follows) else list(compress(own, follows))
            own.sort()
            if index and own and own[0] <= 0:
                own = own[bisect_right(own, 0) :]
            if own:
                found[index] = _quantiles(own)
        return found


def _quantiles(ordered: list[int]) -> list[float]:
    return [ordered[max(math.ceil(q * len(ordered)), 1) - 1] / 1e9 for q in QUANTILES.values()]
