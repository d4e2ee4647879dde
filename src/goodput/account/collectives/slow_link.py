"""The rank with a slow link, from what the kernel knows of the TCP connections between the ranks of a run.

A flow is what one rank sends another. While it has data that the network has not delivered it is busy; waiting for a late
peer is not that, since then nothing is to be sent or the peer's window is full. So all flows of a ring wait for the slow one
and only that one is busy. A flow is slow where it is busy for BUSY_MIN of the window and either carries 1 / TIMES_MIN of
what flows with about as much data do while they are busy (the best quarter of them), or has LOSS_MIN of its segments sent
again, LOST_MIN at least. It is stalled where the oldest segment was sent RETRANSMITS_MIN times and nothing was acknowledged for SILENT_NS.

Of slow flows those count that are busy at least half as long as the busiest: what is sent for a shorter time is nothing that
all wait for. Where several are slow the interface that all of them have in common is named, else the host; where these have none
in common, the network is slow and no rank's link. Connections to anything but ranks of the run, such as storage, do not
count. Some 5 us a connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from goodput.account.collectives import document_types

if TYPE_CHECKING:
    from goodput.wire.connections import ConnectionRow  # needs msgspec, which trainers may not have

BUSY_MIN, TIMES_MIN = 0.2, 4.0
LOSS_MIN, LOST_MIN = 0.01, 5  # share and number
COMPARABLE_MIN = 0.125  # of the data of the flow with most
RETRANSMITS_MIN, SILENT_NS = 3, 5 * 10**9


class RankConnections(NamedTuple):
    """What a rank's agent last reported of its connections."""

    rank: int
    host: str
    window_ns: int
    rows: Sequence[ConnectionRow]


@dataclass(frozen=True)
class Flow:
    """What `rank` sent `peer` in the window. `peer` is None where several ranks have its address.

    `bytes_per_second` is while it is busy.
    """

    rank: int
    host: str
    address: str
    peer: int | None
    peer_host: str
    peer_address: str
    busy_share: float
    bytes: int
    bytes_per_second: float
    segments: int
    retransmitted: int
    rtt_ns: int
    retransmits: int
    silent_ns: int

    def is_stalled(self) -> bool:
        return self.retransmits >= RETRANSMITS_MIN and self.silent_ns >= SILENT_NS


@dataclass(frozen=True)
class SlowLink:
    """The slowest flow, the rank that is named, and how many flows of its interface are slow. `usual` in bytes a second.

    With one slow flow the sender is named, with its peer; with several the rank that all of them have in common.
    """

    rank: int
    host: str
    address: str
    worst: Flow
    count: int
    usual: float | None = None


