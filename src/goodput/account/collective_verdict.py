"""What is wrong in a hang, from the collectives that each rank has entered: which group, which call, which rank.

A group's ranks are compared by the sequence numbers of their calls. In this order, the first that applies:

operation, dtype, size, root, order
    ranks have made different calls under one sequence number, and one of them has not left it. `order`: the calls that
    both have issued are the same ones, in another order, or one is left out. Named are the ranks of the minority.
missing
    ranks wait in a call that others of the group have not entered, or whose calls are unknown. Of these others the one
    is named that waits for no rank itself, at the end of the chain of waits. With several, those that are gone come
    first.
deadlock
    every missing rank waits itself, in another group: the cycle of calls is shown.
stopped
    all have entered the call, and the process of one of them is stopped or is not reported any more.
network
    all have entered the same call and none, or not all, have left it. Named is the rank over whose link nothing comes
    through, where that is known from the TCP connections of the ranks.

There is no verdict without a call that is known to be open. With NCCL a call that the host has left may still run on the
device, so the last one of each group counts as open, unless NCCL's profiler plugin has seen its end there. Clocks of
different hosts are never compared. About 3 us a rank and group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from goodput.account.collectives import document_types
from goodput.account.collectives.calls import (
    POINT_TO_POINT,
    Call,
    GroupCalls,
    RankCalls,
    is_open,
    members_of,
)
from goodput.account.collectives.slow_link import SlowLink, slow_link_document
from goodput.account.collectives.waits import Group, Wait, Waits
from goodput.account.text import bytes_text, slow_link_text

RANKS_SHOWN_MAX = 16
ROOTED = ("broadcast", "reduce", "gather", "scatter")
# What the rank that another one waits for has not done; the number is that of the other's call.
_HAS_NOT = {"send": "has not received the data of", "recv": "has not sent the data for"}
UNEVEN = ("all_to_all", "barrier")  # whose sizes may differ between ranks, or that have none
GONE = ("dead", "silent", "finished")
LINKS_SHOWN_MAX, LINKS_NAMED_MAX = 16, 3
# Ranks without a report of a group that are considered, over all groups: a few times those of the largest runs.
OTHERS_MAX = 1 << 20
# Kinds of health events that may explain the network, the worst first; "link_up" undoes a "link_down".
LINK_KINDS = ("link_down", "link_flap", "link_up", "retransmits")
KINDS = ("operation", "dtype", "size", "root", "order", "missing", "deadlock", "stopped", "network")


class Link(NamedTuple):
    """One rank of a cycle: the call in which it waits, and for which rank."""

    rank: int
    group: str
    operation: str
    sequence: int
    waits_for: int


class NetworkFault(NamedTuple):
    """A link of a rank's node about which its agent reported something; `kind` as in a health event."""

    host: str
    device: str
    kind: str
    text: str
    time_ns: int


@dataclass(frozen=True)
class CollectiveVerdict:
    """`culprits` are the ranks named, the first of them the main one; empty where none can be."""

    kind: str
    group: GroupCalls
    sequence: int
    operation: str
    culprits: tuple[int, ...]
    entered: int
    seconds: float
    reason: str
    calls: tuple[tuple[int, Call], ...] = ()
    cycle: tuple[Link, ...] = ()
    links: tuple[NetworkFault, ...] = ()
    slow_link: SlowLink | None = None

    def document(self) -> document_types.CollectiveVerdict:
        return {
            "kind": self.kind,
            "group": self.group.name,
            "description": self.group.description,
            "ranks": shown_ranks(self.group),
            "size": self.group.size,
            "sequence": self.sequence,
            "operation": self.operation,
            "culprits": list(self.culprits[:RANKS_SHOWN_MAX]),
            "entered": self.entered,
            "seconds": self.seconds,
            "reason": self.reason,
            "calls": [
                {"rank": rank, "operation": one.operation, "dtype": one.dtype, "bytes": one.bytes}
                for rank, one in self.calls[:RANKS_SHOWN_MAX]
            ],
            "cycle": [document_types.CollectiveLink(**one._asdict()) for one in self.cycle[:RANKS_SHOWN_MAX]],
            "links": [
                {
                    "host": one.host,
                    "device": one.device,
                    "kind": one.kind,
                    "text": one.text,
                    "time": one.time_ns / 1e9,
                }
                for one in self.links[:LINKS_SHOWN_MAX]
            ],
            "slow_link": slow_link_document(self.slow_link) if self.slow_link else None,
        }


