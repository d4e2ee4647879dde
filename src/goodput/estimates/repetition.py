"""The mean that a series would have if it were recorded again, with an interval.

A mean's own interval says how far it is from a true mean; a training that runs again has another mean, since clocks, other
work on the machine and the placement of memory drift between two runs as they do within one. That drift is estimated from
the recording: the means of its batches, up to 24 of equal length, are modelled as white noise plus flicker noise or a
random walk, and what is predicted is the mean of as many values that follow the recorded ones, twice the Allan variance at
the recording's length (Allan, "Statistics of atomic frequency standards", Proceedings of the IEEE 54, 1966). Given the
family and the ratio of drift to noise the prediction is Student's t; a recording cannot tell slow drift from none, so
it is averaged over both by their posterior probability. Before the recording no drift, flicker and a walk are equally
probable, and each order of magnitude of the ratio from a tenth to a thousand.

Flicker noise and random walks have no variance, but contrasts of batch means have: with sums S(t) of the series, they
follow from generalized covariances of S, -|t| / 2 for white noise, t^2 log |t| and |t|^3 / 12 (Chiles and Delfiner,
"Geostatistics", 2nd edition, chapter 4).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from goodput.estimates.mean import CONFIDENCE, Mean
from goodput.estimates.student import t_quantile

BATCHES = 24
# Variance of the predicted difference due to drift, to that due to noise.
RATIOS = 10.0 ** np.arange(-1, 3.1, 0.5)


def repetition_of(series: np.ndarray, count: int | None = None) -> Mean:
    """The mean of `count` values that follow the series, by default as many as it has; of at least two values.

    The variance is that of Student's t with the same 95 % interval. Raises ValueError for fewer values.
    """
    if len(series) < 2:
        raise ValueError(f"a repetition needs at least two values, there are {len(series)}")
    batches = min(BATCHES, max(len(series) // 2, 3), len(series))
    edges = np.arange(batches + 1) * len(series) // batches
    value, freedom = float(series.mean()), batches - 1
    means = np.add.reduceat(series - value, edges[:-1]) / np.diff(edges)
    whitening, log_weights = _models(batches, (count or len(series)) / len(series))
    squares = ((whitening @ means) ** 2).sum(axis=1)
    if squares.min() <= 0:
        return Mean(value, 0.0, freedom)
    log_weights = log_weights - freedom / 2 * np.log(squares)
    weights = np.exp(log_weights - log_weights.max())
    half = _half_width(weights / weights.sum(), np.sqrt(squares / freedom), freedom)
    return Mean(value, (half / t_quantile((1 + CONFIDENCE) / 2, freedom)) ** 2, freedom)


@lru_cache(maxsize=64)
def _models(batches: int, ahead: float) -> tuple[np.ndarray, np.ndarray]:
    """For each model a matrix that makes contrasts of batch means white, in units of the predicted difference's deviation,
    and the logarithm of its weight but for the data's part.

    `ahead` is the length of the predicted values in lengths of the series.
    """
    times = np.append(np.arange(batches + 1) / batches, 1 + ahead)
    to_means = np.diff(np.eye(batches + 2), axis=0)[:batches] * batches
    predicted = np.zeros(batches + 2)
    predicted[[0, batches, batches + 1]] = 1, -1 / ahead - 1, 1 / ahead
    orthogonal = np.linalg.qr(np.column_stack([np.ones(batches), np.eye(batches)[:, 1:]]))[0]
    contrasts = orthogonal[:, 1:].T
    to_contrasts = contrasts @ to_means
    distance = np.abs(times[:, None] - times)
    logarithms = np.log(np.where(distance > 0, distance, 1))
    white, *drifts = (
        to_contrasts @ of_sums @ to_contrasts.T / (predicted @ of_sums @ predicted)
        for of_sums in (-distance / 2, distance**2 * logarithms, distance**3 / 12)
    )
    covariances = [(white, 1.0)]
    for drift in drifts:
        covariances += [((white + ratio * drift) / (1 + ratio), 1 / len(RATIOS)) for ratio in RATIOS]
    roots = [np.linalg.cholesky(covariance) for covariance, _ in covariances]
    log_weights = [
        math.log(prior) - float(np.log(np.diag(root)).sum())
        for root, (_, prior) in zip(roots, covariances, strict=True)
    ]
    return np.stack([np.linalg.solve(root, contrasts) for root in roots]), np.array(log_weights)


def _half_width(weights: np.ndarray, scales: np.ndarray, freedom: int) -> float:
    """Of the 95 % interval around zero of a mixture of Student's t of these scales."""
    low, high = 0.0, 2 * t_quantile((1 + CONFIDENCE) / 2, freedom) * float(scales.max())
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        if weights @ _within(middle / scales, freedom) < CONFIDENCE:
            low = middle
        else:
            high = middle
    return high


def _within(t: np.ndarray, freedom: int) -> np.ndarray:
    """The probability that Student's t is between -t and t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = np.arctan(t / math.sqrt(freedom))
    cosine, is_odd = np.cos(angle), freedom % 2
    term = cosine if is_odd else np.ones_like(angle)
    total = np.zeros_like(angle)
    for power in range(1 + is_odd, freedom, 2):
        total += term
        term = term * cosine**2 * power / (power + 1)
    total *= np.sin(angle)
    return 2 / math.pi * (angle + total) if is_odd else total
