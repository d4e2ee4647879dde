"""Step time lately: a sliding window of five minutes and discrete ones of ten seconds, per run.

In: the new step rows of each report. Out: percentiles, rates and bursts for the run's document. All ranks of a
run share the windows, so the busy ratio is divided by the ranks. Cost: about 3 us per row, and the histograms of
60 windows. Rows that stand for several steps (numbers missing in between) say nothing of their lengths and are
left out.
"""

from __future__ import annotations

import math

from msgspec import Struct

from goodput.histograms.windows import DiscreteWindows, SlidingWindow, WindowReport

SLIDING_SECONDS, DISCRETE_SECONDS, DISCRETE_KEPT = 300, 10, 30


class StepSeconds(Struct):
    """Quantiles of step time; null without steps, or where a step took over 18 hours."""

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
        self._sliding = SlidingWindow(SLIDING_SECONDS)
        self._discrete = DiscreteWindows(DISCRETE_SECONDS, keep=DISCRETE_KEPT)

    def add(self, attempt, rows) -> None:
        """Count steps that are new in `attempt` (account.Attempt); each must come once."""
        for row in rows:
            before = attempt.rows.get(row.number - 1)
            if before is None and row.number > 1:
                continue
            samples = max(row.samples - (before.samples if before else 0), 0)
            length_ns = row.end_ns - row.start_ns
            # Checked when they were taken.
            self._sliding.count(row.end_ns, length_ns, samples)
            self._discrete.count(row.end_ns, length_ns, samples)

    def document(self, now_ns: int, ranks: int) -> StepWindows:
        return StepWindows(
            _report(self._sliding.report(now_ns), ranks),
            [_report(report, ranks) for report in self._discrete.reports(now_ns)],
            self._discrete.burst(now_ns),
        )


def _report(report: WindowReport, ranks: int) -> StepWindow:
    return StepWindow(
        start=report.start_ns / 1e9,
        end=report.end_ns / 1e9,
        steps=report.steps,
        steps_per_second=report.steps_per_second,
        samples_per_second=report.samples_per_second,
        busy_ratio=None if report.busy_ratio is None else report.busy_ratio / ranks,
        step_seconds=StepSeconds(
            *(_finite(getattr(report.step, f"{name}_seconds")) for name in StepSeconds.__struct_fields__)
        ),
    )


def _finite(seconds: float | None) -> float | None:
    return None if seconds is None or math.isinf(seconds) else seconds