def verdict(ranks: Iterable[RankCalls]) -> CollectiveVerdict | None:
    """The verdict on ranks of which none makes progress; None if no call is open."""
    by_rank = {one.rank: one for one in ranks}
    groups = _groups(by_rank)
    return _mismatch(groups, by_rank) or _missing(groups, by_rank) or _inside(groups, by_rank)


def _groups(by_rank: dict[int, RankCalls]) -> list[Group]:
    found: dict[tuple, Group] = {}
    for rank, one in by_rank.items():
        for group in one.groups:
            made = found.setdefault((group.name, group.size, group.ranks), Group(group))
            made.members[rank] = group
    # Groups that many ranks have named come first: what one rank says of ranks that no other knows is the last to count.
    left, kept = OTHERS_MAX, []
    for group in sorted(found.values(), key=lambda one: -len(one.members)):
        others = group.about.size - len(group.members) if group.about.ranks else 0
        if others > left:
            continue
        left -= max(others, 0)
        kept.append(group)
        absent, unknown = [], []
        for rank in members_of(group.about):
            if rank not in group.members:
                (absent if rank not in by_rank or by_rank[rank].is_whole else unknown).append(rank)
        group.absent, group.unknown = tuple(absent), tuple(unknown)
    return kept


# -- different calls


def _signature(call: Call) -> tuple:
    size = 0 if call.operation in UNEVEN else call.bytes
    return call.operation, call.dtype, size, call.peer if call.operation in ROOTED else -1


def _mismatch(groups: Sequence[Group], by_rank: dict[int, RankCalls]) -> CollectiveVerdict | None:
    for group in groups:
        numbers = {
            call.sequence
            for member in group.members.values()
            for call in member.recent
            if is_open(member, call) and call.operation not in POINT_TO_POINT
        }
        for sequence in sorted(numbers):
            calls = group.at(sequence)
            kind = _difference(calls)
            if kind:
                return _mismatched(group, sequence, calls, kind, by_rank)
    return None


def _difference(calls: dict[int, Call]) -> str:
    """In what the calls differ: one of KINDS, or ""."""
    if len(calls) < 2:
        return ""
    signatures = [_signature(call) for call in calls.values()]
    for at, kind in enumerate(("operation", "dtype", "size", "root")):
        values = {signature[at] for signature in signatures}
        # The other ranks of a gather or scatter may have no tensor with a size and dtype.
        if len(values) > 1 and (kind in ("operation", "root") or len(values - {0, ""}) > 1):
            return kind
    return ""


def _mismatched(
    group: Group, sequence: int, calls: dict[int, Call], kind: str, by_rank: dict[int, RankCalls]
) -> CollectiveVerdict:
    if _is_order(group, sequence, calls, by_rank):
        kind = "order"
    counts = Counter(map(_signature, calls.values()))
    (usual, most), *others = counts.most_common()
    decided = not others or others[0][1] < most
    culprits = tuple(sorted(rank for rank in calls if decided and _signature(calls[rank]) != usual))
    shown = {_signature(call): (rank, call) for rank, call in sorted(calls.items(), reverse=True)}
    texts = [
        f"{_ranks_text(sorted(r for r in calls if _signature(calls[r]) == signature))} "
        f"{'call' if counts[signature] > 1 else 'calls'} {_call_text(call)}"
        for signature, (_, call) in sorted(shown.items(), key=lambda one: -counts[one[0]])
    ]
    what = {
        "operation": "different operations, or the same ones in another order",
        "dtype": "different dtypes",
        "size": "different sizes",
        "root": "different roots",
        "order": "the same collectives in another order, or one left out,",
    }[kind]
    return CollectiveVerdict(
        kind=kind,
        group=group.about,
        sequence=sequence,
        operation=usual[0],
        culprits=culprits,
        entered=len(calls),
        seconds=_seconds(by_rank, calls),
        reason=f"{what} under number {sequence} of {_group_text(group.about)}: {'; '.join(texts)}",
        calls=tuple(sorted(calls.items())),
    )


