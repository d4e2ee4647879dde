"""Windows of time over steps: a step belongs to a window (start, end] if it ended within it, with its whole length.

This is the one definition of a window, also of `goodput.window()` in the trainer, which reads it off cumulative records
of a single rank. Here the steps of many ranks are counted in short spans of time, and a window is a merge of spans:
the last five minutes (sliding), or each of the last intervals of ten seconds (discrete).

Reports are exact for the interval they name; quantiles have the error of the fp16 bins (2**-11). Steps may arrive in
any order. Cost: about 2 us for a step; memory is one histogram for each span kept.

    steps = StepSpans(span_ns=1_250_000_000, keep=240)
    steps.add(end_ns=12_500_000_000, length_ns=1_500_000_000, samples=512)
    steps.sliding(now_ns=20_000_000_000).steps_per_second
"""

from __future__ import annotations

from dataclasses import dataclass

from goodput.histograms.histogram import NANOSECONDS, Histogram

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}


@dataclass(frozen=True)
class Window:
    """The steps that ended within (start_ns, end_ns].

    Rates and the busy ratio are over `observed_ns`: the window without what lies before the first step began and
    after now. They are None where nothing was observed.
    """

    start_ns: int
    end_ns: int
    observed_ns: int
    samples: int
    lengths: Histogram

    @property
    def steps(self) -> int:
        return self.lengths.count

    @property
    def complete(self) -> bool:
        return self.observed_ns == self.end_ns - self.start_ns

    @property
    def steps_per_second(self) -> float | None:
        return self._per_second(self.steps)

    @property
    def samples_per_second(self) -> float | None:
        return self._per_second(self.samples)

    @property
    def busy_ratio(self) -> float | None:
        """Summed length of the steps ÷ observed time: up to n for n ranks, above if a long step began before."""
        return self.lengths.sum_ns / self.observed_ns if self.observed_ns else None

    def step_seconds(self) -> dict[str, float | None]:
        """Quantiles of the step's length by name; None without steps."""
        return dict(zip(QUANTILES, self.lengths.quantiles(QUANTILES.values()), strict=True))

    def _per_second(self, count: int) -> float | None:
        return count * NANOSECONDS / self.observed_ns if self.observed_ns else None


def burst(windows: list[Window]) -> float | None:
    """The largest ÷ the mean number of steps of the complete windows; None if they hold no step.

    1 is perfectly even; k means that some window ran at k times the mean rate.
    """
    steps = [window.steps for window in windows if window.complete]
    return max(steps) * len(steps) / sum(steps) if any(steps) else None


class StepSpans:
    """Steps counted in spans of `span_ns`, span k being (k * span_ns, (k + 1) * span_ns].

    The newest `keep` spans are held, counted from the one in which the newest step ended; a step that ended earlier
    is counted in `dropped`. A step far in the future therefore drops all others until then.
    """

    def __init__(self, span_ns: int, keep: int):
        self._span_ns, self._keep = span_ns, keep
        self._spans: dict[int, tuple[Histogram, list[int]]] = {}  # lengths and [samples], where a step ended
        self._since_ns: int | None = None  # when the first step began
        self._newest_ns = 0  # when the last step ended
        self.dropped = 0

    def add(self, end_ns: int, length_ns: int, samples: int = 0) -> None:
        """Count a step; the numbers are integers from 0 on. A step added twice counts twice."""
        k = self._span_for(max(end_ns - length_ns, 0), end_ns, 1)
        if k is None:
            return
        lengths, counted = self._spans.setdefault(k, (Histogram(), [0]))
        lengths.add_ns(length_ns)
        counted[0] += samples

    def add_counted(self, since_ns: int, newest_ns: int, lengths: Histogram, samples: int) -> None:
        """Count steps that ended in one span, the last at `newest_ns`; the first of them began at `since_ns`.

        The histogram is kept.
        """
        k = self._span_for(since_ns, newest_ns, lengths.count)
        if k is None:
            return
        held = self._spans.get(k)
        if held is None:
            self._spans[k] = (lengths, [samples])
        else:
            held[0].merge(lengths)
            held[1][0] += samples

    def add_spans(self, other: StepSpans) -> None:
        """Count the steps of another one of the same spans, which is not used afterwards."""
        if other._since_ns is None:
            return
        for k, (lengths, (samples,)) in sorted(other._spans.items()):
            self.add_counted(
                other._since_ns, min((k + 1) * self._span_ns, other._newest_ns), lengths, samples
            )

    def _span_for(self, since_ns: int, end_ns: int, steps: int) -> int | None:
        """The number of the span in which these steps ended, the last at `end_ns`; None where it is too old."""
        if self._since_ns is None or since_ns < self._since_ns:
            self._since_ns = since_ns
        k = self.number(end_ns)
        if end_ns > self._newest_ns:
            self._advance(end_ns)
        elif k <= self.number(self._newest_ns) - self._keep:
            self.dropped += steps
            return None
        return k

    def sliding(self, now_ns: int) -> Window:
        """The last `keep` spans before `now_ns`, or before the end of the newest step if that is later.

        A span that lies partly outside is left out, so the window covers all but one span of that time.
        """
        now_ns = max(now_ns, self._newest_ns)
        first = max(-((self._keep * self._span_ns - now_ns) // self._span_ns), 0)
        return self._window(first, self.number(now_ns), first * self._span_ns, now_ns, now_ns)

    def discrete(self, now_ns: int, spans: int, count: int) -> list[Window]:
        """The last `count` windows of `spans` spans each, oldest first, those without steps included.

        They reach from the one in which the first step began to the one that holds `now_ns` (or the end of the newest
        step, if that is later). Empty before the first step.
        """
        if self._since_ns is None:
            return []
        now_ns, length_ns = max(now_ns, self._newest_ns), spans * self._span_ns
        last = max(now_ns - 1, 0) // length_ns
        # A step of no length on a boundary began in the window after the one in which it ended.
        oldest = min([self._since_ns // length_ns, *(k // spans for k in self._spans)])
        return [
            self._window(k * spans, (k + 1) * spans - 1, k * length_ns, (k + 1) * length_ns, now_ns)
            for k in range(max(last - count + 1, oldest), last + 1)
        ]

    def number(self, end_ns):
        """The number of the span that holds this moment, or each of an array; the first span holds time 0 too."""
        before = end_ns - 1
        return before // self._span_ns + (before < 0)

    def _advance(self, end_ns: int) -> None:
        """Move the newest end on, and forget the spans that are now too old."""
        before, self._newest_ns = self.number(self._newest_ns), end_ns
        newest = self.number(end_ns)
        if newest != before:
            for k in [k for k in self._spans if k <= newest - self._keep]:
                del self._spans[k]

    def _window(self, first: int, last: int, start_ns: int, end_ns: int, now_ns: int) -> Window:
        """The steps of the spans `first` to `last` as those of (start_ns, end_ns]."""
        merged, samples = Histogram(), 0
        for k in range(first, last + 1):
            if k in self._spans:
                lengths, counted = self._spans[k]
                merged.merge(lengths)
                samples += counted[0]
        since_ns = now_ns if self._since_ns is None else self._since_ns
        observed_ns = max(min(end_ns, now_ns) - max(start_ns, since_ns), 0)
        return Window(start_ns, end_ns, observed_ns, samples, merged)
