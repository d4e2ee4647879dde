"""Recent step times of a run: a sliding window of five minutes and discrete ones of ten seconds, over all its ranks.

Cost: about 2 us for each row, and the histograms of 240 spans of time. A row whose predecessor is missing stands for
several steps, so its length is unknown and it is left out.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from goodput.account import Row
from goodput.histograms.windows import StepSpans, Window, burst
from goodput.wire.step_blocks import END, NUMBER, SAMPLES, START

SPAN_NS = 1_250_000_000
SLIDING_SPANS = 240  # 300 s
DISCRETE_SPANS, DISCRETE_WINDOWS = 8, 30  # 10 s each
_COUNTED = [NUMBER, START, END, SAMPLES]


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

    def add(self, values: np.ndarray, before: Row | None) -> None:
        """Count new steps of an attempt as columns (wire.step_blocks), in order; each must come once.

        `before` is the last row that came before them.
        """
        last, had = (before.number, before.samples) if before else (0, 0)
        for number, start_ns, end_ns, samples in zip(*values[_COUNTED].tolist(), strict=True):
            if number == 1:
                self._steps.add(end_ns, end_ns - start_ns, samples)
            elif number == last + 1:
                self._steps.add(end_ns, end_ns - start_ns, max(samples - had, 0))
            last, had = number, samples

    def document(self, now_ns: int, ranks: int) -> StepWindows:
        """The windows as they stand in the run's document; the busy ratio is per rank."""
        discrete = self._steps.discrete(now_ns, DISCRETE_SPANS, DISCRETE_WINDOWS)
        return StepWindows(
            _step_window(self._steps.sliding(now_ns), ranks),
            [_step_window(window, ranks) for window in discrete],
            burst(discrete),
        )


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
