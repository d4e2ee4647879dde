"""Steps summed by time: discrete windows for rates, utilisation and bursts, a sliding window for trends.

In: `add(end_ns, length_ns, samples, phases)` for each step, and `now_ns` for each report, all nanoseconds of
one clock.  Out: `WindowReport`, one per discrete window or one for the sliding window: steps and samples
with their rates, the busy ratio, and p50, p95, p99, p99.9 of the step and of each phase.

Guarantee: a report is exact for the interval it names; quantiles come from merged fp16 bins and carry their
error (2**-11, see `goodput.histograms.histogram`).  Steps may come in any order, with the same result.  A step that is
too old to be kept is counted in `dropped`; a phase beyond the first PHASES_MAX names in `dropped_phases`.
Cost: an `add` takes about 3 us and 1 us per phase.  Memory is bounded by the intervals kept, times one
histogram per phase, times the bins its samples touch (100 bytes each).

What it does not know: the time (no clock is read), the ranks (feed one window object per rank or group; the
busy ratio of n ranks in one object goes up to n), and repeated delivery (a step added twice counts twice).
A step counts where it ended, with its whole length: one longer than the interval leaves windows of no steps
before it and one whose busy ratio is above 1.

    windows = DiscreteWindows(interval_seconds=10, keep=60)
    windows.add(end_ns=12_500_000_000, length_ns=1_500_000_000, samples=512, phases={"loader": 200_000_000})
    for report in windows.reports(now_ns=20_000_000_000):
        print(report.start_ns, report.steps_per_second, report.step.p99_seconds, report.phases["loader"])
"""

import math
from dataclasses import dataclass
from operator import index

from goodput.histograms.histogram import NANOSECONDS, Histogram

PHASES_MAX = 32  # A rank page has at most 26: ten of its own and sixteen that the user names.


@dataclass(frozen=True)
class Durations:
    """What one kind of duration came to in a window; the quantiles are None when there was none."""

    count: int
    sum_ns: int
    p50_seconds: float | None
    p95_seconds: float | None
    p99_seconds: float | None
    p999_seconds: float | None

    @classmethod
    def of(cls, histogram):
        """Summarise a histogram."""
        return cls(histogram.count, histogram.sum_ns, *histogram.quantiles((0.5, 0.95, 0.99, 0.999)))


@dataclass(frozen=True)
class WindowReport:
    """The steps that ended within (start_ns, end_ns], and their rates.

    The end is included and the start is not, so that a step which ends on a boundary counts where it ran.

    `observed_ns` is the window without what lies before the first step began and after the report's now.
    Rates and the busy ratio are sums over that time, and None when nothing was observed.
    """

    start_ns: int
    end_ns: int
    observed_ns: int
    steps: int
    samples: int
    step: Durations
    phases: dict[str, Durations]

    @property
    def seconds(self):
        """The observed length in seconds."""
        return self.observed_ns / NANOSECONDS

    @property
    def complete(self):
        """Whether the whole window was observed."""
        return self.observed_ns == self.end_ns - self.start_ns

    @property
    def steps_per_second(self):
        """Steps ended per observed second."""
        return self._per_second(self.steps)

    @property
    def samples_per_second(self):
        """Samples of those steps per observed second."""
        return self._per_second(self.samples)

    @property
    def busy_ratio(self):
        """Summed length of the steps ÷ observed length; above 1 when a long step began before the window."""
        return self.step.sum_ns / self.observed_ns if self.observed_ns else None

    def _per_second(self, count):
        return count * NANOSECONDS / self.observed_ns if self.observed_ns else None


class _Tally:
    """The steps of one span of time."""

    __slots__ = ("phases", "samples", "steps")

    def __init__(self):
        self.steps = Histogram()
        self.samples = 0
        self.phases = {}

    def add(self, length_ns, samples, phases):
        """Count one step; the numbers are checked."""
        self.steps.add_ns(length_ns)
        self.samples += samples
        for name, phase_ns in phases:
            self._phase(name).add_ns(phase_ns)

    def merge(self, other):
        """Count the steps of another tally too."""
        self.steps.merge(other.steps)
        self.samples += other.samples
        for name, histogram in other.phases.items():
            self._phase(name).merge(histogram)

    def _phase(self, name):
        if name not in self.phases:
            self.phases[name] = Histogram()
        return self.phases[name]


