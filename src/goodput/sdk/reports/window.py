"""`goodput.window(seconds=60)`: the last minute of this process, for the training loop's own log.

    now = goodput.window(seconds=60)
    print(now.steps_per_second, now.goodput, now.phases["loader"].p99_seconds)

Sums are differences of cumulative step records, so they are exact, and a window's phases, "none" included, sum to its
length to the nanosecond. Quantiles are over the steps that were read, of which `coverage` is the share; their bins
have an error of 2**-11 (histograms/histogram.py). Nothing blocks, raises or starts a thread: a call while another
thread is in one returns the previous Window.

With eleven phases a call and new step take about 20 us, 30 us with `scalars()`; the first call reads the whole ring in
about 7 ms. Memory: up to 1 MiB per window with eleven phases; beyond WINDOWS_MAX windows the least recently used one is
dropped. Of more than ROWS_MAX steps only every 2nd, 4th, ... is kept for quantiles.

Other ranks, redone steps and stalls are not considered: the account does (account/).
"""

from __future__ import annotations

from _thread import allocate_lock
from array import array
from collections import namedtuple
from functools import lru_cache
from itertools import compress
from operator import sub
from struct import Struct
from time import perf_counter_ns

from goodput.histograms.histogram import NANOSECONDS
from goodput.rank_page import page
from goodput.sdk.recorder.messages import four_digits, short_repr
from goodput.sdk.recorder.recorder import State
from goodput.sdk.reports.window_rows import WINDOWS_MAX, Feed, Record
from goodput.user_exceptions import reraise_from_handler

SECONDS_DEFAULT = 60
SECONDS_MAX = 1e9

Spent = namedtuple("Spent", "p50_seconds p95_seconds p99_seconds seconds share")
Spent.__doc__ = """Time of a phase, or of steps, in a window.

Quantiles are per step, of the time inside it, 0 for a step without the phase; None if no step was read. `seconds` is
the sum over the window, for a phase also outside steps, and `share` is that ÷ the window's seconds.
"""


class Window:
    """The last steps of this process, by the host's clock. Unknown values are None.

    A window reaches from the last step end that is at least `asked_seconds` ago, or the begin of the first step, to
    the end of the last step.
    """

    __slots__ = ("_bins", "_first", "_last", "_names", "age_seconds", "asked_seconds", "seen")

    def __init__(
        self,
        asked_seconds: float,
        age_ns: int | None = None,
        last: Record | None = None,
        first: Record | None = None,
        names: tuple[str, ...] = (),
        seen: int = 0,
        bins=(),
    ):
        """`bins` are, for each quantile, those of the steps and of the phases with these names."""
        self.asked_seconds, self.seen = asked_seconds, seen
        self.age_seconds = None if age_ns is None else age_ns / NANOSECONDS
        self._first, self._last, self._names, self._bins = first, last, names, bins

    @property
    def seconds(self) -> float:
        """The length of the window; 0.0 without steps."""
        return self._growth("end_ns") / NANOSECONDS

    @property
    def steps(self) -> int:
        """Steps that ended in the window."""
        return self._growth("number")

    @property
    def coverage(self) -> float | None:
        """The share of the steps that the quantiles cover; `seen` is their number."""
        return self.seen / self.steps if self.steps else None

    @property
    def steps_per_second(self) -> float | None:
        """Steps ÷ seconds."""
        return self._ratio(self.steps * NANOSECONDS)

    @property
    def samples_per_second(self) -> float | None:
        """Samples ÷ seconds; None if no step has a sample count."""
        return self._ratio(self._growth("samples") * NANOSECONDS) if self._growth("samples") else None

    @property
    def goodput(self) -> float | None:
        """Time in productive phases inside steps ÷ the window, of this process alone."""
        return self._ratio(self._growth("productive_ns"))

    @property
    def goodput_so_far(self) -> float | None:
        """Goodput from the attempt's start to its last step: startup counts as lost, redone work does not."""
        last = self._last
        return last.productive_ns / sum(last.totals) if last and any(last.totals) else None

    @property
    def step(self) -> Spent:
        """The steps' lengths."""
        return self._spent(self._quantiles()[0], self._growth("inside_ns"))

    @property
    def phases(self) -> dict[str, Spent]:
        """Spent of each phase that this process was ever in, "none" included; {} without steps."""
        columns = zip(self._names, self._quantiles()[1:], self._sums(), strict=True)
        used = compress(columns, self._is_used()[1:])
        return {name: self._spent(quantiles, ns) for name, quantiles, ns in used}

    def scalars(self, prefix: str = "goodput/") -> dict[str, float]:
        """All values as a flat dictionary of floats for a logger; unknown ones are left out."""
        found = {
            prefix + name: float(value)
            for name in _HEADS
            if (value := getattr(self, name)) is not None and (self.steps or name in _ALWAYS)
        }
        if self._first is not None:
            quantiles, shares = _keys(prefix, self._names)
            used, wall_ns = self._is_used(), self._growth("end_ns")
            # Empty if no step was read.
            found.update(compress(zip(quantiles, self._flat(), strict=False), used * 3))
            spent = [ns / wall_ns for ns in (self._growth("inside_ns"), *self._sums())]
            found.update(compress(zip(shares, spent, strict=True), used))
        return found

    def __repr__(self) -> str:
        return f"<goodput.Window: {self}>"

    def _repr_html_(self) -> str | None:
        """For notebooks; None, which shows the text instead, where it fails."""
        try:
            from goodput.sdk.reports.notebook_html import window_html

            return window_html(self)
        except Exception as error:
            reraise_from_handler(error)
            return None

    def __str__(self) -> str:
        if not self.steps:
            if self.asked_seconds >= SECONDS_MAX:
                return "no step has ended"
            return f"no step ended in the last {four_digits(self.asked_seconds)} s"
        parts = [
            f"{four_digits(self.seconds)} s, {self.steps} steps, {four_digits(self.steps_per_second or 0.0)} steps/s"
        ]
        if self.samples_per_second is not None:
            parts.append(f"{four_digits(self.samples_per_second)} samples/s")
        parts.append(f"goodput {self.goodput:.1%} (so far {self.goodput_so_far:.1%})")
        if self.seen:
            parts.append("step p50 {} s, p95 {} s, p99 {} s".format(*map(four_digits, self.step[:3])))
        largest = sorted(self.phases.items(), key=lambda pair: -pair[1].seconds)[:4]
        parts.append(", ".join(f"{name} {spent.share:.1%}" for name, spent in largest))
        return "; ".join(parts)

    def _growth(self, field: str) -> int:
        """A cumulative field's growth over the window."""
        return 0 if self._first is None else getattr(self._last, field) - getattr(self._first, field)

    def _sums(self) -> list[int]:
        """Nanoseconds of each phase in the window."""
        if self._first is None or self._last is None:
            return []
        before, now = self._first.totals, self._last.totals
        return [*map(sub, now, before), *now[len(before) :]]

    def _is_used(self) -> tuple[int, ...]:
        """Whether the window has the step, "none" (both always) and each phase, which must have been entered."""
        return () if self._last is None else (1, 1, *self._last.totals[1:])

    def _spent(self, quantiles: tuple, ns: int) -> Spent:
        p50, p95, p99 = quantiles
        return Spent(p50, p95, p99, ns / NANOSECONDS, self._ratio(ns))

    def _ratio(self, number: int) -> float | None:
        wall_ns = self._growth("end_ns")
        return number / wall_ns if wall_ns else None

    def _flat(self) -> tuple[float, ...]:
        """For each quantile the value of the step and of each phase, in seconds; () if no step was read."""
        return Struct(f"={len(self._bins)}e").unpack(array("H", self._bins))

    def _quantiles(self) -> list[tuple]:
        """(p50, p95, p99) of the step and of each phase."""
        size = 1 + len(self._names)
        flat = self._flat() or (None,) * (3 * size)
        return list(zip(flat[:size], flat[size : 2 * size], flat[2 * size :], strict=True))