def _is_order(group: Group, sequence: int, calls: dict[int, Call], by_rank: dict[int, RankCalls]) -> bool:
    """Whether the ranks have issued the same calls from here on, in another order.

    A rank that is gone may have ended before its next call, as when a backend aborts it for the first one. It is
    compared by that one: the ranks that went on have issued it under a later number.
    """
    issued = {
        rank: [
            _signature(one)
            for one in group.members[rank].recent
            if one.operation not in POINT_TO_POINT and one.sequence >= sequence
        ]
        for rank in calls
    }
    if any(len(one) == 1 and by_rank[rank].gone not in GONE for rank, one in issued.items()):
        return False
    further = [one for one in issued.values() if len(one) > 1]
    if len({one[0] for one in further}) > 1:
        common = min(map(len, further))
        windows = [sorted(one[:common]) for one in further]
        if any(window != windows[0] for window in windows):
            return False
    later = {signature for one in further for signature in one}
    return bool(further) and all(one[0] in later for one in issued.values())


# -- ranks that have not come


def _missing(groups: Sequence[Group], by_rank: dict[int, RankCalls]) -> CollectiveVerdict | None:
    waits = Waits(groups)
    awaited = waits.awaited()
    if not awaited:
        return None
    free = [
        rank
        for rank in awaited
        if rank not in waits.ranks or (rank in by_rank and by_rank[rank].gone in GONE)
    ]
    if not free:
        return _deadlock(waits, by_rank)
    free.sort(key=lambda rank: (_trust(by_rank.get(rank)), -awaited[rank], rank))
    culprit = free[0]
    named = tuple(rank for rank in free if _trust(by_rank.get(rank)) == _trust(by_rank.get(culprit)))
    waiting = waits.for_rank(culprit)
    (_, wait), *_ = sorted(waiting.items(), key=lambda one: (one[1].call.sequence, one[0]))
    inside = {rank: one.call for rank, one in waiting.items() if _is_same_call(one, wait)}
    call, seconds = wait.call, _seconds(by_rank, inside)
    others = f" (with {_ranks_text(sorted(named[1:]))})" if len(named) > 1 else ""
    has_not = _HAS_NOT.get(call.operation, "has not come to")
    reason = (
        f"{_who(culprit, by_rank)}{others} {has_not} {_call_text(call)}, number {call.sequence} of "
        f"{_group_text(wait.group.about)}: {_where(culprit, by_rank)}; {_ranks_text(sorted(inside))} "
        f"wait{'s' * (len(inside) == 1)} in it for {seconds:.0f} s"
    )
    about = wait.group.about, call.sequence, call.operation
    return CollectiveVerdict(
        "missing", *about, named, len(inside), seconds, reason, tuple(sorted(inside.items()))
    )


def _is_same_call(one: Wait, other: Wait) -> bool:
    """Whether two ranks wait in one collective; a send or receive is a call of its rank alone, with a number of its own."""
    if one.call.operation in POINT_TO_POINT or other.call.operation in POINT_TO_POINT:
        return one is other
    return one.group is other.group and one.call.sequence == other.call.sequence