class _Spans:
    """Tallies of the newest `keep` spans of time, span k what ended within (k * span, (k + 1) * span]."""

    def __init__(self, span_ns, keep):
        self._span_ns = span_ns
        self._keep = keep
        self._tallies = {}  # Span number k to _Tally, only where a step ended.
        self._names = set()
        self._since_ns = None  # When the first step began.
        self._newest_ns = 0  # When the last step ended.
        self.dropped = 0
        self.dropped_phases = 0

    def add(self, end_ns, length_ns, samples=0, phases=None):
        """Count a step that ended at `end_ns` after `length_ns`, of which `phases` maps names to nanoseconds.

        Raises ValueError, and counts nothing, unless all of these are integers from 0 on and names are text.
        """
        end_ns, length_ns = _whole(end_ns, "end_ns"), _whole(length_ns, "length_ns")
        samples = _whole(samples, "samples")
        phases = [(_text(name), _whole(phase_ns, name)) for name, phase_ns in (phases or {}).items()]
        began_ns = max(end_ns - length_ns, 0)
        self._since_ns = began_ns if self._since_ns is None else min(self._since_ns, began_ns)
        if self._number(end_ns) <= self._number(self._newest_ns) - self._keep:
            self.dropped += 1
            return
        self._advance(end_ns)
        admitted = [phase for phase in phases if self._admit(phase[0])]
        self._tally(self._number(end_ns)).add(length_ns, samples, admitted)

    def count(self, end_ns, length_ns, samples):
        """`add` without phases, of numbers that are known to be integers from 0 on, in a third of the time."""
        since_ns = max(end_ns - length_ns, 0)
        if self._since_ns is None or since_ns < self._since_ns:
            self._since_ns = since_ns
        k = self._number(end_ns)
        if end_ns > self._newest_ns:
            self._advance(end_ns)
        elif k <= self._number(self._newest_ns) - self._keep:
            self.dropped += 1
            return
        tally = self._tallies.get(k) or self._tally(k)
        tally.steps.add_ns(length_ns)
        tally.samples += samples

    def _number(self, end_ns):
        """The number of the span that a time ends; the first holds time 0 too."""
        return max(end_ns - 1, 0) // self._span_ns

    def _tally(self, k):
        if k not in self._tallies:
            self._tallies[k] = _Tally()
        return self._tallies[k]

    def _advance(self, end_ns):
        """Move the newest end on, and forget the spans that are now too old."""
        before = self._number(self._newest_ns)
        self._newest_ns = max(self._newest_ns, end_ns)
        newest = self._number(self._newest_ns)
        if newest != before:
            for k in [k for k in self._tallies if k <= newest - self._keep]:
                del self._tallies[k]

    def _admit(self, name):
        """Whether a phase of this name is counted; the refusal of another is."""
        if name not in self._names:
            if len(self._names) >= PHASES_MAX:
                self.dropped_phases += 1
                return False
            self._names.add(name)
        return True

    def _now(self, now_ns):
        """The time of a report: no earlier than the newest step, which would otherwise lie in its future."""
        return max(_whole(now_ns, "now_ns"), self._newest_ns)

    def _observed_ns(self, start_ns, end_ns, now_ns):
        """How much of an interval lies after the first step began and before now."""
        since_ns = now_ns if self._since_ns is None else self._since_ns
        return max(min(end_ns, now_ns) - max(start_ns, since_ns), 0)

    def _report(self, first, last, start_ns, end_ns, now_ns):
        """Report the steps of the spans `first` to `last` as those of (start_ns, end_ns]."""
        merged = _Tally()
        for k in range(first, last + 1):
            if k in self._tallies:
                merged.merge(self._tallies[k])
        return WindowReport(
            start_ns=start_ns,
            end_ns=end_ns,
            observed_ns=self._observed_ns(start_ns, end_ns, now_ns),
            steps=merged.steps.count,
            samples=merged.samples,
            step=Durations.of(merged.steps),
            phases={name: Durations.of(merged.phases[name]) for name in sorted(merged.phases)},
        )


