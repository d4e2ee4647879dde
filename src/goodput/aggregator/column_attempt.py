"""An attempt whose step rows are packed blocks or NumPy columns, as the aggregator holds them until they are folded.

Rows that were dropped count as known, but for the newest HOLES_MAX ranges of missing ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from goodput.account.attempts import HOLES_MAX, Attempt, Row, padded
from goodput.wire import compiled
from goodput.wire.packed_rows import PackedRows, unpacked
from goodput.wire.step_blocks import END, NUMBER, STEP, TOTALS
from goodput.wire.step_columns import in_order, widened


class _NoEntries(dict):
    """What most ranks have none of, one for all of them, since an empty one of its own would take 64 bytes of each."""

    def _refuse(self, *_, **__):
        raise TypeError("what all ranks share is never written to")

    __setitem__ = __ior__ = setdefault = update = _refuse  # type: ignore[assignment]


NO_ENTRIES = _NoEntries()


@dataclass(slots=True)
class ColumnAttempt(Attempt):
    """`parts` are rows in ascending number, packed or as (columns, rows) as in wire.step_blocks; `rows` stays empty."""

    parts: list[np.ndarray | PackedRows] = field(default_factory=list, compare=False)

    def kept_rows(self) -> int:
        """The number of rows in memory."""
        return sum([part.count if isinstance(part, PackedRows) else part.shape[1] for part in self.parts])

    def lacks(self, number: int) -> bool:
        return number > self.top_number or self._hole(number) is not None

    def add_rows(self, rows) -> int:
        rows = list(rows)
        return self.add_columns(columns_of(rows)).shape[1] if rows else 0

    def add_following(
        self, rows: np.ndarray | PackedRows, first: int, last: int, first_step: int, end_ns: int
    ) -> None:
        """Add rows that follow the last one without a gap: their first and last number, first step and latest end."""
        if self.first_step is None:
            self.first_number, self.first_step = first, first_step - first + 1
        self.parts.append(rows)
        self.top_number = last
        if end_ns > self.rows_end_ns:
            self.rows_end_ns = end_ns

    def add_columns(self, values: np.ndarray) -> np.ndarray:
        """Merge rows in ascending number; returns those that were new."""
        numbers = values[NUMBER]
        if int(numbers[0]) > self.top_number:
            self.parts.append(values)
        else:
            is_new = np.array([self.lacks(number) for number in numbers.tolist()])
            values = values if is_new.all() else values[:, is_new]
            if not values.shape[1]:
                return values
            numbers = values[NUMBER]
            early = int((numbers < self.top_number).sum())
            self.late_count += early
            for number in numbers[:early].tolist():
                self._fill(number)
            self.parts = [_merged([*self._arrays(), values])]
            numbers = numbers[early:]
        self._note_holes(numbers)
        first = int(values[NUMBER, 0])
        if self.first_step is None or first < self.first_number:
            self.first_number, self.first_step = first, int(values[STEP, 0]) - first + 1
        self.top_number = max(int(values[NUMBER, -1]), self.top_number)
        self.rows_end_ns = max(int(values[END].max()), self.rows_end_ns)
        return values

    def _note_holes(self, numbers: np.ndarray) -> None:
        """Note the ranges that these numbers, all above the highest so far, leave out."""
        if not len(numbers) or int(numbers[-1]) - self.top_number == len(numbers):
            return
        before = np.concatenate(([self.top_number], numbers[:-1]))
        for at in np.flatnonzero(numbers - before > 1)[-HOLES_MAX:].tolist():
            self.holes.append((int(before[at]) + 1, int(numbers[at]) - 1))
        del self.holes[:-HOLES_MAX]

    def after(self, number: int) -> np.ndarray:
        """The rows in memory beyond a number. See `rows_after` for many attempts."""
        width, found = len(self.phases), []
        for part in self._arrays(number):
            begin = int(part[NUMBER].searchsorted(number, side="right"))
            found.append(widened(part[:, begin:], width))
        return np.concatenate(found, axis=1) if found else np.zeros((TOTALS + 2 * width, 0), np.int64)

    def parts_after(self, number: int) -> list[np.ndarray | PackedRows]:
        """The parts that have rows beyond a number."""
        at = len(self.parts)
        while at and _last(self.parts[at - 1]) > number:
            at -= 1
        return self.parts[at:]

    def _arrays(self, number: int = 0) -> list[np.ndarray]:
        """The parts that have rows beyond a number, as columns."""
        found = []
        for part in self.parts_after(number):
            found.append(unpacked([part]).values[:, -part.count :] if isinstance(part, PackedRows) else part)
        return found

    def put_back(self, values: np.ndarray) -> None:
        """Rows that were dropped and must be folded again."""
        if values.shape[1]:
            self.parts = [_merged([*self._arrays(), values])]

    def trim(self, number: int) -> None:
        """Drop the rows up to `number`. They count as known from now on."""
        parts, at = self.parts, 0
        for part in parts:
            if _last(part) > number:
                break
            at += 1
        if at:
            self.trimmed = max(_last(parts[at - 1]), self.trimmed)
            self.parts = parts = parts[at:]
        if parts and number >= _first(parts[0]):
            parts[0], last = _beyond(parts[0], number)
            self.trimmed = max(last, self.trimmed)

    def ordered_rows(self) -> list[Row]:
        return [row for part in self._arrays() for row in rows_of(part)]


def rows_after(
    wanted: Sequence[tuple[ColumnAttempt, int]], width: int, most: int = sys.maxsize
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows in memory of attempts of `width` phases beyond a number, of each the first `most`, side by side, how many
    each has, and which columns may have other values than 0.

    The packed ones of all are unpacked together.
    """
    height = TOTALS + 2 * width
    if compiled.steps is not None:
        packed = compiled.steps.rows_after([(one.parts, number) for one, number in wanted], height, most)
        if packed is not None:
            values, counts = (np.frombuffer(one, np.int64) for one in packed[:2])
            used = np.uint64(packed[2]) >> np.arange(height, dtype=np.uint64) & np.uint64(1)
            return values.reshape(height, -1), counts, used.astype(bool)
    values, counts = _rows_after(wanted, width)
    if counts.max(initial=0) > most:
        ends = np.cumsum(counts)
        place = np.arange(values.shape[1]) - np.repeat(ends - counts, counts)
        values, counts = values[:, place < most], np.minimum(counts, most)
    return values, counts, np.logical_or.reduce(values, axis=1)


