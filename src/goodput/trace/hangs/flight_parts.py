"""Compares the parts of coalesced calls, which share the sequence number of their call, between the dumps of ranks.

The hang verdict compares one call a number and rank: the part in which the ranks differ stands for the call."""

from __future__ import annotations

from typing import NamedTuple

from goodput.account.collective_verdict import UNEVEN
from goodput.trace.hangs.flight_dump import Dump, Entry

CallId = tuple[str, str, int]  # a group's name and description, and the number of a collective


class Parts(NamedTuple):
    """Which part stands for a call, from 0, and how many it has; `which` is None where the ranks have different numbers."""

    which: int | None
    count: int

    def text(self) -> str:
        if self.which is None:
            return "a coalesced call, of which ranks have different numbers of parts"
        return f"part {self.which + 1} of {self.count} of a coalesced call"


def one_call_each(dumps: list[Dump]) -> tuple[list[Dump], dict[CallId, Parts]]:
    """The dumps with one collective a number, and the numbers of coalesced calls."""
    by_call: dict[CallId, dict[int, list[Entry]]] = {}
    for dump in dumps:
        for entry in dump.entries:
            if not entry.is_p2p:
                by_call.setdefault(_id(entry), {}).setdefault(dump.rank, []).append(entry)
    parts: dict[CallId, Parts] = {}
    chosen: dict[CallId, dict[int, Entry]] = {}
    for name, ranks in by_call.items():
        count = max(map(len, ranks.values()))
        if count > 1:
            which = _first_difference(list(ranks.values()))
            parts[name] = Parts(which, count)
            chosen[name] = {rank: _chosen(own, which) for rank, own in ranks.items()}
    return [_with_chosen(dump, chosen) for dump in dumps], parts


def _id(entry: Entry) -> CallId:
    return entry.group, entry.description, entry.call.sequence


def _first_difference(ranks: list[list[Entry]]) -> int | None:
    """The first part in which the ranks differ, 0 if none; None where they have different numbers of parts."""
    if len({len(own) for own in ranks}) > 1:
        return None
    columns = [{_signature(one) for one in parts} for parts in zip(*ranks, strict=True)]
    return next((at for at, found in enumerate(columns) if len(found) > 1), 0)


def _signature(entry: Entry) -> tuple:
    call = entry.call
    return call.operation, call.dtype, 0 if call.operation in UNEVEN else call.bytes


def _chosen(own: list[Entry], which: int | None) -> Entry:
    """The part; all parts together where `which` is None."""
    entry = own[which or 0]
    size = sum(one.call.bytes for one in own) if which is None else entry.call.bytes
    return entry._replace(call=entry.call._replace(bytes=size), is_over=all(one.is_over for one in own))


def _with_chosen(dump: Dump, chosen: dict[CallId, dict[int, Entry]]) -> Dump:
    entries, seen = [], set()
    for entry in dump.entries:
        name = _id(entry)
        if entry.is_p2p or name not in chosen:
            entries.append(entry)
        elif name not in seen:
            seen.add(name)
            entries.append(chosen[name][dump.rank])
    return dump._replace(entries=entries)
