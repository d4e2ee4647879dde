"""XIDs counted in the agent, where the count outlives the driver's process, and the GPU that an XID took away.

In: samples in the order they came. A driver counts from its process's start in readings `xid/<number>/<class>`; where
it has none, its events are counted. Out: readings of a GPU, never smaller than before. Of two drivers that saw the
same XIDs the larger count is taken, not the sum. At most GPUS_MAX GPUs of each driver and NUMBERS_MAX numbers of each
GPU; what is beyond is counted as `xid/other/unknown`, or not.

    xids = Xids(); xids.hear("nvml", sample); xids.of({"GPU-5d…"}) -> {"xid/79/bus": 1}
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from goodput_exporters.gpu.nvidia.xid import lookup
from goodput_exporters.gpu.sample import Sample

FAMILY = "xid/"
OTHER = "xid/other/unknown"
GPUS_MAX, NUMBERS_MAX = 512, 64


class _Counts:
    """One GPU's XIDs as one driver tells them: what earlier processes counted, and what this one does."""

    def __init__(self):
        self.past: dict[str, float] = {}
        self.now: dict[str, float] = {}

    def set(self, key: str, count: float) -> None:
        key = self._bounded(key)
        if count < self.now.get(key, 0):
            self.past[key] = self.past.get(key, 0) + self.now[key]
        self.now[key] = count

    def begin_anew(self, missing: set[str]) -> None:
        """A driver that says nothing of what it counted before is a new process: what comes is more."""
        for key in missing - {OTHER}:
            self.past[key] = self.past.get(key, 0) + self.now[key]
            self.now[key] = 0

    def increase(self, key: str) -> None:
        key = self._bounded(key)
        self.now[key] = self.now.get(key, 0) + 1

    def total(self) -> dict[str, float]:
        return {key: count + self.past.get(key, 0) for key, count in self.now.items()}

    def _bounded(self, key: str) -> str:
        return key if key in self.now or len(self.now) < NUMBERS_MAX else OTHER


class Xids:
    def __init__(self):
        self._lock = threading.Lock()  # Each driver has a thread.
        self._counts: dict[tuple[str, str], _Counts] = {}
        self._counting: set[str] = set()  # drivers that have such readings

    def hear(self, driver: str, sample: Sample) -> None:
        with self._lock:
            for gpu in sample.gpus:
                for key, count in gpu.readings.items():
                    if key.startswith(FAMILY) and (counts := self._of(driver, gpu.uuid)):
                        self._counting.add(driver)
                        counts.set(key, count)
                if sample.full and not gpu.lost and driver in self._counting:
                    counts = self._counts.get((driver, gpu.uuid)) or _Counts()
                    counts.begin_anew(counts.now.keys() - gpu.readings.keys())
            for event in sample.events if driver not in self._counting else ():
                if event.kind == "xid" and (counts := self._of(driver, event.device)):
                    counts.increase(f"{FAMILY}{event.code}/{lookup(event.code).kind}")

    def of(self, uuids: Iterable[str]) -> dict[str, float]:
        """Readings of the GPU that has these uuids."""
        uuids, found = set(uuids), {}
        with self._lock:
            for (_, uuid), counts in self._counts.items():
                if uuid in uuids:
                    for key, count in counts.total().items():
                        found[key] = max(count, found.get(key, 0))
        return found

    def forget(self, uuids: Iterable[str]) -> None:
        uuids = set(uuids)
        with self._lock:
            self._counts = {at: counts for at, counts in self._counts.items() if at[1] not in uuids}

    def _of(self, driver: str, uuid: str) -> _Counts | None:
        at = (driver, uuid)
        if at not in self._counts and len(self._counts) < GPUS_MAX:
            self._counts[at] = _Counts()
        return self._counts.get(at)
