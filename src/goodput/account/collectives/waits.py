"""Which rank waits for which, of ranks of which none makes progress.

A rank in a collective waits for all ranks of the group that have entered fewer calls, which at 10 000 ranks are many millions
of pairs: they are never listed. What is asked of them takes time by the number of ranks, or its logarithm.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from goodput.account.collectives.calls import POINT_TO_POINT, Call, GroupCalls, is_open, place_of, rank_at


@dataclass
class Group:
    """The members of a group that have reported it, and those that are known not to have entered it."""

    about: GroupCalls
    members: dict[int, GroupCalls] = field(default_factory=dict)
    absent: tuple[int, ...] = ()  # ranks of the group that have reported all their groups, without this one
    unknown: tuple[int, ...] = ()  # its other ranks

    def entered(self, rank: int) -> int:
        return self.members[rank].calls if rank in self.members else 0

    def at(self, sequence: int) -> dict[int, Call]:
        """The collectives under a number, by rank, of those whose last calls reach back to it."""
        return self._by_sequence.get(sequence, {})

    @cached_property
    def _by_sequence(self) -> dict[int, dict[int, Call]]:
        found: dict[int, dict[int, Call]] = {}
        for rank, member in self.members.items():
            for call in member.recent:
                if call.operation not in POINT_TO_POINT:
                    found.setdefault(call.sequence, {})[rank] = call
        return found


class Wait(NamedTuple):
    """A rank waits in a call of a group for another rank."""

    group: Group
    call: Call


class _Collectives:
    """The waits in the collectives of one group: by rank its open calls that not all others have entered."""

    def __init__(self, group: Group):
        self.group = group
        self.entered = {rank: group.entered(rank) for rank in (*group.members, *group.absent)}
        by_entered = sorted((count, rank) for rank, count in self.entered.items())
        self._counts = [count for count, _ in by_entered]
        self._lowest = list(accumulate((rank for _, rank in by_entered), min))
        least = self._counts[0]
        self.open: dict[int, list[Call]] = {}
        for rank, member in group.members.items():
            calls = [call for call in member.recent if is_open(member, call)]
            calls = [one for one in calls if one.operation not in POINT_TO_POINT and one.sequence > least]
            if calls:
                self.open[rank] = calls
        self._last = {rank: max(call.sequence for call in calls) for rank, calls in self.open.items()}

    def first_for(self, rank: int) -> int | None:
        """The lowest of the ranks that this one waits for."""
        last = self._last.get(rank)
        return None if last is None else self._lowest[bisect_left(self._counts, last) - 1]

    def between(self, rank: int, other: int) -> Wait | None:
        entered = self.entered.get(other)
        if entered is None:
            return None
        calls = self.open.get(rank, ())
        return next((Wait(self.group, call) for call in calls if call.sequence > entered), None)

    def awaited(self) -> Iterator[tuple[int, int]]:
        """Each rank that others wait for, and how many do."""
        lasts = sorted(self._last.values())
        for rank, count in self.entered.items():
            waiting = len(lasts) - bisect_left(lasts, count + 1)
            if waiting:
                yield rank, waiting


class Waits:
    """All waits between ranks. A rank that waits for another in several groups counts in each."""

    def __init__(self, groups: Iterable[Group]):
        self._groups: list[_Collectives] = []
        self._of_rank: dict[int, list[_Collectives]] = {}
        self._peers: dict[int, dict[int, Wait]] = {}
        for group in groups:
            found = _Collectives(group)
            self._groups.append(found)
            for rank in found.open:
                self._of_rank.setdefault(rank, []).append(found)
            for rank, member in group.members.items():
                for call in member.recent:
                    if call.operation in POINT_TO_POINT and is_open(member, call):
                        self._add_peer(group, rank, call)
        self.ranks = self._of_rank.keys() | self._peers.keys()

    def _add_peer(self, group: Group, rank: int, call: Call) -> None:
        """A send or receive waits for its peer, unless that is in the opposite call with this rank."""
        other, mine = rank_at(group.about, call.peer), place_of(group.about, rank)
        if other is None or mine is None:
            return
        theirs = group.members[other].recent if other in group.members else ()
        opposite = POINT_TO_POINT[call.operation == "send"]
        if not any(not one.exit_ns and one.operation == opposite and one.peer == mine for one in theirs):
            self._peers.setdefault(rank, {}).setdefault(other, Wait(group, call))

    def awaited(self) -> Counter[int]:
        """By rank how many wait for it."""
        found = Counter(other for others in self._peers.values() for other in others)
        for group in self._groups:
            for rank, waiting in group.awaited():
                found[rank] += waiting
        return found

    def first_for(self, rank: int) -> int | None:
        """The lowest of the ranks that this one waits for; None if it waits for nobody."""
        lowest = [first for one in self._of_rank.get(rank, ()) if (first := one.first_for(rank)) is not None]
        return min([*lowest, *self._peers.get(rank, ())], default=None)

    def between(self, rank: int, other: int) -> Wait | None:
        """How a rank waits for another one."""
        found = (
            wait for one in self._of_rank.get(rank, ()) if (wait := one.between(rank, other)) is not None
        )
        return next(found, None) or self._peers.get(rank, {}).get(other)

    def for_rank(self, other: int) -> dict[int, Wait]:
        """By rank how those wait that wait for this one."""
        return {rank: wait for rank in self.ranks if (wait := self.between(rank, other)) is not None}
