"""Step blocks: consecutive rows of one attempt as columns of differences, in as few bytes as these need.

A row has cumulative values, so a block needs none before it: its first row is stored as it is, every other one as the
difference to the row before. Columns that are zero throughout are left out, constant ones cost nothing per row, and
the cells of the others have as many bytes as the largest needs. A step of six phases takes about 30 bytes. The
encoding needs the standard library alone, since the node agent uses it; `step_columns` decodes with NumPy.

    block = encode_rows(rows, width=len(phases)); check_block(block, width)
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct

# Columns of a block: these, then of each phase its total (TOTALS + 2 * phase) and the part outside steps (one more).
NUMBER, STEP, START, END, SAMPLES, DEVICE = range(6)
TOTALS = 8
CELL_BYTES_MAX = 8
VALUE_MAX = (1 << 62) - 1
_WORD = 1 << 64


class StepBlock(Struct, array_like=True, frozen=True, gc=False):
    """`count` rows. For each of `columns`: its value in the first row, its least difference, and the bytes of a cell.

    `cells` has a row's cells beside each other, little-endian, each less the column's `least`. The start of a row is
    counted from the end of the row before, its end from its start. The total of phase 0 is what the other totals lack of
    the time since the row before, usually nothing.
    """

    count: int
    columns: bytes
    first: tuple[int, ...]
    least: tuple[int, ...]
    widths: bytes
    cells: bytes

    def last_number(self) -> int | None:
        """The number of the last row where numbers are consecutive, else None."""
        if self.columns[:1] != bytes([NUMBER]) or self.widths[0]:
            return None
        return self.first[0] + (self.count - 1) * self.least[0]


class BlockError(ValueError):
    """A step block that cannot be decoded; the text says why."""


def encode_rows(rows: Sequence[Any], width: int) -> StepBlock:
    """A block of these rows (schema.StepRow), at least one, in ascending number; `width` phases."""
    values = [_values(row, width) for row in rows]
    first = values[0]
    differences = list(zip(*map(_difference, values, values[1:]), strict=True)) or [()] * len(first)
    return pack(len(rows), first, differences)


def pack(count: int, first: Sequence[int], differences: Sequence[Sequence[int]]) -> StepBlock:
    """A block from all its columns: their first values, and the differences of the other rows."""
    columns, firsts, leasts, widths, parts = bytearray(), [], [], bytearray(), []
    for column, (value, own) in enumerate(zip(first, differences, strict=True)):
        low, high = (min(own), max(own)) if own else (0, 0)
        if not (value or low or high):
            continue
        least = least_of(low, high)
        cell_bytes = ((high - least).bit_length() + 7) // 8
        columns.append(column)
        firsts.append(value)
        leasts.append(least)
        widths.append(cell_bytes)
        if cell_bytes:
            cells = array("Q", [one - least for one in own]).tobytes()
            parts += [cells[byte::8] for byte in range(cell_bytes)]
    return StepBlock(
        count, bytes(columns), tuple(firsts), tuple(leasts), bytes(widths), _rows(parts, count - 1)
    )


def least_of(low: int, high: int) -> int:
    """What is subtracted from the differences of a column: 0 where it would save no byte."""
    if low < 0 or ((high - low).bit_length() + 7) // 8 < (high.bit_length() + 7) // 8:
        return low
    return 0


def check_block(block: StepBlock, width: int, rows_max: int) -> None:
    """Raise BlockError if a block cannot be decoded; its values are checked when they are."""
    columns, stride = block.columns, sum(block.widths)
    if not 1 <= block.count <= rows_max:
        raise BlockError(f"a step block of {block.count} rows, 1 to {rows_max} are allowed")
    if any(low >= high for low, high in pairwise(columns)) or (columns and columns[-1] >= TOTALS + 2 * width):
        raise BlockError(f"columns {list(columns)[:64]} of a step block of {width} phases")
    if DEVICE + 1 in columns or DEVICE + 2 in columns:
        raise BlockError("a step block has a column without a meaning")
    if not len(columns) == len(block.first) == len(block.least) == len(block.widths):
        raise BlockError(f"a step block of {len(columns)} columns does not describe each of them once")
    if any(cell_bytes > CELL_BYTES_MAX for cell_bytes in block.widths):
        raise BlockError(f"a step block has cells of more than {CELL_BYTES_MAX} bytes")
    if any(not 0 <= value <= VALUE_MAX for value in block.first):
        raise BlockError("a step block's first row is out of range")
    if any(not -(1 << 63) <= least < 1 << 63 for least in block.least):
        raise BlockError("a step block's differences are out of range")
    if len(block.cells) != (block.count - 1) * stride:
        raise BlockError(
            f"a step block has {len(block.cells)} bytes of cells, want {block.count - 1} rows of {stride}"
        )


def _values(row: Any, width: int) -> list[int]:
    """A row's values by column."""
    missing = width - len(row.totals)
    values = [row.number, row.step, row.start_ns, row.end_ns, row.samples, row.device_ns, 0, 0]
    for total, outside in zip(row.totals, row.outside, strict=True):
        values += (total, outside)
    return values + [0, 0] * missing


def _difference(before: list[int], row: list[int]) -> list[int]:
    found = [now - then for now, then in zip(row, before, strict=True)]
    spent = found[END]
    found[START], found[END] = row[START] - before[END], row[END] - row[START]
    lacking = spent - sum(found[TOTALS::2])
    # Of rows that contradict each other; decoding wraps around in the same way.
    found[TOTALS] = (lacking + _WORD // 2) % _WORD - _WORD // 2
    return found


def _rows(planes: list[bytes], count: int) -> bytes:
    """Bytes of each cell position, one sequence per position, as one sequence per row."""
    if not planes or not count:
        return b""
    cells = bytearray(len(planes) * count)
    for at, plane in enumerate(planes):
        cells[at :: len(planes)] = plane
    return bytes(cells)
