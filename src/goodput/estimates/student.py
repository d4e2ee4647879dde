"""Quantiles of Student's t distribution, for what has no SciPy."""

from __future__ import annotations

import math
from statistics import NormalDist


def t_quantile(probability: float, freedom: float) -> float:
    """The quantile of a probability of at least 0.5, for `freedom` degrees of freedom, at least 1.

    Bisects the distribution function 1 - I(f / (f + t^2); f / 2, 1 / 2) / 2, whose incomplete beta function is a continued
    fraction (Press et al., "Numerical Recipes", 3rd edition, 6.4). Exact to 1e-9 of itself.
    """
    low, high = 0.0, max(NormalDist().inv_cdf(probability), 1.0)
    while _upper_tail(high, freedom) > 1 - probability:
        low, high = high, 2 * high
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _upper_tail(middle, freedom) > 1 - probability else (low, middle)
    return (low + high) / 2


def _upper_tail(t: float, freedom: float) -> float:
    """The probability of more than `t`."""
    a, b, x = freedom / 2, 0.5, freedom / (freedom + t * t)
    if x >= 1:
        return 0.5
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    # The fraction converges quickly on one side of the mean.
    if x < (a + 1) / (a + b + 2):
        return math.exp(log_front) * _beta_fraction(a, b, x) / a / 2
    return (1 - math.exp(log_front) * _beta_fraction(b, a, 1 - x) / b) / 2


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, 300):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / (1 + numerator * d), 1 + numerator / c
            found *= d * c
        if abs(d * c - 1) < 1e-14:
            break
    return found
