"""An attempt whose step rows are NumPy columns, as the aggregator holds them until they are folded.

A row takes some 200 bytes. Rows that were dropped count as known, but for the newest HOLES_MAX ranges of missing ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from goodput.account.attempts import HOLES_MAX, Attempt, Row
from goodput.account.fold import padded
from goodput.wire.step_blocks import END, NUMBER, STEP, TOTALS
from goodput.wire.step_columns import in_order, widened


@dataclass(slots=True)
class ColumnAttempt(Attempt):
    """`parts` are rows in ascending number, (columns, rows) as in wire.step_blocks; `rows` stays empty."""

    parts: list[np.ndarray] = field(default_factory=list, compare=False)

    def kept_rows(self) -> int:
        """The number of rows in memory."""
        return sum(part.shape[1] for part in self.parts)

    def lacks(self, number: int) -> bool:
        return number > self.top_number or self._hole(number) is not None

    def add_rows(self, rows) -> int:
        rows = list(rows)
        return self.add_columns(columns_of(rows)).shape[1] if rows else 0

    def add_following(self, values: np.ndarray, first_step: int, last: int, end_ns: int) -> None:
        """Add rows that follow the last one without a gap: the first one's step, the last number, the latest end."""
        if self.first_step is None:
            first = last - values.shape[1] + 1
            self.first_number, self.first_step = first, first_step - first + 1
        self.parts.append(values)
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
            self.late += early
            for number in numbers[:early].tolist():
                self._fill(number)
            self.parts = [_merged([*self.parts, values])]
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
        """The rows in memory beyond a number."""
        width, found = len(self.phases), []
        for part in reversed(self.parts):
            if int(part[NUMBER, -1]) <= number:
                break
            begin = int(part[NUMBER].searchsorted(number, side="right")) if part[NUMBER, 0] <= number else 0
            found.append(widened(part[:, begin:], width))
        if not found:
            return np.zeros((TOTALS + 2 * width, 0), np.int64)
        return found[0] if len(found) == 1 else np.concatenate(found[::-1], axis=1)

    def put_back(self, values: np.ndarray) -> None:
        """Rows that were dropped and must be folded again."""
        if values.shape[1]:
            self.parts = [_merged([*self.parts, values])]

    def trim(self, number: int) -> None:
        """Drop the rows up to `number`. They count as known from now on."""
        gone = 0
        for part in self.parts:
            last = int(part[NUMBER, -1])
            if number < last:
                break
            self.trimmed, gone = max(last, self.trimmed), gone + 1
        del self.parts[:gone]
        if self.parts and number >= int(self.parts[0][NUMBER, 0]):
            part = self.parts[0]
            end = int(part[NUMBER].searchsorted(number, side="right"))
            self.trimmed = max(int(part[NUMBER, end - 1]), self.trimmed)
            # A copy, so that the dropped rows leave memory.
            self.parts[0] = part[:, end:].copy()

    def ordered_rows(self) -> list[Row]:
        return [row for part in self.parts for row in rows_of(part)]


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
