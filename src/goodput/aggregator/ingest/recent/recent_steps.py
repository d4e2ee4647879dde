"""The newest steps of a run, of all its ranks: how long each took, for its step windows, quantiles and histograms.

Steps wait until there are many or they are requested: what counts of them is taken and counted together, since NumPy
costs per call. A step whose predecessor is missing stands for several steps, so its length is unknown and it is left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from goodput.aggregator.ingest.recent.recent_times import RecentTimes
from goodput.aggregator.ingest.recent.run_histograms import RunHistogram
from goodput.aggregator.ingest.recent.step_trends import StepWindows, Trend
from goodput.wire.step_blocks import END, NUMBER, SAMPLES, START, TOTALS

# So many steps wait at most; fewer, but at least ROWS_MIN, where the first has waited for WAIT_SECONDS.
ROWS_MIN, ROWS_MAX, WAIT_SECONDS = 256, 4096, 5.0
RESTORED_MAX = 1 << 18
TOGETHER_ROWS = 512  # so many wait with all their columns
_OUTSIDE = TOTALS + 1
_CELL_BYTES = 8
# Columns of what `_followed` finds.
END_NS, SHIFTED_END_NS, SAMPLES_MORE, LENGTH_NS = range(4)


class _Waiting:
    """Steps of ranks with the same phases: the last ones as they came, and of those before what `_followed` finds."""

    __slots__ = ("_came", "_found", "_rows", "_width")

    def __init__(self, width: int):
        self._width = max(width, 1)
        # By bytes and rows of all columns: those, the row before, and our clock less the host's.
        self._came: dict[tuple[int, int], list[tuple[np.ndarray | bytes, bytes, int]]] = {}
        self._rows, self._found = 0, [np.empty((0, LENGTH_NS + self._width), np.int64)]

    def add(self, values: np.ndarray | bytes, count: int, before: bytes, shift_ns: int) -> None:
        size = len(values) if isinstance(values, bytes) else values.nbytes
        self._came.setdefault((size, count), []).append((values, before, shift_ns))
        self._rows += count
        if self._rows >= TOGETHER_ROWS:
            self._take()

    def found(self) -> np.ndarray:
        self._take()
        return np.concatenate(self._found)

    def _take(self) -> None:
        for (_, count), parts in self._came.items():
            self._found.append(_followed(parts, count, self._width))
        self._rows, self._came = 0, {}


class RecentSteps:
    """The step windows, quantiles and histograms of one run."""

    def __init__(self):
        self._trend, self._times = Trend(), RecentTimes()
        # By phases, None for steps that are not from the last minutes.
        self._waiting: dict[tuple[str, ...] | None, _Waiting] = {}
        self._rows, self._since = 0, 0.0

    def add(
        self,
        phases: tuple[str, ...],
        values: np.ndarray | bytes,
        count: int,
        before: bytes | None = None,
        shift_ns: int | None = None,
    ) -> None:
        """Take `count` steps of a rank that are new, as contiguous columns (wire.step_blocks) in
        order; each must come once.

        `before` is the last row that came before them, None if it is not known. `shift_ns` is our clock less the host's;
        without, the steps count in the windows only, since they are not from the last minutes.
        """
        kind = None if shift_ns is None else phases
        waiting = self._waiting.get(kind)
        if waiting is None:
            waiting = self._waiting[kind] = _Waiting(0 if kind is None else len(phases))
        waiting.add(values, count, before or b"", shift_ns or 0)
        if not self._rows:
            self._since = time.monotonic()
        self._rows += count
        if self._rows >= ROWS_MIN and self._is_due(kind is None):
            self._fold()

    def _is_due(self, is_restored: bool) -> bool:
        if is_restored:
            return self._rows >= RESTORED_MAX
        return self._rows >= ROWS_MAX or time.monotonic() - self._since > WAIT_SECONDS

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
        for phases, one in waiting.items():
            found = one.found()
            self._trend.add(found[:, END_NS], found[:, LENGTH_NS], found[:, SAMPLES_MORE])
            if phases is not None:
                self._times.add(phases, found[:, SHIFTED_END_NS], found[:, LENGTH_NS:])


def _followed(parts: Sequence[tuple[np.ndarray | bytes, bytes, int]], count: int, width: int) -> np.ndarray:
    """A row for each step that follows the row before it: END_NS, SHIFTED_END_NS, SAMPLES_MORE, LENGTH_NS, and of each of
    `width` phases but the first the time within the step. Parts are as in _Waiting, with so many rows and equal columns."""
    values, before, shifts = zip(*parts, strict=True)
    columns = TOTALS + 2 * width
    size = columns * _CELL_BYTES
    now = _cut(np.frombuffer(b"".join(values), np.int64).reshape(len(parts), -1, count), columns)
    last = np.frombuffer(b"".join([one[:size].ljust(size, b"\0") for one in before]), np.int64)
    sequence = np.concatenate((last.reshape(len(parts), columns, 1), now), axis=2)
    grown = np.diff(sequence, axis=2)
    found = np.empty((len(parts), LENGTH_NS + width, count), np.int64)
    found[:, END_NS] = now[:, END]
    found[:, SHIFTED_END_NS] = now[:, END] + np.array(shifts, np.int64)[:, None]
    found[:, SAMPLES_MORE] = np.maximum(grown[:, SAMPLES], 0)
    found[:, LENGTH_NS] = now[:, END] - now[:, START]
    spent = grown[:, TOTALS + 2 :: 2] - grown[:, _OUTSIDE + 2 :: 2]
    found[:, LENGTH_NS + 1 :] = np.maximum(spent, 0)
    return found.transpose(0, 2, 1)[grown[:, NUMBER] == 1]


def _cut(values: np.ndarray, columns: int) -> np.ndarray:
    """(parts, columns, rows) with so many columns; those that are missing are 0."""
    missing = columns - values.shape[1]
    return values[:, :columns] if missing <= 0 else np.pad(values, ((0, 0), (0, missing), (0, 0)))
