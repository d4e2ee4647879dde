"""Records that ingest hands to the ledger: what a report added, and the keys of health events."""

from __future__ import annotations

from dataclasses import dataclass

from goodput.wire import schema

HealthKey = tuple[str, int]  # (node, number)
# Added to the number of an event that came with a token for some runs only, so that it cannot shadow an event of the
# node itself. Events' own numbers are smaller. The ledger stores the sum, so the distinction survives a restart.
SCOPED_OFFSET = schema.TIME_NS_MAX


def health_key(node: str, event: schema.Health, is_scoped: bool = False) -> HealthKey:
    return node, event.number + SCOPED_OFFSET * is_scoped


@dataclass
class NewRecords:
    """The rows and events of a rank report that were not known before.

    `report` is the report without them, under the attempt number that the store assigned.
    """

    report: schema.RankReport
    rows: list[schema.StepRow]
    events: list[schema.EventRow]
