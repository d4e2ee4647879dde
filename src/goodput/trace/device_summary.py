"""Reduces the columns of one trace to its devices, their steps, and the states of each step.

The states of each step sum to its wall time exactly; a step that does not close raises AssertionError."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from goodput.trace import collectives, names, top_operations
from goodput.trace.columns import Columns, DeviceEvents
from goodput.trace.long_gaps import long_gaps
from goodput.trace.spans import flatten, intersect, length, lengths_in, merge, subtract, union
from goodput.trace.states import STATES, Host, Work, device_work, host_of, processor_work, split
from goodput.trace.steps import NEVER, NO_LAUNCH, Window, bounds_of, cut_to_work, host_steps, on_device

PROBLEMS_LISTED_MAX = 20


def summarize_devices(columns: Columns, about: dict, launches: Launches) -> list[dict]:
    """The documents of a trace's devices, sorted; of its processes if it has no devices.

    `collectives` in them are Rows of goodput.trace.collectives."""
    if not columns.devices:
        return _processors(columns)
    devices = sorted(
        columns.devices.items(), key=lambda item: (isinstance(item[0], str), str(item[0]).zfill(20))
    )
    return [_device(columns, device, rows, launches, about) for device, rows in devices]


class Launches:
    """Launch time and thread by correlation id."""

    def __init__(self, columns: Columns):
        ids = columns.launch_correlations
        order = sorted(range(len(ids)), key=columns.launch_times.__getitem__)
        order.sort(key=ids.__getitem__)
        self._ids = array("q", [ids[i] for i in order])
        self._times = array("q", [columns.launch_times[i] for i in order])
        self._threads = array("I", [columns.launch_threads[i] for i in order])
        self.first_id = self._ids[0] if self._ids else NEVER

    def of(self, rows: DeviceEvents) -> tuple[array, set[int]]:
        """(launch time of each event, NO_LAUNCH if unknown; threads that launched any)."""
        times, threads = array("q"), set()
        for correlation, start in zip(rows.correlations, rows.starts, strict=True):
            place = self._find(correlation, start) if correlation >= 0 else -1
            times.append(self._times[place] if place >= 0 else NO_LAUNCH)
            if place >= 0:
                threads.add(self._threads[place])
        return times, threads

    def earliest(self, rows: DeviceEvents) -> tuple[array, array]:
        """(the earliest launch time with the id of each event, NO_LAUNCH if unknown; its thread)."""
        times, threads = array("q"), array("I")
        for correlation in rows.correlations:
            place = bisect_left(self._ids, correlation) if correlation >= 0 else len(self._ids)
            is_known = place < len(self._ids) and self._ids[place] == correlation
            times.append(self._times[place] if is_known else NO_LAUNCH)
            threads.append(self._threads[place] if is_known else 0)
        return times, threads

    def at(self, correlation: int, start: int) -> int:
        """When what began at `start` was launched; `start` if that is not known."""
        place = self._find(correlation, start) if correlation >= 0 else -1
        return self._times[place] if place >= 0 else start

    def _find(self, correlation: int, start: int) -> int:
        """The last launch with this id before `start`: a file with several processes can use an id twice."""
        first = bisect_left(self._ids, correlation)
        after = bisect_right(self._ids, correlation, first)
        if first == after:
            return -1
        return max(bisect_right(self._times, start, first, after) - 1, first)


def _device(columns: Columns, device, rows: DeviceEvents, launches: Launches, about: dict) -> dict:
    launched, feeding = launches.of(rows)
    pids = {columns.threads[place].pid for place in feeding}
    steps = host_steps(columns, pids)
    # The thread with the step marks runs the loop, even if other threads launch.
    feeding |= {
        place
        for place, thread in enumerate(columns.threads)
        if not feeding or (thread.steps and (not pids or thread.pid in pids))
    }
    found = on_device(steps.windows, rows, launched, launches.first_id)
    host, work = host_of(columns.threads[i] for i in feeding), device_work(rows, launched)
    around = cut_to_work(steps, found, work.ran)
    document = _lane(columns, feeding, work, host, found, around, device, rows)
    return {
        "device": f"{rows.label} {device}",
        "model": _model(about, device),
        "steps_from": steps.source,
        "clock_shift_ns": rows.shift_ns,
        "events_before_launch": rows.early,
        **document,
        "events": len(rows.starts),
        "launches_known": sum(at != NO_LAUNCH for at in launched),
        "top": top_operations.kernels(columns, rows, found),
    }


def _processors(columns: Columns) -> list[dict]:
    """The documents of the processes of a trace without device work."""
    marked = {thread.pid for thread in columns.threads if thread.steps}
    pids = marked or {thread.pid for thread in columns.threads if names.BUSY in thread.spans}
    out = []
    for pid in sorted(pids, key=str):
        own = {i for i, thread in enumerate(columns.threads) if thread.pid == pid}
        training = {i for i in own if columns.threads[i].steps or columns.threads[i].backward}
        if not any(columns.threads[i].steps for i in training):
            training = {i for i in own if names.BUSY in columns.threads[i].spans}
        steps = host_steps(columns, {pid})
        work, host = processor_work(
            [columns.threads[i] for i in sorted(training)],
            [columns.threads[i] for i in sorted(own - training)],
            columns.wires[pid].spans() if pid in columns.wires else array("q"),
        )
        found = steps.windows
        around = cut_to_work(steps, found, work.ran)
        out.append(
            {
                "device": "CPU" if len(pids) == 1 else f"CPU of process {pid}",
                "model": None,
                "steps_from": steps.source,
                "clock_shift_ns": 0,
                "events_before_launch": 0,
                **_lane(columns, training, work, host, found, around, pid),
                "events": sum(place in training for place in columns.op_threads),
                "launches_known": None,
                "top": top_operations.operators(columns, training, found),
            }
        )
    return out


def _lane(
    columns: Columns,
    threads: set[int],
    work: Work,
    host: Host,
    found: list[Window],
    around: tuple[int, int],
    place: int | str,
    events: DeviceEvents | None = None,
) -> dict:
    """Totals, gaps, steps and collectives of one device or process, `place`, fed by `threads`.

    `around` are the times cut off before the first work and after the last."""
    steps = flatten(bounds_of(found))
    states, gaps = split(work, host, steps)
    bounds = [(window.start, window.end) for window in found]
    lengths = {state: lengths_in(spans, bounds) for state, spans in states.items()}
    both = intersect(work.communication, work.compute)
    sets = {
        "communication_ns": work.communication,
        "communication_hidden_ns": both,
        "copy_ns": work.copy,
        "copy_hidden_ns": intersect(work.copy, merge(work.compute, work.communication)),
        "kernel_ns": merge(work.compute, work.communication),
    }
    sums = {name: lengths_in(spans, bounds) for name, spans in sets.items()}
    sums["h2d_ns"], sums["h2d_bytes"] = _to_device(events, bounds)
    rows = []
    for i, window in enumerate(found):
        row = {
            "name": window.name,
            "start_ns": window.start,
            "wall_ns": window.end - window.start,
            "states_ns": {state: lengths[state][i] for state in STATES},
            **{name: values[i] for name, values in sums.items()},
        }
        if sum(row["states_ns"].values()) != row["wall_ns"]:
            raise AssertionError(f"the states of {window.name} do not sum to its wall time")
        rows.append({**row, "overlap_percent": overlap(row)})
    total = add(rows)
    total["between_steps_ns"] = bounds[-1][1] - bounds[0][0] - total["wall_ns"] if bounds else 0
    total["outside_steps_ns"] = length(subtract(work.ran, steps))
    total["before_work_ns"], total["after_work_ns"] = around
    longest = long_gaps(columns, threads, states, union(gaps.values()), events)
    return {
        "total": total,
        "gaps": _gaps(gaps),
        "long_gaps": longest,
        "steps": rows,
        "collectives": collectives.rows_of(columns, place, work, steps),
    }


def _to_device(events: DeviceEvents | None, bounds: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Time and bytes of the copies from host memory that begin in each window; copies side by side each count."""
    times, sizes = [0] * len(bounds), [0] * len(bounds)
    starts = [start for start, _ in bounds]
    for start, end, size in events.to_device if events is not None else ():
        at = bisect_right(starts, start) - 1
        if at >= 0 and start < bounds[at][1]:
            times[at] += end - start
            sizes[at] += size
    return times, sizes


