"""Splits the time of traced steps: Kineto and torch.profiler traces of one or many ranks, on GPUs or a CPU.

The six states of each step (see `states`) sum to its wall time exactly, in nanoseconds. Files are streamed: memory is
at most 40 MiB and 200 bytes an event, usually 50. docs/analyze.md explains states and figures.

    document = goodput.trace.analyze(["rank0.json.gz", "rank1.json.gz"])
    document["total"]["states_ns"]["communication"]

The document:

    {"version": 1,
     "ranks": [{"file": "rank0.json.gz", "rank": 0, "world_size": 8, "events": 109123, "used": 74937,
                "losses": [one message per place where the file is broken], "cut_off": whether events at the end are missing,
                "base_time_ns": 0 or baseTimeNanoseconds, "problems": [{"what", "count", "first_event"}],
                "devices": [{"device": "GPU 0", "model": "NVIDIA A100" or null, "steps_from": "ProfilerStep",
                             "clock_shift_ns" (added to the device's times), "events_before_launch",
                             "total": {"wall_ns", "states_ns": {"compute", "communication", "copy", "loader", "host",
                                       "idle"}, "communication_ns", "communication_hidden_ns", "copy_ns",
                                       "copy_hidden_ns", "kernel_ns", "h2d_ns", "h2d_bytes" (copies from host memory
                                       whose size is known), "overlap_percent" or null,
                                       "between_steps_ns", "outside_steps_ns", "before_work_ns", "after_work_ns"
                                       (without a mark there)},
                             "gaps": {"count", "late_count", "longest_ns", "queued_ns", "late_ns", "unknown_ns"},
                             "long_gaps": [{"state", "during" or null, "before_graph", "count", "ns", "longest_ns"}],
                             "steps": [{"name", "start_ns", and all of "total" but its last four}],
                             "events", "launches_known" or null, "top": [{"name", "kind", "count", "ns"}]}]}],
     "total": as above, over all devices of all ranks,
     "collectives": [{"group", "operation", "size" or null, "ranks", "calls", "bytes" or null, "calls_without_size",
                      "exposed_ns", "hidden_ns", "algorithm_bytes_per_second" or null, "bus_bytes_per_second" or null,
                      "compared", "waited_ns" or null, "transfer_ns" or null, "skew_ns" or null,
                      "skew_uncertainty_ns" or null, "last_rank" or null, "last_share" or null}],
     "collectives_problem": why the calls of ranks were not compared, or null,
     "waiting": {"steps", "all_paid_ns", "waiting_ns", "waited_least"} or null,
     "cause": {"state", "share", "ns", "gain", "advice"} or null (also if a file is cut off),
     "causes": ["cause", and at most two more that have at least half of its time],
     "errors": [one message per unusable file, and the `losses` of the others]}"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from goodput.trace import collectives
from goodput.trace.advice import leading
from goodput.trace.clocks import DriftError, align
from goodput.trace.collectives import RankCalls
from goodput.trace.columns import Columns
from goodput.trace.device_summary import PROBLEMS_LISTED_MAX, Launches, add, summarize_devices
from goodput.trace.ranks import waiting
from goodput.trace.states import STATES
from goodput.trace.stream import Reader, TraceError

__all__ = ["STATES", "TraceError", "analyze", "analyze_one", "combine"]


def analyze(paths: Iterable, progress: Callable[[float], None] | None = None) -> dict:
    """Analyze one file per rank; raises TraceError. `progress` is called with the part of the current file read, 0 to 1."""
    return combine([analyze_one(path, order, progress) for order, path in enumerate(paths)])


def analyze_one(path, order: int = 0, progress: Callable[[float], None] | None = None) -> dict:
    """The document of one file; `order` is its rank if the file does not have one.

    `calls` in it is for `combine`, which compares the collectives of ranks."""
    reader, columns = Reader(path, progress), Columns()
    add_event = columns.add
    for event in reader:
        add_event(event)
    if not columns.used and columns.foreign:
        raise TraceError(f"{path}: {columns.foreign}")
    if not columns.used:
        if reader.losses:
            raise TraceError(reader.losses[0])
        why = "; ".join(f"{count} {what}" for what, (count, _) in columns.problems.items())
        raise TraceError(f"{path}: no usable event{f' (events {why})' if why else ''}")
    about = reader.about
    if reader.cut_off and not columns.devices and (about.get("deviceProperties") or columns.launch_times):
        raise TraceError(f"{reader.losses[-1]}, none of which is the work of a device")
    launches = Launches(columns)
    try:
        align(columns, launches)
    except DriftError as error:
        raise TraceError(f"{path}: {error}") from None
    devices = summarize_devices(columns, about, launches)
    if not devices:
        raise TraceError(f"{path}: no kernels and no operators to analyze")
    place = about.get("distributedInfo")
    place = place if isinstance(place, dict) else {}
    rank, world, base = place.get("rank"), place.get("world_size"), about.get("baseTimeNanoseconds")
    listed = sorted(columns.problems.items(), key=lambda item: -item[1][0])
    is_known = type(rank) is int and rank >= 0
    number = rank if type(rank) is int and rank >= 0 else order
    world = world if type(world) is int and world > 0 else None
    rows = [row for device in devices for row in device.pop("collectives")]
    groups = collectives.comparable(columns, launches.at, about)
    return {
        "file": str(path),
        "rank": number,
        "rank_known": is_known,
        "world_size": world,
        "base_time_ns": base if type(base) is int else 0,
        "events": columns.events,
        "used": columns.used,
        "losses": reader.losses,
        "cut_off": reader.cut_off,
        "problems": [
            {"what": what, "count": count, "first_event": first}
            for what, (count, first) in listed[:PROBLEMS_LISTED_MAX]
        ],
        "devices": devices,
        "calls": RankCalls(number, str(path), world, collectives.only_group(columns, about), rows, groups),
    }


def combine(ranks: list[dict], errors: Iterable[str] = ()) -> dict:
    """The document of ranks from `analyze_one`."""
    ranks = sorted(ranks, key=lambda rank: rank["rank"])
    calls = [rank["calls"] for rank in ranks]
    ranks = [{name: value for name, value in rank.items() if name != "calls"} for rank in ranks]
    devices = [device for rank in ranks for device in rank["devices"]]
    total, waits = add([device["total"] for device in devices]), waiting(ranks)
    # Profilers write the work of devices last, and not by time: any step of a trace that is cut off may lack some.
    causes = [] if any(rank["cut_off"] for rank in ranks) else leading(total, devices, waits)
    return {
        "version": 1,
        "ranks": ranks,
        "total": total,
        "collectives": collectives.compare(calls),
        "collectives_problem": collectives.problem(calls),
        "waiting": waits,
        "cause": causes[0] if causes else None,
        "causes": causes,
        "errors": [*errors, *(loss for rank in ranks for loss in rank["losses"])],
    }
