"""Reads a process's step blocks: rows in ascending number, each once, while others add, merge and thin blocks.

A listing of ids comes first, from the index alone; then the blocks are read a page at a time, without a transaction
around the pages. A block never changes under its id, so where one of the listed is gone, what is left is listed anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress

import numpy as np
import sqlalchemy as sql

from goodput.aggregator.ledger import checksums
from goodput.aggregator.ledger.blocks import StoredBlock, decode, decode_columns
from goodput.aggregator.ledger.migrations.versions import version_4, version_5
from goodput.wire.step_blocks import END, NUMBER, START, TOTALS, BlockError
from goodput.wire.step_columns import in_order, widened

PAGE_BLOCKS = 16
TAIL_BLOCKS, TAIL_ROWS = 128, 2048
ROWS_AT_ONCE = 16_384  # of tails that are decoded together, some MB

KEY = tuple(column.name for column in version_4.key_columns())
_processes, _blocks = version_5.processes, version_5.blocks
_TIME_MAX = (1 << 63) - 1

# Built once: building a statement takes longer than SQLite takes to execute it.
PROCESS_ID = (
    sql.select(_processes.c.id)
    .where(*(_processes.c[name] == sql.bindparam(name) for name in KEY))
    .scalar_subquery()
)
_LISTED = (
    sql.select(_blocks.c.id, _blocks.c.first, _blocks.c.start_ns_first, _blocks.c.end_ns_last)
    .where(
        _blocks.c.process == PROCESS_ID,
        _blocks.c.last > sql.bindparam("after"),
        _blocks.c.end_ns_last >= sql.bindparam("from_ns"),
        _blocks.c.start_ns_first <= sql.bindparam("to_ns"),
    )
    .order_by(*list(next(iter(_blocks.indexes)).columns)[1:])  # as blocks_key has them of one process
)
# With the ids in the text: to bind each takes SQLAlchemy as long as it takes to decode its block.
_CHECKED = [f'"{name}"' for name in (*checksums.names(_blocks), checksums.CHECKSUM)]
_STORED = f"SELECT id, {', '.join(_CHECKED)} FROM blocks WHERE id IN ({{}})"
_WIDTH, _BLOCK = (checksums.names(_blocks).index(name) for name in StoredBlock._fields[1:])

_TAILS = """
    WITH wanted(process, number) AS (VALUES {})
    SELECT blocks.process, blocks.id, blocks.rows FROM wanted CROSS JOIN blocks
    WHERE blocks.process = wanted.process AND blocks.last > wanted.number ORDER BY blocks.process, blocks.first
