"""Which operation of which process group the device times of NCCL's profiler plugin belong to.

The plugin knows communicators by a hash, the SDK process groups by name, and NCCL makes some operations of others: a barrier
is an all-reduce of a few bytes, an all-to-all is sends and receives. So the two are joined where the bytes of both agree:
a communicator with the one group of its size, in which the rank has the same number, else what is left of an operation with
what is left of it, whose group is known only if it is one. What does not agree is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from goodput.rank_page.collective_records import (
    HIDDEN_MAX,
    POINT_TO_POINT,
    Collectives,
    OfSteps,
    Sums,
    group_label,
)

ANY_GROUP = -1
Key = tuple[int, str]  # group of the SDK or ANY_GROUP, operation
# Calls go on between the readings of the two files.
APART_MAX = 0.02
BARRIER_BYTES_MAX = 8
_NONE = OfSteps(0, 0, 0)


class _Use(NamedTuple):
    """An operation of a group or a communicator; `extra_bytes` are what NCCL moves at most beyond `bytes`."""

    at: int
    label: str
    place: tuple[int, int]  # size, and the number of the rank
    calls: int
    bytes: int
    extra_bytes: int = 0
    of_steps: OfSteps = _NONE


def device_times(ours: Collectives | None, plugin: Collectives | None) -> dict[Key, OfSteps]:
    """By group and operation of the SDK what the plugin measured of the calls from the first step on, where it is known."""
    found: dict[Key, OfSteps] = {}
    if ours is None or plugin is None:
        return found
    sums = {(one.group, one.operation): one for one in ours.sums if "nccl" in ours.groups[one.group].backend}
    theirs = _of_steps(plugin)
    for operation in ("broadcast", "reduce", "all_gather", "reduce_scatter"):
        _join(found, operation, _ours(ours, sums, operation), _theirs(plugin, theirs, operation))
    _join(found, "all_reduce", _all_reduces(ours, sums), _theirs(plugin, theirs, "all_reduce"))
    for key in [key for key in found if key[1] == "all_reduce" and key not in sums and key[0] != ANY_GROUP]:
        found[key[0], "barrier"] = found.pop(key)
    exchanged = _join(found, "all_to_all", _ours(ours, sums, "all_to_all"), _exchanges(plugin, theirs))
    for operation in POINT_TO_POINT:
        left = [one for one in _theirs(plugin, theirs, operation) if one.at not in exchanged]
        _join(found, operation, _ours(ours, sums, operation), left)
    return found


def _of_steps(plugin: Collectives) -> dict[Key, tuple[Sums, OfSteps]]:
    """What the plugin knows by communicator and operation; nothing of what no kernel tells, or has no place in its table."""
    found, is_full = {}, len(plugin.of_steps) >= HIDDEN_MAX
    for one in plugin.sums if plugin.of_steps else ():
        times = plugin.of_steps.get((one.group, one.operation))
        if times is None and one.device_ns and not is_full:
            times = _NONE  # All its calls were before the first step.
        if times is not None:
            found[one.group, one.operation] = one, times
    return found


def _ours(ours: Collectives, sums: Mapping[Key, Sums], operation: str) -> list[_Use]:
    """The operation in each group."""
    return [_use(ours, one) for one in sums.values() if one.operation == operation]


def _all_reduces(ours: Collectives, sums: Mapping[Key, Sums]) -> list[_Use]:
    """All-reduces with the barriers of their group, which NCCL cannot tell apart."""
    uses = {one.at: one for one in _ours(ours, sums, "all_reduce")}
    for one in _ours(ours, sums, "barrier"):
        known = uses.get(one.at, one._replace(calls=0))
        uses[one.at] = known._replace(
            calls=known.calls + one.calls, extra_bytes=BARRIER_BYTES_MAX * one.calls
        )
    return list(uses.values())


def _theirs(plugin: Collectives, known: Mapping[Key, tuple[Sums, OfSteps]], operation: str) -> list[_Use]:
    """The operation in each communicator."""
    return [
        _use(plugin, one)._replace(of_steps=times)
        for key, (one, times) in known.items()
        if key[1] == operation
    ]


def _exchanges(plugin: Collectives, known: Mapping[Key, tuple[Sums, OfSteps]]) -> list[_Use]:
    """Sends and receives of each communicator together, with the bytes sent; what a rank has for itself may be missing."""
    found = []
    for one in _theirs(plugin, known, "send"):
        received = known[one.at, "recv"][1].device_ns if (one.at, "recv") in known else 0
        times = one.of_steps._replace(device_ns=one.of_steps.device_ns + received)
        found.append(one._replace(extra_bytes=one.bytes // max(one.place[0] - 1, 1), of_steps=times))
    return found


def _use(found: Collectives, one: Sums) -> _Use:
    group = found.groups[one.group]
    label = group_label(group.name, group.description)
    return _Use(one.group, label, (group.size, group.rank), one.calls, one.bytes)


def _join(
    found: dict[Key, OfSteps], operation: str, groups: list[_Use], communicators: list[_Use]
) -> set[int]:
    """Enter the times of an operation; returns the communicators that were joined."""
    fits = {
        one.at: [other for other in communicators if other.place == one.place and _agree([one], [other])]
        for one in groups
    }
    pairs = {at: own[0] for at, own in fits.items() if len(own) == 1}
    taken = [one.at for one in pairs.values()]
    pairs = {at: one for at, one in pairs.items() if taken.count(one.at) == 1}
    joined = {one.at for one in pairs.values()}
    for at, one in pairs.items():
        found[at, operation] = one.of_steps
    groups = [one for one in groups if one.at not in pairs]
    communicators = [one for one in communicators if one.at not in joined]
    if not groups or not communicators or not _agree(groups, communicators):
        return joined
    total = OfSteps(*map(sum, zip(*(one.of_steps for one in communicators), strict=True)))
    is_one = len({one.label for one in groups}) == 1
    for one in groups[1:] if is_one else ():
        found[one.at, operation] = _NONE  # Groups of one label are one row.
    found[groups[0].at if is_one else ANY_GROUP, operation] = total
    return joined | {one.at for one in communicators}


def _agree(groups: list[_Use], communicators: list[_Use]) -> bool:
    """Whether both have had the same calls, by their bytes, or without any by their number."""
    ours, theirs = sum(one.bytes for one in groups), sum(one.bytes for one in communicators)
    calls = sum(one.calls for one in groups)
    extra = sum(one.extra_bytes for one in (*groups, *communicators))
    if not ours:
        others = sum(one.calls for one in communicators)
        return theirs <= extra and abs(calls - others) <= 1 + APART_MAX * max(calls, others)
    return abs(ours - theirs) <= extra + APART_MAX * max(ours, theirs) + ours / max(calls, 1)
