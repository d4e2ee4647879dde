"""Numbers for people: units, digits, and "unknown" for what is not known.

In: seconds, ratios, counts and sums of an account document. Out: text. None and what is no finite number read
"unknown", never 0. The same words and digits as the built-in page's. It knows no HTML.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timezone
from functools import wraps

# Times after 2001 are dates; below, a log counts from some zero of its own.
DATE_SECONDS_MIN, DATE_SECONDS_MAX = 1e9, 2e11
GPU_HOURS_FROM = 1e6
_STEPS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"), (1, "s", 1, "s"))


def _known(text: Callable[..., str]) -> Callable[..., str]:
    """`text` for numbers; "unknown" for the rest."""

    @wraps(text)
    def checked(value: float | None, *others, **options) -> str:
        finite = isinstance(value, int | float) and math.isfinite(value)
        return text(value, *others, **options) if finite else "unknown"

    return checked


@_known
def percent(ratio: float) -> str:
    return f"{100 * ratio:,.1f} %"


@_known
def count(value: float) -> str:
    return f"{value:,.0f}"


@_known
def times(ratio: float) -> str:
    return f"{ratio:.2f}×" if ratio < 100 else f"{ratio:,.0f}×"


@_known
def amount(value: float) -> str:
    """A number of no particular size: whole, or about three digits."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 0.01 or value == 0:
        return f"{value:.2f}"
    return f"{value:.{min(2 - math.floor(math.log10(abs(value))), 12)}f}"


@_known
def scaled(value: float, unit: str) -> str:
    """With a prefix of a thousand: 1.24 PFLOP."""
    size, prefix = next((step for step in _STEPS if abs(value) >= step[0]), _STEPS[-1])
    return f"{amount(value / size)} {prefix}{unit}"


@_known
def duration(seconds: float) -> str:
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds == 0:
        return "0 s"
    if seconds < 0.0995:
        return f"{1e3 * seconds:.0f} ms" if seconds >= 0.0005 else f"{1e6 * seconds:.0f} µs"
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.95 else f"{seconds:.1f} s"
    whole = round(seconds) if seconds < 3600 else 60 * round(seconds / 60)
    size, unit, part, smaller = next(row for row in _UNITS if whole >= row[0])
    rest = whole % size // part
    return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")


@_known
def dollars(value: float, whole: float | None = None) -> str:
    """As many decimals as `whole` needs, so that parts of one sum stand under each other."""
    whole = abs(value if whole is None else whole)
    return f"${value:,.{2 if whole >= 1 else 4 if whole >= 0.01 else 6}f}"


@_known
def moment(seconds: float) -> str:
    """A date where it can be one, else seconds on the log's own clock."""
    if not DATE_SECONDS_MIN <= seconds < DATE_SECONDS_MAX:
        return f"{seconds:,.1f} s"
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


class GpuTime:
    """One unit for all of a run's GPU time, so that a column can be compared by eye.

    GpuTime(document["gpu_seconds"]).text(58.5)  ->  "58.50"
    """

    def __init__(self, total: float):
        self.unit, self._size = ("GPU-hours", 3600) if total >= GPU_HOURS_FROM else ("GPU-seconds", 1)
        self._digits = 1 if total >= 3600 * GPU_HOURS_FROM else 2

    def text(self, seconds: float | None) -> str:
        if seconds is None or not math.isfinite(seconds):
            return "unknown"
        return f"{seconds / self._size:,.{self._digits}f}"

    def said(self, seconds: float | None) -> str:
        """With its unit."""
        text = self.text(seconds)
        return text if text == "unknown" else f"{text} {self.unit}"


class Energy:
    """One unit for all of a run's joules."""

    def __init__(self, total: float):
        self._size, prefix = next((step for step in _STEPS if total >= step[0]), _STEPS[-1])
        self.unit = f"{prefix}J"

    def text(self, joules: float | None) -> str:
        return "unknown" if joules is None else f"{joules / self._size:,.2f}"
