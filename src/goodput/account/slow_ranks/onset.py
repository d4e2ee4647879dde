"""The steps in which a rank was slow, as the core has found them (onset.c has the rule)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Stretch(NamedTuple):
    """A rank was slow from step `first` to step `last`; None while it still is."""

    first: int
    last: int | None


@dataclass(slots=True)
class Onset:
    """One attempt's stretches; `slow` while the last one lasts, `first` is the first step that was compared."""

    stretches: list[Stretch] = field(default_factory=list)
    slow: bool = False
    first: int | None = None

    def end(self, step: int) -> None:
        """The attempt ended at this step; an open stretch ends there."""
        self.stretches = [*self.stretches[:-1], Stretch(self.stretches[-1].first, step)]
        self.slow = False
