"""Parses an argument that selects steps of a log: `FILE[#RUN][@START..END]`.

START and END are step numbers (`@1000..2000`), times since the first process started (`@10m..1h30m`) or moments
of the clock (`@2026-11-23T10:00..`, UTC without a zone). START belongs to the window, END does not; either can be left out.
"""

from __future__ import annotations

import os
import re
from datetime import datetime, timezone
from typing import NamedTuple

_WINDOW = re.compile(r"@([^@]*)\.\.([^@]*)$")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:d|h|m|s))+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(d|h|m|s)", re.ASCII)
_SECONDS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_NUMBER_MAX = 10**15
STEP, SINCE_START, CLOCK = "step", "time since the start", "moment"


class SelectionError(ValueError):
    """An argument that selects no part of a run; the text says what is expected."""


class Window(NamedTuple):
    """`start` <= x < `end`, None for no bound; step numbers, ns since the run's start or unix ns, by `unit`."""

    unit: str
    start: int | None
    end: int | None
    text: str


class Selection(NamedTuple):
    path: str
    run: str | None
    window: Window | None


def parse(text: str) -> Selection:
    """Raises SelectionError for a window that is none. An argument that is the name of a file selects that file."""
    text, window = (text, None) if os.path.exists(text) else parse_run(text)
    path, _, run = text.partition("#")
    return Selection(path, run or None, window)


def parse_run(text: str) -> tuple[str, Window | None]:
    """What stands before the window, such as the name of a run, and the window. Raises SelectionError."""
    found = _WINDOW.search(text)
    if found is None:
        return text, None
    return text[: found.start()], _window(found[1], found[2])


def _window(start: str, end: str) -> Window:
    low, high = _bound(start), _bound(end)
    if low is None and high is None:
        raise SelectionError("a window needs a start or an end: @1000..2000, @10m..1h or @2026-01-31T10:00..")
    if low is not None and high is not None:
        if low[0] != high[0]:
            raise SelectionError(f"@{start}..{end} goes from a {low[0]} to a {high[0]}")
        if low[1] >= high[1]:
            raise SelectionError(f"@{start}..{end} is empty: it ends where it begins, or earlier")
    unit = (low or high or ("", 0))[0]
    return Window(unit, low and low[1], high and high[1], f"{start}..{end}")


def _bound(text: str) -> tuple[str, int] | None:
    """(unit, value); None for nothing."""
    text = text.strip()
    if not text:
        return None
    if re.fullmatch(r"\d{1,15}", text, re.ASCII):
        return STEP, int(text)
    if _DURATION.fullmatch(text):
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
        return SINCE_START, int(min(seconds, _NUMBER_MAX / 1e6) * 1e9)
    try:
        moment = datetime.fromisoformat(re.sub("[Zz]$", "+00:00", text))
        moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
        since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        raise SelectionError(
            f"{text!r} is no step (1000), time since the start (1h30m) or moment (2026-01-31T10:00)"
        ) from None
    return CLOCK, (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
