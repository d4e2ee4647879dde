"""The steps behind `goodput.window()`: new records of this process's own page, and the rows and bins of each window.

A row holds a record's cumulative totals, so a window's sums are one subtraction. Each phase's bins are kept sorted, so
that a step costs one insertion and one removal per phase, and a quantile one index. Memory: a row of n phases takes
44 + 12 n bytes, bins included; a window has ROWS_MAX rows and up to ROWS_STALE_MAX expired ones.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections import namedtuple
from itertools import repeat
from operator import getitem, itemgetter, sub, truediv
from struct import Struct

from goodput.rank_page import page

WINDOWS_MAX = 4  # of different lengths
ROWS_MAX = 2048  # steps of one window that are kept
ROWS_STALE_MAX = 256  # expired rows before the arrays are compacted
OVERFLOW_SECONDS = 65520.0  # the least number that binary16 rounds to infinity, as in histogram.py
# The productive built-in phases of account/states.py, whose import takes 35 ms: too long for a training loop.
PRODUCTIVE = ("forward", "backward", "optimizer")
QUANTILES = (0.5, 0.95, 0.99)
QUANTILE_FIELDS = ("p50_seconds", "p95_seconds", "p99_seconds")

Record = namedtuple("Record", "number end_ns samples productive_ns inside_ns totals bins")
Record.__doc__ = """A step: its number, its end, and cumulative values at that time.

`productive_ns` and `inside_ns` cover steps only, `totals` all time per phase. `bins` are those of the step's own length
and of its phases, None if the record before it was not read.
"""
FIELDS = 5  # of a row, before the totals
_TOTALS = slice(page.R_TOTALS, page.R_TOTALS + page.PHASE_SLOTS)
NUMBER, END_NS, SAMPLES, PRODUCTIVE_NS, INSIDE_NS = range(FIELDS)


class Labels:
    """Names of the phases seen so far, in the order of a row's totals, and their keys in a logger."""

    def __init__(self, names: list[str]):
        self.names = names
        self._prefix: str | None = None
        self._keys: tuple[list[str], list[str]] = [], []

    def keys(self, prefix: str) -> tuple[list[str], list[str]]:
        """Keys of the quantiles, and of the shares."""
        if prefix != self._prefix:
            begins = [f"{prefix}step_", *(f"{prefix}{name}/" for name in self.names)]
            quantiles = [begin + field for field in QUANTILE_FIELDS for begin in begins]
            self._keys = quantiles, [begin + "share" for begin in begins]
            self._prefix = prefix
        return self._keys


class Feed:
    """Passes new step records of one page to the rows of each window. `used` are the phases with time so far."""

    def __init__(self, words, session, used=()):
        self.words, self.session = words, session
        self.number, self.rows = 0, {}
        self.last: Record | None = None
        self.used: list[int] = []
        self._zeros, self._inside = -1, None
        self._widen(used or (0,))

    def advance(self, length_ns: int) -> Rows:
        """Add new records to all windows; returns the rows of the window of this length.

        A new window starts with the records that the ring still holds.
        """
        rows = self.rows.pop(length_ns, None)
        if rows is None:
            rows = Rows(length_ns)
            for record in Feed(self.words, self.session, self.used).read(self.number):
                rows.add(record)
            if len(self.rows) >= WINDOWS_MAX:
                del self.rows[next(iter(self.rows))]
        self.rows[length_ns] = rows  # Last, so that the first is the least recently used.
        for record in self.read(self.words[page.W_STEPS]):
            for other in self.rows.values():
                other.add(record)
        return rows

    def read(self, newest: int):
        """Yield the records after `number`, up to `newest`, that the ring still holds."""
        first = max(self.number + 1, newest - page.STEP_RING + 1)
        if first != self.number + 1:
            self._inside = None
        for number in range(first, newest + 1):
            at = page.W_STEP_RING + (number - 1) % page.STEP_RING * page.STEP_WORDS
            words = self.words[at : at + page.STEP_WORDS].tolist()
            self.number = number
            if words[page.R_NUMBER] == number == words[page.R_SEAL]:
                if number == 1:
                    yield self._start(words)
                self.last = self._record(words)
                yield self.last
            else:  # Overwritten by the step thread during the read.
                self._inside = None

    def _start(self, words: list[int]) -> Record:
        """The begin of the first step, as a record without a step."""
        self._widen_to(words)
        self._inside = (0,) * len(self.used)
        return Record(0, words[page.R_START], 0, 0, 0, self._outside_of(words), None)

    def _record(self, words: list[int]) -> Record:
        self._widen_to(words)
        totals, before = self._totals_of(words), self._inside
        self._inside = inside = tuple(map(sub, totals, self._outside_of(words)))
        bins, end_ns = None, words[page.R_END]
        if before is not None:
            length = (end_ns - words[page.R_START]) / 1e9
            lengths = [length, *map(truediv, map(sub, inside, before), repeat(1e9))]
            try:
                bins = array("H", self._pack(*lengths))
            except OverflowError:
                bins = array("H", self._pack(*(s if s < OVERFLOW_SECONDS else math.inf for s in lengths)))
        productive_ns = sum(self._productive_of(inside))
        return Record(
            words[page.R_NUMBER], end_ns, words[page.R_SAMPLES], productive_ns, sum(inside), totals, bins
        )

    def _widen_to(self, words: list[int]) -> None:
        """Add the phases that have time for the first time."""
        totals = words[_TOTALS]
        zeros = totals.count(0)
        if zeros != self._zeros:
            self._zeros = zeros
            self._widen([i for i, total in enumerate(totals) if total and i not in self.used])

    def _widen(self, new) -> None:
        self.used += new
        names = [*page.PHASES, *self.session.phases.states][: page.PHASE_SLOTS]
        productive = {i for i, name in enumerate(names) if self._is_productive(name)}
        self._productive_of = _taker([at for at, i in enumerate(self.used) if i in productive])
        self._totals_of = _taker([page.R_TOTALS + i for i in self.used])
        self._outside_of = _taker([page.R_OUTSIDE + i for i in self.used])
        self._pack = Struct(f"={len(self.used) + 1}e").pack
        self.labels = Labels([names[i] for i in self.used])
        if self._inside is not None:
            self._inside += (0,) * len(new)

    def _is_productive(self, name: str) -> bool:
        return name in PRODUCTIVE or self.session.phases.states.get(name) == "productive"


