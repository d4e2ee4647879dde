"""`goodput.window(seconds=60)`: the last minute of this process, for the training loop's own log.

In: the step records of the session's page (page.py), read where they lie. Out: a Window: rates, goodput, and
p50, p95, p99 of the step and of each phase.

Guarantees. Sums are differences of cumulative records, so they are exact whatever was not seen, and a window's
phases, "none" included, sum to its length to the nanosecond. Quantiles are those of the fp16 bins of histogram.py
(error 2**-11) over the steps seen; `coverage` says how many of the window's steps those are. Nothing waits, raises or
starts anything; while another thread is at it, a call returns the Window before.
Cost: with eleven phases about 20 us a call and new step, 30 with `scalars()` (bench/window.py); a first call reads
what the ring holds, which takes about 7 ms. goodput.histograms.windows costs seventy times as much, since it merges its
histograms at each report; here each phase's bins are kept sorted, so that a step is one insertion and one removal.
Memory: up to 0.5 MiB a window with eleven phases and 0.8 MiB with all 27, much less where it holds fewer than ROWS_MAX
steps; WINDOWS_MAX windows, of which the one asked for least recently gives way. Nothing grows with steps: where more
than ROWS_MAX would lie in a window, only every 2nd, 4th, ... is kept, the sums not concerned.

It knows neither other ranks, nor steps that will be redone, nor stalls: that is the account's (account/).

    now = goodput.window(seconds=60)
    print(now.steps_per_second, now.goodput, now.phases["loader"].p99_seconds)
"""

from __future__ import annotations

from _thread import allocate_lock
from array import array
from collections import namedtuple
from operator import sub
from struct import Struct
from time import perf_counter_ns

from goodput.rank_page import page
from goodput.sdk.recorder.messages import short_repr
from goodput.sdk.recorder.recorder import State
from goodput.sdk.reports.window_rows import (
    END_NS,
    FIELDS,
    INSIDE_NS,
    NUMBER,
    PRODUCTIVE_NS,
    SAMPLES,
    WINDOWS_MAX,
    Feed,
)

NANOSECONDS = 1_000_000_000
SECONDS_DEFAULT = 60
SECONDS_MAX = 1e9

Spent = namedtuple("Spent", "p50_seconds p95_seconds p99_seconds seconds share")
Spent.__doc__ = """What a phase, or the step, came to in a window.

Quantiles are per step, of the time inside it, a step without the phase being 0; None when no step was seen. `seconds`
is all of the window's, for a phase also outside steps, and `share` is that ÷ the window's seconds.
"""


class Window:
    """Some last steps of this process. What is not known is None.

    It reaches from the end of a step, `asked_seconds` ago or the next before that, to the end of the last
    step; it begins with the first step at the earliest. Times are those of the host's clock.
    """

    __slots__ = ("_bins", "_first", "_labels", "_last", "age_seconds", "asked_seconds", "seen")

    def __init__(self, asked_seconds, labels=(), first=None, last=None, seen=0, bins=None, age_ns=None):
        self.asked_seconds, self.seen = asked_seconds, seen
        self.age_seconds = None if age_ns is None else age_ns / NANOSECONDS
        self._labels, self._first, self._last, self._bins = labels, first, last, bins

    @property
    def seconds(self) -> float:
        """The time really covered; 0.0 for a window without steps."""
        return self._over(END_NS) / NANOSECONDS

    @property
    def steps(self) -> int:
        """Steps that ended in it."""
        return self._over(NUMBER)

    @property
    def coverage(self) -> float | None:
        """The share of these steps that the quantiles are of; `seen` is their number."""
        return self.seen / self.steps if self.steps else None

    @property
    def steps_per_second(self) -> float | None:
        """Steps ÷ seconds."""
        return self._ratio(self.steps * NANOSECONDS)

    @property
    def samples_per_second(self) -> float | None:
        """Samples ÷ seconds; None where no step said how many it has."""
        return self._ratio(self._over(SAMPLES) * NANOSECONDS) if self._over(SAMPLES) else None

    @property
    def goodput(self) -> float | None:
        """Productive phases inside steps ÷ the window, both of this process alone."""
        return self._ratio(self._over(PRODUCTIVE_NS))

    @property
    def goodput_so_far(self) -> float | None:
        """The same from the attempt's start to the end of its last step: start-up counts, redone work is unknown."""
        wall_ns = sum(self._last.totals) if self._last else 0
        return self._last.productive_ns / wall_ns if wall_ns else None

    @property
    def step(self) -> Spent:
        """The steps' lengths."""
        return Spent(
            *self._quantiles()[0], self._over(INSIDE_NS) / NANOSECONDS, self._ratio(self._over(INSIDE_NS))
        )

    @property
    def phases(self) -> dict[str, Spent]:
        """Spent by the name of each phase that this process was ever in, "none" included; {} without steps."""
        if self._first is None:
            return {}
        return {
            name: Spent(*quantiles, ns / NANOSECONDS, self._ratio(ns))
            for name, quantiles, ns in zip(
                self._labels.names, self._quantiles()[1:], self._sums(), strict=True
            )
        }

    def scalars(self, prefix: str = "goodput/") -> dict[str, float]:
        """All of it as a flat dictionary of floats for a logger; what is unknown is left out."""
        found = {
            prefix + name: float(value)
            for name in _HEADS
            if (value := getattr(self, name)) is not None and (self.steps or name in _ALWAYS)
        }
        if self._first is not None:
            keys, shares = self._labels.keys(prefix)
            wall_ns = self._over(END_NS)
            found.update(zip(keys, self._flat(), strict=False))  # No values where no step was seen.
            found.update(
                zip(shares, [ns / wall_ns for ns in (self._over(INSIDE_NS), *self._sums())], strict=True)
            )
        return found

    def __repr__(self) -> str:
        return f"<goodput.Window: {self}>"

    def __str__(self) -> str:
        """One line."""
        if not self.steps:
            return f"no step ended in the last {self.asked_seconds:g} s"
        parts = [f"{self.seconds:.4g} s, {self.steps} steps, {self.steps_per_second:.4g} steps/s"]
        if self.samples_per_second is not None:
            parts.append(f"{self.samples_per_second:.4g} samples/s")
        parts.append(f"goodput {self.goodput:.1%} (so far {self.goodput_so_far:.1%})")
        if self.seen:
            parts.append("step p50 {:.4g} s, p95 {:.4g} s, p99 {:.4g} s".format(*self.step[:3]))
        largest = sorted(self.phases.items(), key=lambda pair: -pair[1].seconds)[:4]
        parts.append(", ".join(f"{name} {spent.share:.1%}" for name, spent in largest))
        return "; ".join(parts)

    def _over(self, field: int) -> int:
        """A cumulative field's growth over the window."""
        return 0 if self._first is None else self._last[field] - self._first[field]

    def _sums(self) -> tuple[int, ...]:
        """Nanoseconds in the window of each phase."""
        return tuple(map(sub, self._last.totals, self._first[FIELDS:]))

    def _ratio(self, number: int) -> float | None:
        return number / self._over(END_NS) if self._over(END_NS) else None

    def _flat(self) -> tuple[float, ...]:
        """For each quantile the step's and each phase's; () where no step was seen."""
        if not self.seen:
            return ()
        return Struct(f"={len(self._bins)}e").unpack(array("H", self._bins))

    def _quantiles(self) -> list[tuple]:
        """The quantiles of the step and of each phase."""
        flat = self._flat()
        if not flat:
            return [(None,) * 3] * (1 if self._first is None else 1 + len(self._labels.names))
        size = len(flat) // 3
        return list(zip(flat[:size], flat[size : 2 * size], flat[2 * size :], strict=True))


