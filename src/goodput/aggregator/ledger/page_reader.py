"""Reads the rows of many processes at once, each in ascending number, a page of each at a time.

The pages of a quarter of the processes, from PROCESSES_LEAST to PROCESSES_AT_ONCE of them, take two queries. Blocks may be
added, merged and thinned meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import sqlalchemy as sql

from goodput.aggregator.ledger.block_reader import Fetch, stored_blocks
from goodput.aggregator.ledger.blocks import StoredBlock, decode_columns, decode_page
from goodput.wire.step_blocks import END, NUMBER, TOTALS, BlockError
from goodput.wire.step_columns import in_order

_MAX = (1 << 63) - 1
PROCESSES_AT_ONCE, PROCESSES_LEAST, LISTED_AT_ONCE = 128, 16, 512
_LISTED = """
    WITH wanted(process, number, until_ns) AS (VALUES {})
    SELECT blocks.process, blocks.id, blocks.first, blocks.last, blocks.rows FROM wanted CROSS JOIN blocks
    WHERE blocks.process = wanted.process AND blocks.last > wanted.number
    AND blocks.start_ns_first <= wanted.until_ns ORDER BY blocks.process, blocks.first
"""
_REACHING = """
    WITH wanted(process, at_ns) AS (VALUES {})
    SELECT wanted.process, min(blocks.first) FROM wanted CROSS JOIN blocks
    WHERE blocks.process = wanted.process AND blocks.end_ns_last >= wanted.at_ns GROUP BY wanted.process
"""
_BEFORE = """
    WITH wanted(process, number) AS (VALUES {})
    SELECT wanted.process, max(blocks.last) FROM wanted CROSS JOIN blocks
    WHERE blocks.process = wanted.process AND blocks.first < wanted.number GROUP BY wanted.process
