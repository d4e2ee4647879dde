"""Records that ingest hands to the ledger: what a report added, and the keys of health events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from goodput.wire import schema
from goodput.wire.step_blocks import StepBlock

BLOCK_ROWS_MAX = 1024  # of a step block in the ledger
HealthKey = tuple[str, int]  # (node, number)
# Added to the number of an event that came with a token for some runs only, so that it cannot shadow an event of the
# node itself. Events' own numbers are smaller. The ledger stores the sum, so the distinction survives a restart.
SCOPED_OFFSET = schema.TIME_NS_MAX


def health_key(node: str, event: schema.Health, is_scoped: bool = False) -> HealthKey:
    return node, event.number + SCOPED_OFFSET * is_scoped


class NewBlock(NamedTuple):
    """A step block of `width` phases, and of its rows: the number of the last, the least start, the greatest end."""

    block: StepBlock
    width: int
    last: int
    start_ns: int
    end_ns: int


@dataclass
class NewRecords:
    """The rows and events of a rank report that were not known before.

    `report` is the report without them, under the attempt number that the store assigned. Where `blocks` has the rows,
    which saves encoding them, `rows` is not written.
    """

    report: schema.RankReport
    rows: list[schema.StepRow]
    events: list[schema.EventRow]
    blocks: list[NewBlock] = field(default_factory=list)
