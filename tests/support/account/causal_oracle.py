"""The causal rules for the account by brute force: what decides on a step is what its rank did before."""

from __future__ import annotations

from collections import Counter

from support.account.account_oracle import Life, WholeRun


class Causal(WholeRun):
    """A threshold of each rank at each moment, a first step beside the next 15, steps compared once all have them."""

    def threshold_of_run(self) -> int:
        """The longest of the ranks' thresholds at the end."""
        newest = {life.rank: life for life in sorted(self.lives, key=lambda life: life.start_ns)}
        known = [(life, len(life.steps)) for life in newest.values()]
        found = [self.threshold(*one) for one in known if self._lengths_before(*one)]
        return max(found, default=self.least_ns)

    def threshold(self, life: Life, steps: int) -> int:
        """Ten times the lower 99th percentile of the last 1024 lengths; of fewer than eight, the longest."""
        known = self._lengths_before(life, steps)
        if not known:
            return max(self.least_ns, 1800 * 10**9)
        recent = sorted(known[-1024:])
        usual = recent[-1] if len(recent) < 8 else recent[99 * (len(recent) - 1) // 100]
        return max(self.least_ns, 10 * usual)

    def _lengths_before(self, life: Life, steps: int) -> list[int]:
        """Lengths of the steps of a rank before this life's step of this place, each life's first left out."""
        earlier = sorted((one for one in self.lives if one.rank == life.rank), key=lambda one: one.start_ns)
        earlier = earlier[: earlier.index(life)]
        made = [step for one in earlier for step in one.steps[1:]] + life.steps[1:steps]
        return [sum(ns for _, ns in step.parts) for step in made]

    def others(self, steps: list[Counter]) -> list[Counter]:
        return steps[1:16]

    def is_provisional(self, life: Life) -> bool:
        return life.end == "alive" and 0 < len(life.steps) <= 15

    def is_awaited(self, life: Life, index: int) -> bool:
        return life.end == "alive" and (self.is_provisional(life) or life.steps[-1].index < index)
