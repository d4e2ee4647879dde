"""Since when a rank is slow, by the formulas that onset.c explains, for one rank and one step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from typing import NamedTuple

FALSE_ALARM_STEPS = 10_000_000
STRETCHES_MAX = 8

Stretch = tuple[int, int | None]  # first and last step; None while it lasts


class Hits(NamedTuple):
    """Which ranks of a group were slow in a step, among the slowest few or beside others, and the chances of each by luck."""

    slowest: list[bool]
    chance: float
    beside: list[bool]
    chance_beside: float


def hits(own: Sequence[float]) -> Hits:
    """Compare the own times of a group's ranks in one step."""
    ordered, count = sorted(own), len(own)
    few, half = max(1, count // 8), count // 2
    middle = ordered[(count - 1) // 2]
    low = ordered[min(max((3 * count + 7) // 8, 3) - 1, (count - 1) // 2)]
    apart = max(1.05 * middle, middle + 2 * (middle - ordered[0]))
    if low < middle:
        apart = min(apart, max(1.05 * low, low + 3 * (low - ordered[0])))
    slowest = [middle > 0 and ns >= max(1.05 * middle, ordered[-few]) for ns in own]
    beside = [middle > 0 and ns >= max(apart, ordered[-half]) for ns in own]
    # A tie at the border that makes them more than may be tells nothing.
    slowest = slowest if sum(slowest) <= few else [False] * count
    beside = beside if sum(beside) <= half else [False] * count
    chance_beside = max(sum(beside), count // 4) / count if half > few else 1.0
    return Hits(slowest, few / count, beside, chance_beside)


def log_ratio(hit: bool, chance: float, slow_share: float = 0.5) -> float:
    slow = slow_share + (1 - slow_share) * chance
    return log(slow / chance) if hit else log((1 - slow) / (1 - chance))


@dataclass
class Onset:
    """One rank's sums and stretches; steps come in order."""

    alarm: float = log(FALSE_ALARM_STEPS)
    stretches: list[Stretch] = field(default_factory=list)
    slow: bool = False
    sum: float = 0.0
    began: int = 0  # the first step after the sum was last zero
    sum_beside: float = 0.0
    began_beside: int = 0

    def note(
        self, step: int, hit: bool, chance: float, beside: bool = False, chance_beside: float = 1.0
    ) -> None:
        if self.sum <= 0:
            self.sum, self.began = 0.0, step
        if self.slow:
            self.sum -= log_ratio(hit or beside, chance_beside if beside and not hit else chance)
            if self.sum >= self.alarm:
                self.stretches[-1] = self.stretches[-1][0], self.began - 1
                self.slow, self.sum = False, 0.0
            return
        self.sum += log_ratio(hit, chance)
        if chance_beside < 1:
            if self.sum_beside <= 0:
                self.sum_beside, self.began_beside = 0.0, step
            self.sum_beside += log_ratio(beside, chance_beside, 0.75)
        if max(self.sum, self.sum_beside) >= self.alarm:
            began = self.began if self.sum >= self.alarm else self.began_beside
            self.stretches = [*self.stretches[: STRETCHES_MAX - 1], (began, None)]
            self.slow, self.sum, self.sum_beside = True, 0.0, 0.0


def note_all(onsets: Sequence[Onset], step: int, own: Sequence[float]) -> None:
    """A step of a group, the own times of its ranks in the order of `onsets`."""
    if len(own) < 2:
        return
    found = hits(own)
    for onset, hit, beside in zip(onsets, found.slowest, found.beside, strict=True):
        onset.note(step, hit, found.chance, beside, found.chance_beside)
