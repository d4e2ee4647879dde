"""Microseconds, as a trace writes them, in whole nanoseconds.

In: an integer, or the text of a number. Out: nanoseconds, rounded to the nearest, exact however large they are; None
where it is no finite number. Traces count microseconds whatever `displayTimeUnit` says; that is for the viewer.

    to_ns("1712195495519689.047")   # 1712195495519689047
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

TIME_NS_MAX = 1 << 62
DURATION_NS_MAX = 86_400 * 10**9
_DIGITS_MAX = 40


def to_ns(value) -> int | None:
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
        # Such as 1e999999999 must never become an integer.
        return round(exact * 1000) if exact.is_finite() and -TIME_NS_MAX < exact < TIME_NS_MAX else None
    except (InvalidOperation, ValueError):
        return None
