"""Parsers of files in /sys/class/net/DEVICE (Documentation/ABI/testing/sysfs-class-net)."""

from __future__ import annotations

from goodput_exporters.collector import ParseError
from goodput_exporters.system.files import parse_count

# The kernel's SPEED_UNKNOWN is -1, which some drivers pass on unsigned.
_SPEED_UNKNOWN = (0, 65_535, 4_294_967_295)
_BYTES_PER_SECOND_PER_MEGABIT = 125_000


def parse_speed(text: str) -> int | None:
    """Bytes per second from a speed in Mbit/s, None where unknown. Raises ParseError."""
    text = text.strip()
    if text.startswith("-"):
        parse_count(text[1:])
        return None
    speed = parse_count(text)
    return None if speed in _SPEED_UNKNOWN else speed * _BYTES_PER_SECOND_PER_MEGABIT


def parse_carrier(text: str) -> int:
    """1 with carrier, 0 without. Raises ParseError."""
    carrier = parse_count(text)
    if carrier > 1:
        raise ParseError(f"carrier is {carrier}, expected 0 or 1")
    return carrier
