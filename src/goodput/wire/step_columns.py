"""Step blocks decoded into NumPy columns, many blocks at once, and encoded from them.

Exact in int64: a block's differences are added up modulo 2^64, and `wrong_rows` finds what leaves its range. Decoding
the ten rows of each of eight ranks takes 10 us where it is compiled (_steps.c). In NumPy it takes about 90 us, most of
it for the calls; of long blocks 0.2 us a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np

from goodput.wire import compiled
from goodput.wire.schema import StepRow
from goodput.wire.step_blocks import (
    DEVICE,
    END,
    NUMBER,
    SAMPLES,
    START,
    STEP,
    TOTALS,
    VALUE_MAX,
    StepBlock,
    least_of,
)

_OUTSIDE = TOTALS + 1
# Columns from which others are counted, so they are decoded even where they are zero.
_ALWAYS = {START, END, TOTALS}


@dataclass
class StepColumns:
    """Rows of one or more blocks, one after the other; `values` is (columns, rows) in int64, see step_blocks.

    `begins` has the first row of each block and, last, the number of rows.
    """

    values: np.ndarray
    begins: np.ndarray

    def __len__(self) -> int:
        return self.values.shape[1]

    @property
    def width(self) -> int:
        """Number of phases."""
        return (len(self.values) - TOTALS) // 2

    number = property(lambda self: self.values[NUMBER])
    step = property(lambda self: self.values[STEP])
    start = property(lambda self: self.values[START])
    end = property(lambda self: self.values[END])
    samples = property(lambda self: self.values[SAMPLES])
    device = property(lambda self: self.values[DEVICE])
    totals = property(lambda self: self.values[TOTALS::2])
    outside = property(lambda self: self.values[_OUTSIDE::2])


def decode(blocks: Sequence[StepBlock], width: int) -> StepColumns:
    """The rows of these blocks, which `check_block` has accepted for `width` phases or fewer, in the same order."""
    counts = np.array([block.count for block in blocks], np.int64)
    begins = np.zeros(len(blocks) + 1, np.int64)
    np.cumsum(counts, out=begins[1:])
    if blocks and compiled.steps is not None:
        values = np.empty((TOTALS + 2 * width, begins[-1]), np.int64)
        compiled.steps.decode(list(blocks), values)
        return StepColumns(values, begins)
    values = np.zeros((TOTALS + 2 * width, begins[-1]), np.int64)
    if blocks:
        used = bytes(sorted(_ALWAYS.union(*[block.columns for block in blocks])))
        first, least = _heads(blocks, used)
        rows = _cells(blocks, begins, used)
        rows += np.repeat(least, counts, axis=1)
        values[list(used)] = _add_up(rows, first, begins[:-1], used).view(np.int64)
    return StepColumns(values, begins)


def _heads(blocks: Sequence[StepBlock], used: bytes) -> tuple[np.ndarray, np.ndarray]:
    """`first` and `least` of each block, as (used columns, blocks)."""
    place = np.zeros(256, np.int64)
    place[list(used)] = range(len(used))
    columns = place[np.frombuffer(b"".join([block.columns for block in blocks]), np.uint8)]
    of = np.repeat(np.arange(len(blocks)), [len(block.columns) for block in blocks])
    heads = np.zeros((2, len(used), len(blocks)), np.int64)
    for head, values in zip(
        heads, ([one.first for one in blocks], [one.least for one in blocks]), strict=True
    ):
        head[columns, of] = np.fromiter(chain.from_iterable(values), np.int64, len(columns))
    first, least = heads.view(np.uint64)
    return first, least


def _cells(blocks: Sequence[StepBlock], begins: np.ndarray, used: bytes) -> np.ndarray:
    """The cells of all rows, as (used columns, rows); 0 where there is none."""
    cells = np.zeros((int(begins[-1]), 8 * len(used)), np.uint8)
    # NumPy costs per call, and the blocks of one run have few layouts.
    alike: dict[tuple, list[int]] = {}
    for at, block in enumerate(blocks):
        if block.cells:
            alike.setdefault((block.count, block.columns, block.widths), []).append(at)
    for (count, columns, widths), places in alike.items():
        planes = np.frombuffer(b"".join([blocks[at].cells for at in places]), np.uint8)
        rows = begins[places][:, None] + np.arange(1, count)
        by_row = planes.reshape(len(places), -1, count - 1).transpose(0, 2, 1)
        cells[rows[:, :, None], _planes(columns, widths, used)] = by_row
    return np.ascontiguousarray(cells.view("<u8").T, np.uint64)


@lru_cache(1024)
def _planes(columns: bytes, widths: bytes, used: bytes) -> np.ndarray:
    """Where the bytes of a row's cells are among those of `used` columns of eight bytes."""
    pairs = zip(columns, widths, strict=True)
    return np.array([8 * used.index(column) + byte for column, width in pairs for byte in range(width)])