@lru_cache(maxsize=4)
def _keys(prefix: str, phases: tuple[str, ...]) -> tuple[list[str], list[str]]:
    begins = [f"{prefix}step_", *(f"{prefix}{name}/" for name in phases)]
    quantiles = [begin + field for field in Spent._fields[:3] for begin in begins]
    return quantiles, [begin + "share" for begin in begins]


_HEADS = ("goodput", "goodput_so_far", "steps_per_second", "samples_per_second", "coverage", "age_seconds")
_ALWAYS = ("goodput_so_far", "age_seconds")


class Windows:
    """The windows of one session; one call at a time."""

    def __init__(self, session):
        self._session = session
        self.after_fork()

    def after_fork(self) -> None:
        """In the child: the steps were the parent's, and one of its threads may have held the lock."""
        self._lock, self._feed, self._before = allocate_lock(), None, {}

    def window(self, seconds: float = SECONDS_DEFAULT) -> Window:
        """The Window of the last `seconds`; never raises."""
        length = self._checked(seconds)
        # Held by another thread, or by the call that this signal handler interrupted.
        if not self._lock.acquire(False):
            return self._before.get(length) or Window(length)
        try:
            return self._window(length)
        except Exception as error:
            reraise_from_handler(error)
            self._session.warn(f"no window: {type(error).__name__}: {short_repr(error)}")
            return Window(length)
        finally:
            self._lock.release()

    def _window(self, length) -> Window:
        recorder = self._session.recorder
        words = recorder.words
        if words is None or recorder.state == State.DISABLED:
            self._feed, self._before = None, {}
            return Window(length)
        # Detached while it changes, so that one left half-changed by an exception is not used again.
        feed, self._feed = self._feed, None
        if feed is None or feed.words is not words or words[page.W_STEPS] < feed.number:
            feed, self._before = Feed(words, self._session), {}
        rows = feed.advance(round(length * NANOSECONDS))
        found = _window_of(length, feed, rows, perf_counter_ns())
        if length not in self._before and len(self._before) >= WINDOWS_MAX:
            self._before = {}
        self._before[length] = found
        self._feed = feed
        return found

    def _checked(self, seconds) -> float:
        """`seconds` if it is a positive number, else the default."""
        try:
            if not isinstance(seconds, (bool, str)) and seconds > 0:
                return min(float(seconds), SECONDS_MAX)
        except Exception as error:
            reraise_from_handler(error)
        self._session.warn(
            f"window(seconds={short_repr(seconds)}): want a number above 0; using {SECONDS_DEFAULT}"
        )
        return float(SECONDS_DEFAULT)


def _window_of(length: float, feed: Feed, rows, now_ns: int) -> Window:
    last = feed.last
    if last is None:
        return Window(length)
    age_ns = max(now_ns - last.end_ns, 0)
    since_ns = now_ns - rows.length_ns
    first = rows.first(since_ns)
    if first is None or first.number == last.number or last.end_ns <= since_ns:
        return Window(length, age_ns, last)
    names = feed.names[: len(last.totals)]
    return Window(length, age_ns, last, first, names, rows.seen, rows.quantiles())
