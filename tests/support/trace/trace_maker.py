"""Builds small traces: one function per kind of event, times in microseconds, and a writer.

Numbers with a fraction are texts ("12.345") and written without quotes, so that no float is involved.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

HOST = 4037
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


class Number(str):
    """A text that is written as a number."""


def event(category, name, start, length, *, pid=HOST, tid=1, **args) -> dict:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start,
        "dur": length,
        "args": args,
    }


def kernel(start, length, name="gemm", device=0, stream=7, correlation=None, category="kernel") -> dict:
    args = {"device": device, "stream": stream}
    if correlation is not None:
        args["correlation"] = correlation
    return event(category, name, start, length, pid=device, tid=stream, **args)


def copy(start, length, name="Memcpy HtoD (Pinned -> Device)", **more) -> dict:
    return kernel(start, length, name, category="gpu_memcpy", **more)


def launch(start, length, correlation, name="cudaLaunchKernel", **more) -> dict:
    return event("cuda_runtime", name, start, length, correlation=correlation, **more)


def sync(start, length, **more) -> dict:
    return event("cuda_runtime", "cudaStreamSynchronize", start, length, **more)


def op(start, length, name="aten::mm", **more) -> dict:
    return event("cpu_op", name, start, length, **more)


def note(start, length, name, **more) -> dict:
    return event("user_annotation", name, start, length, **more)


def step(number, start, length, **more) -> dict:
    return note(start, length, f"ProfilerStep#{number}", **more)


def loader(start, length, **more) -> dict:
    return note(start, length, LOADER, **more)


def write(path: Path, events: list, rank: int | None = 0, packed: bool = False, **around) -> Path:
    """A file as Kineto writes it."""
    place = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 8}}
    text = dumps({"schemaVersion": 1, **place, "traceEvents": events, **around})
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


def dumps(value) -> str:
    """JSON in which each Number is a number."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {dumps(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",\n".join(map(dumps, value)) + "]"
    return json.dumps(value)
