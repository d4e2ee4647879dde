"""What agents last reported of the TCP connections of a run's ranks, as the verdicts take it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from goodput.account.collectives.slow_link import RankConnections
from goodput.aggregator.ingest.store import Process
from goodput.wire.connections import unpack


class PackedConnections(NamedTuple):
    rank: int
    host: str
    packed: bytes


def packed_connections(processes: Iterable[Process]) -> list[PackedConnections]:
    """Those of the living processes that have any; about 0.2 us a process."""
    return [
        PackedConnections(one.attempt.rank, one.attempt.host, one.connections)
        for one in processes
        if one.connections is not None and one.attempt.known_end_ns() is None
    ]


def unpacked(reported: Iterable[PackedConnections]) -> list[RankConnections]:
    """About 3 us a rank."""
    return [
        RankConnections(rank, host, found.window_ns, found.rows)
        for rank, host, packed in reported
        for found in (unpack(packed),)
    ]
