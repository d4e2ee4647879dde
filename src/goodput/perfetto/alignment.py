"""One time axis for ranks whose clocks differ, from the steps that they make together.

Ranks leave a collective together. So for each step the ends of its exchange on the ranks' own clocks are one moment, and
what they differ by is how far the clocks are apart. No clock is trusted: hosts may be hours off, drift, or be set during
the run.

1. An exchange ends where its step does, or before what follows it in the step (`optimizer`, `checkpoint`, `evaluation`;
   the time in no phase). The log does not record which of these it is; the one at which the ranks agree best is taken.
2. A step's moment is the median over the ranks that made it, each corrected by its offset so far, so one bad clock does not
   move the others.
3. A process's offset is a straight line in time, for drift, plus the median of what is left over WINDOW sampled steps
   around each, for clocks that are set: one late step does not count. In between it is interpolated, before and after
   it stays.

The residual is what a rank's exchange still differs from its step's moment: how far two slices that belong together lie
apart in the picture. It is reported. Ranks that share no steps with others, or whose exchanges differ by more than
APART_SHARE_MAX of a step whatever the offsets, so that they do not wait for each other, keep their own clock.
Ranks of a role are aligned with each other. Several roles have no collectives in common that are known, so between roles the
medians of their clocks count.

Memory: at most POINTS_MAX sampled steps of ranks (every second one is dropped when they are more), 32 bytes each.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from typing import NamedTuple

import numpy as np

POINTS_MAX = 1 << 20
WINDOW = 33
STEPS_MIN = 3  # with others, for an offset
APART_SHARE_MAX = 0.1  # of a step, by which ranks that make steps together differ at most
ROUNDS = 3
ANCHORS = 3
_WIDTH = 1 + ANCHORS

Key = tuple[int, int]  # rank, attempt


class Residual(NamedTuple):
    """How far ranks that are aligned still differ, in ns, over `points` sampled steps of ranks."""

    points: int = 0
    p50_ns: float = 0.0
    p95_ns: float = 0.0
    max_ns: float = 0.0


class Alignment:
    """`add` the ends of steps, `solve`, then `shift`."""

    def __init__(self, points_max: int = POINTS_MAX):
        self._points_max, self._stride, self._count = points_max, 1, 0
        self._rows: dict[str, dict[Key, array]] = defaultdict(dict)
        self._offsets: dict[Key, tuple[list[int], list[int]]] = {}
        self.residual = Residual()
        self.aligned = 0  # processes
        self.alone = 0  # processes that share too few steps with others
        self.low_ns = self.high_ns = 0  # offsets from the median clock

    def add(self, role: str, key: Key, step: int, ends_ns: tuple[int, int, int]) -> None:
        """A step's end on the process's own clock, and the other moments at which its exchange may have ended."""
        if step % self._stride:
            return
        team = self._rows[role]
        if key not in team:
            team[key] = array("q")
        team[key].extend((step, *ends_ns))
        self._count += 1
        if self._count > self._points_max:
            self._thin()

    def _thin(self) -> None:
        self._stride *= 2
        self._count = 0
        for team in self._rows.values():
            for key, values in team.items():
                rows = _table(values)
                kept = rows[rows[:, 0] % self._stride == 0]
                team[key] = array("q", kept.tobytes())
                self._count += len(kept)

    def solve(self) -> None:
        """Find the offsets; the steps are no longer held."""
        residuals: list[np.ndarray] = []
        for team in self._rows.values():
            for number in sorted({number for _, number in team}):
                together = {key: _table(team[key]) for key in sorted(team) if key[1] == number}
                residuals += self._solve(together)
        self._rows.clear()
        found = np.concatenate(residuals) if residuals else np.zeros(0)
        if len(found):
            p50, p95 = np.percentile(found, (50, 95))
            self.residual = Residual(len(found), float(p50), float(p95), float(found.max()))

    def _solve(self, together: dict[Key, np.ndarray]) -> list[np.ndarray]:
        """The offsets of the processes of one attempt of one role; their residuals in ns."""
        keys = list(together)
        steps = np.unique(np.concatenate([table[:, 0] for table in together.values()]))
        shape = (ANCHORS, len(keys), len(steps))
        base = int(next(iter(together.values()))[0, 1])
        times = np.full(shape, np.nan)
        for row, table in enumerate(together.values()):
            # Of a step that an attempt repeats the last one, as all ranks do.
            times[:, row, np.searchsorted(steps, table[:, 0])] = (table[:, 1:] - base).T
        shared = (~np.isnan(times[0])).sum(axis=0) >= 2
        counts = (~np.isnan(times[0][:, shared])).sum(axis=1)
        usable = counts >= STEPS_MIN
        self.alone += int((~usable).sum())
        if usable.sum() < 2:
            self.alone += int(usable.sum())
            return []
        shared &= (~np.isnan(times[0][usable])).any(axis=0)
        tried = [_offsets(anchor[usable][:, shared]) for anchor in times]
        errors = [np.nanmedian(np.abs(left)) for _, left in tried]
        best = int(np.argmin(errors))
        offsets, left = tried[best]
        length = np.diff(np.nanmedian(times[best][usable][:, shared] - offsets, axis=0)) / np.diff(
            steps[shared]
        )
        if errors[best] > APART_SHARE_MAX * np.median(length):
            self.alone += len(offsets)
            return []
        self.aligned += len(offsets)
        for row, key in enumerate(np.flatnonzero(usable)):
            there = ~np.isnan(times[0][key][shared])
            at = times[0][key][shared][there].astype(np.int64) + base
            order = np.argsort(at, kind="stable")
            own = np.rint(offsets[row][there]).astype(np.int64)[order]
            self._offsets[keys[key]] = at[order].tolist(), own.tolist()
            self.low_ns, self.high_ns = min(self.low_ns, int(own.min())), max(self.high_ns, int(own.max()))
        return [np.abs(left[~np.isnan(left)])]

    def shift(self, key: Key, at_ns: int) -> int:
        """A time of the process's own clock on the common axis."""
        known = self._offsets.get(key)
        if known is None:
            return at_ns
        times, offsets = known
        after = bisect_right(times, at_ns)
        if after == 0 or after == len(times):
            return at_ns - offsets[min(after, len(times) - 1)]
        before = after - 1
        part = (at_ns - times[before]) / max(times[after] - times[before], 1)
        return at_ns - offsets[before] - round(part * (offsets[after] - offsets[before]))


