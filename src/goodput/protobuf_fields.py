"""Fields of protobuf messages, for the formats that are written by hand (protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations

_BYTES = [bytes((value,)) for value in range(0x80)]


def varint(value: int) -> bytes:
    """`value`, which is not negative, in groups of seven bits, the lowest first."""
    if value < 0x80:
        return _BYTES[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def bytes_field(number: int, value: bytes) -> bytes:
    """Field `number` with its length before it: bytes, a text or a message."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def text_field(number: int, text: str) -> bytes:
    """What UTF-8 cannot hold, such as half of a surrogate pair, becomes a question mark."""
    return bytes_field(number, text.encode("utf-8", "replace"))