def _add_up(rows: np.ndarray, first: np.ndarray, firsts: np.ndarray, used: bytes) -> np.ndarray:
    """Values from differences, in place. See step_blocks for the columns that are counted from others."""
    start, end, none = map(used.index, (START, END, TOTALS))
    totals = [at for at, column in enumerate(used) if column >= TOTALS and column % 2 == 0]
    # A first row as if another one of zeros were before it.
    first[none] = first[end] - first[totals].sum(axis=0)
    first[end] -= first[start]
    rows[:, firsts] = first
    length = rows[end].copy()
    rows[end] += rows[start]
    # Each block but the first begins by taking away what the one before added up to.
    rows[:, firsts[1:]] -= np.add.reduceat(rows, firsts, axis=1)[:, :-1]
    np.cumsum(rows, axis=1, out=rows)
    rows[none] = rows[end] - rows[totals].sum(axis=0)
    rows[start] = rows[end] - length
    return rows


def wrong_rows(columns: StepColumns) -> np.ndarray:
    """Which rows no rank can have recorded, or have a number no higher than the row before in their block."""
    values, number = columns.values, columns.number
    wrong = (values.view(np.uint64) > VALUE_MAX).any(axis=0)
    wrong |= number < 1
    wrong |= columns.end < columns.start
    wrong |= (columns.outside > columns.totals).any(axis=0)
    inside = columns.totals - columns.outside
    longer = columns.device > inside.sum(axis=0)
    if longer.any():
        # A sum that leaves int64 is more than any device time.
        longer &= inside.sum(axis=0, dtype=np.float64) < 1.5 * VALUE_MAX
    wrong |= longer
    repeated = number[1:] <= number[:-1]
    repeated[columns.begins[1:-1] - 1] = False
    wrong[1:] |= repeated
    return wrong


def in_order(values: np.ndarray) -> np.ndarray:
    """The rows in ascending number, of each number the first."""
    if not (np.diff(values[NUMBER]) <= 0).any():
        return values
    _, firsts = np.unique(values[NUMBER], return_index=True)
    return values[:, firsts]


def widened(values: np.ndarray, width: int) -> np.ndarray:
    """The rows with zeros for phases that they lack."""
    missing = TOTALS + 2 * width - len(values)
    if missing <= 0:
        return values
    return np.concatenate([values, np.zeros((missing, values.shape[1]), np.int64)])


def step_rows(columns: StepColumns, begin: int, end: int, width: int) -> list[StepRow]:
    """Some rows as objects, with the first `width` phases."""
    return [
        StepRow(number, step, start, end, samples, tuple(phases[::2]), tuple(phases[1::2]), device)
        for number, step, start, end, samples, device, _, _, *phases in columns.values[
            : TOTALS + 2 * width, begin:end
        ].T.tolist()
    ]


def encode(values: np.ndarray) -> StepBlock:
    """Rows as one block, the same as step_blocks.encode_rows has for them; `values` as in StepColumns."""
    count = values.shape[1]
    differences = _differences(values)
    found: list[tuple[int, int, int, int]] = []  # (column, first, least, bytes of a cell)
    planes: list[np.ndarray] = []
    lows, highs = (differences.min(axis=1), differences.max(axis=1)) if count > 1 else (values[:, 0] * 0,) * 2
    for column, (first, low, high) in enumerate(
        zip(values[:, 0].tolist(), lows.tolist(), highs.tolist(), strict=True)
    ):
        if first or low or high:
            least = least_of(low, high)
            cell_bytes = ((high - least).bit_length() + 7) // 8
            found.append((column, first, least, cell_bytes))
            if cell_bytes:
                rest = differences[column].view(np.uint64) - np.int64(least).view(np.uint64)
                planes.append(rest.astype("<u8").view(np.uint8).reshape(-1, 8).T[:cell_bytes])
    columns, first, least, widths = zip(*found, strict=True) if found else ((), (), (), ())
    cells = np.concatenate(planes).tobytes() if planes else b""
    return StepBlock(count, bytes(columns), first, least, bytes(widths), cells)


def _differences(values: np.ndarray) -> np.ndarray:
    """(columns, rows - 1), as step_blocks has them; sums wrap around."""
    found = np.diff(values, axis=1)
    spent = found[END].copy()
    found[START] = values[START, 1:] - values[END, :-1]
    found[END] = values[END, 1:] - values[START, 1:]
    found[TOTALS] = spent - found[TOTALS::2].sum(axis=0)
    return found
