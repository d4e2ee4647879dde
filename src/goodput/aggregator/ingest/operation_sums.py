"""What operations of process groups have cost, between reports and attempts, in which it takes some 200 bytes a rank."""

from __future__ import annotations

from sys import intern

from msgspec.structs import astuple

from goodput.account.collectives.operation_sums import NO_SUMS, Key, OperationSums, rows_of, sums_of
from goodput.wire.collectives import Operations, ReportedOperation

KEYS_MAX = 4096


class SharedKeys:
    """Ranks of a run call the same operations, so that their sums share the names."""

    def __init__(self) -> None:
        self._known: dict[tuple[Key, ...], tuple[Key, ...]] = {}

    def sums(self, rows: Operations) -> OperationSums:
        """Reported rows as an attempt keeps them."""
        found = sums_of(map(astuple, rows))
        keys = self._known.get(found.keys)
        if keys is None:
            if len(self._known) >= KEYS_MAX:
                self._known.clear()
            keys = tuple((intern(group), intern(operation)) for group, operation in found.keys)
            self._known[keys] = keys
        return found._replace(keys=keys)


def reported_rows(sums: OperationSums) -> Operations | None:
    """What is kept of an attempt, as a report has it."""
    return None if sums is NO_SUMS else tuple(ReportedOperation(*row) for row in rows_of(sums))
