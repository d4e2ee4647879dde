"""GPUs as their drivers see them, made one: of each reading, that of the driver that is believed first.

In: driver_process.Report of each driver. Out: `Merged` GPUs. Two drivers mean the same GPU where they give it the same
uuid or, for a whole GPU, the same PCI address (AMD's tools and DCGM write uuids of their own); a MIG instance has its
parent's address, so it goes by its uuid alone. A driver that no longer answers is left out.

Zero means measured zero: profiling counters that read 0 while the same GPU is fully utilised (they are held by a
profiler, or not permitted) are taken out, and `false_zero` is set.
It does not know what was seen before: gpus.py does.

    for gpu in merge(reports, now_ns): gpu.uuid, gpu.readings["activity/sm"]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from goodput_exporters.gpu.drivers import rank
from goodput_exporters.gpu.pci import normal
from goodput_exporters.gpu.sample import Gpu
from goodput_exporters.gpu.supervisor import Report

UTILIZATION, ENGINE = "activity/utilization", "activity/engine"
# They come from the counters that the engine's activity comes from.
PROFILED = (
    ENGINE,
    *(f"activity/{unit}" for unit in ("sm", "sm_occupancy", "tensor", "dram", "fp64", "fp32", "fp16")),
)


@dataclass
class Merged:
    """One GPU or MIG instance; fields as in gpu.Gpu.

    names        every uuid that a driver has for it
    drivers      who reaches it, the most believed first
    told_by      who knows of it, whether or not they reach it
    heard_ns     when the newest sample of it came (time.monotonic_ns)
    false_zero   None where it cannot be told
    lost         a driver knows it and cannot reach it; then there are no readings
    """

    uuid: str
    index: int = 0
    model: str = ""
    pci: str = ""
    driver_version: str = ""
    parent: str = ""
    profile: str = ""
    readings: dict[str, float] = field(default_factory=dict)
    pids: list[int] | None = None
    names: set[str] = field(default_factory=set)
    drivers: list[str] = field(default_factory=list)
    told_by: list[str] = field(default_factory=list)
    heard_ns: int = 0
    false_zero: bool | None = None
    lost: bool = False


def merge(reports: Iterable[Report], now_ns: int) -> list[Merged]:
    """The GPUs that drivers see now, by uuid."""
    found: list[Merged] = []
    by_uuid: dict[str, Merged] = {}
    by_pci: dict[str, Merged] = {}
    for report in sorted(reports, key=lambda report: rank(report.name)):
        for gpu, heard_ns in seen_by(report, now_ns):
            address = "" if gpu.parent else normal(gpu.pci)
            merged = by_uuid.get(gpu.uuid) or by_pci.get(address)
            if merged is None:
                merged = Merged(gpu.uuid, index=gpu.index)
                found.append(merged)
            by_uuid[gpu.uuid] = merged
            if address:
                by_pci[address] = merged
            add(merged, report.name, gpu, heard_ns)
    for merged in found:
        settle(merged)
    return sorted(found, key=lambda merged: merged.uuid)


def seen_by(report: Report, now_ns: int) -> list[tuple[Gpu, int]]:
    """A driver's GPUs and when each was heard of: the fast readings over those of the last full sample."""
    seen: dict[str, tuple[Gpu, int]] = {}
    for sample, heard_ns in reversed(report.fresh(now_ns)):  # oldest first
        for gpu in sample.gpus:
            older, _ = seen.get(gpu.uuid, (None, 0))
            seen[gpu.uuid] = (gpu if older is None else over(older, gpu), heard_ns)
    return list(seen.values())


def over(older: Gpu, newer: Gpu) -> Gpu:
    """The newer one, with what it does not say from the older one."""
    return Gpu(
        uuid=newer.uuid,
        index=newer.index or older.index,
        model=newer.model or older.model,
        pci=newer.pci or older.pci,
        driver_version=newer.driver_version or older.driver_version,
        parent=newer.parent or older.parent,
        profile=newer.profile or older.profile,
        readings={**older.readings, **newer.readings},
        pids=older.pids if newer.pids is None else newer.pids,
        lost=newer.lost,
    )


def add(merged: Merged, driver: str, gpu: Gpu, heard_ns: int) -> None:
    """What one more driver says, who is believed less than those before."""
    readings = gpu.readings
    utilization = readings.get(UTILIZATION, merged.readings.get(UTILIZATION))
    if ENGINE in readings and utilization is not None:
        false_zero = readings[ENGINE] == 0 and utilization >= 1
        merged.false_zero = bool(merged.false_zero) or false_zero
        if false_zero:
            readings = {key: value for key, value in readings.items() if value or key not in PROFILED}
    for name in ("model", "driver_version", "parent", "profile"):
        setattr(merged, name, getattr(merged, name) or getattr(gpu, name))
    merged.pci = merged.pci or normal(gpu.pci)
    merged.readings = {**readings, **merged.readings}
    merged.pids = gpu.pids if merged.pids is None else merged.pids
    merged.names.add(gpu.uuid)
    merged.told_by.append(driver)
    if gpu.lost:
        merged.lost = True
    else:
        merged.drivers.append(driver)
    merged.heard_ns = max(merged.heard_ns, heard_ns)


def settle(merged: Merged) -> None:
    """What can only be said when every driver was heard."""
    if merged.readings.get(ENGINE) == 0 and merged.readings.get(UTILIZATION, 0) >= 1:
        # The engine's reading is of the one driver, utilisation of another that came later.
        merged.false_zero = True
        merged.readings = {
            key: value for key, value in merged.readings.items() if value or key not in PROFILED
        }
    if merged.lost:
        # What another driver still says of it was kept from before.
        merged.readings, merged.false_zero, merged.pids = {}, None, None
