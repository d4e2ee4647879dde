"""Records that ingest hands to the ledger: what a report added, and the keys of health events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from goodput.wire import schema
from goodput.wire.packed_rows import pack, unpack
from goodput.wire.step_blocks import END, NUMBER, START, TOTALS
from goodput.wire.step_columns import decode, encode, step_rows

BLOCK_ROWS_MAX = 1024  # of a step block in the ledger
HealthKey = tuple[str, int]  # (node, number)
# Added to the number of an event that came with a token for some runs only, so that it cannot shadow an event of the
# node itself. Events' own numbers are smaller. The ledger stores the sum, so the distinction survives a restart.
SCOPED_OFFSET = schema.TIME_NS_MAX


def health_key(node: str, event: schema.Health, is_scoped: bool = False) -> HealthKey:
    return node, event.number + SCOPED_OFFSET * is_scoped


def own_start_ns(identity: schema.Identity) -> int:
    """The start of a process by its own clock, whose times may be moved."""
    return identity.start_ns - round((identity.clock_moved_seconds or 0) * 1e9)


def own_stack_request(identity: schema.Identity) -> schema.StackRequest:
    """The process as its agent knows it."""
    return replace(schema.stack_request(identity), start_ns=own_start_ns(identity))


class NewBlock(NamedTuple):
    """A step block of `width` phases in MessagePack, and of its rows: how many, the first and the last number, the least
    start, the greatest end."""

    block: bytes
    width: int
    rows: int
    first: int
    last: int
    start_ns: int
    end_ns: int


@dataclass
class NewRecords:
    """The steps and events of a rank report that were not known before.

    `report` is the report without them, under the attempt number that the store assigned.
    """

    report: schema.RankReport
    blocks: list[NewBlock]
    events: list[schema.EventRow]

    def rows(self) -> list[schema.StepRow]:
        """The rows of all blocks."""
        columns = [decode([unpack(new.block)], new.width) for new in self.blocks]
        return [row for one in columns for row in step_rows(one, 0, len(one), one.width)]


def new_blocks(values: np.ndarray) -> list[NewBlock]:
    """Blocks of rows in order, (columns, rows)."""
    width = (len(values) - TOTALS) // 2
    parts = [values[:, at : at + BLOCK_ROWS_MAX] for at in range(0, values.shape[1], BLOCK_ROWS_MAX)]
    return [_new_block(np.ascontiguousarray(part), width) for part in parts]


def _new_block(values: np.ndarray, width: int) -> NewBlock:
    numbers, times = values[NUMBER], (int(values[START].min()), int(values[END].max()))
    return NewBlock(pack(encode(values)), width, len(numbers), int(numbers[0]), int(numbers[-1]), *times)
