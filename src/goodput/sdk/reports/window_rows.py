"""The steps behind `goodput.window()`: new records of this process's own page, and the ones that each window keeps.

A record has the cumulative totals at a step's end, so a window's sums are one subtraction. Each phase's bins are kept
sorted, so that a step costs one insertion and one removal per phase, and a quantile one index.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections import deque, namedtuple
from itertools import repeat
from operator import getitem, itemgetter, sub, truediv
from struct import Struct

from goodput.histograms.histogram import OVERFLOW_SECONDS
from goodput.rank_page import page

WINDOWS_MAX = 4  # of different lengths
ROWS_MAX = 2048  # steps of one window that are kept
# The productive built-in phases of account/states.py, whose import takes 35 ms: too long for a training loop.
PRODUCTIVE = ("forward", "backward", "optimizer")
QUANTILES = (0.5, 0.95, 0.99)

Record = namedtuple("Record", "number end_ns samples productive_ns inside_ns totals bins")
Record.__doc__ = """A step: its number, its end, and cumulative values at that time.

`productive_ns` and `inside_ns` cover steps only, `totals` all time per phase. `bins` are those of the step's own length
and of its phases, None if the record before it was not read.
"""


class Feed:
    """Passes new step records of one page to the rows of each window."""

    def __init__(self, words, session):
        self.words, self.session = words, session
        self.number, self.rows = 0, {}
        self.last: Record | None = None
        self.names: tuple[str, ...] = ()
        self._inside: list[int] | None = None

    def advance(self, length_ns: int) -> Rows:
        """Add new records to all windows; returns the rows of the window of this length.

        A new window starts with the records that the ring still holds.
        """
        rows = self.rows.pop(length_ns, None)
        if rows is None:
            rows = Rows(length_ns)
            for record in Feed(self.words, self.session).read(self.number):
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
                if self.session.recorder.columns != len(self.names):
                    self._widen(self.session.recorder.columns)
                if number == 1:
                    yield self._start(words)
                self.last = self._record(words)
                yield self.last
            else:  # Overwritten by the step thread during the read.
                self._inside = None

    def _start(self, words: list[int]) -> Record:
        """The begin of the first step, as a record without a step."""
        self._inside = [0] * len(self.names)
        return Record(0, words[page.R_START], 0, 0, 0, self._vector(words, page.R_OUTSIDE), None)

    def _record(self, words: list[int]) -> Record:
        totals, before = self._vector(words, page.R_TOTALS), self._inside
        self._inside = inside = list(map(sub, totals, self._vector(words, page.R_OUTSIDE)))
        bins, end_ns = None, words[page.R_END]
        if before is not None:
            length = (end_ns - words[page.R_START]) / 1e9
            bins = self._bins_of([length, *map(truediv, map(sub, inside, before), repeat(1e9))])
        productive_ns = sum(self._productive_of(inside))
        return Record(
            words[page.R_NUMBER], end_ns, words[page.R_SAMPLES], productive_ns, sum(inside), totals, bins
        )

    def _vector(self, words: list[int], at: int) -> tuple[int, ...]:
        return tuple(words[at : at + len(self.names)])

    def _bins_of(self, lengths: list[float]) -> array:
        try:
            return array("H", self._pack(*lengths))
        except OverflowError:
            return array("H", self._pack(*(s if s < OVERFLOW_SECONDS else math.inf for s in lengths)))

    def _widen(self, width: int) -> None:
        """The user has defined phases."""
        states = self.session.phases.states
        self.names = (*page.PHASES, *states)[:width]
        names = enumerate(self.names)
        productive = [i for i, name in names if name in PRODUCTIVE or states.get(name) == "productive"]
        self._productive_of = itemgetter(*productive)
        self._pack = Struct(f"={len(self.names) + 1}e").pack
        if self._inside is not None:
            self._inside += [0] * (len(self.names) - len(self._inside))


class Rows:
    """The steps of one window: their records, and the ascending bins of the step's length and of each phase.

    The window begins at the end of the first record, whose bins are not among the sorted ones. Loops over phases use
    `map`, which makes a call three times as fast.
    """

    def __init__(self, length_ns: int):
        self.length_ns, self.every, self.halved_at = length_ns, 1, 0
        self.rows: deque[Record] = deque()
        self.sorted: list[array] = []

    def add(self, record: Record) -> None:
        """Keep a step, unless it is thinned out or its lengths are unknown."""
        if len(record.totals) >= len(self.sorted):
            self._keep(self.rows, len(record.totals) + 1)
        if len(self.rows) > ROWS_MAX:
            self._thin()
        if self.rows and (record.bins is None or record.number % self.every):
            return
        self.rows.append(record)
        if record.bins is not None:
            list(map(insort, self.sorted, record.bins))

    @property
    def seen(self) -> int:
        return len(self.rows) - 1

    def first(self, since_ns: int) -> Record | None:
        """The record at which a window since then begins; None without rows."""
        rows = self.rows
        while len(rows) > 1 and rows[1].end_ns <= since_ns:
            rows.popleft()
            list(map(array.pop, self.sorted, map(bisect_left, self.sorted, rows[0].bins)))
            if self.every > 1 and 4 * len(rows) < ROWS_MAX and rows[0].number >= self.halved_at:
                # Steps have become longer. Once per window, since its older rows are still thinned out.
                self.every //= 2
                self.halved_at = rows[-1].number
        return rows[0] if rows else None

    def quantiles(self) -> list[int]:
        """For each of QUANTILES the bin of the step and of each phase, nearest rank as in histogram.py."""
        seen, found = self.seen, []
        for q in QUANTILES if seen else ():
            found += map(getitem, self.sorted, repeat(math.ceil(q * seen) - 1))
        return found

    def _thin(self) -> None:
        """Keep every second of the steps that are kept now, and of later ones."""
        self.every *= 2
        first, *others = self.rows
        kept = [record for record in others if record.number % self.every == 0]
        self._keep([first, *kept[-ROWS_MAX // 2 :]], len(self.sorted))

    def _keep(self, rows, size: int) -> None:
        """Keep these records, with bins of this many columns."""
        self.rows = deque(rows)
        bins = [record.bins for record in rows][1:]
        for one in bins:
            one.extend(repeat(0, size - len(one)))
        self.sorted = [array("H", sorted(one[column] for one in bins)) for column in range(size)]