def _trust(one: RankCalls | None) -> int:
    """Ranks that are gone explain a hang by themselves; of one that never reported nothing is known."""
    if one is None:
        return 3
    return 0 if one.gone in ("dead", "finished") else 1 if one.is_stopped else 2


def _deadlock(waits: Waits, by_rank: dict[int, RankCalls]) -> CollectiveVerdict | None:
    """The chain of waits from the lowest rank until a rank is met again."""
    path: dict[int, int] = {}
    rank = min(waits.ranks)
    while rank is not None and rank not in path:
        path[rank] = len(path)
        rank = waits.first_for(rank)
    cycle = list(path)[path[rank] :] if rank is not None else []
    steps = {
        (one, other): wait
        for one, other in zip(cycle, [*cycle[1:], *cycle[:1]], strict=True)
        if (wait := waits.between(one, other)) is not None
    }
    if not steps:
        return None
    links = [
        Link(one, wait.group.about.name, wait.call.operation, wait.call.sequence, other)
        for (one, other), wait in steps.items()
    ]
    first = next(iter(steps.values()))
    calls = {one: wait.call for (one, _), wait in steps.items()}
    texts = [
        f"rank {link.rank} waits in {link.operation} {link.sequence} of "
        f"{_group_text(steps[link.rank, link.waits_for].group.about)} for rank {link.waits_for}"
        for link in links
    ]
    return CollectiveVerdict(
        kind="deadlock",
        group=first.group.about,
        sequence=first.call.sequence,
        operation=first.call.operation,
        culprits=(),
        entered=len(cycle),
        seconds=_seconds(by_rank, calls),
        reason="a cycle of process groups, each rank waits for the next: " + ", ".join(texts),
        calls=tuple(sorted(calls.items())),
        cycle=tuple(links),
    )


# -- all are in it


def _inside(groups: Sequence[Group], by_rank: dict[int, RankCalls]) -> CollectiveVerdict | None:
    """The call that began last among those that all ranks of their group have entered and not all have left."""
    found = []
    for group in groups:
        sequence = min([group.entered(rank) for rank in (*group.members, *group.absent)])
        calls = group.at(sequence)
        still = {rank: call for rank, call in calls.items() if is_open(group.members[rank], call)}
        if still:
            found.append(
                (max(by_rank[rank].seen_ns - one.enter_ns for rank, one in still.items()), group, still)
            )
    if not found:
        return None
    # The one entered last: an older one may have been waited for where no record sees it, such as by its future.
    _, group, still = min(found, key=lambda one: one[0])
    call, entered = next(iter(still.values())), len(group.at(next(iter(still.values())).sequence))
    seconds = _seconds(by_rank, still)
    where = f"{_call_text(call)}, number {call.sequence} of {_group_text(group.about)}"
    stopped = tuple(sorted(r for r in group.members if by_rank[r].is_stopped or by_rank[r].gone))
    if group.unknown:
        kind = "missing"
        reason = f"{entered} ranks have entered {where}; of {_ranks_text(group.unknown)} no calls are known"
    elif stopped:
        kind, why = "stopped", f"{_who(stopped[0], by_rank)}: {_where(stopped[0], by_rank)}"
        reason = f"all ranks have entered {where}; {why}"
    else:
        left = entered - len(still)
        have = "none has left it" if not left else f"{left} of {entered} have left it"
        kind = "network"
        reason = f"all ranks have entered {where}, and {have} for {seconds:.0f} s: look at the network between them"
    about = group.about, call.sequence, call.operation
    stopped = () if group.unknown else stopped
    return CollectiveVerdict(kind, *about, stopped, entered, seconds, reason, tuple(sorted(still.items())))


# -- texts


def _seconds(by_rank: dict[int, RankCalls], calls: dict[int, Call]) -> float:
    """How long the rank that waits longest has been in its call."""
    ages = [
        max(by_rank[rank].seen_ns - call.enter_ns, 0) + by_rank[rank].age_ns for rank, call in calls.items()
    ]
    return max(ages, default=0) / 1e9


