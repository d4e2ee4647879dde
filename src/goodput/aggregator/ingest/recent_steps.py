"""The newest steps of a run, of all its ranks: how long each took, for its step windows, quantiles and histograms.

Steps wait until there are many or are requested, and are counted together, since NumPy costs per call. A step whose
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
from goodput.wire import compiled
from goodput.wire.step_blocks import END, NUMBER, SAMPLES, START, TOTALS
from goodput.wire.step_columns import widened

# So many wait at most; fewer, but at least ROWS_MIN, where the first has waited for WAIT_SECONDS.
ROWS_MIN, ROWS_MAX, WAIT_SECONDS = 256, 4096, 1.0
RESTORED_MAX = 1 << 18
_OUTSIDE = TOTALS + 1
# Columns of what `_following` finds.
END_NS, SHIFTED_END_NS, SAMPLES_MORE, LENGTH_NS = range(4)


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
        found = _following(entries, len(phases))
        self._trend.add(found[:, END_NS], found[:, LENGTH_NS], found[:, SAMPLES_MORE])
        if is_recent:
            self._times.add(phases, found[:, SHIFTED_END_NS], found[:, LENGTH_NS:])


def _following(entries: list[_Waiting], width: int) -> np.ndarray:
    """The steps that follow the row before them: END_NS, SHIFTED_END_NS, SAMPLES_MORE, LENGTH_NS, and of each phase but
    the first the time within the step; (steps, columns)."""
    height = TOTALS + 2 * width
    if any(len(one.before) != height or len(one.values) != height for one in entries):
        entries = [
            one._replace(before=_of_height(one.before, height), values=_of_height(one.values, height))
            for one in entries
        ]
    if compiled.steps is not None and width:
        rows = sum([one.values.shape[1] for one in entries])
        found = np.empty((rows, LENGTH_NS + width), np.int64)
        return found[: compiled.steps.followed(entries, found)]
    return _following_in_numpy(entries)


def _of_height(values: np.ndarray, height: int) -> np.ndarray:
    return widened(values[:height], (height - TOTALS) // 2)


def _following_in_numpy(entries: list[_Waiting]) -> np.ndarray:
    sequence = np.concatenate([part for one in entries for part in (one.before, one.values)], axis=1)
    rows = np.array([1 + one.values.shape[1] for one in entries])
    follows = np.diff(sequence[NUMBER]) == 1
    follows[np.cumsum(rows)[:-1] - 1] = False
    end = sequence[END, 1:][follows]
    shift = np.repeat([one.shift_ns for one in entries], rows)[1:][follows]
    spent = np.diff(sequence[TOTALS + 2 :: 2] - sequence[_OUTSIDE + 2 :: 2], axis=1)[:, follows]
    samples, length = np.diff(sequence[SAMPLES])[follows], end - sequence[START, 1:][follows]
    return np.vstack((end, end + shift, np.maximum(samples, 0), length, np.maximum(spent, 0))).T
