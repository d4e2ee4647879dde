"""Finds where each step begins and ends on a device.

A mark (ProfilerStep#N) shows when the *host* was in the step. A GPU runs behind the host, so on the GPU a step ends
when its mark has ended *and* the compute launched by then has finished, and the next begins no earlier. The last step
also includes the copies and collectives that it launched. Without launch times the marks are the steps. Time between
steps belongs to none. Without marks the trace is cut at each end of Optimizer.step, and the rest is a last step;
without those the whole trace is one step."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from goodput.trace import names
from goodput.trace.columns import Columns, DeviceEvents, Mark

WHOLE = "whole trace"


@dataclass(slots=True)
class Window:
    name: str
    start: int
    end: int


def bounds_of(windows: Iterable[Window]) -> array:
    """The windows as a set of spans."""
    return array("q", [at for window in windows for at in (window.start, window.end)])


def windows(columns: Columns, pids: set) -> tuple[str, list[Window]]:
    """(source, windows on the host) of the processes `pids`, or of any process if these have no marks."""
    for source, marks in (("ProfilerStep", columns.steps), ("Optimizer.step", columns.optimizers)):
        marks = [mark for mark in marks if mark.start < mark.end]
        own = [mark for mark in marks if columns.threads[mark.thread].pid in pids] or marks
        if own and source == "ProfilerStep":
            return source, _marked(own)
        if own:
            return source, _cut(own, columns.first, columns.last)
    return WHOLE, [Window(WHOLE, columns.first, columns.last)]


def _marked(marks: Iterable[Mark]) -> list[Window]:
    """Where marks overlap (two threads can set the same), time belongs to the one that began first."""
    out: list[Window] = []
    for mark in sorted(marks, key=lambda mark: (mark.start, mark.end, mark.name)):
        start = max(mark.start, out[-1].end) if out else mark.start
        if start < mark.end:
            out.append(Window(mark.name, start, mark.end))
    return out


def _cut(marks: list[Mark], first: int, last: int) -> list[Window]:
    """Of several optimizers the first one's steps cut the trace, since the last of a round is not known."""
    name = min(marks, key=lambda mark: mark.start).name
    out, start = [], first
    for end in sorted({mark.end for mark in marks if mark.name == name}):
        out.append(Window(f"{len(out) + 1} (to {name})", start, end))
        start = end
    if start < last:
        out.append(Window(f"{len(out) + 1} (after {name})", start, last))
    return out


def on_device(host: list[Window], rows: DeviceEvents, launched: array) -> list[Window]:
    """The windows of a device, from those of the host and the launch time of each event (-1: unknown)."""
    starts = [window.start for window in host]
    ends = [window.end for window in host]
    for i, at in enumerate(launched):
        if at < starts[0]:
            continue
        place = bisect_right(starts, at) - 1
        if at >= host[place].end:
            continue
        last = place == len(host) - 1
        if (last or rows.kinds[i] == names.COMPUTE) and rows.ends[i] > ends[place]:
            ends[place] = rows.ends[i]
    out: list[Window] = []
    for window, end in zip(host, ends, strict=True):
        start = max(window.start, out[-1].end) if out else window.start
        out.append(Window(window.name, start, max(start, end)))
    return out
