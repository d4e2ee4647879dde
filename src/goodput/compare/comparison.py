"""The difference between two sets of runs: of a step's length, of each state in it, of goodput, MFU and cost."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import msgspec
import numpy as np

from goodput.account.states import STATES
from goodput.account.text import whole
from goodput.compare.figures import Figure, figures
from goodput.compare.steps import STEPS_MIN, Steps
from goodput.estimates.changes import changes
from goodput.estimates.mean import CONFIDENCE, Interval, difference, mean_of, pooled


class NotComparable(Exception):
    """The runs differ in what makes steps comparable; the text says in what, and which option allows it."""


class Difference(msgspec.Struct, frozen=True):
    """The difference of one quantity. `share` and its bounds are of the base's step; the bounds are a 95 % confidence interval."""

    name: str
    base_ns: int
    new_ns: int
    change_ns: int
    share: float
    share_low: float
    share_high: float
    is_significant: bool


class Side(msgspec.Struct, frozen=True):
    """One run. `changes` are the steps from which it had another pace, and by how much."""

    run: str
    ranks: int
    gpus: int
    steps: int
    first_steps_left_out: int
    warm_up_steps_left_out: int
    changes: list[tuple[int, float]]


class Comparison(msgspec.Struct, frozen=True):
    """`states` are those that occur, the largest change first; their ns add up exactly to those of `step`.

    `per` is "step" or "sample".
    """

    per: str
    confidence: float
    base: list[Side]
    new: list[Side]
    step: Difference
    states: list[Difference]
    figures: list[Figure]


def compare(
    base: Sequence[Steps],
    new: Sequence[Steps],
    *,
    per: str = "step",
    any_size: bool = False,
    any_device: bool = False,
) -> Comparison:
    """Compare runs, several a side, all without the longest warm-up among them. Raises NotComparable."""
    _check(base, new, per, any_size, any_device)
    runs = prepared([*base, *new])
    base, new = runs[: len(base)], runs[len(base) :]
    tables = [[_per(one, per) for one in side] for side in (base, new)]
    ns = [_mean_ns(side, per) for side in (base, new)]
    total = sum(ns[0])
    means = [
        [
            pooled([mean_of(table[:, column]) for table in side], [len(table) for table in side])
            for column in range(len(STATES) + 1)
        ]
        for side in tables
    ]
    found = [
        _difference(name, ns[0][column], ns[1][column], difference(means[0][column], means[1][column]), total)
        for column, name in enumerate(STATES)
    ]
    step = _difference("step", total, sum(ns[1]), difference(means[0][-1], means[1][-1]), total)
    states = sorted((one for one in found if one.base_ns or one.new_ns), key=lambda one: -abs(one.change_ns))
    return Comparison(
        *(per, CONFIDENCE, [side_of(one) for one in base], [side_of(one) for one in new]),
        *(step, states, figures(base, new, per)),
    )


def prepared(runs: Sequence[Steps]) -> list[Steps]:
    """All without the longest warm-up among them. Raises NotComparable if too few steps are left."""
    warm_up = max(one.warm_up for one in runs)
    rest = [one.without(warm_up) for one in runs]
    short = [one.name for one in rest if len(one) < STEPS_MIN]
    if short:
        raise NotComparable(f"run {short[0]} has fewer than {STEPS_MIN} steps after a warm-up of {warm_up}")
    return rest


def check_devices(runs: Sequence[Steps], any_device: bool) -> None:
    """Raises NotComparable for runs on different devices, unless any will do."""
    devices = {one.devices for one in runs if one.devices}
    if len(devices) > 1 and not any_device:
        names = " and ".join(sorted("/".join(one) for one in devices))
        raise NotComparable(f"runs on {names}; --any-device compares them all the same")


def _check(base: Sequence[Steps], new: Sequence[Steps], per: str, any_size: bool, any_device: bool) -> None:
    both = [*base, *new]
    sizes = {int(one.ranks.max()) for one in both}
    if len(sizes) > 1 and not any_size:
        raise NotComparable(
            f"runs of {_listed(sizes)} ranks; --scaling says how well they scale, "
            "--any-size compares their steps all the same"
        )
    check_devices(both, any_device)
    if per == "sample":
        check_samples(both)
        return
    batches = {round(float(one.samples.sum() / one.ranks.sum()), 2) for one in both if one.samples.any()}
    if batches and max(batches) > 1.01 * min(batches):
        raise NotComparable(
            f"{_listed(batches)} samples a step and rank; --per sample compares the time of a sample"
        )


def check_samples(runs: Sequence[Steps]) -> None:
    """Raises NotComparable unless each step has samples."""
    without = [one.name for one in runs if not one.samples.all()]
    if without:
        raise NotComparable(f"run {without[0]} has steps without samples, so none can be compared per sample")


def _listed(values: set) -> str:
    return " and ".join(map(whole, sorted(values)))


def _divisors(steps: Steps, per: str) -> np.ndarray:
    return steps.ranks if per == "step" else steps.samples


def _per(steps: Steps, per: str) -> np.ndarray:
    """Mean ns by state of each step, and in the last column of the whole step."""
    sums = np.column_stack([steps.states, steps.states.sum(axis=1)])
    return sums / _divisors(steps, per)[:, None]


def _mean_ns(side: Sequence[Steps], per: str) -> list[int]:
    """Mean ns by state over all steps; what rounding would add or lose goes to the states that are rounded most."""
    divisor = sum(int(_divisors(one, per).sum()) for one in side)
    sums = [sum(int(one.states[:, column].sum()) for one in side) for column in range(len(STATES))]
    return rounded([Fraction(value, divisor) for value in sums])


def rounded(exact: Sequence[Fraction]) -> list[int]:
    """Integers whose sum is the rounded sum; what rounding adds goes to those that are rounded most."""
    found = [int(value) for value in exact]
    missing = round(sum(exact)) - sum(found)
    for column in sorted(range(len(exact)), key=lambda column: found[column] - exact[column])[:missing]:
        found[column] += 1
    return found


def _difference(name: str, base_ns: int, new_ns: int, interval: Interval, total_ns: int) -> Difference:
    change_ns = new_ns - base_ns
    low, high = interval.low - interval.value, interval.high - interval.value
    return Difference(
        *(name, base_ns, new_ns, change_ns, change_ns / total_ns),
        *((change_ns + low) / total_ns, (change_ns + high) / total_ns, interval.is_significant),
    )


def side_of(steps: Steps) -> Side:
    listed = [(int(steps.numbers[one.index]), one.share) for one in changes(steps.lengths)]
    return Side(
        *(steps.name, int(steps.ranks.max()), steps.gpus, len(steps), len(steps.first), steps.warm_up, listed)
    )
