"""The events of a story as short texts for the marks of a board: what happened, what it cost, and how that is known.

A mark does not change once its event is over, since each change of its text is another time series.
"""

from __future__ import annotations

from typing import NamedTuple

from goodput.account.text import duration, unit_of
from goodput.story.document_types import Story, StoryEvent

MARKS_MAX = 16
TITLE_CHARACTERS_MAX, CLAIMS_CHARACTERS_MAX = 160, 480


class Mark(NamedTuple):
    """`time` is when the event began, in unix s. `cost` is empty where there is none; `claims` have their basis."""

    kind: str
    time: float
    title: str
    cost: str
    claims: str


def marks_of(story: Story, is_final: bool) -> list[Mark]:
    """The costliest events, at most MARKS_MAX in order of time. Of a run that goes on without those that still cost."""
    settled = [one for one in story["events"] if is_final or one["end"] is not None or not one["gpu_seconds"]]
    costliest = sorted(settled, key=lambda one: -(one["gpu_seconds"] or 0.0))[:MARKS_MAX]
    found: dict[tuple, Mark] = {}
    for event in sorted(costliest, key=lambda one: one["time"]):
        mark = _mark(event, unit_of(story))
        found.setdefault((mark.kind, *mark[2:]), mark)
    return list(found.values())


def _mark(event: StoryEvent, unit: str) -> Mark:
    lasted = "" if event["end"] is None else f", for {duration(event['end'] - event['time'])}"
    claims = "; ".join(f"{one['basis']}: {one['text']}" for one in event["claims"])
    return Mark(
        event["kind"],
        event["time"],
        _clean(event["title"] + lasted, TITLE_CHARACTERS_MAX),
        _cost(event, unit),
        _clean(claims, CLAIMS_CHARACTERS_MAX),
    )


def _cost(event: StoryEvent, unit: str) -> str:
    """As "0.51 GPU-hours, $1.3 (estimated)", to two digits; below a minute in seconds."""
    seconds = event["gpu_seconds"]
    if not seconds:
        return ""
    money = "" if event["cost"] is None else f", ${_two_digits(event['cost'])}"
    spent = (
        f"{_two_digits(seconds)} {unit}-seconds"
        if seconds < 60
        else f"{_two_digits(seconds / 3600)} {unit}-hours"
    )
    return f"{spent}{money} ({event['cost_basis']})"


def _two_digits(value: float) -> str:
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}" if rounded >= 1e-4 else "0"


def _clean(text: str, most: int) -> str:
    """Names in it come from other programs."""
    shown = "".join(one if one.isprintable() else "?" for one in text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"
