"""The series of GPUs and of the drivers' processes.

In: gpu_merge.Merged GPUs, driver_process.Reports. Out: values added to a `goodput.metrics.Families("node")`. A reading
becomes the series that gpu.FAMILIES names; what no driver reads is absent. A counter below zero is none.
About 2 us for each reading. It does not know who was seen before.

    add_gpu(families, merged, up=True, age_seconds=0.4, numa="0"); add_driver(families, report)
"""

from __future__ import annotations

import functools
from types import MappingProxyType

from goodput_exporters.gpu.merge import Merged
from goodput_exporters.gpu.sample import place_of
from goodput_exporters.gpu.supervisor import Report


def add_gpu(families, gpu: Merged, up: bool, age_seconds: float, numa: str) -> None:
    """One GPU or MIG instance; the readings only while it is up, but for those that tell what happened to it."""
    info = {"gpu": gpu.uuid, "index": str(gpu.index), "model": gpu.model, "pci": gpu.pci, "numa": numa}
    info |= {"driver": gpu.driver_version, "parent": gpu.parent, "profile": gpu.profile}
    families.add("goodput_gpu_info", info, 1)
    families.add("goodput_gpu_up", {"gpu": gpu.uuid}, float(up))
    families.add("goodput_gpu_sample_age_seconds", {"gpu": gpu.uuid}, max(0.0, age_seconds))
    for key, value in sorted(gpu.readings.items()):
        name, labels = place(key)
        if value >= 0 or not name.endswith("_total"):
            families.add(name, {"gpu": gpu.uuid, **labels}, value)
    if gpu.false_zero is not None:
        families.add("goodput_gpu_false_zero", {"gpu": gpu.uuid}, float(gpu.false_zero))
    if gpu.pids is not None and "processes" not in gpu.readings:
        families.add("goodput_gpu_processes", {"gpu": gpu.uuid}, len(gpu.pids))


@functools.lru_cache(4096)
def place(key: str) -> tuple[str, MappingProxyType]:
    name, labels = place_of(key)
    return name, MappingProxyType(labels)


def add_driver(families, report: Report) -> None:
    """How a driver's process fares; nothing where there is nothing to drive."""
    if report.absent or not report.settled:
        return
    driver = {"driver": report.name}
    families.add("goodput_driver_up", driver, float(report.up))
    if report.age_seconds is not None:
        families.add("goodput_driver_sample_age_seconds", driver, report.age_seconds)
    for reason, count in sorted(report.restarts.items()):
        families.add("goodput_driver_restarts_total", {**driver, "reason": reason}, count)
    families.add("goodput_driver_samples_total", driver, report.counts["samples"])
    families.add("goodput_driver_samples_dropped_total", driver, report.counts["dropped"])
    families.add("goodput_driver_problems_total", driver, report.counts["problems"])
    families.add("goodput_driver_cpu_seconds_total", driver, report.cpu_seconds)
    families.add("goodput_driver_processes_unkillable", driver, report.unkillable)
    families.add("goodput_driver_memory_bytes", driver, report.memory_bytes)
