"""Request bodies of Prometheus's remote write 1.0: protobuf in a snappy frame, encoded by hand.

A sample is 18 bytes of a fixed layout, so numpy encodes a whole series at once (about 20 ns a sample); snappy is used
without compression, as literals. Times must need six bytes as a varint (2004 to 2109).

    body = request([({"__name__": "up", "job": "a"}, np.array([1767600000000]), np.array([1.0]))])
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

import numpy as np

# The staleness mark that Prometheus writes where a series ends; any other NaN is a value.
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
_STALE_BITS = np.uint64(0x7FF0000000000002)
_LITERAL_BYTES_MAX = 1 << 24


def is_stale(values: np.ndarray) -> np.ndarray:
    """Which of the values are staleness marks."""
    return values.view(np.uint64) == _STALE_BITS


def request(series: Iterable[tuple[Mapping[str, str], np.ndarray, np.ndarray]]) -> bytes:
    """One WriteRequest from (labels, times in ms, values); labels are sorted, as the protocol requires."""
    parts = []
    for labels, times_ms, values in series:
        body = b"".join(_label(name, labels[name]) for name in sorted(labels)) + _samples(times_ms, values)
        parts += [b"\x0a", _varint(len(body)), body]
    return _snappy(b"".join(parts))


def _label(name: str, value: str) -> bytes:
    one, two = name.encode(), value.encode()
    body = b"\x0a" + _varint(len(one)) + one + b"\x12" + _varint(len(two)) + two
    return b"\x0a" + _varint(len(body)) + body


def _samples(times_ms: np.ndarray, values: np.ndarray) -> bytes:
    """Each: field 2 of 16 bytes, in it field 1 (a double) and field 2 (a varint of six bytes)."""
    out = np.empty((len(values), 18), np.uint8)
    out[:, 0], out[:, 1], out[:, 2], out[:, 11] = 0x12, 16, 0x09, 0x10
    out[:, 3:11] = np.ascontiguousarray(values, "<f8").view(np.uint8).reshape(-1, 8)
    at = np.asarray(times_ms, np.int64)
    if len(at) and not (at.min() >= 1 << 35 and at.max() < 1 << 42):
        raise ValueError(f"times from {at.min()} to {at.max()} ms do not fit six bytes")
    for byte in range(6):
        out[:, 12 + byte] = (at >> (7 * byte)) & 0x7F | (0x80 if byte < 5 else 0)
    return out.tobytes()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _snappy(body: bytes) -> bytes:
    parts = [_varint(len(body))]
    for at in range(0, len(body), _LITERAL_BYTES_MAX):
        piece = body[at : at + _LITERAL_BYTES_MAX]
        # Tag 62: a literal whose length less one follows in three bytes.
        parts += [b"\xf8", (len(piece) - 1).to_bytes(3, "little"), piece]
    return b"".join(parts)