"""

Fetch = Callable[[sql.Select | sql.TextClause, dict], sql.Result]


class Window:
    """The rows that touch a span of time, ends included; by default all."""

    def __init__(self, start_ns: int | None = None, end_ns: int | None = None):
        self.from_ns = 0 if start_ns is None else start_ns
        self.to_ns = _TIME_MAX if end_ns is None else end_ns

    def touching(self, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """Which of these spans have a moment of it."""
        return (end_ns >= self.from_ns) & (start_ns <= self.to_ns)


class Moments(Window):
    """The rows that touch one of these times, of which there is at least one; in ascending order."""

    def __init__(self, at_ns: Sequence[int]):
        super().__init__(at_ns[0], at_ns[-1])
        self._at_ns = np.array([*at_ns, _TIME_MAX], np.int64)

    def touching(self, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        return self._at_ns[np.minimum(self._at_ns.searchsorted(start_ns), len(self._at_ns) - 1)] <= end_ns


def read(
    fetch: Fetch,
    key: dict,
    window: Window,
    width: int = 0,
    after: int = 0,
    page_blocks: int = 0,
) -> Iterator[np.ndarray]:
    """The rows of a process that touch `window` and have a number above `after`, as arrays of `width` phases or more.

    Blocks without such rows are not read. At most `page_blocks` blocks, by default PAGE_BLOCKS, and those that overlap
    them are in memory.
    """
    page_blocks = page_blocks or PAGE_BLOCKS
    span = {"from_ns": window.from_ns, "to_ns": window.to_ns}
    begin: int | None = after
    while begin is not None:
        listed = _listed(fetch, {**key, **span, "after": begin}, window)
        pages = _pages(fetch, listed, width, page_blocks)
        # Of what many pages took, some may have been appended since.
        done, begin, is_long = begin, None, len(listed) > page_blocks
        for rows, is_whole in pages:
            rows = rows[:, rows[NUMBER] > done]
            if rows.shape[1]:
                done = int(rows[NUMBER, -1])
                touching = window.touching(rows[START], rows[END])
                if touching.any():
                    yield rows if touching.all() else rows[:, touching]
            if not is_whole or is_long:
                begin = done


def _listed(fetch: Fetch, parameters: dict, window: Window) -> list[tuple[int, int]]:
    """The id and the first number of each block that may have rows of the window."""
    listed = fetch(_LISTED, parameters).all()
    if not listed:
        return []
    ids, firsts, starts_ns, ends_ns = zip(*listed, strict=True)
    is_touching = window.touching(np.array(starts_ns, np.int64), np.array(ends_ns, np.int64)).tolist()
    return list(compress(zip(ids, firsts, strict=True), is_touching))


def _pages(
    fetch: Fetch, listed: list[tuple[int, int]], width: int, page_blocks: int
) -> Iterator[tuple[np.ndarray, bool]]:
    """Rows in order, and whether all blocks were there; those from where one is missing are not read."""
    held = np.zeros((TOTALS, 0), np.int64)  # rows that a later block may precede
    for at in range(0, len(listed), page_blocks):
        ids = [id for id, _ in listed[at : at + page_blocks]]
        stored = stored_blocks(fetch, ids)
        if len(stored) < len(ids):
            yield held[:, :0], False
            return
        found = decode(stored, width)
        width = max(width, (len(found) - TOTALS) // 2)
        held = in_order(np.concatenate([widened(held, width), found], axis=1))
        if at + page_blocks < len(listed):
            cut = int(np.searchsorted(held[NUMBER], listed[at + page_blocks][1]))
        else:
            cut = held.shape[1]
        yield held[:, :cut], True
        held = held[:, cut:]


def read_tails(
    fetch: Fetch, after: Mapping[int, int], widths: Mapping[int, int]
) -> Iterator[tuple[int, np.ndarray | None]]:
    """The rows above a number of each of some processes, which are given by their ids, with two queries for all.

    None for a process with so many blocks, or with blocks that are replaced meanwhile, that `read` should be used.
    """
    wanted = ", ".join(f"({int(process)}, {int(number)})" for process, number in after.items())
    ids: dict[int, list[int]] = {}
    rows: Counter[int] = Counter()
    for process, id, count in fetch(sql.text(_TAILS.format(wanted)), {}).all():
        ids.setdefault(process, []).append(id)
        rows[process] += count
    few = {of: own for of, own in ids.items() if len(own) <= TAIL_BLOCKS and rows[of] <= TAIL_ROWS}
    found = {one.id: one for one in stored_blocks(fetch, [id for own in few.values() for id in own])}
    blocks = {of: [found[id] for id in own] for of, own in few.items() if found.keys() >= set(own)}
    for group in _groups(blocks, rows):
        for process, values in _decoded_at_once(group, widths):
            yield process, values[:, values[NUMBER] > after[process]]
    for process in ids.keys() - blocks.keys():
        yield process, None


def _groups(blocks: Mapping[int, list[StoredBlock]], rows: Mapping[int, int]) -> Iterator[dict]:
    """The same in parts of about ROWS_AT_ONCE rows."""
    group, held = {}, 0
    for process, own in blocks.items():
        group[process] = own
        held += rows[process]
        if held >= ROWS_AT_ONCE:
            yield group
            group, held = {}, 0
    if group:
        yield group


def _decoded_at_once(
    blocks: Mapping[int, list[StoredBlock]], widths: Mapping[int, int]
) -> Iterator[tuple[int, np.ndarray]]:
    """The rows of each process in order; NumPy costs per call, so all blocks are decoded together."""
    columns = decode_columns(one for own in blocks.values() for one in own)
    block = 0
    for process, own in blocks.items():
        begin, end = columns.begins[block], columns.begins[block + len(own)]
        width = max(widths[process], *(one.width for one in own))
        block += len(own)
        # A copy, so that the others' rows can leave memory.
        values = columns.values[: TOTALS + 2 * width, begin:end].copy()
        yield process, widened(in_order(values), width)


def stored_blocks(fetch: Fetch, ids: Sequence[int]) -> list[StoredBlock]:
    """The blocks of these ids in the same order, without those that are gone. Raises BlockError for a damaged one."""
    if not ids:
        return []
    found = {}
    for id, *values, stored in fetch(sql.text(_STORED.format(listed_ids(ids))), {}):
        if checksums.is_damaged(values, stored):
            raise BlockError(f"block {id} is not as it was written")
        found[id] = StoredBlock(id, values[_WIDTH], values[_BLOCK])
    return [found[id] for id in ids if id in found]


def listed_ids(ids: Iterable[int]) -> str:
    """Ids for the text of a statement."""
    return ", ".join([str(int(id)) for id in ids])
