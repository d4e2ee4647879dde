"""The newest steps of a run, of all its ranks: how long each took, for its step windows, quantiles and histograms.

Steps wait until there are many or somebody asks, and are counted together, since NumPy costs per call. A step whose
predecessor is missing stands for several steps, so its length is unknown and it is left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from goodput.aggregator.ingest.recent_times import RecentTimes
from goodput.aggregator.ingest.run_histograms import RunHistogram
from goodput.aggregator.ingest.step_trends import StepWindows, Trend
from goodput.wire.step_blocks import END, NUMBER, SAMPLES, START, TOTALS
from goodput.wire.step_columns import widened

# So many wait at most; fewer, but at least ROWS_MIN, where the first has waited for WAIT_SECONDS.
ROWS_MIN, ROWS_MAX, WAIT_SECONDS = 256, 4096, 1.0
RESTORED_MAX = 1 << 18
_OUTSIDE = TOTALS + 1


class _Waiting(NamedTuple):
    before: np.ndarray  # the row before, as one column
    values: np.ndarray
    shift_ns: int  # our clock less the host's
    is_recent: bool  # from the last minutes


class RecentSteps:
    """The step windows, quantiles and histograms of one run."""

    def __init__(self):
        self._trend, self._times = Trend(), RecentTimes()
        self._waiting: dict[tuple[str, ...], list[_Waiting]] = {}
        self._rows, self._since = 0, 0.0

    def add(
        self,
        phases: tuple[str, ...],
        values: np.ndarray,
        before: np.ndarray | None = None,
        shift_ns: int | None = None,
    ) -> None:
        """Take steps of a rank that are new, as columns (wire.step_blocks) in order; each must come once.

        `before` is the last row that came before them, (columns, 1). `shift_ns` is our clock less the host's; without,
        the steps count in the windows only, since they are not from the last minutes.
        """
        if before is None:
            before = values[:, :1] if values[NUMBER, 0] > 1 else np.zeros((len(values), 1), np.int64)
        is_recent, now = shift_ns is not None, time.monotonic()
        most = ROWS_MAX if is_recent else RESTORED_MAX
        self._since = self._since if self._rows else now
        if not is_recent:
            phases, before, values = (), before[:TOTALS], values[:TOTALS].copy()
        self._waiting.setdefault(phases, []).append(_Waiting(before, values, shift_ns or 0, is_recent))
        self._rows += values.shape[1]
        if self._rows >= most or (is_recent and self._rows >= ROWS_MIN and now - self._since > WAIT_SECONDS):
            self._fold()

    def add_older(self, other: RecentSteps) -> None:
        """Let the steps of another one count in the windows too; none of them is in this one."""
        self._fold()
        other._fold()
        self._trend.add_older(other._trend)

    def windows(self, now_ns: int, ranks: int) -> StepWindows:
        """The windows as they stand in the run's document; the busy ratio is per rank."""
        self._fold()
        return self._trend.document(now_ns, ranks)

    def quantiles(self, now_ns: int) -> dict[str, list[float]]:
        """Seconds at each of recent_times.QUANTILES by phase, and of STEP; empty without steps in the last minutes."""
        self._fold()
        return self._times.quantiles(now_ns)

    def histograms(self) -> dict[str, RunHistogram]:
        """Of all steps that were pushed, by phase, and of STEP."""
        self._fold()
        return self._times.histograms()

    def _fold(self) -> None:
        waiting, self._waiting, self._rows = self._waiting, {}, 0
        for phases, entries in waiting.items():
            for is_recent in (True, False):
                self._count(phases, [entry for entry in entries if entry.is_recent is is_recent], is_recent)

    def _count(self, phases: Sequence[str], entries: list[_Waiting], is_recent: bool) -> None:
        if not entries:
            return
        sequence, firsts = _sequence(entries, len(phases))
        follows = np.diff(sequence[NUMBER]) == 1
        follows[firsts[1:] - 1] = False
        end = sequence[END, 1:][follows]
        length = end - sequence[START, 1:][follows]
        self._trend.add(end, length, np.maximum(np.diff(sequence[SAMPLES])[follows], 0))
        if not is_recent:
            return
        rows = np.diff(np.append(firsts, sequence.shape[1]))
        shift = np.repeat([entry.shift_ns for entry in entries], rows)[1:][follows]
        spent = np.diff(sequence[TOTALS + 2 :: 2] - sequence[_OUTSIDE + 2 :: 2], axis=1)[:, follows]
        self._times.add(phases, end + shift, np.maximum(np.vstack((length, spent)).T, 0))


def _sequence(entries: list[_Waiting], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Each entry's row before and rows, one entry after the other, and where each begins."""
    height = TOTALS + 2 * width
    parts = [part for entry in entries for part in (entry.before, entry.values)]
    if any(len(part) != height for part in parts):
        parts = [widened(part[:height], width) for part in parts]
    rows = np.array([1 + entry.values.shape[1] for entry in entries])
    return np.concatenate(parts, axis=1), np.cumsum(rows) - rows
