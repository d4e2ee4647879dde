"""The best interval between checkpoints, and what it would be worth.

Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps" (2006): with failures at random
moments (exponential gaps of mean M) and saves of d seconds after every t seconds of work, the time per second of work is
M / t (exp((t + d) / M) - 1), but for a factor of restarts that does not depend on t. The failure rate is known from
few failures: its uncertainty is the posterior Gamma(n + 1/2, time) of Jeffreys' prior.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import optimize

DRAWS = 4000
EXPONENT_MAX = 50.0  # of (t + d) / M: beyond it no work is ever done


class Optimum(NamedTuple):
    """`share` of the run's time is saved with checkpoints every `seconds`; bounds of 95 %."""

    seconds: float
    share: float
    low: float
    high: float


def time_per_work(interval, save, between):
    """Seconds per second of work; `interval` of work, `save` and mean time `between` failures in seconds."""
    return between / interval * np.expm1(np.minimum((interval + save) / between, EXPONENT_MAX))


def best_interval(save: float, between: float) -> float:
    """Seconds of work between checkpoints, of the lowest time per work."""
    guess = np.log(np.sqrt(2 * save * between))
    found = optimize.minimize_scalar(
        lambda log: np.log(time_per_work(np.exp(log), save, between)),
        bounds=(guess - 4, guess + 2),
        method="bounded",
        options={"xatol": 1e-4},
    )
    return float(np.exp(found.x))


def optimum(
    save: float, save_error: float, interval: float, alive: float, failures: int, confidence: float = 0.95
) -> Optimum:
    """The best interval for `failures` (at least one) in `alive` seconds, instead of `interval` seconds of work.

    `save` is how long a save holds the run up, with its standard error.
    """
    best = best_interval(save, alive / failures)
    random = np.random.default_rng(0)
    between = alive / random.gamma(failures + 0.5, size=DRAWS)
    saves = np.maximum(save + save_error * random.standard_normal(DRAWS), 0.0)
    now, then = (time_per_work(seconds, saves, between) for seconds in (interval, best))
    low, high = np.quantile(1 - then / now, [(1 - confidence) / 2, (1 + confidence) / 2])
    now, then = (time_per_work(seconds, save, alive / failures) for seconds in (interval, best))
    return Optimum(best, float(1 - then / now), float(low), float(high))
