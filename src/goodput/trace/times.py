"""Converts the microseconds of a trace to whole nanoseconds, exactly for any size.

Traces use microseconds whatever `displayTimeUnit` says, which is only for the viewer.

    to_ns("1712195495519689.047")   # 1712195495519689047"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

TIME_NS_MAX = 1 << 62
DURATION_NS_MAX = 86_400 * 10**9
_DIGITS_MAX = 40


def to_ns(value) -> int | None:
    """Nanoseconds of an integer or a numeric text, rounded to the nearest; None if it is not a finite number."""
    if type(value) is int:
        return value * 1000
    if type(value) is not str:
        return None
    whole, _, part = value.partition(".")
    if len(part) <= 3 and whole.isascii() and whole.isdigit() and len(whole) <= _DIGITS_MAX:
        if not part:
            return int(whole) * 1000
        if part.isascii() and part.isdigit():
            return int(whole + (part + "00")[:3])
    try:
        exact = Decimal(value)
        # Converting 1e999999999 to an integer would take all memory.
        return round(exact * 1000) if exact.is_finite() and -TIME_NS_MAX < exact < TIME_NS_MAX else None
    except (InvalidOperation, ValueError):
        return None