def add(rows: list[dict]) -> dict:
    """The sum of steps or of totals."""
    total = {
        "wall_ns": sum(row["wall_ns"] for row in rows),
        "states_ns": {state: sum(row["states_ns"][state] for row in rows) for state in STATES},
        **{name: sum(row[name] for row in rows) for name in SUMMED},
    }
    return {**total, "overlap_percent": overlap(total)}


SUMMED = (
    "communication_ns",
    "communication_hidden_ns",
    "copy_ns",
    "copy_hidden_ns",
    "kernel_ns",
    "h2d_ns",
    "h2d_bytes",
)


def overlap(row: dict) -> float | None:
    """Percentage of communication that runs beside compute; None without communication."""
    return 100 * row["communication_hidden_ns"] / row["communication_ns"] if row["communication_ns"] else None


def _gaps(gaps: dict[str, array]) -> dict:
    """Counts and lengths of the gaps, in which nothing ran."""
    spans = union(gaps.values())
    return {
        "count": len(spans) // 2,
        "late_count": len(gaps["late"]) // 2,
        "longest_ns": max(
            (end - start for start, end in zip(spans[::2], spans[1::2], strict=True)), default=0
        ),
        **{f"{name}_ns": length(found) for name, found in gaps.items()},
    }


def _model(about: dict, device) -> str | None:
    """The device's name, if the file has it."""
    listed = about.get("deviceProperties")
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and one.get("id") == device and isinstance(one.get("name"), str):
            return one["name"][:100]
    return None
