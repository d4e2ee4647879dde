"""Notices when the ranks of a run spend their time differently than before, so that its series can be rendered sooner.

One rank in SAMPLED_EACH is compared with itself: what it spent by phase between its last two reports, and between the two
before. Both are summed over all such ranks that report within WINDOW_SECONDS, so that it does not matter which of them do,
and are of whole steps, so that the phases of a long one are no change. Slow data or one slow rank shows in all ranks that
wait for each other.
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
# A window with fewer ranks than this part of those in the one before says nothing yet.
ENOUGH = 0.25


class _Mix:
    """ns by phase that ranks spent `now` and `before`, in the window that began at `since`, and how many ranks."""

    __slots__ = ("before", "count", "last_count", "now", "since")

    def __init__(self, width: int, since: float, last_count: int = 0):
        self.before, self.now = np.zeros(width), np.zeros(width)
        self.since, self.count, self.last_count = since, 0, last_count

    def has_changed(self) -> bool:
        if self.count <= ENOUGH * self.last_count:
            return False
        differences = self.now / self.now.sum() - self.before / self.before.sum()
        return bool(np.abs(differences).max() > CHANGE)


class PhaseMixes:
    """By run. `changed` has when a run was last found to be changed, by the monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.changed: dict[str, float] = {}
        self._spent: dict[str, dict[int, np.ndarray]] = {}  # by run and rank, between its last two reports
        self._mixes: dict[str, dict[int, _Mix]] = {}  # by run and number of phases
        self._clock = clock

    def add(self, run: str, rank: int, before: bytes | None, after: bytes | None) -> None:
        """Add what a rank spent between two reports, by the last row of each, as columns (wire.step_blocks)."""
        if rank % SAMPLED_EACH or before is None or after is None or len(before) != len(after):
            return
        rows = np.frombuffer(before + after, np.int64).reshape(2, -1)[:, TOTALS::2]
        spent = rows[1] - rows[0]
        if (spent < 0).any() or not spent.any():
            return
        of_run = self._spent.setdefault(run, {})
        earlier = of_run.get(rank)
        of_run[rank] = spent
        if earlier is not None and len(earlier) == len(spent):
            self._compare(run, earlier, spent)

    def _compare(self, run: str, earlier: np.ndarray, spent: np.ndarray) -> None:
        now, mixes, width = self._clock(), self._mixes.setdefault(run, {}), len(spent)
        mix = mixes.get(width)
        if mix is None or now - mix.since >= WINDOW_SECONDS:
            mix = mixes[width] = _Mix(width, now, 0 if mix is None else mix.count)
        mix.before += earlier
        mix.now += spent
        mix.count += 1
        if mix.has_changed():
            self.changed[run] = now

    def forget(self, run: str) -> None:
        """Drop what is known of a run that leaves memory."""
        for held in (self._mixes, self._spent, self.changed):
            held.pop(run, None)
