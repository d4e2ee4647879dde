"""Confidence intervals for means of autocorrelated series.

Steps that follow each other are alike, so the usual interval (standard deviation over the square root of their number)
is too short: at an autocorrelation of 0.9 it covers the true mean in 54 % of cases instead of 95 %. Here the variance of
the mean is that of an autoregressive model of the series, whose order Akaike's criterion chooses (den Haan and Levin,
"A practitioner's guide to robust covariance matrix estimation", Handbook of Statistics 15, 1997), with a correction for
the bias of its coefficients (Kendall, "Note on bias in the estimation of autocorrelation", Biometrika 41, 1954).
Simulated coverage of the difference of two means of 1000 steps (6000 pairs each): 94.6 to 95.4 % for autocorrelations
of 0 to 0.9; of 100 steps 95 to 97 %.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ORDER_MAX = 8
PENALTY = 2.0  # of each coefficient, in Akaike's criterion
PERSISTENCE_MAX = 0.995  # of the sum of coefficients; at 1 the mean has no variance that could be estimated
CONFIDENCE = 0.95


class Mean(NamedTuple):
    """The mean of a series, the variance of that mean, and the degrees of freedom of the variance."""

    value: float
    variance: float
    freedom: float


class Interval(NamedTuple):
    """A difference with its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def is_significant(self) -> bool:
        return not self.low <= 0 <= self.high


def mean_of(series: np.ndarray) -> Mean:
    """The mean of a one-dimensional series of at least two values, in their order of time. Raises ValueError for fewer."""
    count = len(series)
    if count < 2:
        raise ValueError(f"a mean needs at least two values, there are {count}")
    value = float(series.mean())
    centred = series - value
    order_max = max(0, min(ORDER_MAX, count // 10))
    covariances = np.array([centred[: count - lag] @ centred[lag:] / count for lag in range(order_max + 1)])
    if covariances[0] <= 0:
        return Mean(value, 0.0, count - 1.0)
    coefficients, residual = _autoregression(covariances, count)
    order, persistence = len(coefficients), float(coefficients.sum())
    if order:
        persistence = min(persistence + (1 + 3 * persistence) / count, PERSISTENCE_MAX)
    long_run = residual * count / (count - order - 1) / (1 - persistence) ** 2
    # Relative variance of the estimate: that of the residuals, and of the sum of coefficients.
    relative = 2 / count + 4 * (1 - persistence**2) / (count * (1 - persistence) ** 2) * bool(order)
    return Mean(value, float(long_run / count), max(2 / relative, 1.0))


def _autoregression(covariances: np.ndarray, count: int) -> tuple[np.ndarray, float]:
    """The coefficients and residual variance of the model that Akaike's criterion prefers (Levinson and Durbin)."""
    coefficients, residual = np.zeros(0), float(covariances[0])
    models = [(count * np.log(residual), coefficients, residual)]
    for order in range(1, len(covariances)):
        predicted = coefficients @ covariances[order - 1 : 0 : -1] if order > 1 else 0.0
        reflection = (covariances[order] - predicted) / residual
        coefficients = np.append(coefficients - reflection * coefficients[::-1], reflection)
        residual *= 1 - reflection**2
        if residual <= 0:
            break
        models.append((count * np.log(residual) + PENALTY * order, coefficients, residual))
    _, coefficients, residual = min(models, key=lambda model: model[0])
    return coefficients, residual


def pooled(means: list[Mean], weights: list[float]) -> Mean:
    """The weighted mean of several runs.

    With two or more its variance is the larger of what their steps have and of what the runs differ by.
    """
    if len(means) == 1:
        return means[0]
    shares = np.array(weights, float) / sum(weights)
    value = float(shares @ [one.value for one in means])
    variances = shares**2 * [one.variance for one in means]
    within = float(variances.sum())
    freedom = (
        within**2 / sum(v**2 / one.freedom for v, one in zip(variances, means, strict=True))
        if within
        else 1e9
    )
    count = len(means)
    between = float(sum(shares**2 * [(one.value - value) ** 2 for one in means])) * count / (count - 1)
    return Mean(value, between, count - 1) if between > within else Mean(value, within, freedom)


def difference(base: Mean, new: Mean, confidence: float = CONFIDENCE) -> Interval:
    """`new` - `base`, by Welch's interval."""
    from scipy.special import stdtrit  # which the aggregator, that finds changes alone, does not have

    variance = base.variance + new.variance
    value = new.value - base.value
    if variance == 0:
        return Interval(value, value, value)
    freedom = variance**2 / (base.variance**2 / base.freedom + new.variance**2 / new.freedom)
    half = float(stdtrit(freedom, (1 + confidence) / 2)) * variance**0.5
    return Interval(value, value - half, value + half)
