"""GPUs of this node: the readings of all drivers merged, and which expected GPUs are missing.

`collect` never waits for a driver, it shows the last samples; about 2 ms with 8 GPUs. Readings of a driver that is
silent for too long disappear: the GPU is down and the age of its sample grows. A GPU is lost where a driver that
answers does not reach it, unknown where none of its drivers answers. A GPU that is gone stays, as down, for
GONE_SECONDS_MAX. No process is started before `start`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from goodput.metrics.foreign import ForeignFamily
from goodput_exporters.collector import CollectorError, NoData, Settings
from goodput_exporters.collectors.gpus.damage import DamageMonitor
from goodput_exporters.collectors.gpus.dcgm_page import families as dcgm_families
from goodput_exporters.collectors.gpus.dcgm_page import names_of
from goodput_exporters.collectors.gpus.nvlink_subcodes import NvlinkSubcodes
from goodput_exporters.collectors.gpus.series import add_component, add_driver, add_gpu
from goodput_exporters.collectors.gpus.xid_counter import XidCounter
from goodput_exporters.gpu.drivers import DRIVERS, XID_DRIVERS, Options, absence, is_reachable
from goodput_exporters.gpu.merge import MergedGpu, merge, merge_components
from goodput_exporters.gpu.nvidia.counters_file import further_fields, read_counters
from goodput_exporters.gpu.pci import PciBus
from goodput_exporters.gpu.sample import TEXT_MAX, Event, Sample
from goodput_exporters.gpu.supervisor import STOP_SECONDS_MAX, DriverStatus, DriverSupervisor, Limits
from goodput_exporters.system.files import PROBLEMS_MAX
from goodput_exporters.system.kernel_log import KernelLog

GONE_SECONDS_MAX = 3600.0
GONE_MAX = 256
SETTLE_SECONDS_MAX, SETTLE_POLL_SECONDS = 3.0, 0.02
# Kernel modules; when one is loaded, drivers that had nothing to sample are tried again at once.
_MODULES = ("nvidia", "amdgpu")


class Gpus:
    """`on_sample` is called in the driver's thread, with the events that damage.py adds; `pods_of` names the pods of a GPU
    of which no driver does.

    Raises ValueError where the list of counters is malformed.

    `modules` replaces the drivers in gpu/drivers.py, as in {"fake": "fake_drivers:Hanging"}.
    """

    name = "gpus"

    def __init__(
        self,
        settings: Settings,
        *,
        modules: dict[str, str] | None = None,
        limits: Limits | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ):
        self._settings = settings
        self._modules, self._limits = modules, limits
        self._counters = read_counters(settings.dcgm_fields) if settings.dcgm_fields else ()
        self._monotonic_ns = monotonic_ns
        self.on_sample: Callable[[Sample], None] | None = None
        self.pods_of: Callable[[MergedGpu], list[tuple[str, str, str]]] = lambda gpu: []
        self._bus = PciBus(settings.sysfs, monotonic_ns)
        self._xids, self._damage = XidCounter(), DamageMonitor(settings.unix_ns)
        self._subcodes: NvlinkSubcodes | None = None  # from `start` on
        self._restarts: dict[str, int] = {}
        self._lock = threading.Lock()  # guards the following
        self._supervisors: list[DriverSupervisor] = []
        self._known: list[MergedGpu] = []  # present or gone, without readings

    def start(self) -> None:
        """Start the drivers' processes; returns at once. A second call does nothing."""
        with self._lock:
            if not self._supervisors:
                self._subcodes = NvlinkSubcodes(KernelLog(self._settings.kernel_log), self._monotonic_ns)
                self._supervisors = [self._supervisor(*driver) for driver in self._drivers().items()]
                for supervisor in self._supervisors:
                    supervisor.start()

    def settle(self, seconds_max: float = SETTLE_SECONDS_MAX) -> bool:
        """Wait until every driver has answered; False at the time limit. For a single exposition."""
        deadline = time.monotonic() + seconds_max
        while not all(status.settled for status in self.statuses()):
            if time.monotonic() >= deadline:
                return False
            time.sleep(SETTLE_POLL_SECONDS)
        return True

    def close(self) -> None:
        """End the drivers' processes; waits for at most a second."""
        with self._lock:
            supervisors, self._supervisors = self._supervisors, []
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for supervisor in supervisors:
            supervisor.begin_stop()
        for supervisor in supervisors:
            supervisor.stop(max(0.0, deadline - time.monotonic()))
        if self._subcodes is not None:
            self._subcodes.log.close()

    def statuses(self) -> list[DriverStatus]:
        with self._lock:
            supervisors = list(self._supervisors)
        return [supervisor.status() for supervisor in supervisors]

    def possible_events(self, sample: Sample) -> dict[str, frozenset[tuple[str, str]]]:
        """(kind, severity) of the events that a sample's driver can report, by UUID of its GPUs."""
        return self._damage.possible(sample)

    def dcgm_families(self, host: str) -> list[ForeignFamily]:
        """NVIDIA's GPUs under dcgm-exporter's names."""
        return dcgm_families(self.current(), self._xids.last(), host, self._counters)

    def dcgm_names(self) -> list[str]:
        """The names that `dcgm_families` serves where they have a value."""
        return names_of(self._counters)

    def dcgm_names_without_value(self, host: str) -> list[str]:
        served = {family.name for family in self.dcgm_families(host)}
        return [name for name in self.dcgm_names() if name not in served]

    def kernel_log_problem(self) -> str:
        """Why the kernel's log cannot be read, "" where it can or where no driver of NVIDIA's GPUs answers."""
        if self._subcodes is None or not any(one.up and one.name in XID_DRIVERS for one in self.statuses()):
            return ""
        return self._subcodes.log.problem

    def restart_events(self) -> list[Event]:
        """An event for each driver whose process was replaced since the last call: its GPUs cannot be seen."""
        events = []
        for status in self.statuses():
            count = sum(status.restarts.values())
            if count > self._restarts.get(status.name, 0):
                text = f"replaced {count} times so far; {status.problem}"[:TEXT_MAX]
                events.append(Event("driver", status.name, time.time_ns(), text=text))
            self._restarts[status.name] = count
        return events

    def current(self) -> list[MergedGpu]:
        """The GPUs that drivers see now, and those they know as lost."""
        return self._update(self.statuses())[0]

    def collect(self, families) -> None:
        statuses = self.statuses()
        now, gone = self._update(statuses)
        for gpu in sorted([*now, *gone], key=lambda gpu: gpu.uuid):
            up = gpu in now and not gpu.lost
            age_seconds = (self._monotonic_ns() - gpu.received_ns) / 1e9
            node = self._bus.numa_node(gpu.pci)  # The collector `numa` reports a malformed one.
            numa = "" if node is None else str(node)
            add_gpu(families, gpu, up, age_seconds, numa, self._xids.counts(gpu.names))
        for (kind, name), readings in merge_components(statuses, self._monotonic_ns()).items():
            add_component(families, kind, name, readings)
        for status in statuses:
            add_driver(families, status)
        expected = self._add_counts(families, statuses, now, gone)
        if self._bus.problems:
            raise CollectorError("; ".join(self._bus.problems[:PROBLEMS_MAX]))
        if not expected and not now and not gone:
            raise NoData("no GPU on the PCI bus, and no driver knows one")

    def _drivers(self) -> dict[str, str]:
        if self._modules is not None:
            return self._modules
        selected, endpoint = self._settings.drivers, self._settings.dcgm_endpoint
        # Do not start a process only to learn that no endpoint is configured.
        names = [name for name in DRIVERS if name != "dcgm_endpoint" or endpoint]
        return {name: DRIVERS[name] for name in names if selected is None or name in selected}

    def _supervisor(self, name: str, module: str) -> DriverSupervisor:
        settings = self._settings
        options = Options(
            settings.sysfs,
            settings.procfs,
            settings.dcgm_endpoint,
            settings.gpu_interval_seconds,
            further_fields(self._counters),
        )
        return DriverSupervisor(
            name,
            options,
            on_sample=self._handle_sample,
            trigger=self._loaded_modules,
            absence=lambda: absence(module, options),
            is_reachable=lambda: is_reachable(module, options),
            limits=self._limits,
            module=module,
        )

    def _handle_sample(self, sample: Sample) -> None:
        sample = self._damage.with_events(sample)
        if self._subcodes is not None:
            sample = self._subcodes.complete(sample)
        self._xids.add_sample(sample)
        if self.on_sample is not None:
            self.on_sample(sample)

    def _loaded_modules(self) -> tuple[bool, ...]:
        return tuple(os.path.exists(os.path.join(self._settings.sysfs, "module", name)) for name in _MODULES)

    def _update(self, statuses: list[DriverStatus]) -> tuple[list[MergedGpu], list[MergedGpu]]:
        """(GPUs that drivers see now, GPUs that are gone)."""
        now_ns = self._monotonic_ns()
        now = merge(statuses, now_ns)
        for gpu in now:
            gpu.pods = gpu.pods or self.pods_of(gpu)
        names = {name for gpu in now for name in gpu.names}
        # A GPU is lost only where a driver that answers does not have it; while its drivers hang, that is unknown.
        answering = {status.name for status in statuses if status.empty or status.fresh(now_ns)}
        with self._lock:
            missing = [gpu for gpu in self._known if not names & gpu.names]
            for gpu in missing:
                gpu.lost = gpu.lost or not answering.isdisjoint(gpu.known_by)
            missing.sort(key=lambda gpu: gpu.received_ns, reverse=True)
            too_old_ns = now_ns - int(GONE_SECONDS_MAX * 1e9)
            gone = [gpu for gpu in missing[:GONE_MAX] if gpu.received_ns > too_old_ns]
            for gpu in missing[len(gone) :]:
                self._xids.forget(gpu.names)
            self._known = [*gone, *(replace(gpu, readings={}, pids=None, false_zero=None) for gpu in now)]
        return now, gone

    def _add_counts(
        self, families, statuses: list[DriverStatus], now: list[MergedGpu], gone: list[MergedGpu]
    ) -> int | None:
        """Add the number of GPUs by kind, MIG instances not counted; returns how many are expected."""
        expected = self._settings.gpus_expected
        if expected is None:
            on_bus = self._bus.gpus()
            expected = None if on_bus is None else len(on_bus)
        if expected is not None:
            families.add("goodput_gpus", {"kind": "expected"}, expected)
        if statuses and (now or all(status.settled for status in statuses)):
            seen = {gpu.parent or gpu.uuid for gpu in now if not gpu.lost}
            missing = [gpu for gpu in [*now, *gone] if not gpu.parent and gpu.uuid not in seen]
            lost = {gpu.uuid for gpu in missing if gpu.lost}
            unknown = {gpu.uuid for gpu in missing} - lost
            for kind, uuids in (("seen", seen), ("lost", lost), ("unknown", unknown)):
                families.add("goodput_gpus", {"kind": kind}, len(uuids))
        return expected
