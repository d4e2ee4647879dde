"""Numbers, durations, shares and hosts as text, and long lines wrapped."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping
from typing import Any

COLUMNS = 80
# Where a restart resumed, if neither the checkpoint nor the program said it.
UNKNOWN_STEP = (
    "at an unknown step (goodput.resumed(step) after loading declares it; no step counts as lost by it)"
)
# A figure in three digits takes a unit from here on: 999.6 kB are 1 MB, not 1e+03 kB.
THREE_DIGITS_FROM = 0.9995
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|ns|µs|ms|s|min|h|d)(?:\W|$))")


def tenths(parts: list[float]) -> list[int]:
    """Shares of `parts` in tenths of a percent that sum to exactly 1000; all 0 if empty.

    Each is rounded by itself, as elsewhere; the difference to 1000 goes to the parts that were furthest from their
    rounding, and never to the first.
    """
    total = sum(parts)
    if total <= 0:
        return [0] * len(parts)
    exact = [1000 * part / total for part in parts]
    rounded = [math.floor(value + 0.5) for value in exact]
    short = 1000 - sum(rounded)
    sign = 1 if short > 0 else -1
    others = [i for i in range(1, len(parts)) if parts[i] > 0 and (sign > 0 or rounded[i] > 0)]
    others.sort(key=lambda i: (sign * (rounded[i] - exact[i]), i))
    for i in others[: abs(short)]:
        rounded[i] += sign
    return rounded


def unit_of(document: Mapping[str, Any]) -> str:
    """Whose seconds an account sums up: "GPU", or "process" where its ranks have none."""
    return "process" if document.get("is_on_cpu") else "GPU"


def work_time(part: float, whole: float, unit: str) -> str:
    """A part of the seconds that ranks have spent: "16.2 of 19.6 GPU-seconds", "7.0 of 12.3 GPU-hours"."""
    size, name = (3600.0, "hours") if whole >= 7200 else (1.0, "seconds")
    return f"{part / size:,.1f} of {whole / size:,.1f} {unit}-{name}"


def percent(ratio: float | None) -> str:
    """A ratio as percent; half of a tenth is rounded up, as in the table of states."""
    return "unknown" if ratio is None else f"{math.floor(1000 * ratio + 0.5) / 10:.1f} %"


def bytes_text(number: float) -> str:
    """A number of bytes in three digits: "512 B", "4.19 MB"."""
    for size, unit in ((1e18, "EB"), (1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= THREE_DIGITS_FROM * size:
            return f"{digits(number / size)} {unit}"
    return f"{number:.0f} B"


def digits(value: float) -> str:
    """Three digits, or all before the point: "0.123", "45.7", "12,345"."""
    return f"{value:.3g}" if abs(value) < 99.95 else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """A length of time in two or three digits: "0.25 s", "2.0 s", "42 s", "25 min", "3.5 h"."""
    if seconds < 0.0995:
        return f"{1000 * seconds:.3g} ms"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            value = seconds / size
            return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"
    return f"{seconds:.{2 if seconds < 0.995 else 1 if seconds < 9.95 else 0}f} s"


def duration_ns(ns: float) -> str:
    """A length of time in three digits, or all of its seconds: "0 ns", "45.7 ms", "1,234 s"."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= THREE_DIGITS_FROM * size:
            return f"{digits(ns / size)} {unit}"
    return f"{digits(ns)} ns"


def milliseconds(seconds: float) -> str:
    """Milliseconds in three digits, or all of them, so that lengths compare: "0.123 ms", "1,234 ms"."""
    return f"{digits(seconds * 1e3)} ms"


def whole(value: float) -> str:
    """Four digits, or all digits before the point: "0.1234", "45,678"."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def dollars(value: float) -> str:
    """Money with as many decimals as its size needs."""
    return f"${value:,.2f}" if value >= 1 else f"${value:.4f}" if value >= 0.01 else f"${value:.6f}"


def interval(low: float, high: float) -> str:
    """The bounds of a gain's 95 % interval, after the gain; "" where both are shown as one."""
    return f" (95 %: {low:.2f} to {high:.2f})" if f"{low:.2f}" != f"{high:.2f}" else ""


def between(low: str, high: str) -> str:
    """Two bounds as text: one where they look the same."""
    return low if low == high else f"{low} to {high}"


def on(host: str) -> str:
    """ " on HOST", if the host is known."""
    return f" on {host}" if host else ""


def wrap(line: str, indent: int | None = None, columns: int = COLUMNS) -> str:
    """Wrap a line to so many columns; a number stays with its unit.

    Continuations are indented, by default by 4 columns, or by 2 more than the line where that is more.
    """
    if not line.strip():
        return line
    indent = max(4, len(line) - len(line.lstrip()) + 2) if indent is None else indent
    joined = _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", line)
    filled = textwrap.fill(
        joined, columns, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return filled.replace("\N{NO-BREAK SPACE}", " ")
