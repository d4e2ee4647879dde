"""The newest steps of a run, of all its ranks: how long each took, for its step windows, quantiles and histograms.

What of a step counts is taken at once, since the step is in the processor's caches; it waits until there is much or it is
requested, and is counted together, since NumPy costs per call. A step whose predecessor is missing stands for several
steps, so its length is unknown and it is left out.
"""

from __future__ import annotations

import time

import numpy as np

from goodput.aggregator.ingest.recent.recent_times import RecentTimes
from goodput.aggregator.ingest.recent.run_histograms import RunHistogram
from goodput.aggregator.ingest.recent.step_trends import StepWindows, Trend
from goodput.wire import compiled
from goodput.wire.step_blocks import END, NUMBER, SAMPLES, START, TOTALS
from goodput.wire.step_columns import widened

# So many steps wait at most; fewer, but at least ROWS_MIN, where the first has waited for WAIT_SECONDS.
ROWS_MIN, ROWS_MAX, WAIT_SECONDS = 256, 4096, 5.0
RESTORED_MAX = 1 << 18
_OUTSIDE = TOTALS + 1
_CELL_BYTES = 8
# Columns of what `followed` finds.
END_NS, SHIFTED_END_NS, SAMPLES_MORE, LENGTH_NS = range(4)


class _Waiting:
    """Steps of ranks with the same phases, as `followed` finds them, in rows of one array."""

    __slots__ = ("count", "rows")

    def __init__(self, width: int):
        self.count, self.rows = 0, np.empty((0, LENGTH_NS + max(width, 1)), np.int64)

    def add(self, values: np.ndarray | bytes, count: int, before: bytes, shift_ns: int) -> None:
        if self.count + count > len(self.rows):
            more = max(len(self.rows), count)
            self.rows = np.concatenate((self.rows, np.empty((more, self.rows.shape[1]), np.int64)))
        follow = _followed_in_numpy if compiled.steps is None else compiled.steps.followed
        self.count = follow(before, values, count, shift_ns, self.rows, self.count)


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
            found = one.rows[: one.count]
            self._trend.add(found[:, END_NS], found[:, LENGTH_NS], found[:, SAMPLES_MORE])
            if phases is not None:
                self._times.add(phases, found[:, SHIFTED_END_NS], found[:, LENGTH_NS:])


def _followed_in_numpy(
    before: bytes, values: np.ndarray | bytes, count: int, shift_ns: int, into: np.ndarray, at: int
) -> int:
    """Write a row for each step that follows the row before it, from row `at` of `into` on: END_NS, SHIFTED_END_NS,
    SAMPLES_MORE, LENGTH_NS, and of each phase but the first the time within the step. Returns the row after them."""
    width = max(into.shape[1] - LENGTH_NS, 1)
    last, now = (
        widened(np.frombuffer(one, np.int64).reshape(-1, rows), width)[: TOTALS + 2 * width]
        for one, rows in ((before or bytes(TOTALS * _CELL_BYTES), 1), (values, count))
    )
    sequence = np.concatenate((last, now), axis=1)
    follows = np.diff(sequence[NUMBER]) == 1
    end = now[END]
    spent = np.diff(sequence[TOTALS + 2 :: 2] - sequence[_OUTSIDE + 2 :: 2], axis=1)
    samples = np.maximum(np.diff(sequence[SAMPLES]), 0)
    found = np.vstack((end, end + shift_ns, samples, end - now[START], np.maximum(spent, 0))).T[follows]
    into[at : at + len(found)] = found
    return at + len(found)
