"""NVIDIA GPUs by NVML: nvidia-ml-py and the libnvidia-ml.so.1 that comes with the driver; DCGM is not needed.

In: the library, in this process. Out: gpu.Samples. A fast sample has activity, power, energy and used memory; a full one
all of nvml_readings.py and of nvml_events.py. XIDs are polled in both. GPM samples of all devices are taken first, one
after the other, so that `window_ns` (the time between this sample's and the last one's) is the same for all activity;
`utilization` and `memory_controller` alone are means over the driver's own period.
A GPU that the driver cannot reach is `lost`, without readings but its XIDs; a full sample finds it back. While one is
lost, or the number of GPUs is not what it was, the library is opened anew: after a minute, then ever more seldom.
Cost with 8 GPUs, the library's own time apart: 0.5 ms of CPU for a fast sample, 3 ms for a full one.
A call may hang: the process that this runs in is killed then. It needs no root.
"""

from __future__ import annotations

import os
import time

from msgspec.structs import replace

from goodput_exporters.collector import CollectorError, NoData
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.nvml.device import ENDED, LOST, Device, Ended, Lost
from goodput_exporters.gpu.nvml.events import Increases, XidWatch
from goodput_exporters.gpu.nvml.gpm import metrics_of
from goodput_exporters.gpu.nvml.inventory import Census, find_instances, take_census
from goodput_exporters.gpu.nvml.queries import FAST, FULL, MIG_FAST, MIG_FULL
from goodput_exporters.gpu.nvml.shared_library import is_nowhere
from goodput_exporters.gpu.sample import EVENTS_MAX, GPUS_MAX, PROBLEMS_MAX, TEXT_MAX, Event, Gpu, Sample

REOPEN_SECONDS, REOPEN_SECONDS_MAX = 60, 3600
# GPUs that were seen once and are gone are told of for the life of this process, up to so many.
GONE_MAX = 64
LIBRARY = "libnvidia-ml.so.1"
_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND, _GPU_NOT_FOUND = 9, 12, 28


