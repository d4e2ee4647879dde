"""Probes this machine, part by part, each in a child process."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from goodput.probe import PARTS, allreduce, child, copies, gemm, storage
from goodput.probe.figure import Figure

VERSION = 1


@dataclass(frozen=True)
class Options:
    """`ranks` of the all-reduce; None for the number of GPUs, without any for two."""

    path: str = "."
    parts: tuple[str, ...] = PARTS
    ranks: int | None = None


def probe(options: Options, progress: Callable[[str], None] = lambda _: None) -> dict:
    """The document that is kept, printed as JSON and compared: host, figures, and what could not be measured."""
    figures: list[Figure] = []
    problems: list[str] = []

    def measure(part: str, text: str, function: Callable, *arguments) -> None:
        if part not in options.parts:
            return
        progress(f"measuring {text}")
        try:
            figures.extend(child.run(function, *arguments))
        except child.PartError as error:
            problems.append(f"{text}: {error}")

    gpus = gpu_count(problems)
    measure("gemm", "matrix products of the CPU", gemm.on_cpu)
    measure("memory", "the host's memory", copies.host_memory)
    measure("storage", f"storage at {os.path.abspath(options.path)}", storage.measure, options.path)
    for index in range(gpus):
        measure("gemm", f"matrix products of GPU {index}", gemm.on_gpu, index)
        measure("copies", f"copies of GPU {index}", copies.on_gpu, index)
    ranks = options.ranks or gpus or 2
    if ranks > 1:
        # Its ranks are children of their own; a hang of the driver ends with their time limit.
        measure_ranks(figures, problems, options, ranks, gpus, progress)
    problems += [f"{figure.name}: {figure.note}" for figure in figures if figure.value is None]
    return {
        "version": VERSION,
        "host": socket.gethostname(),
        "time": time.time(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": gpus,
        "path": os.path.abspath(options.path),
        "figures": [asdict(figure) for figure in figures],
        "problems": problems,
    }


def measure_ranks(
    figures: list[Figure], problems: list[str], options: Options, ranks: int, gpus: int, progress
) -> None:
    """All-reduce over processes of this node; over NCCL if each can have a GPU."""
    if "allreduce" not in options.parts:
        return
    progress(f"measuring all-reduce over {ranks} ranks")
    try:
        figures.extend(allreduce.over_processes(ranks, gpus if ranks <= gpus else 0))
    except (child.PartError, OSError) as error:
        problems.append(f"all-reduce: {error}")


def gpu_count(problems: list[str]) -> int:
    """Counted in a child, since a process that initialised CUDA cannot fork others that use it."""
    try:
        return child.run(_count_gpus, seconds_max=120.0)
    except child.PartError as error:
        problems.append(f"GPUs: {error}")
        return 0


def _count_gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
