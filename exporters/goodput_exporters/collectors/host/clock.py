"""Whether the kernel's clock is synchronised, from adjtimex(2), which changes nothing and needs no privilege here.

Where a container's seccomp profile forbids the call, the state is unknown.
"""

from __future__ import annotations

import ctypes
import struct
from typing import NamedTuple

# The beginning of struct timex: modes, offset, freq, maxerror, esterror, status.
_TIMEX = struct.Struct("@Illlli")
_TIMEX_BYTES = 512  # more than it has on any architecture
_TIME_ERROR = 5  # what the call returns if nothing synchronises the clock
_STATUS_NANO = 0x2000


class ClockState(NamedTuple):
    """`offset_seconds` is what is left to correct, the errors are those that the time daemon has set in the kernel."""

    is_synchronised: bool
    offset_seconds: float
    estimated_error_seconds: float
    maximum_error_seconds: float


def read_clock() -> ClockState | None:
    """The state of this machine's clock, None where the call is not allowed."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        result = ctypes.CDLL(None).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    return None if result < 0 else parse_timex(buffer.raw, result)


def parse_timex(raw: bytes, result: int) -> ClockState:
    """The state from the filled structure and what the call returned."""
    _, offset, _, maximum, estimated, status = _TIMEX.unpack_from(raw)
    unit = 1e9 if status & _STATUS_NANO else 1e6
    return ClockState(result != _TIME_ERROR, offset / unit, estimated / 1e6, maximum / 1e6)
