"""Adds the series of GPUs and of the drivers' processes. About half a microsecond for each reading."""

from __future__ import annotations

import functools
from collections import Counter

from goodput.metrics import Families
from goodput_exporters.gpu.merge import MergedGpu
from goodput_exporters.gpu.sample import component_series_of, series_of
from goodput_exporters.gpu.supervisor import DriverStatus

# As many as 64 GPUs have; of more, some are made anew.
ROWS_MAX = 32_768


def add_gpu(
    families, gpu: MergedGpu, up: bool, age_seconds: float, numa: str, xids: Counter[tuple[str, str]]
) -> None:
    """Add one GPU or MIG instance. A negative value of a counter is left out."""
    info = {"gpu": gpu.uuid, "index": str(gpu.index), "model": gpu.model, "pci": gpu.pci, "numa": numa}
    info |= {"driver": gpu.driver_version, "parent": gpu.parent, "profile": gpu.profile}
    families.add("goodput_gpu_info", info, 1)
    families.add("goodput_gpu_up", {"gpu": gpu.uuid}, float(up))
    families.add("goodput_gpu_sample_age_seconds", {"gpu": gpu.uuid}, max(0.0, age_seconds))
    # Sorted, so that the lines of a series keep their order when a driver reads in another one.
    for key, value in sorted(gpu.readings.items()):
        name, row, is_counter = _row(gpu.uuid, key)
        if value >= 0 or not is_counter:
            families.add_row(name, row, value)
    for (number, kind), count in sorted(xids.items()):
        labels = {"gpu": gpu.uuid, "xid": number, "class": kind}
        families.add("goodput_gpu_xid_errors_total", labels, count)
    for pod, namespace, container in gpu.pods if up else ():
        labels = {"gpu": gpu.uuid, "pod": pod, "namespace": namespace, "container": container}
        families.add("goodput_gpu_pod_info", labels, 1)
    if gpu.false_zero is not None:
        families.add("goodput_gpu_false_zero", {"gpu": gpu.uuid}, float(gpu.false_zero))
    if gpu.pids is not None and "processes" not in gpu.readings:
        families.add("goodput_gpu_processes", {"gpu": gpu.uuid}, len(gpu.pids))


@functools.lru_cache(ROWS_MAX)
def _row(uuid: str, key: str) -> tuple[str, tuple[str, ...], bool]:
    """A reading's series, its label values, and whether it is a counter."""
    name, labels = series_of(key)
    return name, Families("node").row_of(name, {"gpu": uuid, **labels}), name.endswith("_total")


def add_component(families, kind: str, name: str, readings: dict[str, float]) -> None:
    """Add an NVSwitch or a CPU."""
    for key, value in sorted(readings.items()):
        series, labels = component_series_of(kind, key)
        families.add(series, {kind: name, **labels}, value)


def add_driver(families, status: DriverStatus) -> None:
    """Add a driver's process; nothing where there is nothing to sample."""
    if status.absent or not status.settled:
        return
    driver = {"driver": status.name}
    families.add("goodput_driver_up", driver, float(status.up))
    if status.age_seconds is not None:
        families.add("goodput_driver_sample_age_seconds", driver, status.age_seconds)
    for reason, count in sorted(status.restarts.items()):
        families.add("goodput_driver_restarts_total", {**driver, "reason": reason}, count)
    for kind in ("samples", "samples_dropped", "problems"):
        count = status.counts[kind.removeprefix("samples_")]
        families.add(f"goodput_driver_{kind}_total", driver, count)
    for quantity, count in sorted(status.implausible.items()):
        families.add("goodput_driver_implausible_readings_total", {**driver, "quantity": quantity}, count)
    families.add("goodput_driver_cpu_seconds_total", driver, status.cpu_seconds)
    families.add("goodput_driver_processes_unkillable", driver, status.unkillable)
    families.add("goodput_driver_memory_bytes", driver, status.memory_bytes)
