"""The calls of process groups as ranks report them, and the numbers of ranks in a group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from goodput.wire.operation_row import PROFILED

POINT_TO_POINT = ("send", "recv")


class Call(NamedTuple):
    """A call of one rank. `exit_ns` is 0 while the host waits; times are of the rank's host. `peer` -1: none."""

    sequence: int
    operation: str
    dtype: str
    bytes: int
    peer: int
    enter_ns: int
    exit_ns: int


class GroupCalls(NamedTuple):
    """A process group as a rank sees it: how many collectives it has entered, and the last of its calls in order.

    `ranks` are runs (first, step, count) of the ranks of the job, () if they are not known.
    """

    name: str
    description: str
    backend: str
    size: int
    ranks: tuple[tuple[int, int, int], ...]
    calls: int
    recent: tuple[Call, ...]


class RankCalls(NamedTuple):
    """A rank's newest process. `gone` is "" or one of GONE, `age_ns` the time since `seen_ns` by our clock.

    `phase` is "" where it is not known. `is_whole`: whether `groups` are all that it uses. `is_stopped`: its process does not run, by a signal.
    """

    rank: int
    host: str
    phase: str
    gone: str
    seen_ns: int
    age_ns: int
    groups: tuple[GroupCalls, ...]
    is_whole: bool = True
    is_stopped: bool = False


def is_open(group: GroupCalls, call: Call) -> bool:
    """Whether it may not be complete."""
    if not call.exit_ns:
        return True
    if group.backend == PROFILED:
        return False
    return "nccl" in group.backend and call.operation not in POINT_TO_POINT and call.sequence == group.calls


def members_of(group: GroupCalls) -> Iterator[int]:
    """The ranks of a group in order, none if they are not known."""
    return (first + step * i for first, step, count in group.ranks for i in range(count))


def rank_at(group: GroupCalls, place: int) -> int | None:
    """The rank with this number in a group."""
    for first, step, count in group.ranks if place >= 0 else ():
        if place < count:
            return first + step * place
        place -= count
    return None


def place_of(group: GroupCalls, rank: int) -> int | None:
    """The number of a rank in a group."""
    before = 0
    for first, step, count in group.ranks:
        if rank in range(first, first + step * count, step):
            return before + (rank - first) // step
        before += count
    return None


def has_rank(group: GroupCalls, rank: int) -> bool:
    """Whether a rank is in a group; of a group whose ranks are not known any is."""
    return not group.ranks or place_of(group, rank) is not None
