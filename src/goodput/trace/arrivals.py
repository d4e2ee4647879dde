"""Who comes late to collectives, on clocks that are aligned through the collectives themselves.

The clocks of ranks are never compared as they are. Ranks leave an all-reduce together, so within a process group how far
a rank's clock is ahead is the median, over the calls, of what its ends are later than the earliest end. Groups that have
ranks in common share one time. What the ends still differ after that bounds how well an arrival is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from statistics import median_low
from typing import NamedTuple

SHARED_MIN = 3  # calls that ranks leave together, to align their clocks

Ends = Mapping[int, int]  # of one call: by rank, when it left; ns on the clock of its own
Calls = Iterable[Mapping[int, tuple[int, int]]]  # by rank, when it came and left, of each call


class Clocks(NamedTuple):
    """By rank its set of ranks that share a time, and how many ns its clock is ahead of it.

    `left_ns` are, by group, the ns between the first and the last to leave a call, once aligned: the median over calls.
    """

    ahead: dict[int, tuple[int, int]]
    left_ns: dict[Hashable, int]


class Skew(NamedTuple):
    """`skews` in ns, of each call how much later the last rank came than the first; `last`: how often each was last."""

    skews: list[int]
    last: Counter[int]

    def median_ns(self) -> int | None:
        return median_low(self.skews) if self.skews else None

    def most_often_last(self) -> tuple[int, float] | tuple[None, None]:
        """The rank, and its share of the calls."""
        if not self.last:
            return None, None
        rank, times = min(self.last.items(), key=lambda item: (-item[1], item[0]))
        return rank, times / len(self.skews)


def align(groups: Mapping[Hashable, list[Ends]]) -> Clocks:
    """The clocks of ranks, by process group from the ends of calls which all its ranks of these left together."""
    clocks = Clocks({}, {})
    usable = {name: found for name, calls in groups.items() if len(found := _complete(calls)) >= SHARED_MIN}
    waiting = sorted(usable, key=lambda name: (-len(usable[name][0]), -len(usable[name]), str(name)))
    while waiting:
        # A group with ranks that are aligned already comes first, so that its other ranks join their time.
        name = next(
            (one for one in waiting if any(rank in clocks.ahead for rank in usable[one][0])), waiting[0]
        )
        waiting.remove(name)
        _join(clocks.ahead, _within(usable[name]))
        spreads = [_spread(clocks.ahead, call) for call in usable[name]]
        clocks.left_ns[name] = median_low(spreads)
    return clocks


def _complete(calls: list[Ends]) -> list[Ends]:
    """The calls that all ranks have which have any."""
    ranks = {rank for call in calls for rank in call}
    return [call for call in calls if len(call) == len(ranks)] if len(ranks) > 1 else []


def _within(calls: list[Ends]) -> dict[int, int]:
    """How far each rank's clock is ahead of the earliest one's, in exact integers: unix ns are beyond a float."""
    first = [min(call.values()) for call in calls]
    return {
        rank: median_low(call[rank] - low for call, low in zip(calls, first, strict=True))
        for rank in calls[0]
    }


def _join(ahead: dict[int, tuple[int, int]], own: dict[int, int]) -> None:
    """Add the ranks of a group that are not known yet, in the time of one that is."""
    known = next((rank for rank in sorted(own) if rank in ahead), None)
    place, shift = ahead[known] if known is not None else (min(own), 0)
    if known is not None:
        shift -= own[known]
    for rank, ns in own.items():
        ahead.setdefault(rank, (place, ns + shift))


def _spread(ahead: Mapping[int, tuple[int, int]], call: Ends) -> int:
    """ns between the first and the last to leave, where these share a time."""
    times = [end - ahead[rank][1] for rank, end in call.items()]
    return max(times) - min(times)


def skew_of(calls: Calls, clocks: Clocks) -> Skew:
    """The skew of the calls of one group and operation, of those whose ranks share a time."""
    skews, last = [], Counter[int]()
    for call in calls:
        places = {clocks.ahead[rank][0] if rank in clocks.ahead else None for rank in call}
        if len(call) < 2 or len(places) > 1 or None in places:
            continue
        came = {rank: enter - clocks.ahead[rank][1] for rank, (enter, _) in call.items()}
        skews.append(max(came.values()) - min(came.values()))
        if skews[-1]:
            last[max(came, key=lambda rank: (came[rank], rank))] += 1
    return Skew(skews, last)
