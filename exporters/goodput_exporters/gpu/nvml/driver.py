"""NVIDIA GPUs through NVML: nvidia-ml-py and the driver's libnvidia-ml.so.1. Needs neither DCGM nor root.

A fast sample has activity, power, energy and memory; a full one everything in queries.py, and once a minute what is in
rare_queries.py and links.py; gpm.py has the activity by kind. XIDs are polled in both.
The GPM samples of all devices are taken first, one after the other, so that all activity is that of the time between
two samples; only `utilization` and `memory_controller` average over the driver's own period. A GPU that the driver
cannot reach is `lost`. While one is lost, or the number of GPUs has changed, a full sample reopens the library, after
a minute and then less often. CPU besides the library's own, with 8 GPUs: 0.4 ms for a fast sample, 2 ms for a full
one.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from goodput_exporters.collector import CollectorError, NoData
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.nvml.binding import import_pynvml
from goodput_exporters.gpu.nvml.device import LIBRARY_CLOSED, Device, LibraryClosedError, LostError
from goodput_exporters.gpu.nvml.events import XidMonitor
from goodput_exporters.gpu.nvml.gpm import metrics_request
from goodput_exporters.gpu.nvml.inventory import Inventory, list_devices, update_instances
from goodput_exporters.gpu.nvml.queries import DRIVER_NOT_LOADED, GPU_NOT_FOUND, LIBRARY_NOT_FOUND
from goodput_exporters.gpu.sample import EVENTS_MAX, GPUS_MAX, PROBLEMS_MAX, TEXT_MAX, Event, Gpu, Sample

REOPEN_SECONDS, REOPEN_SECONDS_MAX = 60, 3600
# GPUs that disappeared are reported for the life of this process, up to this many.
GONE_MAX = 64
# Not from the table of DCGM's fields, which would take memory here.
PCIE_NAMES = ("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "DCGM_FI_DEV_PCIE_RX_THROUGHPUT")
LIBRARY = "libnvidia-ml.so.1"
LOADER_CACHE, LOADER_CACHE_BYTES_MAX = "/etc/ld.so.cache", 8 << 20
LIBRARY_FOLDERS = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/lib/wsl/lib")
# Debian's; the loader knows them from its cache, which has no file that is no library.
MULTIARCH_FOLDERS = "/usr/lib/*-linux-gnu*"


class Nvml:
    name = "nvml"

    def __init__(self, options: Options, monotonic_ns=time.monotonic_ns, unix_ns=time.time_ns):
        self._monotonic_ns, self._unix_ns = monotonic_ns, unix_ns
        self._measures_pcie = not set(PCIE_NAMES).isdisjoint(options.dcgm_fields)
        self._pcie_turn = 0
        self._nvml: Any = None
        self._inventory = Inventory()
        self._lost: dict[str, str] = {}  # by UUID: why
        self._unreached: set[str] = set()  # in this sample
        self._gone: dict[str, Gpu] = {}
        self._round = 0
        self._reopen_ns = 0
        self._reopen_seconds = REOPEN_SECONDS
        self._problems: list[str] = []
        self._events: list[Event] = []

    @staticmethod
    def absence(options: Options) -> str:
        # One that is there and is no library is for `open` to report.
        is_missing = is_library_missing(LIBRARY, os.environ) and not library_files(LIBRARY, os.environ)
        return f"there is no {LIBRARY} on this system" if is_missing else ""

    def open(self) -> None:
        """Raises NoData without the library, the driver or a GPU, CollectorError where they cannot be used."""
        try:
            self._nvml = nvml = import_pynvml()
        except ImportError as error:
            raise NoData(f"nvidia-ml-py is not installed: {error}") from None
        self._xids = XidMonitor(nvml)
        self._request = metrics_request(nvml)
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            unusable = unusable_library(LIBRARY, os.environ) if error.value == LIBRARY_NOT_FOUND else ""
            if unusable:
                raise CollectorError(f"nvmlInit: {unusable}") from None
            absent = error.value in (LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, GPU_NOT_FOUND)
            raise (NoData if absent else CollectorError)(f"nvmlInit: {error}") from None
        try:
            self._list_devices()
        except nvml.NVMLError as error:
            self.close()
            raise CollectorError(f"nvmlDeviceGetCount: {error}") from None
        if not self._inventory.count:
            self.close()
            raise NoData("NVML reports no GPU")

    def close(self) -> None:
        """Release everything. Harmless where nothing is open."""
        if self._nvml is None:
            return
        self._xids.close()
        for device in self._inventory.devices:
            device.close()
        self._inventory = Inventory()
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def sample(self, full: bool) -> Sample:
        """Raises CollectorError where the library or the kernel driver is gone; the driver must then be reopened."""
        self._problems, self._events = [], []
        self._round += 1
        now_ns, time_ns = self._monotonic_ns(), self._unix_ns()
        try:
            # First, while every event set still works: an XID explains why a GPU is lost in the same moment.
            self._events += self._xids.poll(time_ns, self._problems)
            if full:
                self._refresh_inventory(now_ns)
            self._take_gpm_samples(full, now_ns)
            sampled_ns = self._monotonic_ns()
            gpus = []
            for device in self._inventory.devices:
                gpus += self._read(device, full, now_ns, time_ns)
            if full and self._measures_pcie:
                self._measure_pcie(now_ns)
        except (LibraryClosedError, self._nvml.NVMLError) as error:
            raise CollectorError(f"NVML: {error}") from None
        return Sample(
            driver=self.name,
            monotonic_ns=sampled_ns,
            gpus=[*gpus, *self._gone.values()][:GPUS_MAX],
            full=full,
            events=self._events[:EVENTS_MAX],
            problems=_bounded(self._problems),
            implausible=self._take_implausible(),
        )

    def _take_implausible(self) -> dict[str, int]:
        """How many readings were left out since the last sample, by family."""
        found: Counter[str] = Counter()
        for whole in self._inventory.devices:
            for device in (whole, *whole.instances.values()):
                found.update(device.implausible)
                device.implausible.clear()
        return dict(found)

    def _refresh_inventory(self, now_ns: int) -> None:
        """Reopen the library where GPUs came, went or are missing."""
        changed = self._count(self._inventory.count) != self._inventory.count
        missing = bool(self._lost or self._gone or self._inventory.unreachable)
        if not changed and not missing:
            self._reopen_seconds, self._reopen_ns = REOPEN_SECONDS, 0
        elif changed or (self._reopen_ns and now_ns >= self._reopen_ns):
            self._reopen()
            self._lost.update({uuid: gpu.why for uuid, gpu in self._gone.items()})
        if missing and now_ns >= self._reopen_ns:
            self._reopen_ns = now_ns + self._reopen_seconds * 1_000_000_000
            self._reopen_seconds = min(2 * self._reopen_seconds, REOPEN_SECONDS_MAX)
        if self._xids.is_incomplete:
            self._watch_xids()
        self._problems += [*self._inventory.unreachable, *self._inventory.forbidden]
        self._inventory.forbidden = []

    def _count(self, otherwise: int) -> int:
        try:
            return self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            if error.value in LIBRARY_CLOSED:
                raise
            self._problems.append(f"nvmlDeviceGetCount: {error}")
            return otherwise

    def _reopen(self) -> None:
        """Raises NVMLError. Only a reopened library forgets GPUs that left and finds those that came."""
        known = {device.uuid: device.identity for device in self._inventory.devices}
        self.close()
        self._nvml.nvmlInit()
        self._list_devices()
        present = {device.uuid for device in self._inventory.devices}
        self._gone = {uuid: gpu for uuid, gpu in self._gone.items() if uuid not in present}
        for uuid, gpu in known.items():
            if uuid not in present and len(self._gone) < GONE_MAX:
                self._gone[uuid] = replace(gpu, lost=True, why="no longer known to the driver")

    def _list_devices(self) -> None:
        try:
            version = self._nvml.nvmlSystemGetDriverVersion()
        except (self._nvml.NVMLError, ValueError):
            version = ""
        self._inventory = list_devices(self._nvml, version)
        self._watch_xids()

    def _watch_xids(self) -> None:
        reached = [device for device in self._inventory.devices if device.uuid not in self._lost]
        self._xids.watch(reached, self._problems)

    def _take_gpm_samples(self, full: bool, now_ns: int) -> None:
        """Update MIG instances and take all GPM samples."""
        self._unreached = set()
        for device in self._inventory.devices:
            if device.uuid in self._lost and not full:
                self._unreached.add(device.uuid)
                continue
            try:
                if full:
                    update_instances(device)
                for each in (device, *device.instances.values()):
                    each.take_gpm(self._round, now_ns, self._problems)
            except LostError as error:
                self._lose(device, error)

    def _lose(self, device: Device, error: LostError) -> None:
        self._unreached.add(device.uuid)
        device.close()
        self._lost.setdefault(device.uuid, str(error)[:TEXT_MAX])

    def _read(self, device: Device, full: bool, now_ns: int, time_ns: int) -> list[Gpu]:
        """The GPU and its MIG instances."""
        if device.uuid not in self._unreached:
            try:
                gpu, *instances = [
                    each.read(self._request, full, now_ns, self._problems)
                    for each in (device, *device.instances.values())
                ]
            except LostError as error:
                self._lose(device, error)
        if device.uuid in self._unreached:
            return [replace(device.identity, lost=True, why=self._lost[device.uuid])]
        if device.uuid in self._lost:
            self._set_back(device.uuid, time_ns)
        return [gpu, *instances]

    def _measure_pcie(self, now_ns: int) -> None:
        """Measure the PCIe traffic of one GPU after all others were read, which it would delay; each has its turn."""
        reached = [device for device in self._inventory.devices if device.uuid not in self._lost]
        if reached:
            device = reached[self._pcie_turn % len(reached)]
            self._pcie_turn += 1
            try:
                device.measure_pcie(now_ns, self._problems)
            except LostError as error:
                self._lose(device, error)

    def _set_back(self, uuid: str, time_ns: int) -> None:
        del self._lost[uuid]
        # A reset may have ended the GPU's event registration. Drain its set before it is replaced.
        self._events += self._xids.poll(time_ns, self._problems)
        self._xids.forget(uuid)
        self._watch_xids()


def _bounded(problems: list[str]) -> list[str]:
    """As many as a sample may have; the last one counts those left out."""
    kept = [text[:TEXT_MAX] for text in problems[:PROBLEMS_MAX]]
    if len(problems) > PROBLEMS_MAX:
        kept[-1] = f"and {len(problems) - PROBLEMS_MAX + 1} more"
    return kept


def library_files(name: str, environ: Mapping[str, str]) -> list[str]:
    """The files of this name in the folders of shared libraries, whether or not they are libraries."""
    declared = filter(None, environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":"))
    folders = (*declared, *LIBRARY_FOLDERS, *sorted(glob.glob(MULTIARCH_FOLDERS)))
    return [path for folder in folders if os.path.isfile(path := os.path.join(folder, name))]


def unusable_library(name: str, environ: Mapping[str, str]) -> str:
    """Why a file of this name cannot be loaded, "" where there is none.

    Images made where a container toolkit had mounted the driver's files have empty files in their place.
    """
    for path in library_files(name, environ):
        try:
            ctypes.CDLL(path)
        except OSError as error:
            return str(error)[:TEXT_MAX]
    return ""


def is_library_missing(name: str, environ: Mapping[str, str], cache: str = LOADER_CACHE) -> bool:
    """Whether a shared library is in no place that the dynamic loader searches (ld.so(8)), without loading it.

    False where that cannot be determined: musl and NixOS have no loader cache. The name is searched for in the
    cache's bytes, whatever its format. 0.1 ms.
    """
    declared = filter(None, environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":"))
    exists = any(os.path.exists(os.path.join(folder, name)) for folder in (*declared, *LIBRARY_FOLDERS))
    if exists or name in environ.get("LD_PRELOAD", ""):
        return False
    try:
        with open(cache, "rb") as file:
            known = file.read(LOADER_CACHE_BYTES_MAX + 1)
    except OSError:
        return False
    return len(known) <= LOADER_CACHE_BYTES_MAX and name.encode() + b"\0" not in known
