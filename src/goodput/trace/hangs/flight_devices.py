"""Refines the verdict on a collective by what devices have begun: whose device has not, and what that waits for.

A recorder has a call as `scheduled` from its issue, as `started` from when the device has begun it, and `completed`. The
host runs ahead of its device, so the call that hangs is the first one that has begun and does not end, not the last one
issued. A device inside it waits for those that have not begun it; these are busy with earlier work, or inside a call of
another group, for which others wait in turn."""

from __future__ import annotations

from dataclasses import replace

from goodput.account.collective_verdict import CollectiveVerdict, Link
from goodput.account.collectives.calls import POINT_TO_POINT
from goodput.trace.hangs.flight_dump import Dump, Entry


def on_devices(found: CollectiveVerdict, dumps: list[Dump]) -> CollectiveVerdict:
    """The verdict by what the devices have begun, where the recorders are told that and it explains more."""
    known = any(one.is_started for dump in dumps for one in dump.entries)
    if found.kind not in ("network", "missing") or found.operation in POINT_TO_POINT or not known:
        return found
    found = _first_begun(found, dumps) or found
    calls = _calls(found, dumps).get(found.sequence, {})
    waiting = sorted(rank for rank, one in calls.items() if not one.is_begun)
    if found.kind != "network" or not waiting:
        return found
    cycle = _cycle(dumps)
    if cycle:
        return replace(found, kind="deadlock", culprits=(), cycle=tuple(cycle), reason=_cycle_text(cycle))
    inside = _inside_texts(dumps, set(waiting))
    named = [rank for rank in waiting if rank not in inside] or waiting
    culprits = tuple(named) if len(waiting) < len(calls) else ()
    reason = _not_begun_text(found, calls, waiting, inside)
    return replace(found, kind="missing", culprits=culprits, reason=reason)


def _calls(found: CollectiveVerdict, dumps: list[Dump]) -> dict[int, dict[int, Entry]]:
    """The collectives of the verdict's group by number and rank."""
    calls: dict[int, dict[int, Entry]] = {}
    for dump in dumps:
        for one in dump.entries:
            if (one.group, one.description) == (found.group.name, found.group.description) and not one.is_p2p:
                calls.setdefault(one.call.sequence, {})[dump.rank] = one
    return calls


def _first_begun(found: CollectiveVerdict, dumps: list[Dump]) -> CollectiveVerdict | None:
    """The verdict on the first call before the found one that all ranks have issued, and that hangs on a device."""
    for sequence, calls in sorted(_calls(found, dumps).items()):
        still = {rank: one.call for rank, one in calls.items() if not one.is_over}
        hangs = any(one.is_begun and not one.is_over for one in calls.values())
        if sequence >= found.sequence:
            return None
        if not hangs or len(calls) != found.group.size:
            continue
        first = calls[min(still)]
        written_ns = {dump.rank: dump.written_ns for dump in dumps}
        seconds = max(max(written_ns[rank] - call.enter_ns, 0) for rank, call in still.items()) / 1e9
        left = len(calls) - len(still)
        have = f"{left} of {len(calls)} have left it" if left else "none has left it"
        return replace(
            found,
            kind="network",
            sequence=sequence,
            operation=first.call.operation,
            culprits=(),
            entered=len(calls),
            seconds=seconds,
            reason=f"all ranks have entered {_call_text(first)}, and {have} for {seconds:.0f} s, though later calls have been "
            "issued: look at the network between them",
            calls=tuple(sorted(still.items())),
        )
    return None


def _inside_texts(dumps: list[Dump], ranks: set[int]) -> dict[int, str]:
    """By rank the call in which its device is, as far as that is known."""
    found = {}
    for dump in dumps:
        begun = [one for one in dump.entries if one.is_begun and not one.is_over]
        if dump.rank in ranks and begun:
            found[dump.rank] = _call_text(begun[-1])
    return found


def _not_begun_text(
    found: CollectiveVerdict, calls: dict[int, Entry], waiting: list[int], inside: dict[int, str]
) -> str:
    who = f"the device of rank {waiting[0]} has"
    if len(waiting) > 1:
        who = f"the devices of {_ranks_text(waiting)} have"
    begun = len(calls) - len(waiting)
    others = f", while {begun} of {len(calls)} have" if begun else ""
    why = [f"that of rank {rank} is in {text}" for rank, text in sorted(inside.items())]
    if len(inside) < len(waiting):
        why.append("what was launched before it has not ended there, look at its kernels")
    return f"all ranks have issued {_call_text(calls[waiting[0]])}, but {who} not begun it{others}: {'; '.join(why)}"


def _cycle(dumps: list[Dump]) -> list[Link]:
    """The devices that wait for each other in calls which they have begun in different order; [] if there are none."""
    pending: dict[tuple, list[int]] = {}
    for dump in dumps:
        for one in dump.entries:
            if not one.is_begun and not one.is_p2p:
                pending.setdefault(_key(one), []).append(dump.rank)
    waits: dict[int, Link] = {}
    for dump in dumps:
        for one in dump.entries:
            others = pending.get(_key(one), ())
            if others and one.is_begun and not one.is_over and not one.is_p2p:
                link = Link(dump.rank, _name(one), one.call.operation, one.call.sequence, min(others))
                waits[dump.rank] = link
    for first in sorted(waits):
        path = [first]
        while (link := waits.get(path[-1])) is not None and link.waits_for not in path:
            path.append(link.waits_for)
        if link is not None:
            return [waits[rank] for rank in path[path.index(link.waits_for) :]]
    return []


def _cycle_text(cycle: list[Link]) -> str:
    links = [
        f"that of rank {one.rank} is in {one.operation} {one.sequence} of group {one.group}, which that of rank "
        f"{one.waits_for} has not begun"
        for one in cycle
    ]
    return f"a cycle of process groups on the devices: {', '.join(links)}"


def _key(one: Entry) -> tuple:
    return one.group, one.description, one.call.sequence


def _name(one: Entry) -> str:
    return one.description if one.description not in ("", "undefined") else one.group


def _call_text(one: Entry) -> str:
    return f"{one.call.operation} {one.call.sequence} of group {_name(one)}"


def _ranks_text(ranks: list[int]) -> str:
    return f"{len(ranks)} ranks" if len(ranks) > 4 else f"ranks {', '.join(map(str, ranks))}"
