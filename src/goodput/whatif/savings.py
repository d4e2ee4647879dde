"""Savings with their uncertainty, in GPU-nanoseconds of a whole run.

The interval is for what a repetition of the run with the change would show. That is another sample of as many steps, and
what drifts within the recorded run may drift as far between the two: see `goodput.estimates.repetition`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from goodput.estimates.mean import CONFIDENCE, Mean
from goodput.estimates.repetition import repetition_of
from goodput.estimates.student import t_quantile
from goodput.whatif import replay
from goodput.whatif.steps import Team

NOTHING = Mean(0.0, 0.0, 1.0)


def of_steps(team: Team, changed: np.ndarray) -> Mean:
    """What the team saves over all its steps if they take `changed` (steps,) ns instead."""
    scale = float(team.steps * team.devices)
    saved = float(np.average(replay.lengths(team) - changed, weights=team.counts))
    repeated = repetition_of(changed)
    return Mean(scale * saved, scale**2 * repeated.variance, repeated.freedom)


def total(savings: Iterable[Mean]) -> Mean:
    """The sum of independent ones (Welch and Satterthwaite)."""
    parts = list(savings)
    variance = sum(one.variance for one in parts)
    if not variance:
        return Mean(sum(one.value for one in parts), 0.0, 1.0)
    freedom = variance**2 / sum(one.variance**2 / one.freedom for one in parts)
    return Mean(sum(one.value for one in parts), variance, freedom)


def bounds(saved: Mean) -> tuple[float, float]:
    """The bounds of the 95 % interval, in ns."""
    half = t_quantile((1 + CONFIDENCE) / 2, saved.freedom) * saved.variance**0.5
    return saved.value - half, saved.value + half
