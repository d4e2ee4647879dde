"""Quantiles of a rank's step and phases over its last steps: STEPS_MAX of them, of at most SECONDS_MAX.

A quantile is the sample that NumPy's `method="inverted_cdf"` returns. A phase counts with its time within a step, in the
steps that have it; a step whose predecessor was not seen is left out. Cost: 2 us a step, and 0.1 ms at a scrape of a
rank that made progress.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from operator import itemgetter, sub

from goodput.rank_page.reader import StepRecord

STEPS_MAX, SECONDS_MAX = 512, 300
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class RecentSteps:
    def __init__(self):
        # (end, length, time in each phase but the first, which is none), on the page's clock.
        self._steps: deque[tuple[int, int, tuple[int, ...]]] = deque(maxlen=STEPS_MAX)
        self._number, self._inside = 0, ()

    def add(self, records: Iterable[StepRecord]) -> None:
        """Take steps in ascending number."""
        for record in records:
            inside = tuple(map(sub, record.totals, record.outside))
            if record.number == self._number + 1:
                before = self._inside + (0,) * (len(inside) - len(self._inside))
                spent = tuple(map(sub, inside[1:], before[1:]))
                self._steps.append((record.end_ns, record.end_ns - record.start_ns, spent))
            self._number, self._inside = record.number, inside

    def quantiles(self, now_ns: int) -> dict[int, list[float]]:
        """Seconds at each of QUANTILES by index of the phase; 0 is the whole step."""
        steps = self._steps
        while steps and now_ns - steps[0][0] > SECONDS_MAX * 10**9:
            steps.popleft()
        if not steps:
            return {}
        found = {0: _quantiles(sorted(map(itemgetter(1), steps)))}
        for index in range(max(len(spent) for _, _, spent in steps)):
            own = sorted(spent[index] for _, _, spent in steps if index < len(spent) and spent[index] > 0)
            if own:
                found[index + 1] = _quantiles(own)
        return found


def _quantiles(ordered: list[int]) -> list[float]:
    return [ordered[max(math.ceil(q * len(ordered)), 1) - 1] / 1e9 for q in QUANTILES.values()]
