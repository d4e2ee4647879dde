"""The collectives of a rank as they travel in its report.

Of one that makes no progress its groups and their last calls; of all ranks what each operation of each group has cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Struct

from goodput.wire.operation_row import UNKNOWN

GROUPS_MAX, CALLS_MAX, RUNS_MAX, OPERATIONS_MAX = 16, 4, 12, 32
TEXT_MAX = 64
_RANK_MAX, _NUMBER_MAX = 1 << 32, 1 << 62
_FEW = msgspec.Meta(max_length=64)


class CallRow(Struct, array_like=True, frozen=True, gc=False):
    """A call. `peer` is the root or the other rank in its group, -1 for none; `exit_ns` 0: not left. Unix ns of the host."""

    sequence: int
    operation: str
    dtype: str
    bytes: int
    peer: int
    enter_ns: int
    exit_ns: int


class GroupRow(Struct, array_like=True, frozen=True, gc=False):
    """A process group: its ranks as runs (first, step, count), the collectives entered so far, its last calls in order."""

    name: str
    description: str
    backend: str
    size: int
    ranks: Annotated[tuple[tuple[int, int, int], ...], _FEW]
    calls: int
    recent: Annotated[tuple[CallRow, ...], _FEW]


class Collectives(Struct, array_like=True, frozen=True, gc=False):
    """The groups used last. `is_whole`: there are no others; `is_stopped`: a signal has stopped the process."""

    groups: Annotated[tuple[GroupRow, ...], _FEW]
    is_whole: bool = True
    is_stopped: bool = False


class ReportedOperation(Struct, array_like=True, frozen=True, gc=False):
    """An OperationRow as it travels: what later versions append is ignored, what earlier ones lack has its default."""

    group: str
    operation: str
    calls: int
    bytes: int
    exposed_ns: int
    before_ns: int
    issue_ns: int = 0
    size: int = 0
    hidden_ns: int = UNKNOWN
    hidden_max_ns: int = UNKNOWN
    local: int = 0
    link_rate: int = 0
    queued: int = 0
    device_ns: int = UNKNOWN
    device_bytes: int = 0


Operations = Annotated[tuple[ReportedOperation, ...], _FEW]


def operations_problem(rows: Sequence[ReportedOperation]) -> str:
    """What is wrong with them, "" if nothing is."""
    if len(rows) > OPERATIONS_MAX:
        return f"{len(rows)} operations of process groups, {OPERATIONS_MAX} at most"
    for row in rows:
        if any(len(text) > TEXT_MAX or not text.isprintable() for text in (row.group, row.operation)):
            return f"a text of operation {row.operation[:40]!r} is too long or not printable"
        numbers = (
            *(row.calls, row.bytes, row.exposed_ns, row.before_ns, row.issue_ns, row.size),
            *(row.local, row.link_rate, row.queued, row.device_bytes),
        )
        optional = row.hidden_ns, row.hidden_max_ns, row.device_ns
        if min(numbers) < 0 or min(optional) < UNKNOWN or max(*numbers, *optional) >= _NUMBER_MAX:
            return f"operation {row.operation!r} of process group {row.group!r} has a number out of range"
    return ""


def problem(collectives: Collectives) -> str:
    """What is wrong with them, "" if nothing is."""
    if len(collectives.groups) > GROUPS_MAX:
        return f"{len(collectives.groups)} process groups, {GROUPS_MAX} at most"
    return next((why for group in collectives.groups if (why := group_problem(group))), "")


def group_problem(group: GroupRow) -> str:
    """What is wrong with a group, "" if nothing is."""
    texts = [group.name, group.description, group.backend]
    texts += [text for call in group.recent for text in (call.operation, call.dtype)]
    if any(len(text) > TEXT_MAX or not text.isprintable() for text in texts):
        return f"a text of process group {group.name[:40]!r} is too long or not printable"
    if len(group.recent) > CALLS_MAX or len(group.ranks) > RUNS_MAX:
        return f"process group {group.name!r} has too many calls or runs of ranks"
    if not 0 < group.size <= 1 << 18 or not 0 <= group.calls < _NUMBER_MAX:
        return f"process group {group.name!r} has an impossible size or number of calls"
    if any(not (0 <= f < _RANK_MAX and 0 < s < _RANK_MAX and c > 0) for f, s, c in group.ranks):
        return f"process group {group.name!r} has impossible ranks"
    if group.ranks and sum(count for _, _, count in group.ranks) != group.size:
        return f"process group {group.name!r} has other ranks than its size says"
    for call in group.recent:
        numbers = call.sequence, call.bytes, call.peer + 1, call.enter_ns, call.exit_ns
        if min(numbers) < 0 or max(numbers) >= _NUMBER_MAX:
            return f"a call of process group {group.name!r} has a number out of range"
    return ""
