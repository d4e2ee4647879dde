"""TCP connections of a rank that waits for communication, as they travel in its report: the kernel's TCP_INFO."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Struct

CONNECTIONS_MAX = 8
ADDRESS_MAX = 64
_NUMBER_MAX = 1 << 62
_FEW = msgspec.Meta(max_length=64)


class ConnectionRow(Struct, array_like=True, frozen=True, gc=False):
    """The connections between two interfaces, with the addresses of the busiest: "10.0.0.1:4711", "[fd00::1]:4711".

    In the window: `busy_ns` of the busiest with data that the network had not delivered yet, `bytes` sent and acknowledged,
    `segments` with data sent, of which `retransmitted`. At its end, of the connection that waits longest for an
    acknowledgement: the smoothed round trip time, `unacked` segments, how many times the oldest of these was sent again,
    and the time since the last acknowledgement.
    """

    local: str
    remote: str
    busy_ns: int
    bytes: int
    segments: int
    retransmitted: int
    rtt_ns: int
    unacked: int
    retransmits: int
    silent_ns: int


class Connections(Struct, array_like=True, frozen=True, gc=False):
    """Those of a rank that were busy longest, none within its host; `window_ns` 0: since they were opened."""

    window_ns: int
    rows: Annotated[tuple[ConnectionRow, ...], _FEW] = ()


def connections_problem(connections: Connections) -> str:
    """What is wrong with them, "" if nothing is."""
    if len(connections.rows) > CONNECTIONS_MAX:
        return f"{len(connections.rows)} connections, {CONNECTIONS_MAX} at most"
    if not 0 <= connections.window_ns < _NUMBER_MAX:
        return "the window of its connections is negative or too long"
    for row in connections.rows:
        if any(
            not 0 < len(text) <= ADDRESS_MAX or not text.isprintable() for text in (row.local, row.remote)
        ):
            return f"an address of connection {row.local[:40]!r} is empty, too long or not printable"
        numbers = (
            *(row.busy_ns, row.bytes, row.segments, row.retransmitted),
            *(row.rtt_ns, row.unacked, row.retransmits, row.silent_ns),
        )
        if min(numbers) < 0 or max(numbers) >= _NUMBER_MAX:
            return f"connection {row.local!r} has a number out of range"
    return ""


_decoder = msgspec.msgpack.Decoder(Connections)


def pack(connections: Connections) -> bytes:
    """About 80 bytes a row, where the objects take 500."""
    return msgspec.msgpack.encode(connections)


def unpack(packed: bytes) -> Connections:
    """What `pack` was given."""
    return _decoder.decode(packed)
