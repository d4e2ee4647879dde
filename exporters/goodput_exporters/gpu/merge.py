"""Merges the GPUs of several drivers: each reading comes from the driver that is highest in precedence.

Two drivers mean the same GPU where they give the same UUID or, for a whole GPU, the same PCI address (AMD's tools and
DCGM make up their own UUIDs). A MIG instance has its parent's address and is identified by its UUID alone.

Zero means measured zero: profiling counters that read 0 while the GPU is fully utilised (a profiler holds them, or
they are not permitted) are removed, and `false_zero` is set.

    for gpu in merge(statuses, now_ns): gpu.uuid, gpu.readings["activity/sm"]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import structs

from goodput_exporters.gpu.drivers import precedence
from goodput_exporters.gpu.pci import normalize
from goodput_exporters.gpu.sample import Gpu
from goodput_exporters.gpu.supervisor import DriverStatus

UTILIZATION, ENGINE = "activity/utilization", "activity/engine"
# All come from the same hardware counters.
PROFILED = {
    f"activity/{unit}" for unit in ("engine", "sm", "sm_occupancy", "tensor", "dram", "fp64", "fp32", "fp16")
}

# Families of which a GPU has one key at a time: two drivers may be asked at different moments.
ONE_OF_MANY = ("fabric/", "recovery/")


@dataclass
class MergedGpu:
    """One GPU or MIG instance; fields as in sample.Gpu.

    names        every UUID that a driver has for it
    known_by     the drivers that know it, whether or not they reach it
    received_ns  when its newest sample arrived (time.monotonic_ns)
    false_zero   None where it cannot be determined
    lost         a driver knows it and cannot reach it; then there are no readings
    """

    uuid: str
    index: int = 0
    model: str = ""
    pci: str = ""
    driver_version: str = ""
    parent: str = ""
    profile: str = ""
    instance: str = ""
    readings: dict[str, float] = field(default_factory=dict)
    pids: list[int] | None = None
    pods: list[tuple[str, str, str]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    known_by: list[str] = field(default_factory=list)
    received_ns: int = 0
    false_zero: bool | None = None
    lost: bool = False

    def add(self, driver: str, gpu: Gpu, received_ns: int) -> None:
        """Add what a driver of lower precedence than those before knows."""
        readings = gpu.readings
        utilization = readings.get(UTILIZATION, self.readings.get(UTILIZATION))
        if ENGINE in readings and utilization is not None:
            is_false = readings[ENGINE] == 0 and utilization >= 1
            self.false_zero = bool(self.false_zero) or is_false
            if is_false:
                readings = _without_zeros(readings)
        for name in ("model", "driver_version", "parent", "profile", "instance"):
            setattr(self, name, getattr(self, name) or getattr(gpu, name))
        self.pci = self.pci or normalize(gpu.pci)
        if held := tuple(one for one in ONE_OF_MANY if any(key.startswith(one) for key in self.readings)):
            readings = {key: value for key, value in readings.items() if not key.startswith(held)}
        self.readings = {**readings, **self.readings}
        self.pids = gpu.pids if self.pids is None else self.pids
        self.pods = self.pods or gpu.pods
        self.names.add(gpu.uuid)
        self.known_by.append(driver)
        self.lost = self.lost or gpu.lost
        self.received_ns = max(self.received_ns, received_ns)

    def finish(self) -> None:
        """Resolve what depends on all drivers."""
        if self.readings.get(ENGINE) == 0 and self.readings.get(UTILIZATION, 0) >= 1:
            # The engine's reading comes from one driver, the utilization from a later one.
            self.false_zero = True
            self.readings = _without_zeros(self.readings)
        if self.lost:
            # What another driver still reports is cached from before the loss.
            self.readings, self.false_zero, self.pids = {}, None, None


def merge(statuses: Iterable[DriverStatus], now_ns: int) -> list[MergedGpu]:
    """The GPUs that drivers see now, sorted by UUID."""
    found: list[MergedGpu] = []
    by_uuid: dict[str, MergedGpu] = {}
    by_pci: dict[str, MergedGpu] = {}
    for status in sorted(statuses, key=lambda status: precedence(status.name)):
        for gpu, received_ns in current_gpus(status, now_ns):
            address = "" if gpu.parent else normalize(gpu.pci)
            merged = by_uuid.get(gpu.uuid) or by_pci.get(address)
            if merged is None:
                merged = MergedGpu(gpu.uuid, index=gpu.index)
                found.append(merged)
            by_uuid[gpu.uuid] = merged
            if address:
                by_pci[address] = merged
            merged.add(status.name, gpu, received_ns)
    for merged in found:
        merged.finish()
    return sorted(found, key=lambda merged: merged.uuid)


def merge_components(
    statuses: Iterable[DriverStatus], now_ns: int
) -> dict[tuple[str, str], dict[str, float]]:
    """The readings of what is no GPU, by kind and name; of two drivers that have one, that of higher precedence."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for status in sorted(statuses, key=lambda status: precedence(status.name)):
        for sample, _ in status.fresh(now_ns):
            for one in sample.components:
                key = one.kind, one.name
                found[key] = {**one.readings, **found.get(key, {})}
    return dict(sorted(found.items()))


def current_gpus(status: DriverStatus, now_ns: int) -> list[tuple[Gpu, int]]:
    """One driver's GPUs and when each was received; fast readings override those of the last full sample."""
    seen: dict[str, tuple[Gpu, int]] = {}
    for sample, received_ns in reversed(status.fresh(now_ns)):  # oldest first
        for gpu in sample.gpus:
            older, _ = seen.get(gpu.uuid, (None, 0))
            seen[gpu.uuid] = (gpu if older is None else update(older, gpu), received_ns)
    return list(seen.values())


def update(older: Gpu, newer: Gpu) -> Gpu:
    """The newer record, completed from the older one."""
    texts = ("index", "model", "pci", "driver_version", "parent", "profile")
    return structs.replace(
        newer,
        **{name: getattr(newer, name) or getattr(older, name) for name in texts},
        readings={**older.readings, **newer.readings},
        pids=older.pids if newer.pids is None else newer.pids,
    )


def _without_zeros(readings: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in readings.items() if value or key not in PROFILED}
