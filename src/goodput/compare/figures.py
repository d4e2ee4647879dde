"""Figures of a comparison besides the time of a step: goodput, MFU and cost, each with its difference.

Of the compared steps they have intervals as the step has, since they are ratios of the steps' means. Of the whole run,
its starts, restarts and lost work included, there is one value a run: an interval needs several runs a side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from goodput.account.states import PRODUCTIVE
from goodput.compare.steps import Steps
from goodput.estimates.mean import Interval, Mean, difference, mean_of, pooled


class Figure(msgspec.Struct, frozen=True):
    """`low` and `high` are the 95 % interval of `change`, None where one run a side cannot give it."""

    name: str
    base: float
    new: float
    change: float
    low: float | None
    high: float | None
    is_significant: bool


GOODPUT_OF_STEPS, MFU_OF_STEPS = "goodput of the steps", "MFU of the steps"
GOODPUT_OF_RUN, MFU_OF_RUN = "goodput of the run", "MFU of the run"
DOLLARS = "dollars"


def figures(base: Sequence[Steps], new: Sequence[Steps], per: str) -> list[Figure]:
    """The figures that are known of both sides; dollars are those of a thousand steps, of all ranks, or samples."""
    found = [
        _figure(GOODPUT_OF_STEPS, _of_steps(base, _goodput), _of_steps(new, _goodput)),
        _figure(MFU_OF_STEPS, _of_steps(base, _mfu), _of_steps(new, _mfu)),
        _figure(GOODPUT_OF_RUN, _of_runs(base, "goodput"), _of_runs(new, "goodput")),
        _figure(MFU_OF_RUN, _of_runs(base, "mfu"), _of_runs(new, "mfu")),
        _figure(DOLLARS, _dollars(base, per), _dollars(new, per)),
    ]
    return [one for one in found if one is not None]


def _figure(name: str, base: Mean | None, new: Mean | None) -> Figure | None:
    if base is None or new is None:
        return None
    change = new.value - base.value
    if not (base.freedom and new.freedom):
        return Figure(name, base.value, new.value, change, None, None, False)
    interval: Interval = difference(base, new)
    return Figure(name, base.value, new.value, change, interval.low, interval.high, interval.is_significant)


def _of_steps(side: Sequence[Steps], mean_of_run: Callable[[Steps], Mean | None]) -> Mean | None:
    means = [mean for one in side if (mean := mean_of_run(one)) is not None]
    if len(means) < len(side):
        return None
    return pooled(means, [float(one.lengths.sum()) for one in side])


def _goodput(steps: Steps) -> Mean:
    """Productive time / time. The series has the ratio as its mean, and its variance to first order."""
    productive, length = steps.states[:, PRODUCTIVE] / steps.ranks, steps.lengths
    ratio = float(productive.sum() / length.sum())
    return mean_of(ratio + (productive - ratio * length) / length.mean())


def _mfu(steps: Steps) -> Mean | None:
    """Model FLOPs of a step / (peak x its mean time), all ranks together; None where unknown, or above 1."""
    if not steps.flops_per_step or not steps.peak_flops_per_second:
        return None
    length = steps.lengths
    ratio = steps.flops_per_step / steps.peak_flops_per_second / (float(length.mean()) / 1e9)
    return None if ratio > 1 else mean_of(ratio * (2 - length / length.mean()))


def _of_runs(side: Sequence[Steps], name: str) -> Mean | None:
    """The mean over several runs, weighed by their GPU time. With one run the degrees of freedom are 0: it has no interval."""
    wholes = [one.whole for one in side if one.whole is not None]
    values = [value for one in wholes if (value := getattr(one, name)) is not None]
    if len(values) < len(side):
        return None
    if len(values) == 1:
        return Mean(values[0], 0.0, 0.0)
    return pooled([Mean(value, 0.0, 1e9) for value in values], [one.gpu_seconds for one in wholes])


def _dollars(side: Sequence[Steps], per: str) -> Mean | None:
    """A thousand steps of all ranks, or samples, at the price of a GPU-hour, if all runs have the same."""
    prices = {(one.gpu_hour_cost, one.gpus / (1 if per == "step" else int(one.ranks.max()))) for one in side}
    price, gpus = prices.pop()
    if prices or price is None:
        return None
    means = []
    for one in side:
        divisor = one.ranks if per == "step" else one.samples
        means.append(
            mean_of(1000 / 3.6e12 * gpus * price * one.states.sum(axis=1) / np.asarray(divisor, float))
        )
    return pooled(means, [len(one) for one in side])
