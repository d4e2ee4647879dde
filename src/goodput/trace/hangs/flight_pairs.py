"""Compares sends with the receives that they meet: both are open, of one size and type or not.

A pair is by its group and the numbers of both ranks in it; of several open calls of a pair the first ones meet."""

from __future__ import annotations

from goodput.account.collective_verdict import CollectiveVerdict
from goodput.account.collectives.calls import Call, GroupCalls, RankCalls, rank_at
from goodput.account.text import bytes_text


def pair_verdict(ranks: list[RankCalls]) -> CollectiveVerdict | None:
    """What is wrong between the two ranks of a pair; a difference first, else the network; None without an open pair."""
    receives = {
        (group.name, group.description, one.rank, rank_at(group, call.peer)): (one, call)
        for one in ranks
        for group, call in _open(one, "recv")
    }
    found = []
    for one in ranks:
        for group, call in _open(one, "send"):
            other = rank_at(group, call.peer)
            met = None if other is None else receives.get((group.name, group.description, other, one.rank))
            if met is not None:
                found.append(_verdict(one, met[0], group, call, met[1]))
    return next((one for one in found if one.kind != "network"), found[0] if found else None)


def _open(rank: RankCalls, operation: str) -> list[tuple[GroupCalls, Call]]:
    """The first open call of each pair and group."""
    found: dict[tuple, tuple[GroupCalls, Call]] = {}
    for group in rank.groups:
        for call in group.recent:
            if call.operation == operation and not call.exit_ns:
                found.setdefault((group.name, group.description, call.peer), (group, call))
    return list(found.values())


def _verdict(
    sender: RankCalls, receiver: RankCalls, group: GroupCalls, send: Call, receive: Call
) -> CollectiveVerdict:
    kind = "dtype" if send.dtype != receive.dtype else "size" if send.bytes != receive.bytes else "network"
    seconds = max(
        sender.seen_ns - send.enter_ns + sender.age_ns,
        receiver.seen_ns - receive.enter_ns + receiver.age_ns,
        0,
    )
    name = group.description if group.description not in ("", "undefined") else group.name
    sent, wanted = (f"{bytes_text(one.bytes)} {one.dtype}".strip() for one in (send, receive))
    both = (
        f"rank {sender.rank} sends {sent} to rank {receiver.rank} (send {send.sequence} of group {name}), "
        f"which receives {wanted} (recv {receive.sequence})"
    )
    what = {"dtype": "different dtypes", "size": "different sizes"}.get(kind)
    reason = f"{what} in a send and its receive: {both}"
    if what is None:
        reason = f"{both}, and neither has ended for {seconds / 1e9:.0f} s: look at the network between them"
    calls = ((sender.rank, send), (receiver.rank, receive))
    return CollectiveVerdict(
        kind, group, send.sequence, "send", (), 2, seconds / 1e9, reason, tuple(sorted(calls))
    )
