"""How well runs of different sizes scale: the work per second and GPU at each size over that at the smallest.

The GPU time of a unit of work, c, is that rate's inverse, so the efficiency at size N is c(smallest) / c(N). Both are sums
over states, and so is what is lost: 1 - efficiency = sum over states of (c_s(N) - c_s(smallest)) / c(N). A unit of work is
a step of all GPUs where a step's work is the same at every size (strong scaling), a step of one GPU where it grows with
the GPUs (weak scaling), or a sample. Intervals are those of the ratio, linearised around the means of the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import msgspec
import numpy as np

from goodput.account.states import STATES
from goodput.account.text import whole
from goodput.compare.comparison import (
    NotComparable,
    Side,
    check_devices,
    check_samples,
    prepared,
    rounded,
    side_of,
)
from goodput.compare.steps import Steps
from goodput.estimates.mean import CONFIDENCE, Mean, difference, mean_of, pooled

ALIKE = 1.01  # batches that differ by less are the same
UNITS = {"strong": "step", "weak": "GPU's step", "samples": "sample"}


class Part(msgspec.Struct, frozen=True):
    """GPU time of a unit of work, in one state or all. `lost` is its part of the lost efficiency, with a 95 % interval."""

    name: str
    ns: int
    change_ns: int
    lost: float
    low: float
    high: float
    is_significant: bool


class Size(msgspec.Struct, frozen=True):
    """All runs of one number of GPUs. `parts` are the states that occur; their ns and losses add up to those of `work`.

    `work` is of all states: what it lost is 1 - `efficiency`. `dollars` are those of a thousand units of work, and
    `per_dollar` is the work for a dollar over that at the smallest size; None where prices are unknown.
    """

    gpus: int
    runs: list[Side]
    step_ns: int
    efficiency: float
    low: float
    high: float
    speed_up: float
    dollars: float | None
    per_dollar: float | None
    work: Part
    parts: list[Part]


class Scaling(msgspec.Struct, frozen=True):
    """`kind` is "strong", "weak" or "samples"; `unit` is that of work. `sizes` go from the smallest up."""

    kind: str
    unit: str
    confidence: float
    sizes: list[Size]


def scaling(runs: Sequence[Steps], kind: str = "auto", *, any_device: bool = False) -> Scaling:
    """How runs of at least two numbers of GPUs scale, all without the longest warm-up among them. Raises NotComparable.

    `kind` is "strong", "weak", "samples" (work is the samples done), or "auto": strong or weak, as the samples of
    a step show.
    """
    check_devices(runs, any_device)
    counts = sorted({one.gpus for one in runs})
    if len(counts) < 2:
        raise NotComparable(f"all runs have {counts[0]} GPUs; scaling needs runs of several sizes")
    if kind == "auto":
        kind = _kind(runs)
    elif kind == "samples":
        check_samples(runs)
    runs = prepared(runs)
    works = [_Work([one for one in runs if one.gpus == gpus], kind) for gpus in counts]
    return Scaling(kind, UNITS[kind], CONFIDENCE, [_size(works[0], work) for work in works])


def _kind(runs: Sequence[Steps]) -> str:
    """Whether a step's samples are the same at every size, or those of a GPU's step."""
    if not all(one.samples.any() for one in runs):
        raise NotComparable(
            "no samples are recorded, so it is not known what a step does: --scaling strong if the same at every "
            "size, --scaling weak if more with more GPUs"
        )
    steps = [float(one.samples.sum() / one.ranks.sum()) * int(one.ranks.max()) for one in runs]
    if max(steps) <= ALIKE * min(steps):
        return "strong"
    by_gpu = [batch / one.gpus for batch, one in zip(steps, runs, strict=True)]
    if max(by_gpu) <= ALIKE * min(by_gpu):
        return "weak"
    listed = ", ".join(
        f"{whole(batch)} on {one.gpus}"
        for batch, one in sorted(zip(steps, runs, strict=True), key=lambda pair: pair[1].gpus)
    )
    raise NotComparable(
        f"steps have neither the same samples at every size nor on every GPU ({listed} GPUs); "
        "--per sample compares the time of a sample, --scaling strong or weak that of a step"
    )


class _Work:
    """The steps of all runs of one size, as GPU time by state of a unit of work; the last column is of all states."""

    def __init__(self, runs: Sequence[Steps], kind: str):
        self.runs, self.gpus = runs, runs[0].gpus
        ranks = [int(one.ranks.max()) for one in runs]
        # A step that some ranks did not report stands for what the others had on average.
        units = [one.samples if kind == "samples" else one.ranks for one in runs]
        most = [1 if kind == "samples" else count for count in ranks]
        done = sum((Fraction(int(unit.sum()), n) for unit, n in zip(units, most, strict=True)), Fraction())
        done *= self.gpus if kind == "weak" else 1
        spent = [
            sum(
                (Fraction(int(one.states[:, column].sum()), n) for one, n in zip(runs, ranks, strict=True)),
                Fraction(),
            )
            for column in range(len(STATES))
        ]
        self.ns = rounded([self.gpus * one / done for one in spent])
        self.total_ns = sum(self.ns)
        self._tables = []
        for one, unit, count in zip(runs, units, ranks, strict=True):
            factor = {"weak": 1.0, "strong": self.gpus, "samples": self.gpus / count}[kind]
            columns = np.column_stack([one.states, one.states.sum(axis=1)])
            self._tables.append(columns * factor / unit[:, None])

    def mean(self, column: int, share: float = 0.0) -> Mean:
        """The mean of a column, less this share of the last one."""
        series = [table[:, column] - share * table[:, -1] for table in self._tables]
        return pooled([mean_of(one) for one in series], [len(one) for one in series])

    def step_ns(self) -> int:
        """Mean length of a step over its ranks."""
        states, ranks = (
            sum(int(getattr(one, name).sum()) for one in self.runs) for name in ("states", "ranks")
        )
        return round(Fraction(states, ranks))

    def price(self) -> float | None:
        """Dollars of a GPU-hour, if all runs have the same price."""
        prices = {one.gpu_hour_cost for one in self.runs}
        return prices.pop() if len(prices) == 1 else None


def _size(base: _Work, work: _Work) -> Size:
    parts = [
        _part(name, base, work, column)
        for column, name in enumerate(STATES)
        if base.ns[column] or work.ns[column]
    ]
    whole = _part("all", base, work, len(STATES))
    efficiency = base.total_ns / work.total_ns
    old_price, price = base.price(), work.price()
    dollars = None if price is None else 1000 * work.total_ns / 3.6e12 * price
    per_dollar = efficiency * old_price / price if old_price and price else None
    return Size(
        *(work.gpus, [side_of(one) for one in work.runs], work.step_ns()),
        *(efficiency, efficiency - (whole.high - whole.lost), efficiency + (whole.lost - whole.low)),
        *(efficiency * work.gpus / base.gpus, dollars),
        per_dollar,
        whole,
        sorted(parts, key=lambda part: -part.lost),
    )


def _part(name: str, base: _Work, work: _Work, column: int) -> Part:
    """The part of one column: that of a state, or the last one, of all states."""
    old, new = ((one.ns[column] if column < len(STATES) else one.total_ns) for one in (base, work))
    lost = (new - old) / work.total_ns
    if base is work:
        return Part(name, new, 0, 0.0, 0.0, 0.0, False)
    # The differential of (new - old) / total: what varies of it with the steps of each side.
    found = difference(base.mean(column), work.mean(column, lost))
    low, high = ((bound - found.value) / work.total_ns for bound in (found.low, found.high))
    return Part(name, new, new - old, lost, lost + low, lost + high, not lost + low <= 0 <= lost + high)