def _rows_after(wanted: Sequence[tuple[ColumnAttempt, int]], width: int) -> tuple[np.ndarray, np.ndarray]:
    parts = [attempt.parts_after(number) for attempt, number in wanted]
    packed = [part for own in parts for part in own if isinstance(part, PackedRows)]
    sizes = list(map(len, parts))
    if len(packed) == sum(sizes):
        columns = unpacked(packed)
        # Blocks lie side by side, and only of the first one are there rows that are not wanted.
        of = np.repeat(np.arange(len(wanted)), sizes)
        after = np.array([number for _, number in wanted], np.int64)[of]
        first, last = np.array([(part.first, part.last) for part in packed], np.int64).reshape(-1, 2).T
        left, rows = last - np.maximum(first - 1, after), np.diff(columns.begins)
        place = np.arange(len(columns)) - np.repeat(columns.begins[:-1], rows)
        is_wanted = place >= np.repeat(rows - left, rows)
        values = columns.values if is_wanted.all() else columns.values[:, is_wanted]
        return widened(values, width), np.bincount(of, left, len(wanted)).astype(np.int64)
    each = [widened(attempt.after(number), width) for attempt, number in wanted]
    return np.concatenate(each, axis=1), np.array([values.shape[1] for values in each])


def _first(rows: np.ndarray | PackedRows) -> int:
    return rows.first if isinstance(rows, PackedRows) else int(rows[NUMBER, 0])


def _last(rows: np.ndarray | PackedRows) -> int:
    return rows.last if isinstance(rows, PackedRows) else int(rows[NUMBER, -1])


def _beyond(rows: np.ndarray | PackedRows, number: int) -> tuple[np.ndarray | PackedRows, int]:
    """Without the rows up to `number`, and the last one of those."""
    if isinstance(rows, PackedRows):
        return rows.beyond(number), number
    end = int(rows[NUMBER].searchsorted(number, side="right"))
    # A copy, so that the dropped rows leave memory.
    return rows[:, end:].copy(), int(rows[NUMBER, end - 1])


def columns_of(rows: Iterable) -> np.ndarray:
    """Rows in any order as columns in ascending number, each number once, with zeros for phases that a row lacks."""
    rows = list(rows)
    width = max(len(row.totals) for row in rows)
    values = np.zeros((TOTALS + 2 * width, len(rows)), np.int64)
    values[:6] = np.array(
        [(r.number, r.step, r.start_ns, r.end_ns, r.samples, r.device_ns) for r in rows], np.int64
    ).T
    for first, phases in ((0, [row.totals for row in rows]), (1, [row.outside for row in rows])):
        even = phases if all(len(one) == width for one in phases) else [padded(one, width) for one in phases]
        values[TOTALS + first :: 2] = np.array(even, np.int64).reshape(len(rows), width).T
    return in_order(values)


def rows_of(values: np.ndarray) -> list[Row]:
    """Columns as rows."""
    return [row_of(one) for one in values.T.tolist()]


def row_of(values: list[int]) -> Row:
    number, step, start, end, samples, device, _, _, *phases = values
    return Row(number, step, start, end, samples, tuple(phases[::2]), tuple(phases[1::2]), device)


def _merged(parts: list[np.ndarray]) -> np.ndarray:
    """Rows of all parts in ascending number, each once."""
    width = max((len(part) - TOTALS) // 2 for part in parts)
    return in_order(np.concatenate([widened(part, width) for part in parts], axis=1))
