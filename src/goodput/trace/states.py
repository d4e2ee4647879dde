"""Assigns each moment of a step to one of six states of a device, which sum to the step's wall time.

The first that applies:

1. `compute`: a compute kernel runs, on any stream.
2. `communication`: a kernel of a collective runs; without compute beside it, it is *exposed*.
3. `copy`: a copy or memset runs; without compute or a collective beside it, it is *exposed*.

Otherwise nothing runs. Such a gap ends with the device's next work. If that work was launched before the gap began, it
was *queued* behind another stream or the hardware: `idle`. Otherwise the device waited for the host, and the threads
that launch to this device decide:

4. `host`: one of them is in an operator, or in a runtime call that does not wait.
5. `loader`: one waits in the data loader, whatever it runs in there.
6. `idle`: one waits for the device (…Synchronize).
7. `host`: the trace shows none of them active, and the next work was launched later: Python ran. If no launch is known
   (no correlation ids, or no work follows): `host` inside an annotation or a Python frame, else `idle`.

Nested spans of a thread count as loader, wait, operator, annotation, in that order. On a CPU the work is the operators
of the training threads, launched when they begin; `communication` is a collective in progress (`gloo:…`) or a thread
inside a collective call (`c10d::…`); there are no copies.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from goodput.trace import names
from goodput.trace.columns import DeviceEvents, Thread
from goodput.trace.spans import Gathered, intersect, merge, subtract, union
from goodput.trace.steps import NO_LAUNCH

STATES = ("compute", "communication", "copy", "loader", "host", "idle")


@dataclass(slots=True)
class Host:
    """Activity of the threads that launch to a device; `busy`, `loader` and `sync` are disjoint."""

    busy: array
    loader: array
    sync: array
    weak: array


@dataclass(slots=True)
class Work:
    """Spans of each kind of work, and for each span of `ran`, the union, the launch time of its first event."""

    compute: array
    communication: array
    copy: array
    ran: array
    launched: array


def device_work(rows: DeviceEvents, launched: array) -> Work:
    """The work of a device, from its events and the launch time of each."""
    gathered = [Gathered() for _ in names.KINDS]
    for start, end, kind in zip(rows.starts, rows.ends, rows.kinds, strict=True):
        gathered[kind].add(start, end)
    kinds = [one.spans() for one in gathered]
    ran = union(kinds)
    starts = ran[::2]
    first = array("q", [NO_LAUNCH]) * len(starts)
    for start, end, at in zip(rows.starts, rows.ends, launched, strict=True):
        if at == NO_LAUNCH or start == end:
            continue
        i = bisect_left(starts, start)
        if i < len(starts) and starts[i] == start and (first[i] == NO_LAUNCH or at < first[i]):
            first[i] = at
    compute, communication, copy = kinds
    return Work(compute, communication, copy, ran, first)


def host_of(threads: Iterable[Thread]) -> Host:
    """The activity of the threads that launch to a device."""
    busy = loader = sync = weak = array("q")
    for thread in threads:
        waits, syncs = _spans(thread, names.LOADER), _spans(thread, names.SYNC)
        inside = subtract(merge(_spans(thread, names.BUSY), _spans(thread, names.CALL)), waits)
        busy = merge(busy, subtract(inside, syncs))
        loader = merge(loader, waits)
        sync = merge(sync, syncs)
        weak = merge(weak, _spans(thread, names.WEAK))
    loader = subtract(loader, busy)
    return Host(busy, loader, subtract(subtract(sync, busy), loader), weak)


def processor_work(threads: Iterable[Thread], others: Iterable[Thread], wire: array) -> tuple[Work, Host]:
    """A CPU as the device: `threads` train, `others` of the process may be inside collectives."""
    threads = list(threads)
    compute = loader = weak = array("q")
    calls = wire
    for thread in threads:
        waits, inside = _spans(thread, names.LOADER), _spans(thread, names.CALL)
        calls = merge(calls, subtract(inside, waits))
        compute = merge(compute, subtract(subtract(_spans(thread, names.BUSY), waits), inside))
        loader = merge(loader, waits)
        weak = merge(weak, _spans(thread, names.WEAK))
    for thread in others:
        calls = merge(calls, _spans(thread, names.CALL))
    ran, nothing = merge(compute, calls), array("q")
    return Work(compute, calls, nothing, ran, ran[::2]), Host(nothing, loader, nothing, weak)


def _spans(thread: Thread, kind: int) -> array:
    gathered = thread.spans.get(kind)
    return array("q") if gathered is None else gathered.spans()


def split(work: Work, host: Host, steps: array) -> tuple[dict[str, array], dict[str, array]]:
    """(spans of each state, gaps by the launch of their end: `queued`, `late`, `unknown`), all inside `steps`."""
    both = merge(work.compute, work.communication)
    queued, late, unknown = _gaps(work, subtract(steps, work.ran))
    waiting = merge(late, unknown)
    busy = intersect(waiting, host.busy)
    loader = intersect(waiting, host.loader)
    quiet = subtract(subtract(subtract(waiting, busy), loader), host.sync)
    python = merge(intersect(quiet, late), intersect(intersect(quiet, unknown), host.weak))
    at_host = merge(busy, python)
    states = {
        "compute": intersect(work.compute, steps),
        "communication": intersect(subtract(work.communication, work.compute), steps),
        "copy": intersect(subtract(work.copy, both), steps),
        "loader": loader,
        "host": at_host,
        "idle": merge(queued, subtract(subtract(waiting, at_host), loader)),
    }
    return states, {"queued": queued, "late": late, "unknown": unknown}


def _gaps(work: Work, idle: array) -> tuple[array, array, array]:
    """(queued, late, unknown) parts of `idle`, by whether the work that ends a gap was launched before it."""
    queued, late, unknown = array("q"), array("q"), array("q")
    ran, place = work.ran, 0
    for i in range(0, len(idle), 2):
        start, end = idle[i], idle[i + 1]
        while place < len(ran) and ran[place] < end:
            place += 2
        launched = work.launched[place // 2] if place < len(ran) else NO_LAUNCH
        if launched == NO_LAUNCH:
            into = unknown
        else:
            into = queued if place and launched < ran[place - 1] else late
        into.append(start)
        into.append(end)
    return queued, late, unknown