def _offsets(times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and residuals, of the shape and unit of `times`: the ends of exchanges (ranks, steps), nan where unknown."""
    offsets = np.zeros_like(times)
    for _ in range(ROUNDS):
        moments = np.nanmedian(times - offsets, axis=0)
        apart = times - moments
        offsets = np.stack([_smoothed(row, moments) for row in apart])
    # Offsets are from the median clock.
    offsets -= np.nanmedian(np.nanmedian(offsets, axis=1))
    moments = np.nanmedian(times - offsets, axis=0)
    return offsets, times - offsets - moments


def _smoothed(row: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """A line through the known values plus the median of WINDOW differences from it around each; nan stays."""
    known = ~np.isnan(row)
    at, values, found = moments[known] - moments[known][0], row[known], np.full_like(row, np.nan)
    width = min(WINDOW, len(values))
    # The median over pairs that lie a window apart: where a clock is set, few pairs are on both sides of it.
    lag = max(min(WINDOW, len(values) // 2), 1)
    run = at[lag:] - at[:-lag]
    slope = np.median((values[lag:] - values[:-lag])[run > 0] / run[run > 0]) if (run > 0).any() else 0.0
    left = values - slope * at
    medians = np.median(np.lib.stride_tricks.sliding_window_view(left, width), axis=1)
    # At the edges the window ends there.
    centre = np.clip(np.arange(len(left)) - width // 2, 0, len(medians) - 1)
    found[known] = medians[centre] + slope * at
    return found


def _table(values: array) -> np.ndarray:
    return np.frombuffer(values, dtype=np.int64).reshape(-1, _WIDTH)
