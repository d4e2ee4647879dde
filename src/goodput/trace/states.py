"""At each moment of a step, one state of a device; six in all, which sum to the step's wall time.

In: the sets of moments of one device and of the threads that feed it. Out: a set per state, disjoint, and together the
steps. The first that holds:

1. `compute`: a computing kernel runs (on any stream).
2. `communication`: a kernel of a collective runs. With nothing of 1 beside it, it is *exposed*.
3. `copy`: a copy or memset runs. With nothing of 1 or 2 beside it, it is *exposed*.

Else nothing runs. Such a gap ends with the device's next work. If that was launched before the gap began, the device
had work and did not start it: `idle` (*queued*: it waits for another stream, or for the hardware to launch). Else it
waits for the host, and what the threads that launch to this device do says which:

4. `host`: one of them is in an operator or a runtime call that does not wait.
5. `loader`: one waits in the data loader (whatever it runs in there).
6. `idle`: one waits for the device (…Synchronize).
7. `host`: none does anything that the trace shows, and the next work was launched later: Python ran.
   Where no launch is known (no correlation ids, or no work follows): `host` inside an annotation or a Python
   frame, else `idle`.

A thread is in the loader, in a wait, in an operator, in an annotation, in that order, where they are nested. On a CPU
the work is the operators of the training threads, launched when they begin; `communication` is a collective under way
(`gloo:…`) or a thread inside its call (`c10d::…`); there are no copies. It does not know where steps come from.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from goodput.trace import names
from goodput.trace.columns import DeviceEvents, Thread
from goodput.trace.spans import Gathered, intersect, merge, subtract, union

STATES = ("compute", "communication", "copy", "loader", "host", "idle")
NO_LAUNCH = -1


@dataclass(slots=True)
class Host:
    """What the threads that feed a device do when; a moment may be in one of the first three only."""

    busy: array
    loader: array
    sync: array
    weak: array


@dataclass(slots=True)
class Work:
    """Moments at which work of each kind ran, and for each span of any work when its beginning was launched."""

    compute: array
    communication: array
    copy: array
    ran: array
    launched: array


def device_work(rows: DeviceEvents, launched: array) -> Work:
    """From a device's events and when each was launched."""
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
    return Work(*kinds, ran, first)


def host_of(threads: Iterable[Thread]) -> Host:
    """Of the threads that launch to a device."""
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
    """(moments of each state, gaps by what their end says: `queued`, `late`, `unknown`), all inside `steps`."""
    both = merge(work.compute, work.communication)
    gaps = dict(zip(("queued", "late", "unknown"), _gaps(work, subtract(steps, work.ran)), strict=True))
    late, unknown = gaps["late"], gaps["unknown"]
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
        "idle": merge(gaps["queued"], subtract(subtract(waiting, at_host), loader)),
    }
    return states, gaps


def _gaps(work: Work, idle: array) -> tuple[array, array, array]:
    """Idle moments inside steps, by whether the work that ends the gap was launched before it began."""
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
