"""Step blocks as the ledger stores them: rows in order and each once, cut into blocks, and the columns beside a block.

Rows are `values`, an array of (columns, rows) as in step_columns.StepColumns. Blocks of thinned rows are compressed: in
rows of a minute most bytes of a cell are alike. In single steps they are not.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from goodput.aggregator.ledger.checksums import checksum
from goodput.aggregator.records import NewBlock, new_blocks
from goodput.wire import compiled, schema, step_columns
from goodput.wire.packed_rows import unpack
from goodput.wire.step_blocks import END, NUMBER, START, STEP, TOTALS, BlockError, StepBlock, check_block
from goodput.wire.step_columns import StepColumns, in_order

EVERY_ROW, MINUTES, HOURS = TIERS = (0, 60, 3600)  # seconds of which one row is kept
_COMPRESSED = b"\x78"  # the first byte of zlib's format; a block in MessagePack begins with another one
_BLOCK_BYTES_MAX = 1 << 22


class StoredBlock(NamedTuple):
    """A block and what is needed to decode it."""

    id: int
    width: int
    block: bytes


# The database's columns of a block beside its process.
COLUMNS = (
    *("first", "last", "start_ns_first", "end_ns_last", "rows", "tier"),
    *("digest", "width", "block", "checksum"),
)


def columns_of(new: NewBlock, tier: int) -> tuple:
    """The values of COLUMNS."""
    numbers = new.first, new.last, new.start_ns, new.end_ns, new.rows, tier
    values = (*numbers, digest(new.block), new.width, new.block)
    return (*values, checksum(values))


def block_columns(values: np.ndarray, tier: int = EVERY_ROW) -> list[dict]:
    """COLUMNS of the blocks of rows as an array, by name."""
    found = new_blocks(in_order(values))
    if tier != EVERY_ROW:
        found = [one._replace(block=zlib.compress(one.block)) for one in found]
    return [dict(zip(COLUMNS, columns_of(one, tier), strict=True)) for one in found]


def digest(block: bytes) -> int:
    """64 bits that distinguish two blocks of the same numbers and times."""
    return int.from_bytes(hashlib.blake2b(block, digest_size=8).digest(), "big", signed=True)


def decode(stored: Iterable[StoredBlock], width: int = 0) -> np.ndarray:
    """The rows of these blocks, one block after the other, of `width` phases or more."""
    return decode_columns(stored, width).values


def decode_columns(stored: Iterable[StoredBlock], width: int = 0) -> StepColumns:
    """The same with where each block begins. Raises ValueError (BlockError, msgspec.DecodeError) for a damaged one."""
    found = list(stored)
    blocks, widths = [_unpacked(one.block) for one in found], [one.width for one in found]
    if max(widths, default=0) > schema.PHASES_MAX:
        raise BlockError(f"a width of {max(widths)} phases, of {schema.PHASES_MAX} at most")
    is_right = (
        compiled.steps and compiled.steps.count_rows(blocks, min(widths, default=0), schema.STEPS_MAX) >= 0
    )
    if not is_right:
        for block, own in zip(blocks, widths, strict=True):
            check_block(block, own, schema.STEPS_MAX)
    return step_columns.decode(blocks, max([width, *widths]))


def decode_page(
    stored: StoredBlock, width: int, after: int, from_ns: int | None, rows: int
) -> tuple[np.ndarray, bool] | None:
    """Up to `rows` rows of one block, of `width` phases or more: those above the number `after` or, with `from_ns`, from the
    one before the first of them that ends then or later, and whether that one is there; where it is not, the last row.

    Those before are added up, not decoded. None for a block whose rows are not in order, and where nothing is compiled.
    """
    if compiled.steps is None or stored.width > schema.PHASES_MAX:
        return None
    columns, block = TOTALS + 2 * max(width, stored.width), _decompressed(stored.block)
    found = compiled.steps.decode_page(block, stored.width, columns, schema.STEPS_MAX, after, from_ns, rows)
    if found is None:
        return None
    values, count, is_reached = found
    return np.frombuffer(values, np.int64).reshape(columns, count), bool(is_reached)


def _unpacked(block: bytes) -> StepBlock:
    return unpack(_decompressed(block))


def _decompressed(block: bytes) -> bytes:
    if block[:1] != _COMPRESSED:
        return block
    decompressor = zlib.decompressobj()
    try:
        found = decompressor.decompress(block, _BLOCK_BYTES_MAX)
    except zlib.error as error:
        raise BlockError(f"it cannot be decompressed: {error}") from None
    if not decompressor.eof:
        raise BlockError(f"it is cut off, or has more than {_BLOCK_BYTES_MAX} bytes")
    return found


def has_wrong_rows(values: np.ndarray) -> bool:
    """Whether the rows of one block are out of order, or one that no rank can have recorded is among them."""
    return bool(step_columns.wrong_rows(as_columns(values)).any())


def thinned(
    values: np.ndarray,
    seconds: int,
    named: Iterable[int],
    ends: Iterable[int],
    spans: Iterable[tuple[int, int]] = (),
) -> np.ndarray:
    """The rows without those for which a later one of the same minute (`seconds`) stands.

    Rows are cumulative, so what is lost is resolution, not time. Kept are also the rows numbered `ends`, a process's
    first and last, those of the steps `named` by checkpoints, after which an attempt may have resumed, those of steps of
    a minute or longer, which may be stalls, and those from the one before the first to the last step of each of `spans`.
    """
    period = values[END] // (seconds * 10**9)
    keep = np.ones(len(period), bool)
    keep[:-1] = period[1:] != period[:-1]
    keep |= values[END] - values[START] >= seconds * 10**9
    for column, kept in ((NUMBER, ends), (STEP, named)):
        keep |= np.isin(values[column], np.fromiter(kept, np.int64))
    lows, highs = np.array([(-1, -1), *sorted(spans)], np.int64).T
    step = values[STEP]
    keep |= step <= np.maximum.accumulate(highs)[lows.searchsorted(step + 1, side="right") - 1]
    return values[:, keep]


def as_columns(values: np.ndarray) -> StepColumns:
    return StepColumns(values, np.array([0, values.shape[1]]))


def step_rows(values: np.ndarray) -> list[schema.StepRow]:
    columns = as_columns(values)
    return step_columns.step_rows(columns, 0, len(columns), columns.width)