def slow_link(ranks: Iterable[RankConnections]) -> SlowLink | None:
    """The slow link of ranks that go on; None if there is none, or no one interface that explains it."""
    found = [flow for flow in flows(ranks) if flow.segments]
    most = max((flow.bytes for flow in found), default=0)
    comparable = [flow for flow in found if flow.bytes >= COMPARABLE_MIN * most]
    rates = sorted(flow.bytes_per_second for flow in comparable)
    usual = rates[len(rates) * 3 // 4] if rates else 0.0
    slow = [
        flow
        for flow in found
        if flow.busy_share >= BUSY_MIN
        and (_is_lossy(flow) or (flow in comparable and TIMES_MIN * flow.bytes_per_second <= usual))
    ]
    busiest = max((flow.busy_share for flow in slow), default=0.0)
    slow = [flow for flow in slow if 2 * flow.busy_share >= busiest]
    worst = max(slow, key=lambda flow: (flow in comparable, flow.busy_share), default=None)
    return _named(slow, worst, usual)


def stalled_link(ranks: Iterable[RankConnections]) -> SlowLink | None:
    """The link of ranks that hang over which nothing comes through."""
    ranks = list(ranks)
    if not any(row.unacked and row.retransmits >= RETRANSMITS_MIN for one in ranks for row in one.rows):
        return None
    stalled = [flow for flow in flows(ranks) if flow.is_stalled()]
    return _named(stalled, max(stalled, key=lambda flow: flow.silent_ns, default=None), None)


def flows(ranks: Iterable[RankConnections]) -> list[Flow]:
    """What each rank sends each other rank of the run."""
    known = list(ranks)
    owners: dict[str, set[int]] = {}  # ranks by address, with the port and without
    hosts = {one.rank: one.host for one in known}
    for one in known:
        for row in one.rows:
            for name in (row.local, ip_of(row.local)):
                owners.setdefault(name, set()).add(one.rank)
    found = []
    for one in known:
        for row in one.rows:
            there = owners.get(row.remote) or owners.get(ip_of(row.remote)) or set()
            if there and one.rank not in there:
                peer = next(iter(there)) if len(there) == 1 else None
                found.append(_flow(one, row, peer, hosts[min(there)]))
    return found


def _flow(one: RankConnections, row: ConnectionRow, peer: int | None, peer_host: str) -> Flow:
    return Flow(
        one.rank,
        one.host,
        ip_of(row.local),
        peer,
        peer_host,
        ip_of(row.remote),
        busy_share=min(row.busy_ns / one.window_ns, 1.0) if one.window_ns else 0.0,
        bytes=row.bytes,
        bytes_per_second=row.bytes / max(row.busy_ns, 1000) * 1e9,
        segments=row.segments,
        retransmitted=row.retransmitted,
        rtt_ns=row.rtt_ns,
        retransmits=row.retransmits if row.unacked else 0,
        silent_ns=row.silent_ns if row.unacked else 0,
    )


def _is_lossy(flow: Flow) -> bool:
    return flow.retransmitted >= LOST_MIN and flow.retransmitted >= LOSS_MIN * flow.segments


class _End(NamedTuple):
    rank: int | None
    host: str
    address: str


def _ends(flow: Flow) -> tuple[_End, _End]:
    return _End(flow.rank, flow.host, flow.address), _End(flow.peer, flow.peer_host, flow.peer_address)


def _named(slow: list[Flow], worst: Flow | None, usual: float | None) -> SlowLink | None:
    """The link that explains all slow flows, by the interface that they have in common."""
    if worst is None:
        return None
    if len({frozenset((flow.address, flow.peer_address)) for flow in slow}) == 1:
        return SlowLink(worst.rank, worst.host, worst.address, worst, 1, usual)
    end = _common_end(slow, worst, "address")
    if end is None and all(flow.host != flow.peer_host for flow in slow):
        end = _common_end(slow, worst, "host")
    if end is None or end.rank is None:
        return None
    return SlowLink(end.rank, end.host, end.address, worst, len(slow), usual)


def _common_end(slow: list[Flow], worst: Flow, name: str) -> _End | None:
    """The end of the worst flow whose address or host all flows have, if it is the only one."""
    common = set.intersection(*({getattr(end, name) for end in _ends(flow)} for flow in slow))
    return next((end for end in _ends(worst) if common == {getattr(end, name)}), None)


def ip_of(address: str) -> str:
    """The IP address of one with a port."""
    return address.rpartition(":")[0].strip("[]")


def slow_link_document(found: SlowLink) -> document_types.SlowLink:
    flow = found.worst
    return {
        "rank": found.rank,
        "host": found.host,
        "address": found.address,
        "sender": flow.rank,
        "sender_host": flow.host,
        "receiver": flow.peer,
        "receiver_host": flow.peer_host,
        "receiver_address": flow.peer_address,
        "flows": found.count,
        "bytes_per_second": flow.bytes_per_second,
        "usual_bytes_per_second": found.usual,
        "busy_share": flow.busy_share,
        "retransmitted_share": min(flow.retransmitted / flow.segments, 1.0) if flow.segments else 0.0,
        "rtt_seconds": flow.rtt_ns / 1e9,
        "retransmits": flow.retransmits,
        "silent_seconds": flow.silent_ns / 1e9,
    }
