"""The step at which a rank became slow.

In each step of a group a rank is hit if its own time exceeds the group's median by SLOW_RATIO_MIN and is among the
slowest few. While nothing distinguishes a rank, it is among the k slowest of n in at most k / n of the steps, whatever the
distribution of times, so the chance of a hit is known without estimating noise. A cumulative sum (Page, "Continuous
inspection schemes", 1954) of log-likelihood ratios of hits, against a rank that is slow in half of the remaining steps,
must reach ln(FALSE_ALARM_STEPS); by Lorden's bound ("Procedures for reacting to a change in distribution", 1971) it then
raises at most one false alarm in FALSE_ALARM_STEPS independent steps of a rank. The mirrored sum ends a stretch. Cost:
under 1 us per rank and step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import log
from typing import NamedTuple

# A rank is slow in a step if its own time exceeds its group's median by this ratio.
SLOW_RATIO_MIN = 1.05
# Steps of a rank between false alarms, on average, at least.
FALSE_ALARM_STEPS = 10_000_000
STRETCHES_MAX = 8


class Stretch(NamedTuple):
    """A rank was slow from step `first` to step `last`; None while it still is."""

    first: int
    last: int | None


@dataclass
class Onset:
    """One rank's sums. Steps come in order; `chance` is that of a hit while nothing is wrong."""

    stretches: list[Stretch] = field(default_factory=list)
    slow: bool = False
    sum: float = 0.0
    began: int = 0  # the first step after the sum was last zero

    def end(self, step: int) -> None:
        """The attempt ended at this step; an open stretch ends there."""
        self.stretches[-1] = Stretch(self.stretches[-1].first, step)
        self.slow = False

    def copy(self) -> Onset:
        return replace(self, stretches=list(self.stretches))

    def note(self, step: int, hit: bool, chance: float, alarm: float = log(FALSE_ALARM_STEPS)) -> None:
        """Take one step. A chance of 1 or more carries no information."""
        if chance >= 1:
            return
        slow = (1 + chance) / 2
        ratio = log(slow / chance) if hit else log((1 - slow) / (1 - chance))
        if self.sum <= 0:
            self.sum, self.began = 0.0, step
        self.sum += -ratio if self.slow else ratio
        if self.sum < alarm:
            return
        if self.slow:
            self.stretches[-1] = Stretch(self.stretches[-1].first, self.began - 1)
        elif len(self.stretches) < STRETCHES_MAX:
            self.stretches.append(Stretch(self.began, None))
        else:
            self.stretches[-1] = Stretch(self.began, None)
        self.slow, self.sum = not self.slow, 0.0


def hits(own_ns: list[int]) -> tuple[list[bool], float]:
    """Which ranks of a group were slow in a step, by their own times, and the chance of a hit by luck."""
    ordered = sorted(own_ns)
    count = len(ordered)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    slowest = max(1, count // 8)
    least = max(SLOW_RATIO_MIN * middle, ordered[-slowest])
    # With a tie at the border more ranks than `slowest` would be hit; then none stands out.
    over = sum(ns >= least for ns in own_ns)
    if over > slowest or middle <= 0:
        return [False] * count, slowest / count
    return [ns >= least for ns in own_ns], slowest / count