"""


class PageBounds(NamedTuple):
    """Rows above `after` and, with `from_ns`, from the last one before the first that ends then or later.

    Rows that begin after `until_ns` are looked for only when all others were taken.
    """

    after: int = 0
    from_ns: int | None = None
    until_ns: int = _MAX


@dataclass
class ProcessRows:
    """The rows of a process above `after`, as they are read: those that begin after `until_ns` when all others were.

    With `from_ns`, of those before the first one that ends then or later only one or a few.
    """

    process: int  # its id in the ledger
    width: int  # phases of its report
    after: int = 0
    until_ns: int = _MAX
    from_ns: int | None = None
    listed: list[tuple[int, int, int, int]] = field(default_factory=list)  # id, first, last, rows
    page: np.ndarray | None = None
    is_over: bool = False

    def taken(self) -> np.ndarray:
        """The page, which only the caller has from now on: a generator would hold what it yielded until it goes on."""
        page, self.page = self.page, None
        assert page is not None
        return page


class PageReader:
    """Pages of about `rows` rows of each process, or of one block where that has more and `rows` allows it."""

    def __init__(self, fetch: Fetch, wanted: Sequence[ProcessRows], rows: int):
        self._fetch, self._rows = fetch, rows
        self._wanted = list(wanted)
        self._at_once = min(max(len(wanted) // 4, PROCESSES_LEAST), PROCESSES_AT_ONCE)
        self._place = {one.process: at for at, one in enumerate(self._wanted)}

    def pages(self, of: ProcessRows) -> Iterator[np.ndarray]:
        """The rows of one of the processes, as arrays of its phases or more."""
        while True:
            if of.page is None and not of.is_over:
                self._load(self._lacking(of))
            if of.page is None:
                return
            yield of.taken()

    def _lacking(self, of: ProcessRows) -> list[ProcessRows]:
        """This process and those that come next and have no page either."""
        found = [of]
        for one in self._wanted[self._place[of.process] + 1 :]:
            if len(found) == self._at_once:
                break
            if one.page is None and not one.is_over:
                found.append(one)
        return found

    def _load(self, some: list[ProcessRows]) -> None:
        """Read the next page of each, or find that there is none."""
        while some:
            self._list([one for one in some if not one.listed])
            some = [one for one in some if not one.is_over]
            chosen = [_next_blocks(one, self._rows) for one in some]
            stored = {one.id: one for one in stored_blocks(self._fetch, list(chain.from_iterable(chosen)))}
            for one, ids in zip(some, chosen, strict=True):
                if all(id in stored for id in ids):
                    self._take(one, self._page(one, [stored[id] for id in ids]))
                else:
                    # Some were replaced by others meanwhile.
                    one.listed = []
            some = [one for one in some if one.page is None]

    def _list(self, some: list[ProcessRows]) -> None:
        """List the blocks of these processes; those that have none are over, unless there may be later ones."""
        for at in range(0, len(some), LISTED_AT_ONCE):
            part = some[at : at + LISTED_AT_ONCE]
            while part:
                of = {one.process: one for one in part}
                rows = ((one.process, one.after, one.until_ns) for one in part)
                for process, *block in self._fetch(sql.text(_LISTED.format(_values(rows))), {}).all():
                    of[process].listed.append(tuple(block))
                part = [one for one in part if not one.listed]
                for one in part:
                    one.is_over, one.until_ns = one.until_ns == _MAX, _MAX
                part = [one for one in part if not one.is_over]

    def _page(self, one: ProcessRows, found: list[StoredBlock]) -> np.ndarray:
        """The next rows of a process, of these blocks; none where all of theirs were taken."""
        parts = self._parts(one, found)
        if parts:
            return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        values = _decoded(one, found)
        begin = _begin(one, values)
        # A copy, or the rows of all processes would stay in memory with these.
        return values[:, begin : begin + self._rows].copy()

    def _parts(self, one: ProcessRows, found: list[StoredBlock]) -> list[np.ndarray] | None:
        """The same rows by block, with no others decoded; None where blocks overlap or one cannot be decoded in part."""
        if any(later[1] <= block[2] for block, later in pairwise(one.listed[: len(found)])):
            return None
        width, after, left = max(one.width, *(block.width for block in found)), one.after, self._rows
        from_ns, parts = one.from_ns, []
        for block in found:
            part = decode_page(block, width, after, from_ns, left)
            if part is None:
                return None
            values, is_reached = part
            if values.shape[1]:
                if from_ns is not None and values[END, 0] < from_ns:
                    parts = []  # A later row is the one before.
                parts.append(values)
                from_ns = None if is_reached else from_ns
                after, left = int(values[NUMBER, -1]), self._rows - sum(part.shape[1] for part in parts)
            if left <= 0:
                break
        one.from_ns = from_ns
        return parts

    def _take(self, one: ProcessRows, page: np.ndarray) -> None:
        if not page.shape[1]:
            # To list them again would find the same ones for ever.
            ids = [block[0] for block in one.listed if block[2] > one.after]
            raise BlockError(
                f"blocks {ids[:3]} of process {one.process} have no row {one.listed[0][2]}, their last one"
            )
        one.page, one.after = page, int(page[NUMBER, -1])
        one.listed = [block for block in one.listed if block[2] > one.after]


def _begin(one: ProcessRows, values: np.ndarray) -> int:
    """The first of these rows that is wanted."""
    begin = int(np.searchsorted(values[NUMBER], one.after, side="right"))
    if one.from_ns is None or begin == values.shape[1]:
        return begin
    reached = np.flatnonzero(values[END, begin:] >= one.from_ns)
    if not len(reached):
        return values.shape[1] - 1
    one.from_ns = None
    return begin + max(int(reached[0]) - 1, 0)


def _next_blocks(one: ProcessRows, rows: int) -> list[int]:
    """The ids of the listed blocks from which the next page comes: those with enough rows, and what overlaps them."""
    ids, many, top = [], 0, 0
    for id, first, last, count in one.listed:
        if many >= rows and first > top:
            break
        ids.append(id)
        # Of the first one only the last rows may be wanted.
        many, top = many + min(count, last - one.after), max(top, last)
    return ids


def _decoded(of: ProcessRows, found: list[StoredBlock]) -> np.ndarray:
    """The rows of one process in order. Those of several together do not fit into the processor's caches and take longer."""
    values = decode_columns(found, of.width).values
    return in_order(values[: TOTALS + 2 * max(of.width, *(block.width for block in found))])


def numbers_before(fetch: Fetch, at_ns: Mapping[int, int]) -> dict[int, int]:
    """By process id a number above which lie the first row that ends at this time or later, and the row before it."""
    found = dict.fromkeys(at_ns, 0)
    processes = list(at_ns)
    for at in range(0, len(processes), LISTED_AT_ONCE):
        part = processes[at : at + LISTED_AT_ONCE]
        reaching = dict.fromkeys(part, _MAX)
        rows = ((process, at_ns[process]) for process in part)
        reaching |= dict(map(tuple, fetch(sql.text(_REACHING.format(_values(rows))), {}).all()))
        before = dict(map(tuple, fetch(sql.text(_BEFORE.format(_values(reaching.items()))), {}).all()))
        found |= {one: min(number, reaching[one]) - 1 for one, number in before.items()}
    return found


def _values(rows) -> str:
    return ", ".join(f"({', '.join(str(int(value)) for value in row)})" for row in rows)