_HEADS = ("goodput", "goodput_so_far", "steps_per_second", "samples_per_second", "coverage", "age_seconds")
_ALWAYS = ("goodput_so_far", "age_seconds")


class Windows:
    """The windows of one session, and the lock that lets one call in at a time."""

    def __init__(self, session):
        self._session = session
        self.after_fork()

    def after_fork(self) -> None:
        """In the child: the steps were the parent's, and so may be whoever held the lock."""
        self._lock, self._feed, self._before = allocate_lock(), None, {}

    def window(self, seconds=SECONDS_DEFAULT) -> Window:
        """The Window of the last `seconds`; never raises."""
        asked = self._checked(seconds)
        if not self._lock.acquire(False):  # Another thread is at it, or what this signal handler interrupted.
            return self._before.get(asked) or Window(asked)
        try:
            return self._window(asked)
        except Exception as error:
            self._session.warn(f"no window: {type(error).__name__}: {short_repr(error)}")
            return Window(asked)
        finally:
            self._lock.release()

    def _window(self, asked) -> Window:
        recorder = self._session.recorder
        words = recorder.words
        if words is None or recorder.state == State.DISABLED:
            self._feed, self._before = None, {}
            return Window(asked)
        # Taken away while it changes: what an exception or a KeyboardInterrupt cut short is not used again.
        feed, self._feed = self._feed, None
        if feed is None or feed.words is not words or words[page.W_STEPS] < feed.number:
            feed, self._before = Feed(words, self._session), {}
        rows = feed.advance(round(asked * NANOSECONDS))
        found = _window_of(asked, feed, rows, perf_counter_ns())
        if asked not in self._before and len(self._before) >= WINDOWS_MAX:
            self._before = {}
        self._before[asked] = found
        self._feed = feed
        return found

    def _checked(self, seconds) -> float:
        """`seconds` as a positive number, the default where it is none."""
        try:
            if not isinstance(seconds, (bool, str)) and seconds > 0:
                return min(float(seconds), SECONDS_MAX)
        except Exception:
            pass
        self._session.warn(
            f"window(seconds={short_repr(seconds)}): want a number above 0; taken as {SECONDS_DEFAULT}"
        )
        return float(SECONDS_DEFAULT)


def _window_of(asked: float, feed: Feed, rows, now_ns: int) -> Window:
    """What the rows hold at this moment."""
    last = feed.last
    if last is None:
        return Window(asked)
    age_ns = max(now_ns - last.end_ns, 0)
    since_ns = now_ns - rows.length_ns
    first = rows.first(since_ns, len(last.totals))
    if first is None or first[NUMBER] == last.number or last.end_ns <= since_ns:
        return Window(asked, feed.labels, None, last, 0, None, age_ns)
    return Window(asked, feed.labels, first, last, rows.seen, rows.quantiles(len(last.totals)), age_ns)
