"""Levels of a series: the stretches in which it has one mean.

The sum of squares within stretches plus a penalty for each is least, found by dynamic programming (Jackson et al., "An
algorithm for optimal partitioning of data on an interval", IEEE Signal Processing Letters 12, 2005); the penalty is a
multiple of the noise times the logarithm of the number of values (Yao, "Estimating the number of change-points via
Schwarz' criterion", Statistics and Probability Letters 6, 1988). The noise is that of differences between values up to
LAGS_MAX apart, of which few span a change, so a series that goes up and comes back has three levels; `changes` is for
one that may wander. Cost: a few ms for 480 values.
"""

from __future__ import annotations

import numpy as np

PENALTY = 4.0
LAGS_MAX = 5


def cuts(series: np.ndarray, noise_min: float = 0.0) -> list[int]:
    """The indices at which a new level begins; one may have a single value, such as that of a bucket with a change in it.

    `noise_min` is a bound from below for the standard deviation of the values around their levels.
    """
    count = len(series)
    if count < 2:
        return []
    noise = max(_noise(series), noise_min)
    penalty = PENALTY * noise**2 * float(np.log(count))
    centred = series - series.mean()
    sums, squares = (np.concatenate([[0.0], np.cumsum(part)]) for part in (centred, centred**2))
    best, last = np.full(count + 1, np.inf), np.zeros(count + 1, int)
    best[0] = -penalty
    for end in range(1, count + 1):
        begin = np.arange(end)
        within = squares[end] - squares[begin] - (sums[end] - sums[begin]) ** 2 / (end - begin)
        costs = best[begin] + within + penalty
        last[end] = int(np.argmin(costs))
        best[end] = costs[last[end]]
    found, at = [], count
    while at > 0:
        at = int(last[at])
        found.append(at)
    return found[-2::-1]


def _noise(series: np.ndarray) -> float:
    """The standard deviation around the levels, robust against changes: the largest over some lags."""
    found = [
        np.median(np.abs(series[lag:] - series[:-lag]))
        for lag in range(1, min(LAGS_MAX, len(series) - 1) + 1)
    ]
    return 1.4826 * float(max(found)) / 2**0.5
