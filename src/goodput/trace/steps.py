"""Finds where each step begins and ends on a device.

A mark (ProfilerStep#N) shows when the *host* was in the step. A GPU runs behind the host, so on the GPU a step ends
when its mark has ended *and* the compute launched by then has finished, and the next begins no earlier. The first step
begins no earlier than the end of what was launched before it, unless its own compute begins first. The last step also
includes the copies and collectives that it launched. Without launch times the marks are the steps. Time between steps
belongs to none.

Without marks a step lasts from one end of Optimizer.step to the next: before the first end lies set-up, after the last
whatever follows training. With a single Optimizer.step the step begins at the first call of a loader, if there is one,
else with the first work. Without those the trace is one step from the first work to the last, on each device."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from goodput.trace import names
from goodput.trace.columns import Columns, DeviceEvents, Mark

WHOLE = "whole trace"
NO_LAUNCH = -(1 << 63)  # The launch time of work whose launch is not in the trace.
NEVER = 1 << 63  # later than any time or id


@dataclass(slots=True)
class Window:
    name: str
    start: int
    end: int


def bounds_of(windows: Iterable[Window]) -> array:
    """The windows as a set of spans."""
    return array("q", [at for window in windows for at in (window.start, window.end)])


@dataclass(slots=True)
class Steps:
    """The windows on the host, and which ends of theirs no mark sets: these are cut to the work."""

    source: str
    windows: list[Window]
    begins_with_work: bool = False
    ends_with_work: bool = False


def host_steps(columns: Columns, pids: set) -> Steps:
    """The steps of the processes `pids`, or of any process if these have no marks."""
    for source, marks in (("ProfilerStep", columns.steps), ("Optimizer.step", columns.optimizers)):
        marks = [mark for mark in marks if mark.start < mark.end]
        own = [mark for mark in marks if columns.threads[mark.thread].pid in pids] or marks
        if own and source == "ProfilerStep":
            return Steps(source, _marked(own))
        if own:
            return _between_ends(own, columns)
    return Steps(WHOLE, [Window(WHOLE, *columns.extent())], True, True)


def _marked(marks: Iterable[Mark]) -> list[Window]:
    """Where marks overlap (two threads can set the same), time belongs to the one that began first."""
    out: list[Window] = []
    for mark in sorted(marks, key=lambda mark: (mark.start, mark.end, mark.name)):
        start = max(mark.start, out[-1].end) if out else mark.start
        if start < mark.end:
            out.append(Window(mark.name, start, mark.end))
    return out


def _between_ends(marks: list[Mark], columns: Columns) -> Steps:
    """Steps between the ends of optimizer steps; of several, of the first optimizer, since the last is unknown."""
    first = min(marks, key=lambda mark: mark.start)
    ends = sorted({mark.end for mark in marks if mark.name == first.name})
    begins_with_work = False
    if len(ends) == 1:
        call = _first_loader_call(columns, first)
        begins_with_work = call is None
        ends.insert(0, columns.extent()[0] if call is None else call)
    found = [
        Window(f"{number} (to {first.name})", start, end)
        for number, (start, end) in enumerate(pairwise(ends), start=1)
    ]
    return Steps("Optimizer.step", found, begins_with_work)


def _first_loader_call(columns: Columns, optimizer: Mark) -> int | None:
    """The first call of a loader before the only optimizer step, where that step begins; None without one."""
    pid = columns.threads[optimizer.thread].pid
    calls = [
        thread.spans[names.LOADER].spans()[0]
        for thread in columns.threads
        if thread.pid == pid and names.LOADER in thread.spans and thread.spans[names.LOADER].spans()
    ]
    return min((call for call in calls if call < optimizer.start), default=None)


def cut_to_work(steps: Steps, found: list[Window], ran: array) -> tuple[int, int]:
    """Cut the ends that no mark sets to the spans of work `ran`; returns the lengths cut off before and after."""
    if not ran:
        return 0, 0
    before = after = 0
    if steps.begins_with_work and ran[0] < found[0].end:
        before = max(ran[0] - steps.windows[0].start, 0)
        found[0].start = max(found[0].start, ran[0])
    if steps.ends_with_work:
        after = max(found[-1].end - ran[-1], 0)
        found[-1].end = max(found[-1].start, ran[-1])
    return before, after


def on_device(host: list[Window], rows: DeviceEvents, launched: array, first_id: int) -> list[Window]:
    """The windows of a device, from those of the host and the launch time of each event (NO_LAUNCH: unknown).

    `first_id` is the smallest correlation id of any launch in the trace."""
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
    begin = _first_begin(starts[0], rows, launched, first_id)
    for window, end in zip(host, ends, strict=True):
        start = max(window.start, out[-1].end if out else begin)
        out.append(Window(window.name, start, max(start, end)))
    return out


def _first_begin(mark: int, rows: DeviceEvents, launched: array, first_id: int) -> int:
    """When the device is done with what was launched before the first mark; `mark` if that is earlier or not known.

    Work whose launch is not in the trace was launched earlier if it began before the mark, or if its correlation id
    is smaller than any launch's: ids count up."""
    if first_id == NEVER:
        return mark
    own = NEVER
    until = compute_until = mark
    for i, (at, start, end) in enumerate(zip(launched, rows.starts, rows.ends, strict=True)):
        if at >= mark:
            if start < own and rows.kinds[i] == names.COMPUTE:
                own = start
        elif end > compute_until and (at != NO_LAUNCH or start < mark or 0 < rows.correlations[i] < first_id):
            until = max(until, end)
            if rows.kinds[i] == names.COMPUTE:
                compute_until = end
    return max(compute_until, min(until, own))
