"""Points at which a series of step times changes its level.

Binary segmentation with the CUSUM statistic: the largest distance of the partial sums from the line between their ends,
over the standard deviation of the series' mean, is compared with a quantile of the supremum of a Brownian bridge
(Csörgő and Horváth, "Limit Theorems in Change-Point Analysis", 1997). The deviation is estimated without the change.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from goodput.estimates.mean import mean_of

CRITICAL = 1.95  # exceeded by chance once in a thousand series
LENGTH_MIN = 20
CHANGE_MIN = 0.02
CHANGES_MAX = 8


class Change(NamedTuple):
    """From `index` on the series has another mean, by `share` of the mean before."""

    index: int
    share: float


def changes(series: np.ndarray) -> list[Change]:
    """In the order of the series; none of less than 2 %, or closer than 20 values to another."""
    cuts = [0, len(series)]
    while len(cuts) < CHANGES_MAX + 2:
        found = [cut for low, high in pairwise(cuts) if (cut := _cut(series, low, high))]
        if not found:
            break
        cuts = sorted({*cuts, *found})
    means = [series[low:high].mean() for low, high in pairwise(cuts)]
    listed = [
        Change(cut, float(after / before - 1))
        for cut, before, after in zip(cuts[1:], means, means[1:], strict=False)
        if before > 0
    ]
    return [one for one in listed if abs(one.share) >= CHANGE_MIN][:CHANGES_MAX]


def _cut(series: np.ndarray, low: int, high: int) -> int | None:
    part = series[low:high]
    count = len(part)
    if count < 2 * LENGTH_MIN:
        return None
    sums = np.cumsum(part - part.mean())[LENGTH_MIN - 1 : count - LENGTH_MIN]
    at = int(np.argmax(np.abs(sums))) + LENGTH_MIN
    without = np.concatenate([part[:at] - part[:at].mean(), part[at:] - part[at:].mean()])
    variance = mean_of(without).variance * count
    if variance <= 0:
        return low + at if abs(sums[at - LENGTH_MIN]) > 0 else None
    return low + at if abs(sums[at - LENGTH_MIN]) / (count * variance) ** 0.5 > CRITICAL else None