class Nvml:
    name = "nvml"

    def __init__(self, options: Options, monotonic_ns=time.monotonic_ns, unix_ns=time.time_ns):
        self._monotonic_ns, self._unix_ns = monotonic_ns, unix_ns
        self._nvml = None
        self._census = Census()
        # Lost as the last event said; not reached in this sample.
        self._lost: set[str] = set()
        self._unreached: set[str] = set()
        self._gone: dict[str, Gpu] = {}
        self._increases = Increases()
        self._round = 0
        self._taken_ns = 0
        self._reopen_ns = 0
        self._reopen_seconds = REOPEN_SECONDS
        self._problems: list[str] = []
        self._events: list[Event] = []

    @staticmethod
    def absence(options: Options) -> str:
        return f"there is no {LIBRARY} on this system" if is_nowhere(LIBRARY, os.environ) else ""

    def open(self) -> None:
        """Raises NoData without the library, the driver or a GPU, CollectorError where they cannot be used."""
        try:
            import pynvml
        except ImportError as error:
            raise NoData(f"nvidia-ml-py is not installed: {error}") from None
        self._nvml = pynvml
        self._watch = XidWatch(pynvml)
        self._request = metrics_of(pynvml)
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            absent = error.value in (_LIBRARY_NOT_FOUND, _DRIVER_NOT_LOADED, _GPU_NOT_FOUND)
            raise (NoData if absent else CollectorError)(f"nvmlInit: {error}") from None
        try:
            self._take_census()
        except pynvml.NVMLError as error:
            self.close()
            raise CollectorError(f"nvmlDeviceGetCount: {error}") from None
        if not self._census.count:
            self.close()
            raise NoData("NVML knows no GPU")

    def close(self) -> None:
        """Give everything back. Harmless where nothing is open."""
        if self._nvml is None:
            return
        self._watch.close()
        for device in self._census.devices:
            device.close()
        self._census = Census()
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            pass

    def sample(self, full: bool) -> Sample:
        """Raises CollectorError where the library or the driver is gone; the driver must then be opened anew."""
        self._problems, self._events = [], []
        self._round += 1
        now_ns, time_ns = self._monotonic_ns(), self._unix_ns()
        try:
            # First, while every set can still be asked: an XID says why a GPU is lost in the same moment.
            self._poll(time_ns)
            if full:
                self._refresh(now_ns, time_ns)
            had_window = self._begin(full, now_ns, time_ns)
            taken_ns = self._monotonic_ns()
            gpus = []
            for device in self._census.devices:
                gpus += self._read(device, full, now_ns, time_ns)
        except (Ended, self._nvml.NVMLError) as error:
            raise CollectorError(f"NVML: {error}") from None
        window_ns = taken_ns - self._taken_ns if had_window else 0
        self._taken_ns = taken_ns
        return Sample(
            driver=self.name,
            monotonic_ns=taken_ns,
            gpus=[*gpus, *self._gone.values()][:GPUS_MAX],
            full=full,
            window_ns=window_ns,
            events=self._events[:EVENTS_MAX],
            problems=_bounded(self._problems),
        )

    def _poll(self, time_ns: int) -> None:
        """Take the XIDs that came."""
        self._events += self._watch.poll(time_ns, self._problems)

    def _refresh(self, now_ns: int, time_ns: int) -> None:
        """See whether there are other GPUs than before, and open the library anew where that may help."""
        changed = self._count(self._census.count) != self._census.count
        missing = bool(self._lost or self._gone or self._census.unreachable)
        if not changed and not missing:
            self._reopen_seconds, self._reopen_ns = REOPEN_SECONDS, 0
        elif changed or (self._reopen_ns and now_ns >= self._reopen_ns):
            self._open_again()
            self._tell_of_gone(time_ns)
        if missing and now_ns >= self._reopen_ns:
            self._reopen_ns = now_ns + self._reopen_seconds * 1_000_000_000
            self._reopen_seconds = min(2 * self._reopen_seconds, REOPEN_SECONDS_MAX)
        if self._watch.is_partial:
            self._watch_all()
        self._problems += [*self._census.unreachable, *self._census.forbidden]
        self._census.forbidden = []

    def _count(self, otherwise: int) -> int:
        try:
            return self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            if error.value in ENDED:
                raise
            self._problems.append(f"nvmlDeviceGetCount: {error}")
            return otherwise

    def _open_again(self) -> None:
        """Raises NVMLError. A library that was shut down forgets GPUs that left and finds those that came."""
        known = {device.uuid: device.identity for device in self._census.devices}
        self.close()
        self._nvml.nvmlInit()
        self._take_census()
        present = {device.uuid for device in self._census.devices}
        self._gone = {uuid: gpu for uuid, gpu in self._gone.items() if uuid not in present}
        for uuid, gpu in known.items():
            if uuid not in present and len(self._gone) < GONE_MAX:
                self._gone[uuid] = replace(gpu, lost=True)

    def _tell_of_gone(self, time_ns: int) -> None:
        for uuid in self._gone:
            self._set_lost(uuid, "no longer known to the driver", time_ns)

    def _take_census(self) -> None:
        try:
            version = self._nvml.nvmlSystemGetDriverVersion()
        except (self._nvml.NVMLError, ValueError):
            version = ""
        self._census = take_census(self._nvml, version)
        self._watch_all()

    def _watch_all(self) -> None:
        reached = [device for device in self._census.devices if device.uuid not in self._lost]
        self._watch.watch(reached, self._problems)

    def _begin(self, full: bool, now_ns: int, time_ns: int) -> bool:
        """Bring MIG instances up to date and take all GPM samples; True where at least one has a window now."""
        had_window = False
        self._unreached = set()
        for device in self._census.devices:
            if device.uuid in self._lost and not full:
                self._unreached.add(device.uuid)
                continue
            try:
                if full:
                    self._find_instances(device)
                for each in (device, *device.instances.values()):
                    each.take_gpm(self._round, now_ns, self._problems)
                    had_window |= each.has_gpm_window()
            except Lost as error:
                self._lose(device, error, time_ns)
        return had_window

    def _lose(self, device: Device, error: Lost, time_ns: int) -> None:
        self._unreached.add(device.uuid)
        device.close()
        self._set_lost(device.uuid, str(error), time_ns)

    def _read(self, device: Device, full: bool, now_ns: int, time_ns: int) -> list[Gpu]:
        """The GPU and its MIG instances."""
        if device.uuid not in self._unreached:
            try:
                readings, pids = self._ask(device, full, now_ns)
                instances = device.instances.values()
                gpus = [_as_gpu(each, *self._ask_instance(each, full, now_ns)) for each in instances]
            except Lost as error:
                self._lose(device, error, time_ns)
        # The count of XIDs is this process's own, and one of them may say why the GPU is lost.
        xids = self._watch.readings(device.uuid) if full else {}
        if device.uuid in self._unreached:
            return [replace(device.identity, readings=xids, lost=True)]
        if device.uuid in self._lost:
            self._set_back(device.uuid, time_ns)
        if full:
            self._events += self._increases.events(device.uuid, readings, now_ns, time_ns)
            readings.update(xids)
        return [_as_gpu(device, readings, pids), *gpus]

    def _ask(self, device: Device, full: bool, now_ns: int) -> tuple[dict[str, float], list[int] | None]:
        readings = device.read(FULL if full else FAST, now_ns, self._problems)
        readings.update(device.read_gpm(self._request, now_ns, self._problems))
        if not full:
            return readings, None
        readings.update(device.read_fields(now_ns, self._problems))
        return readings, self._ask_pids(device, readings, now_ns)

    def _ask_instance(self, instance: Device, full: bool, now_ns: int):
        readings = instance.read(MIG_FULL if full else MIG_FAST, now_ns, self._problems)
        readings.update(instance.read_gpm(self._request, now_ns, self._problems))
        return readings, self._ask_pids(instance, readings, now_ns) if full else None

    def _ask_pids(self, device: Device, readings: dict[str, float], now_ns: int) -> list[int] | None:
        pids, computing = device.pids(now_ns, self._problems)
        if computing is not None:
            readings["processes"] = float(computing)
        return pids

    def _find_instances(self, device: Device) -> None:
        try:
            find_instances(device)
        except self._nvml.NVMLError as error:
            if error.value in LOST:
                raise Lost(f"nvmlDeviceGetMigMode: {error}") from None

    def _set_back(self, uuid: str, time_ns: int) -> None:
        self._lost.discard(uuid)
        self._events.append(Event("back", uuid, time_ns, 0, "GPU is back", "info"))
        # A reset may have ended its events. What its set still holds must not go with it.
        self._poll(time_ns)
        self._watch.forget(uuid)
        self._watch_all()

    def _set_lost(self, uuid: str, why: str, time_ns: int) -> None:
        if uuid not in self._lost:
            self._lost.add(uuid)
            self._events.append(Event("lost", uuid, time_ns, 0, "GPU is lost", "critical", why))


def _as_gpu(device: Device, readings: dict[str, float], pids: list[int] | None = None) -> Gpu:
    return replace(device.identity, readings=readings, pids=pids)


def _bounded(problems: list[str]) -> list[str]:
    """As many as a sample may have, the last of them saying how many more there were."""
    kept = [text[:TEXT_MAX] for text in problems[:PROBLEMS_MAX]]
    if len(problems) > PROBLEMS_MAX:
        kept[-1] = f"and {len(problems) - PROBLEMS_MAX + 1} more"
    return kept
