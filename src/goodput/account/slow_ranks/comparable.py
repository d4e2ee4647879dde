"""What ranks are compared by, over steps that are the same for all of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from goodput.account.slow_ranks.slow_phase import PhaseTimes

Key = tuple[int, int]  # (rank, attempt number)


@dataclass
class ComparableSums:
    """By attempt its own ns, steps and times in phases up to the step `until`, which is unknown where it has no entry.

    A group's ranks that go on and are reported have the same one, as far as they have steps in common.
    """

    own_ns: Mapping[Key, int] = field(default_factory=dict)
    steps: Mapping[Key, float] = field(default_factory=dict)
    until: Mapping[Key, int] = field(default_factory=dict)
    phases: Mapping[Key, PhaseTimes] = field(default_factory=dict)

    def compact(self) -> ComparableSums:
        """A copy of which the phases take 8 bytes each, which they do where they are rows of an array."""
        if not isinstance(self.phases, dict):
            return self
        return replace(self, phases={key: times.compact() for key, times in self.phases.items()})


def less(sums: Mapping, before: Mapping) -> dict:
    """What each of `sums` is above what it was before."""
    return {who: ns - before.get(who, 0) for who, ns in sums.items()}
