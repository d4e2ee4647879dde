"""A story as text, of at most 80 columns, without colour."""

from __future__ import annotations

import time
from collections.abc import Iterator

from goodput.account.text import dollars, duration, percent, unit_of, wrap
from goodput.story.document_types import Story, StoryEvent

INDENT = " " * 12
CALENDAR_SECONDS = 3e8  # unix time in 1979: no run is older


def render(story: Story) -> str:
    """Below each event what is known of it, marked as measured, estimated or coincident.

    Times are UTC; of a log whose times are not those of the day, such as one that counts from 0, since its start.
    """
    lines = [*_head(story), ""]
    day = None
    for event in story["events"]:
        if (today := _day(story, event)) != day:
            day = today
            lines += [f"  {day}"]
        lines += [*_event(story, event), ""]
    if not story["events"]:
        lines += [
            "  Nothing happened: no restart, stall, slow rank, change of pace or",
            "  hardware event.",
            "",
        ]
    if story["left_out"]:
        lines += [f"  {story['left_out']} more events, each of which cost less", ""]
    text = "\n".join(lines).rstrip()
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)


def _head(story: Story) -> Iterator[str]:
    world, cost = story["world_size"], story["cost"]
    money = "" if cost is None else f", {dollars(cost)}"
    length = duration(story["end"] - story["start"])
    yield wrap(
        f"the story of run {story['run']}: {story['status']}, {world} rank{'s' * (world != 1)}, {length}, "
        f"{story['gpu_seconds'] / 3600:,.2f} {unit_of(story)}-hours{money}",
        2,
    )
    share = story["told_gpu_seconds"] / story["gpu_seconds"] if story["gpu_seconds"] else 0.0
    if story["events"]:
        yield f"  what is listed here cost {percent(share)} of them"
    if story["pace"].startswith("unknown"):
        yield wrap(f"  changes of pace are {story['pace']}", 2)


def _day(story: Story, event: StoryEvent) -> str:
    if story["start"] < CALENDAR_SECONDS:
        return "since the start of the run"
    return time.strftime("%Y-%m-%d UTC", time.gmtime(event["time"]))


def _clock(story: Story, event: StoryEvent) -> str:
    """At most eight characters: of the day, or hours, minutes and seconds since the start."""
    if story["start"] >= CALENDAR_SECONDS:
        return time.strftime("%H:%M:%S", time.gmtime(event["time"]))
    seconds = round(event["time"] - story["start"])
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _event(story: Story, event: StoryEvent) -> Iterator[str]:
    clock = f"{_clock(story, event):<8}"
    lasted = "" if event["end"] is None else f", for {duration(event['end'] - event['time'])}"
    lasted = "" if event["kind"] in ("stall", "checkpoint", "no checkpoint") else lasted
    yield wrap(f"  {clock}  {event['title']}{lasted}", len(INDENT))
    if event["gpu_seconds"] is not None:
        money = "" if event["cost"] is None else f", {dollars(event['cost'])}"
        yield f"{INDENT}{_work_time(event['gpu_seconds'], unit_of(story))}{money} ({event['cost_basis']})"
    for claim in event["claims"]:
        yield wrap(f"{INDENT}{claim['basis']}: {claim['text']}", len(INDENT) + 2)


def _work_time(seconds: float, unit: str) -> str:
    """Hours from a minute on."""
    hours = seconds / 3600
    if seconds < 60:
        return f"{seconds:.2g} {unit}-seconds"
    return f"{hours:,.2f} {unit}-hours" if hours >= 0.1 else f"{hours:.2g} {unit}-hours"
