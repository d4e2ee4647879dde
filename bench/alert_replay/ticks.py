"""When the replayed Prometheus scrapes and evaluates: every `base` seconds, and every `fine` seconds within windows.

All moments lie on one grid of `fine` from 0, and `base` is a multiple of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Ticks:
    """`times` are in seconds from 0, each once and in order."""

    seconds: float
    base: float
    fine: float
    windows: list[tuple[float, float]] = field(default_factory=list)  # merged, on the grid of `base`
    times: np.ndarray = field(default_factory=lambda: np.empty(0))

    def stretches(self) -> list[tuple[float, float, float]]:
        """(first, last, step), as range queries need them: all of the time by `base`, then each window by `fine`."""
        first, last = float(self.times[0]), float(self.times[-1])
        whole = (first, first + (last - first) // self.base * self.base, self.base)
        return [whole, *((low, high, self.fine) for low, high in self.windows if self.fine < self.base)]


def ticks(seconds: float, base: float, fine: float, windows: Iterable[tuple[float, float]] = ()) -> Ticks:
    """Windows are widened to the grid of `base` and merged where they meet."""
    if base % fine:
        raise ValueError(f"the base of {base:g} s is no multiple of the fine interval, {fine:g} s")
    merged: list[tuple[float, float]] = []
    for low, high in sorted(windows):
        low, high = max(low // base * base, 0.0), min(-(-high // base) * base, seconds // base * base)
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        elif low < high:
            merged.append((low, high))
    grids = [np.arange(0, seconds + 1e-9, base)]
    grids += [np.arange(low, high + 1e-9, fine) for low, high in merged]
    return Ticks(seconds, base, fine, merged, np.unique(np.round(np.concatenate(grids), 3)))
