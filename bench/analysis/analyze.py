"""`goodput analyze` of a trace of 200 MB, compared with json.load of the same file in the same run.

    python -m bench.analysis.analyze [--megabytes N] [--rounds N] [--json]

A trace as Kineto writes it is made first: steps of operators, launches, flows and kernels on one stream, collectives
on another, copies and loader waits. Each round times the bare load and the analysis in turn, each in a fresh process
on one core; figures and ratios are medians over rounds. The bare load keeps every event, as trace viewers do. Bars: 30
s, and memory below `MEMORY_MIB` and `BYTES_PER_EVENT` per event, the cost of operators that neither nest nor touch, in
random order; a usual trace needs a quarter of that.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

MEGABYTES, ROUNDS = 200, 3
MEMORY_MIB, BYTES_PER_EVENT = 40, 200
OPERATORS, DEVICE = 400, 3
_TIMED = """
import json, os, resource, sys, time

def peak_mib():
    # What getrusage says of a fresh process includes the one that started it.
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
from goodput.trace import analyze
began, spent = time.perf_counter(), time.process_time()
if sys.argv[1] == "bare":
    with open(sys.argv[2], "rb") as file:
        events, device = len(json.load(file)["traceEvents"]), None
else:
    found = analyze([sys.argv[2]])
    events, device = found["ranks"][0]["events"], found["ranks"][0]["devices"][0]["device"]
    assert all(sum(step["states_ns"].values()) == step["wall_ns"]
               for device in found["ranks"][0]["devices"] for step in device["steps"])
print(json.dumps({
    "seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - spent, "events": events,
    "peak_mib": peak_mib(), "device": device,
}))
"""


def write(path: Path, megabytes: float) -> int:
    """A trace of about so many million bytes; returns how many events it has."""
    events = step = 0
    at = 4_203_669_603_000_000  # nanoseconds; the file has microseconds with three digits behind the point
    with open(path, "w", encoding="ascii") as file:
        file.write(
            '{\n  "schemaVersion": 1,\n  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},'
        )
        file.write('\n  "traceEvents": [\n')
        while file.tell() < megabytes * 1e6:
            lines, at = _step(step, at)
            file.write("".join(lines))
            events, step = events + len(lines), step + 1
        file.write(
            '  {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 1}\n  ],\n'
        )
        file.write('  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 1735632360000000000\n}\n')
    return events + 1


def _step(step: int, at: int) -> tuple[list[str], int]:
    """The events of one step, and where the next begins."""
    lines, begun = [], at
    lines.append(
        _event(
            "user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, 900_000
        )
    )
    at += 1_000_000
    device = at
    for i in range(OPERATORS):
        number = step * OPERATORS + i + 1
        lines.append(
            _event("cpu_op", f"aten::{('addmm', 'mul', 'add_', 'copy_')[i % 4]}", at, 9_000, _shapes(number))
        )
        launch = f'"External id": {number}, "cbid": 211, "correlation": {number}'
        lines.append(_event("cuda_runtime", "cudaLaunchKernel", at + 2_000, 5_000, launch))
        flow = f'"id": {number}, "cat": "ac2g", "name": "ac2g"'
        lines.append(
            f'  {{\n    "ph": "s", "pid": 4037, "tid": 4037, "ts": {_us(at + 2_000)},\n    {flow}\n  }},\n'
        )
        start, length = max(device, at + 7_000), 6_000 + 40 * (number * 7919 % 301)
        device = start + length
        work = f'"External id": {number}, "device": {DEVICE}, "stream": 7, "correlation": {number}, "grid": [512, 1, 1]'
        name, category, tid = f"void at::native::vectorized_elementwise_kernel<4, {i % 40}>(int)", "kernel", 7
        if i % 20 == 0:
            name, length, tid = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", 90_000, 20
        elif i % 50 == 1:
            name, category = "Memcpy HtoD (Pinned -> Device)", "gpu_memcpy"
        lines.append(_event(category, name, start, length, work, DEVICE, tid))
        lines.append(
            f'  {{\n    "ph": "f", "pid": {DEVICE}, "tid": {tid}, "ts": {_us(start)}, "bp": "e",\n    {flow}\n  }},\n'
        )
        at += 10_000
    lines.append(_event("user_annotation", f"ProfilerStep#{step}", begun, at - begun))
    return lines, at + 1_000


def _event(
    category: str, name: str, at: int, length: int, args: str = "", pid: int = 4037, tid: int = 4037
) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {_us(at)}, "dur": {_us(length)},\n    "args": {{\n      {args}\n    }}\n  }},\n'
    )


def _shapes(number: int) -> str:
    return (
        f'"External id": {number}, "Record function id": {number}, "Concrete Inputs": ["", "", "1"], '
        '"Input type": ["float", "float", "Scalar"], "Input Strides": [[4096, 1], [4096, 1], []], '
        '"Input Dims": [[8192, 4096], [4096, 4096], []], "Ev Idx": 1'
    )


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def time_one(what: str, path: Path) -> dict:
    """Figures of one pass in a process of its own."""
    command = [sys.executable, "-c", _TIMED, what, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
    return json.loads(done.stdout)


def measure(megabytes: float, rounds: int) -> dict:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        write(path, megabytes)
        size = path.stat().st_size
        pairs = [(time_one("bare", path), time_one("analyze", path)) for _ in range(rounds)]
    bare, ours = zip(*pairs, strict=True)
    peak = median(one["peak_mib"] for one in ours)
    return {
        "events": ours[0]["events"],
        "megabytes": round(size / 1e6, 1),
        "bare_seconds": round(median(one["seconds"] for one in bare), 2),
        "analyze_seconds": round(median(one["seconds"] for one in ours), 2),
        "analyze_over_bare": round(median(b["seconds"] / a["seconds"] for a, b in pairs), 2),
        "analyze_over_bare_cpu": round(median(b["cpu_seconds"] / a["cpu_seconds"] for a, b in pairs), 2),
        "microseconds_per_event": round(median(one["seconds"] for one in ours) / ours[0]["events"] * 1e6, 1),
        "analyze_peak_mib": round(peak, 1),
        "bare_peak_mib": round(median(one["peak_mib"] for one in bare), 1),
        "memory_bound_mib": round(MEMORY_MIB + BYTES_PER_EVENT * ours[0]["events"] / 2**20, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="example: python -m bench.analysis.analyze --megabytes 50 --json",
    )
    parser.add_argument(
        "--megabytes", type=float, default=MEGABYTES, help="size of the trace (default: %(default)d)"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)d")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    found = measure(arguments.megabytes, arguments.rounds)
    if arguments.json:
        print(json.dumps({"python": platform.python_version(), **found}, indent=2))
        return 0
    print(
        f"\ngoodput analyze, Python {platform.python_version()}, one core, medians of {arguments.rounds} rounds"
    )
    for name, value in found.items():
        print(f"  {name.replace('_', ' '):<28}{value:>12}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
