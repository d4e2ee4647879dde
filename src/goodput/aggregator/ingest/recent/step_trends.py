"""Recent step times of a run: a sliding window of five minutes and discrete ones of ten seconds, over all its ranks.

Memory: the histograms of 240 spans of time. recent_steps gives the steps, many at once.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from goodput.aggregator.ingest.recent.bins import count_bins
from goodput.histograms.histogram import Histogram
from goodput.histograms.windows import StepSpans, Window, burst

SPAN_NS = 1_250_000_000
SLIDING_SPANS = 240  # 300 s
WINDOWS_NS = SPAN_NS * SLIDING_SPANS
DISCRETE_SPANS, DISCRETE_WINDOWS = 8, 30  # 10 s each


class StepSeconds(Struct):
    """Quantiles of step time; null without steps, or where a step took over 18 hours (infinite, in JSON null)."""

    p50: float | None
    p95: float | None
    p99: float | None
    p999: float | None


class StepWindow(Struct):
    """Steps of all ranks that ended in a window; rates are over the part of it that was observed."""

    start: float
    end: float
    steps: int
    steps_per_second: float | None
    samples_per_second: float | None
    busy_ratio: float | None
    step_seconds: StepSeconds


class StepWindows(Struct):
    """The last five minutes as one window and in windows of ten seconds; `burst` is their most over mean steps."""

    sliding: StepWindow
    discrete: list[StepWindow]
    burst: float | None


class Trend:
    """The windows of one run."""

    def __init__(self):
        self._steps = StepSpans(SPAN_NS, keep=SLIDING_SPANS)

    def add(self, ends_ns: np.ndarray, lengths_ns: np.ndarray, samples: np.ndarray) -> None:
        """Count steps by their ends, lengths and samples, from 0 on; each must come once."""
        if not len(ends_ns):
            return
        numbers = self._steps.number(ends_ns)
        numbers -= numbers.min()
        # Sorted by counting where they have 8 or 16 bits.
        order = np.argsort(numbers.astype(np.min_scalar_type(numbers.max())), kind="stable")
        numbers, ends_ns, lengths_ns, samples = (
            one[order] for one in (numbers, ends_ns, lengths_ns, samples)
        )
        firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
        began_ns = np.maximum(np.minimum.reduceat(ends_ns - lengths_ns, firsts), 0).tolist()
        newest_ns = np.maximum.reduceat(ends_ns, firsts).tolist()
        histograms = _histograms(lengths_ns, firsts)
        for span in zip(began_ns, newest_ns, histograms, _sums(samples, firsts), strict=True):
            self._steps.add_counted(*span)

    def add_older(self, other: Trend) -> None:
        """Count the steps of another trend too, none of which is in this one."""
        self._steps.add_spans(other._steps)

    def document(self, now_ns: int, ranks: int) -> StepWindows:
        """The windows as they stand in the run's document; the busy ratio is per rank."""
        discrete = self._steps.discrete(now_ns, DISCRETE_SPANS, DISCRETE_WINDOWS)
        return StepWindows(
            _step_window(self._steps.sliding(now_ns), ranks),
            [_step_window(window, ranks) for window in discrete],
            burst(discrete),
        )


def _histograms(lengths_ns: np.ndarray, firsts: np.ndarray) -> list[Histogram]:
    """The lengths of each span, which begin at `firsts`."""
    parts = np.split(lengths_ns[:, None], firsts[1:])
    counted = [[one.tolist() for one in count_bins(part, (0,))] for part in parts]
    by_bin = [dict(zip(*one, strict=True)) for one in counted]
    return list(map(Histogram.of_counts, by_bin, _sums(lengths_ns, firsts)))


def _sums(values: np.ndarray, firsts: np.ndarray) -> list[int]:
    """The exact sum from each of these places to the next, of some thousand numbers of 63 bits at most."""
    high, low = (np.add.reduceat(part, firsts).tolist() for part in (values >> 32, values & 0xFFFFFFFF))
    return [(one << 32) + other for one, other in zip(high, low, strict=True)]


def _step_window(window: Window, ranks: int) -> StepWindow:
    busy = window.busy_ratio
    return StepWindow(
        start=window.start_ns / 1e9,
        end=window.end_ns / 1e9,
        steps=window.steps,
        steps_per_second=window.steps_per_second,
        samples_per_second=window.samples_per_second,
        busy_ratio=None if busy is None else busy / ranks,
        step_seconds=StepSeconds(**window.step_seconds()),
    )
