"""The steps in which a rank was slow.

In each step of a group a rank is hit if its own time exceeds that of the faster half (the lower median) by
HIT_RATIO_MIN and is among the slowest eighth. So that several slow ranks do not hide each other it is also beside
them if it is among the slowest half, and further from the lower median than SPREADS_MIN times the faster half's own
spread, or as far from the fastest three eighths, which a rank that is a little slow does not widen by being the lower
median. While nothing distinguishes a rank, it is among the k slowest of n in at most k / n of the steps, whatever the
distribution of times, also where k depends on the step's times but not on whose they are: so the chance of either is
bounded without estimating noise, for `beside` by as many ranks as stand out in the step. For each a cumulative sum
(Page, "Continuous inspection schemes", 1954) of log-likelihood ratios, against a rank that is slow in half of the
remaining steps, for `beside` in three quarters of them, must reach ln(FALSE_ALARM_STEPS); by Lorden's bound
("Procedures for reacting to a change in distribution", 1971) each raises at most one false alarm in FALSE_ALARM_STEPS
independent steps of a rank. The mirrored sum ends a stretch. Cost: under 2 us per rank and step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log
from operator import or_
from typing import NamedTuple

# A rank is slow in a step if its own time exceeds its group's lower median by this ratio.
HIT_RATIO_MIN = 1.05
# Times the distance from the fastest rank to the lower median: with equal ranks, few are further above it than this.
SPREADS_MIN = 2
# The same from the fastest rank to the slowest of the fastest three eighths, of which there are three at least.
LOW_SPREADS_MIN = 3
LOW_RANKS_MIN = 3
# A rank that stands out alone is taken for one of a quarter of its group, since noise that lasts makes it stand out again.
BESIDE_SHARE_MIN = 4
# In which part of the remaining steps a slow rank is taken to be slow, among the slowest few and beside others.
SLOW_SHARE, SLOW_SHARE_BESIDE = 0.5, 0.75
# Steps of a rank between false alarms, on average, at least.
FALSE_ALARM_STEPS = 10_000_000
STRETCHES_MAX = 8


class Stretch(NamedTuple):
    """A rank was slow from step `first` to step `last`; None while it still is."""

    first: int
    last: int | None


class Hits(NamedTuple):
    """Which ranks of a group were slow in a step, among the slowest few or beside others, and the chances of each by luck."""

    slowest: list[bool]
    chance: float
    beside: list[bool]
    chance_beside: float


@dataclass(slots=True)
class Onset:
    """One rank's sums. Steps come in order; each `chance` is that of a hit while nothing is wrong."""

    stretches: list[Stretch] = field(default_factory=list)
    slow: bool = False
    sum: float = 0.0
    began: int = 0  # the first step after the sum was last zero
    sum_beside: float = 0.0
    began_beside: int = 0
    first: int | None = None  # the first step that was compared

    def end(self, step: int) -> None:
        """The attempt ended at this step; an open stretch ends there."""
        self._close(step)
        self.slow = False

    def copy(self) -> Onset:
        """An independent one; `stretches` is replaced, never changed."""
        beside = self.sum_beside, self.began_beside
        return Onset(self.stretches, self.slow, self.sum, self.began, *beside, self.first)

    def note(
        self,
        step: int,
        hit: bool,
        chance: float,
        beside: bool = False,
        chance_beside: float = 1.0,
        alarm: float = log(FALSE_ALARM_STEPS),
    ) -> None:
        """Take one step. A chance of 1 or more carries no information."""
        if chance >= 1:
            return
        if self.first is None:
            self.first = step
        if self.sum <= 0:
            self.sum, self.began = 0.0, step
        if self.slow:
            # A hit beside others tells as much as its own chance.
            self.sum -= (
                log_ratio(True, chance if hit else chance_beside)
                if hit or beside
                else log_ratio(False, chance)
            )
        else:
            self.sum += log_ratio(hit, chance)
            if chance_beside < 1:
                if self.sum_beside <= 0:
                    self.sum_beside, self.began_beside = 0.0, step
                self.sum_beside += log_ratio(beside, chance_beside, SLOW_SHARE_BESIDE)
        self.change(alarm)

    def change(self, alarm: float) -> None:
        """Begin or end a stretch where a sum has reached `alarm`."""
        if self.slow:
            if self.sum >= alarm:
                self._close(self.began - 1)
                self.slow, self.sum = False, 0.0
        elif self.sum >= alarm:
            self._begin(self.began)
        elif self.sum_beside >= alarm:
            self._begin(self.began_beside)

    def note_steps(
        self,
        steps: list[int],
        hit: list[bool],
        beside: list[bool],
        chance: float,
        chances_beside: list[float],
    ) -> None:
        """Take steps of a group whose size does not change, in order; the same as `note` for each.

        Between hits the sums fall until they are restarted in every step, so only the last of these counts.
        """
        if steps and self.first is None and chance < 1:
            self.first = steps[0]
        hits_at = [at for at, one in enumerate(map(or_, hit, beside)) if one]
        hits_at.append(len(steps))
        at = following = 0
        while at < len(steps):
            if not self.slow and self.sum <= 0 and self.sum_beside <= 0:
                while hits_at[following] < at:
                    following += 1
                at = max(at, hits_at[following] - 1)
            self.note(steps[at], hit[at], chance, beside[at], chances_beside[at])
            at += 1

    def _close(self, last: int) -> None:
        self.stretches = [*self.stretches[:-1], Stretch(self.stretches[-1].first, last)]

    def _begin(self, step: int) -> None:
        self.stretches = [*self.stretches[: STRETCHES_MAX - 1], Stretch(step, None)]
        self.slow, self.sum, self.sum_beside = True, 0.0, 0.0


def log_ratio(hit: bool, chance: float, share: float = SLOW_SHARE) -> float:
    """The log-likelihood ratio of one step, where a slow rank is slow in this share of them."""
    slow = share + (1 - share) * chance
    return log(slow / chance) if hit else log((1 - slow) / (1 - chance))


def hits(own_ns: list[int]) -> Hits:
    """Compare the own times of a group's ranks in one step."""
    ordered = sorted(own_ns)
    count = len(ordered)
    middle, low = ordered[(count - 1) // 2], ordered[low_place(count)]
    least = HIT_RATIO_MIN * middle
    apart = max(least, middle + SPREADS_MIN * (middle - ordered[0]))
    if low < middle:
        apart = min(apart, max(HIT_RATIO_MIN * low, low + LOW_SPREADS_MIN * (low - ordered[0])))
    few, half = max(1, count // 8), count // 2
    beside = _over(own_ns, max(apart, ordered[-half]), half, middle)
    return Hits(
        *(_over(own_ns, max(least, ordered[-few]), few, middle), few / count),
        *(beside, chance_beside(count, sum(beside))),
    )


def low_place(count: int) -> int:
    """Among the sorted times of so many ranks the place of the last one of the fastest three eighths."""
    return min(max((3 * count + 7) // 8, LOW_RANKS_MIN) - 1, (count - 1) // 2)


def chance_beside(count: int, apart: int) -> float:
    """The chance to be one of `apart` of `count` ranks; 1 in groups where only the slowest one may be slow."""
    if count // 2 <= max(1, count // 8):
        return 1.0
    return max(apart, count // BESIDE_SHARE_MIN) / count


def _over(own_ns: list[int], least: float, most: int, middle: int) -> list[bool]:
    """The ranks at `least` or above; none if a tie at the border makes them more than `most`."""
    found = [ns >= least for ns in own_ns]
    return found if middle > 0 and sum(found) <= most else [False] * len(own_ns)
