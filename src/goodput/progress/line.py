"""A run's progress as one line of text, at most of a given width."""

from __future__ import annotations

from goodput.account import FINAL_STATUSES
from goodput.account.text import digits, duration, percent
from goodput.progress.estimate import Progress


def eta_text(progress: Progress) -> str:
    """ "ETA 3 h 20 min", "" where it is unknown or the run is over."""
    left = progress.remaining_seconds
    if left is None or not progress.total or progress.status in FINAL_STATUSES:
        return ""
    return f"ETA {clock(left)}"


def clock(seconds: float) -> str:
    """A time to wait: "40 s", "12 min", "3 h 20 min", "2 d 4 h"."""
    minutes = round(seconds / 60)
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


def line(progress: Progress, width: int) -> str:
    """Steps, rate, ETA, goodput, slowest rank, restarts: in short where they do not fit, then as much as fits.

    The steps are always there, cut.
    """
    parts = _parts(progress, is_short=False)
    if len(", ".join(parts)) > width:
        parts = _parts(progress, is_short=True)
    text = ""
    for part in parts:
        longer = f"{text}, {part}" if text else part
        if text and len(longer) > width:
            break
        text = longer
    return text[:width]


def _parts(progress: Progress, is_short: bool) -> list[str]:
    """Those that are known. In short, steps are "20/100", goodput has no tenths, and a slow rank no reason."""
    done = "no step yet" if progress.done is None else f"step {progress.done}"
    if progress.total and progress.done is not None:
        done = f"{progress.done}/{progress.total}"
        done = done if is_short else f"step {done} {percent(progress.share)}"
    parts = [f"{progress.run}: {done}"]
    if progress.status != "running":
        parts.append(progress.status)
    rate = progress.steps_per_second
    if rate:
        parts.append(f"{digits(rate)} steps/s" if rate >= 1 else f"{duration(1 / rate)} a step")
    parts.append(eta_text(progress))
    if progress.goodput is not None:
        share = f"{100 * progress.goodput:.0f} %" if is_short else percent(progress.goodput)
        parts.append(f"goodput {share}")
    if progress.slowest_rank is not None:
        because = f" ({progress.slowest_because})" if progress.slowest_because and not is_short else ""
        parts.append(f"slowest rank {progress.slowest_rank}{because}")
    if progress.restarts:
        parts.append(f"{progress.restarts} restart{'s' * (progress.restarts > 1)}")
    return [part for part in parts if part]
