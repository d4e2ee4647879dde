"""Savings with their uncertainty, in GPU-nanoseconds of a whole run.

The interval is for what a repetition of the run with the change would show. That is another sample of as many steps, and
what drifts within the recorded run may drift as far between the two: see `goodput.estimates.repetition`. Steps with a
save, an evaluation or a rollout come as often again, so they are estimated apart: by chance they are as long as they are,
not as many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from goodput.estimates.mean import CONFIDENCE, Mean
from goodput.estimates.repetition import repetition_of
from goodput.estimates.student import t_quantile
from goodput.whatif import replay
from goodput.whatif.steps import OWN, PLANNED, Team

# A step has a planned phase if that takes this part of the median step; less is in many steps.
PLANNED_SHARE_MIN = 0.1


def of_steps(team: Team, changed: np.ndarray) -> Mean:
    """What the team saves over all its steps if they take `changed` (steps,) ns instead."""
    scale = float(team.steps * team.devices)
    saved = float(np.average(replay.lengths(team) - changed, weights=team.counts))
    repeated = by_kind(team, changed, repetition_of)
    return Mean(scale * saved, scale**2 * repeated.variance, repeated.freedom)


def by_kind(team: Team, series: np.ndarray, estimate: Callable[[np.ndarray], Mean]) -> Mean:
    """The mean of a series (steps,) from estimates of each kind of step, by the planned phases in it."""
    planned = team.own[:, :, [OWN.index(state) for state in PLANNED]].max(axis=1)
    present = planned >= PLANNED_SHARE_MIN * np.median(replay.recorded(team))
    kinds = present @ (1 << np.arange(len(PLANNED)))
    numbers, rows = np.unique(kinds, return_counts=True)
    if rows.min() < 2:
        # One step does not show by how much its kind varies.
        return estimate(series)
    shares = [float(team.counts[kinds == kind].sum() / team.counts.sum()) for kind in numbers]
    parts = [estimate(series[kinds == kind]) for kind in numbers]
    return total(
        Mean(share * one.value, share**2 * one.variance, one.freedom)
        for share, one in zip(shares, parts, strict=True)
    )


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
