"""Notices when the ranks of a run spend their time otherwise than before, so that its series can be rendered sooner.

Of one rank in SAMPLED_EACH the time by phase is summed over windows of WINDOW_SECONDS, of whole steps, so that the phases of
a long one are no change. Slow data or one slow rank shows in all ranks: the others wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from goodput.wire.step_blocks import TOTALS

SAMPLED_EACH = 8
WINDOW_SECONDS = 5.0
# By how much a phase's part of the time differs.
CHANGE = 0.1
# A window with less time than this part of the one before says nothing yet.
ENOUGH = 0.25


class _Mix:
    """ns by phase of the window that began at `since`, and of the one before."""

    __slots__ = ("before", "now", "since")

    def __init__(self, width: int, since: float):
        self.before, self.now, self.since = np.zeros(width), np.zeros(width), since

    def has_changed(self) -> bool:
        before, now = self.before.sum(), self.now.sum()
        if now <= ENOUGH * before or not before:
            return False
        return bool(np.abs(self.now / now - self.before / before).max() > CHANGE)


class PhaseMixes:
    """By run. `changed` has when a run was last found to be changed, by the monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.changed: dict[str, float] = {}
        self._mixes: dict[str, dict[int, _Mix]] = {}  # by run and bytes of a row
        self._clock = clock

    def add(self, run: str, rank: int, before: bytes | None, after: bytes | None) -> None:
        """Add what a rank spent between two reports, by the last row of each, as columns (wire.step_blocks)."""
        if rank % SAMPLED_EACH or before is None or after is None or len(before) != len(after):
            return
        rows = np.frombuffer(before + after, np.int64).reshape(2, -1)[:, TOTALS::2]
        now, mixes = self._clock(), self._mixes.setdefault(run, {})
        mix = mixes.get(len(before))
        if mix is None:
            mix = mixes[len(before)] = _Mix(rows.shape[1], now)
        elif now - mix.since >= WINDOW_SECONDS:
            mix.before, mix.now, mix.since = mix.now, np.zeros(rows.shape[1]), now
        mix.now += rows[1] - rows[0]
        if mix.has_changed():
            self.changed[run] = now

    def forget(self, run: str) -> None:
        self._mixes.pop(run, None)
        self.changed.pop(run, None)
