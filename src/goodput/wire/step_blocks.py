"""Step blocks: consecutive rows of one attempt as columns of differences, in as few bytes as these need.

A row has cumulative values, so a block needs none before it: its first row is stored as it is, every other one as the
difference to the row before. Columns that are zero throughout are left out, constant ones cost nothing per row, and
the cells of the others have as many bytes as the largest needs. A step of six phases takes about 30 bytes. The
encoding needs the standard library alone, since the node agent uses it; `step_columns` decodes with NumPy.

    block = encode_rows(rows, width=len(phases)); check_block(block, width, rows_max)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import attrgetter, sub
from typing import Any

from msgspec import Struct

# Columns of a block: these, then of each phase its total (TOTALS + 2 * phase) and the part outside steps (one more).
NUMBER, STEP, START, END, SAMPLES, DEVICE = range(6)
TOTALS = 8
CELL_BYTES_MAX = 8
VALUE_MAX = (1 << 62) - 1
_WORD = 1 << 64
_UNUSED = frozenset((DEVICE + 1, DEVICE + 2))
# Of a row, in the order of the columns.
_FIELDS = attrgetter("number", "step", "start_ns", "end_ns", "samples", "device_ns", "totals", "outside")


class StepBlock(Struct, array_like=True, frozen=True, gc=False):
    """`count` rows. For each of `columns`: its value in the first row, its least difference, and the bytes of a cell.

    A cell is a row's difference less the column's `least`; the first row has none. `cells` has, of each column in turn,
    the lowest byte of every cell, then the second byte of every cell, and so on. The start of a row is counted from the
    end of the row before, its end from its start. The total of phase 0 is what the other totals lack of the time since
    the row before, usually nothing.
    """

    count: int
    columns: bytes
    first: tuple[int, ...]
    least: tuple[int, ...]
    widths: bytes
    cells: bytes


class BlockError(ValueError):
    """A step block that cannot be decoded; the text says why."""


def encode_rows(rows: Sequence[Any], width: int) -> StepBlock:
    """A block of these rows (schema.StepRow), at least one, in ascending number; `width` phases. About 4 us a row.

    Raises OverflowError where values are so far out of range that a cell needs more than 64 bits.
    """
    *plain, totals, outside = zip(*map(_FIELDS, rows), strict=True)
    start, end, in_totals = plain[START], plain[END], list(map(sum, totals))
    found = {column: (values[0], _differences(values)) for column, values in enumerate(plain)}
    found[START] = start[0], list(map(sub, start[1:], end))
    found[END] = end[0], list(map(sub, end[1:], start[1:]))
    lacking = map(sub, _differences(end), _differences(in_totals))
    # Of rows that contradict each other it may leave 64 bits; decoding wraps around in the same way.
    found[TOTALS] = totals[0][0], [(one + _WORD // 2) % _WORD - _WORD // 2 for one in lacking]
    phases = zip(_by_phase(totals, width), _by_phase(outside, width), strict=True)
    for column, (total, apart) in zip(range(TOTALS, TOTALS + 2 * width, 2), phases, strict=True):
        if column != TOTALS and any(total):
            found[column] = total[0], _differences(total)
        if any(apart):
            found[column + 1] = apart[0], _differences(apart)
    return _packed(len(rows), found)


def _by_phase(rows: Sequence[tuple[int, ...]], width: int) -> Iterator[tuple[int, ...]]:
    """The values of each phase. Rows from before a phase was defined have no time in it."""
    if min(map(len, rows)) < width:
        rows = [(*row, *(0,) * (width - len(row))) for row in rows]
    return zip(*rows, strict=True)


def _differences(values: Sequence[int]) -> list[int]:
    return list(map(sub, values[1:], values))


def _packed(count: int, found: dict[int, tuple[int, list[int]]]) -> StepBlock:
    """A block from the first value and the other rows' differences of its columns, in ascending column."""
    columns, firsts, leasts, widths, planes = bytearray(), [], [], bytearray(), []
    for column, (first, differences) in found.items():
        low, high = (min(differences), max(differences)) if differences else (0, 0)
        if not (first or low or high):
            continue
        least = least_of(low, high)
        cell_bytes = ((high - least).bit_length() + 7) // 8
        columns.append(column)
        firsts.append(first)
        leasts.append(least)
        widths.append(cell_bytes)
        if cell_bytes:
            cells = array("Q", [one - least for one in differences] if least else differences).tobytes()
            planes += [cells[byte::8] for byte in range(cell_bytes)]
    return StepBlock(count, bytes(columns), tuple(firsts), tuple(leasts), bytes(widths), b"".join(planes))


def least_of(low: int, high: int) -> int:
    """What is subtracted from the differences of a column: 0 where it would save no byte."""
    if low < 0 or ((high - low).bit_length() + 7) // 8 < (high.bit_length() + 7) // 8:
        return low
    return 0


def check_block(block: StepBlock, width: int, rows_max: int) -> None:
    """Raise BlockError if a block cannot be decoded; its values are checked when they are."""
    columns = block.columns
    if not 1 <= block.count <= rows_max:
        raise BlockError(f"{block.count} rows, 1 to {rows_max} are allowed")
    if not len(columns) == len(block.first) == len(block.least) == len(block.widths):
        raise BlockError(f"its {len(columns)} columns are not described once each")
    stride = _checked_stride(columns, block.widths, width)
    if min(block.first, default=0) < 0 or max(block.first, default=0) > VALUE_MAX:
        raise BlockError("its first row is out of range")
    if min(block.least, default=0) < -(_WORD // 2) or max(block.least, default=0) >= _WORD // 2:
        raise BlockError("its differences are out of range")
    if len(block.cells) != (block.count - 1) * stride:
        raise BlockError(f"{len(block.cells)} bytes of cells, want {block.count - 1} rows of {stride}")


@lru_cache(1024)
def _checked_stride(columns: bytes, widths: bytes, width: int) -> int:
    """The bytes of a row's cells. Raises BlockError. Cached, since the blocks of one run have few layouts."""
    if bytes(sorted({*columns})) != columns or max(columns, default=0) >= TOTALS + 2 * width:
        raise BlockError(f"columns {list(columns[:64])} with {width} phases")
    if not _UNUSED.isdisjoint(columns):
        raise BlockError("it has a column without a meaning")
    if max(widths, default=0) > CELL_BYTES_MAX:
        raise BlockError(f"it has cells of more than {CELL_BYTES_MAX} bytes")
    return sum(widths)