class DiscreteWindows(_Spans):
    """Fixed windows of `interval_seconds`, aligned to its multiples: (k * interval, (k + 1) * interval].

        windows = DiscreteWindows(interval_seconds=10, keep=60)
        windows.add(end_ns, length_ns, samples=512, phases={"loader": 200_000_000})
        windows.reports(now_ns)   # oldest first
        windows.burst(now_ns)     # max ÷ mean steps per window

    The newest `keep` windows are held, counted from the one in which the newest step ended; a step that ended
    earlier is counted in `dropped`.  A time far in the future therefore drops all others until then.
    Raises ValueError unless the interval is at least a nanosecond and `keep` at least 1.
    """

    def __init__(self, interval_seconds, keep=60):
        super().__init__(_to_ns(interval_seconds, "interval_seconds"), _whole(keep, "keep", 1))

    def reports(self, now_ns):
        """Return the WindowReport of every window kept, oldest first, windows without steps included.

        They reach from the one in which the first step began to the one that holds `now_ns` (or the end of
        the newest step, if that is later).  Empty before the first step.
        """
        now_ns = self._now(now_ns)
        return [self._report(k, k, *self._bounds(k), now_ns) for k in self._kept(now_ns)]

    def burst(self, now_ns):
        """Return the largest ÷ the mean number of steps per complete window; None if they hold no step.

        1 is perfectly even; k means that some window ran at k times the mean rate.
        """
        now_ns = self._now(now_ns)
        steps = [
            self._tallies[k].steps.count if k in self._tallies else 0
            for k in self._kept(now_ns)
            if self._observed_ns(*self._bounds(k), now_ns) == self._span_ns
        ]
        return max(steps) * len(steps) / sum(steps) if any(steps) else None

    def _bounds(self, k):
        """The start and end of a window in nanoseconds."""
        return k * self._span_ns, (k + 1) * self._span_ns

    def _kept(self, now_ns):
        """The numbers of the windows to report, oldest first."""
        if self._since_ns is None:
            return range(0)
        # A step of no length on a boundary began in the window after the one in which it ended.
        first = min([self._since_ns // self._span_ns, *self._tallies])
        last = self._number(now_ns)
        return range(max(last - self._keep + 1, first), last + 1)


class SlidingWindow(_Spans):
    """The last `seconds` before now, whenever now is.

        window = SlidingWindow(seconds=300)
        window.add(end_ns, length_ns, samples=512, phases={"loader": 200_000_000})
        window.report(now_ns)

    Steps expire by the time they ended, in spans of seconds / resolution; a span that has partly left the
    window is left out, so a report covers at least 1 - 1 / resolution of the window, and its `start_ns` says
    from when on exactly.  `resolution` spans are held, counted from the one in which the newest step ended;
    a step that ended earlier is counted in `dropped`.  So more steps make neither the window shorter nor its
    memory larger than `resolution` histograms per phase.
    Raises ValueError unless the window is at least a nanosecond and `resolution` at least 1.
    """

    def __init__(self, seconds, resolution=240):
        self._window_ns = _to_ns(seconds, "seconds")
        resolution = _whole(resolution, "resolution", 1)
        super().__init__(-(-self._window_ns // resolution), resolution)

    def report(self, now_ns):
        """Return the WindowReport up to `now_ns` (or the end of the newest step, if later)."""
        now_ns = self._now(now_ns)
        first = max(-((self._window_ns - now_ns) // self._span_ns), 0)
        return self._report(first, self._number(now_ns), first * self._span_ns, now_ns, now_ns)


def _to_ns(seconds, what):
    """Turn a length in seconds into nanoseconds, at least one; ValueError otherwise."""
    if not 0 < seconds < math.inf or round(seconds * NANOSECONDS) < 1:
        raise ValueError(f"{what} must be finite and at least 1e-9, not {seconds!r}")
    return round(seconds * NANOSECONDS)


def _whole(number, what, low=0):
    """Return an integer (not a bool) from `low` on, or raise ValueError saying which was wrong."""
    whole = None if isinstance(number, bool) or not hasattr(number, "__index__") else index(number)
    if whole is None or whole < low:
        raise ValueError(f"{what} must be an integer from {low} on, not {number!r}")
    return whole


def _text(name):
    """Return the name of a phase, or raise ValueError when it is no text."""
    if not isinstance(name, str):
        raise ValueError(f"the name of a phase must be text, not {name!r}")
    return name