def _who(rank: int, by_rank: dict[int, RankCalls]) -> str:
    return f"rank {rank} on {by_rank[rank].host or 'an unnamed host'}" if rank in by_rank else f"rank {rank}"


def _where(rank: int, by_rank: dict[int, RankCalls]) -> str:
    one = by_rank.get(rank)
    if one is None:
        return "it has never reported"
    phase = "no phase" if one.phase == "none" else one.phase
    if one.gone:
        does = {"dead": "it is dead", "silent": "it is not reported any more", "finished": "it has finished"}
        return does[one.gone] + (f", last in {phase}" if phase else "")
    if one.is_stopped:
        return "its process is stopped" + (f", in {phase}" if phase else "")
    inside = _open_call_text(one)
    if not phase:
        return inside or "it is in no call that is open"
    return f"it is in {phase}, {inside.removeprefix('it is ')}" if inside else f"it is in {phase}"


def _open_call_text(one: RankCalls) -> str:
    """The call of a rank that began last and is open, "" if there is none."""
    calls = [(call, group) for group in one.groups for call in group.recent if is_open(group, call)]
    if not calls:
        return ""
    call, group = max(calls, key=lambda found: found[0].enter_ns)
    return f"it is in {call.operation} {call.sequence} of {_group_text(group)}"


def _call_text(call: Call) -> str:
    tensor = f"{bytes_text(call.bytes)} {call.dtype}".strip() if call.bytes else call.dtype
    root = f", root {call.peer}" if call.operation in ROOTED and call.peer >= 0 else ""
    return f"{call.operation}" + (f" ({tensor}{root})" if tensor or root else "")


def _group_text(group: GroupCalls) -> str:
    name = group.description if group.description not in ("", "undefined") else group.name
    ranks = shown_ranks(group)
    return f"group {name} ({f'ranks {ranks}' if ranks else f'{group.size} ranks'})"


def with_links(found: CollectiveVerdict, links: Iterable[NetworkFault]) -> CollectiveVerdict:
    """The verdict with what was reported of links, the worst first, where the network is to blame."""
    worst = sorted(links, key=lambda one: (LINK_KINDS.index(one.kind), -one.time_ns, one.host, one.device))
    if found.kind != "network" or not worst:
        return found
    named = [f"{one.device} on {one.host}: {one.text}" for one in worst[:LINKS_NAMED_MAX]]
    more = f"; and {len(worst) - LINKS_NAMED_MAX} more links" if len(worst) > LINKS_NAMED_MAX else ""
    return replace(found, reason=f"{found.reason}; {'; '.join(named)}{more}", links=tuple(worst))


def with_slow_link(found: CollectiveVerdict, link: SlowLink | None, is_waiting: bool) -> CollectiveVerdict:
    """The verdict with the link over which nothing comes through, where ranks are in calls that do not end.

    Its rank is named, also instead of one that only waits in a call itself (`is_waiting`), in which the link keeps it.
    """
    if link is None or found.kind not in ("missing", "stopped", "network"):
        return found
    text = slow_link_text(slow_link_document(link))
    if found.kind == "network" or is_waiting:
        reason, named = f"{text}; {found.reason}", (link.rank,)
        return replace(found, kind="network", reason=reason, culprits=named, slow_link=link)
    return replace(found, reason=f"{found.reason}; {text}", slow_link=link)


def shown_ranks(group: GroupCalls) -> str:
    """The ranks as text: "0-7", "0-56/8" for every eighth, "1,3-4"; "" if they are not known."""
    return ",".join(
        str(first)
        if count == 1
        else f"{first}-{first + step * (count - 1)}" + (f"/{step}" if step > 1 else "")
        for first, step, count in group.ranks
    )


def _ranks_text(ranks: Sequence[int]) -> str:
    if len(ranks) > 4:
        return f"{len(ranks)} ranks"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