def _taker(places: list[int]):
    """A function from a list to the tuple of its items at these places."""
    return itemgetter(*places) if len(places) > 1 else lambda words: tuple(words[at] for at in places)


class Rows:
    """The steps of one window: a row each, and per phase their bins in ascending order.

    The window begins at the end of the row at `head`, whose bins are not among the sorted ones. Loops over phases use
    `map`, which makes a call three times as fast.
    """

    def __init__(self, length_ns: int):
        self.length_ns, self.every, self.halved_at = length_ns, 1, 0
        self.head = self.count = 0
        self.width = 0  # of a row's totals
        self.rows, self.bins, self.sorted = array("Q"), array("H"), [array("H")]

    def add(self, record: Record) -> None:
        """Keep a step, unless it is thinned out or its lengths are unknown."""
        number, bins = record.number, record.bins
        if self.count - self.head > ROWS_MAX:
            self._thin()
        if self.count and (bins is None or number % self.every):
            return
        if len(record.totals) != self.width:
            self._widen(len(record.totals))
        self.rows.extend(record[:FIELDS] + record.totals)
        self.count += 1
        if bins is None:
            self.bins.extend((0,) * (self.width + 1))
            return
        self.bins.extend(bins)
        list(map(insort, self.sorted, bins))

    @property
    def seen(self) -> int:
        """Steps whose lengths are kept."""
        return self.count - self.head - 1

    def first(self, since_ns: int, width: int) -> array | None:
        """The row at which a window since then begins, padded to this many totals; None without rows."""
        if not self.count:
            return None
        self._expire(since_ns)
        row = self._row(self.head)
        row.extend((0,) * (width - self.width))
        return row

    def quantiles(self, width: int) -> list[int]:
        """For each of QUANTILES the bin of the step and of each phase, nearest rank as in histogram.py."""
        seen, found = self.seen, []
        if seen:
            more = (0,) * (width - self.width)
            for q in QUANTILES:
                found += map(getitem, self.sorted, repeat(math.ceil(q * seen) - 1))
                found += more
        return found

    def _row(self, at: int) -> array:
        size = FIELDS + self.width
        return self.rows[at * size : (at + 1) * size]

    def _bins(self, at: int) -> array:
        return self.bins[at * (self.width + 1) : (at + 1) * (self.width + 1)]

    def _expire(self, since_ns: int) -> None:
        """Move `head` to the newest row that ended by then."""
        size = FIELDS + self.width
        while self.head + 1 < self.count and self.rows[(self.head + 1) * size + 1] <= since_ns:
            self.head += 1
            list(map(array.pop, self.sorted, map(bisect_left, self.sorted, self._bins(self.head))))
            kept = self.count - self.head
            if self.every > 1 and 4 * kept < ROWS_MAX and self._row(self.head)[0] >= self.halved_at:
                # Steps have become longer. Once per window, since its older rows are still thinned out.
                self.every //= 2
                self.halved_at = self._row(self.count - 1)[0]
        if self.head >= ROWS_STALE_MAX:
            del self.rows[: self.head * size]
            del self.bins[: self.head * (self.width + 1)]
            self.count, self.head = self.count - self.head, 0

    def _thin(self) -> None:
        """Keep every second of the steps that are kept now, and of later ones."""
        self.every *= 2
        kept = [at for at in range(self.head + 1, self.count) if self._row(at)[0] % self.every == 0]
        self._keep([self.head, *kept[-ROWS_MAX // 2 :]], 0)

    def _widen(self, width: int) -> None:
        """Extend each row to this many phases."""
        self._keep(range(self.head, self.count), width - self.width)

    def _keep(self, places, more: int) -> None:
        """Copy these rows into new arrays, each padded by `more` phases."""
        rows, bins, zeros = array("Q"), array("H"), (0,) * more
        for at in places:
            rows.extend(self._row(at))
            rows.extend(zeros)
            bins.extend(self._bins(at))
            bins.extend(zeros)
        self.rows, self.bins, self.width = rows, bins, self.width + more
        self.head, self.count = 0, len(places)
        size = self.width + 1
        self.sorted = [array("H", sorted(bins[size + i :: size])) for i in range(size)]
