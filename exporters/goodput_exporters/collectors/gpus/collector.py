"""GPUs: what each of this node's drivers says of them, made one, and which of those that are expected are not seen.

In: the drivers of drivers/, each in a process of its own (driver_process.py), and the PCI bus. Out: the `goodput_gpu_*`,
`goodput_gpus` and `goodput_driver_*` series.

Guarantee: `collect` waits for no driver, it shows what came last. Readings of a driver that is silent for longer than
it may be are not shown any more: the GPU is then down, and its sample's age grows. It is lost where a driver that
answers does not reach it, unknown where none answers that could tell. A GPU that was seen and is gone stays, down, for
GONE_SECONDS_MAX and as one of GONE_MAX; then its series end. Nothing is started before `start`.
About 2 ms with 8 GPUs.
It does not know what a GPU's rank is doing; who joins the two listens (`listener`, called in the driver's thread).

    gpus = Gpus(settings); gpus.listener = lambda sample: ...; gpus.start(); gpus.settle(3.0); ...; gpus.close()
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from goodput_exporters.collector import NoData, Settings
from goodput_exporters.collectors.gpus.series import add_driver, add_gpu
from goodput_exporters.collectors.gpus.xid_counter import FAMILY, Xids
from goodput_exporters.gpu.drivers import DRIVERS_MAX, Options, absence, discover
from goodput_exporters.gpu.merge import Merged, merge
from goodput_exporters.gpu.pci import PciBus
from goodput_exporters.gpu.sample import TEXT_MAX, Event, Sample
from goodput_exporters.gpu.supervisor import STOP_SECONDS_MAX, Child, Limits, Report
from goodput_exporters.gpu.worker import INTERVAL_SECONDS_MAX, INTERVAL_SECONDS_MIN

GONE_SECONDS_MAX = 3600.0
GONE_MAX = 256
SETTLE_SECONDS_MAX, SETTLE_LOOK_SECONDS = 3.0, 0.02
# Kernel modules; when one of them comes, drivers that had nothing to drive are asked again at once.
_MODULES = ("nvidia", "amdgpu")


class Gpus:
    """`modules` gives drivers that lie elsewhere, as {"fake": "fake_drivers:Hanging"}, in place of those of drivers/."""

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
        self._monotonic_ns = monotonic_ns
        self.listener: Callable[[Sample], None] | None = None
        self._bus = PciBus(settings.sysfs, monotonic_ns)
        self._xids = Xids()
        self._replaced: dict[str, int] = {}
        self._lock = threading.Lock()  # around what follows
        self._children: list[Child] = []
        self._known: dict[str, Merged] = {}  # by uuid, whoever went first in front

    # -- its life

    def start(self) -> None:
        """Start the drivers' processes; returns at once. A second call does nothing."""
        with self._lock:
            if not self._children:
                modules = self._modules if self._modules is not None else dict.fromkeys(self._names(), "")
                self._children = [self._child(*item) for item in list(modules.items())[:DRIVERS_MAX]]
                for child in self._children:
                    child.start()

    def settle(self, seconds_max: float = SETTLE_SECONDS_MAX) -> bool:
        """Wait until every driver has answered, for at most so long: for who shows one exposition and ends."""
        deadline = time.monotonic() + seconds_max
        while not all(report.settled for report in self.reports()):
            if time.monotonic() >= deadline:
                return False
            time.sleep(SETTLE_LOOK_SECONDS)
        return True

    def close(self) -> None:
        """End the drivers' processes; waits for at most a second."""
        with self._lock:
            children, self._children = self._children, []
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for child in children:
            child.ask_to_stop()
        for child in children:
            child.stop(max(0.0, deadline - time.monotonic()))

    # -- what it knows

    def reports(self) -> list[Report]:
        """How each driver fares, and its newest samples."""
        with self._lock:
            children = list(self._children)
        return [child.report() for child in children]

    def troubles(self) -> list[Event]:
        """Drivers' processes that had to be replaced since the last call: the GPUs behind them cannot be seen."""
        events = []
        for report in self.reports():
            count = sum(report.restarts.values())
            if count > self._replaced.get(report.name, 0):
                text = f"replaced {count} times so far; {report.problem}"[:TEXT_MAX]
                events.append(Event("driver", report.name, time.time_ns(), text=text))
            self._replaced[report.name] = count
        return events

    def seen(self) -> list[Merged]:
        """The GPUs that drivers see now, and those they know as lost."""
        return self._look(self.reports())

    def collect(self, families) -> None:
        reports = self.reports()
        now = self._look(reports)
        with self._lock:
            gone = [gpu for gpu in self._known.values() if gpu.uuid not in {one.uuid for one in now}]
        for gpu in sorted([*now, *gone], key=lambda gpu: gpu.uuid):
            up = gpu in now and not gpu.lost
            age_seconds = (self._monotonic_ns() - gpu.heard_ns) / 1e9
            add_gpu(families, gpu, up, age_seconds, self._numa(gpu))
        for report in reports:
            add_driver(families, report)
        if not self._count(families, reports, now, gone) and not now and not gone:
            raise NoData("no GPU on the PCI bus, and no driver knows one")

    # -- parts

    def _names(self) -> list[str]:
        wanted = self._settings.drivers
        names = [name for name in discover() if wanted is None or name in wanted]
        # A process only to hear that no address was given is not worth its start.
        return [name for name in names if name != "dcgm_endpoint" or self._settings.dcgm_endpoint]

    def _child(self, name: str, module: str) -> Child:
        settings = self._settings
        interval_seconds = min(INTERVAL_SECONDS_MAX, max(INTERVAL_SECONDS_MIN, settings.gpu_interval_seconds))
        options = Options(settings.sysfs, settings.procfs, settings.dcgm_endpoint, interval_seconds)
        return Child(
            name,
            options,
            interval_seconds=interval_seconds,
            listener=lambda sample: self._hear(name, sample),
            cue=self._loaded_modules,
            absence=lambda: "" if module else absence(name, options),
            limits=self._limits,
            module=module,
        )

    def _hear(self, name: str, sample: Sample) -> None:
        self._xids.hear(name, sample)
        if self.listener is not None:
            self.listener(sample)

    def _loaded_modules(self) -> tuple[bool, ...]:
        return tuple(os.path.exists(os.path.join(self._settings.sysfs, "module", name)) for name in _MODULES)

    def _look(self, reports: list[Report]) -> list[Merged]:
        """The GPUs of now with their XIDs; who is gone is remembered, and forgotten in time."""
        now_ns = self._monotonic_ns()
        now = merge(reports, now_ns)
        for gpu in now:
            gpu.readings = {key: value for key, value in gpu.readings.items() if not key.startswith(FAMILY)}
            gpu.readings |= self._xids.of(gpu.names)
        with self._lock:
            self._remember(reports, now, now_ns)
        return now

    def _remember(self, reports: list[Report], now: list[Merged], now_ns: int) -> None:
        names = {name for gpu in now for name in gpu.names}
        self._known = {uuid: gpu for uuid, gpu in self._known.items() if not names & gpu.names}
        # Only who answers can say that a GPU is gone. While its drivers hang, it is what it was, and that is unknown.
        answering = {report.name for report in reports if report.empty or report.fresh(now_ns)}
        for gpu in self._known.values():
            gpu.lost = gpu.lost or not answering.isdisjoint(gpu.told_by)
        too_old_ns = now_ns - int(GONE_SECONDS_MAX * 1e9)
        kept = sorted(self._known.values(), key=lambda gpu: gpu.heard_ns)[-GONE_MAX:]
        kept = {gpu.uuid: gpu for gpu in kept if gpu.heard_ns > too_old_ns}
        for uuid in self._known.keys() - kept.keys():
            self._xids.forget(self._known[uuid].names)
        self._known = kept
        for gpu in now:
            self._known[gpu.uuid] = replace(
                gpu, readings=self._xids.of(gpu.names), pids=None, false_zero=None
            )  # fmt: skip

    def _count(self, families, reports: list[Report], now: list[Merged], gone: list[Merged]) -> bool:
        """GPUs by kind; False where nobody expects one. MIG instances are parts of a GPU, and not counted."""
        expected = self._settings.gpus_expected
        if expected is None:
            on_bus = self._bus.gpus()
            expected = None if on_bus is None else len(on_bus)
        if expected is not None:
            families.add("goodput_gpus", {"kind": "expected"}, expected)
        if reports and (now or all(report.settled for report in reports)):
            seen = {gpu.parent or gpu.uuid for gpu in now if not gpu.lost}
            whole = [gpu for gpu in [*now, *gone] if not gpu.parent and gpu.uuid not in seen]
            lost = {gpu.uuid for gpu in whole if gpu.lost}
            unknown = {gpu.uuid for gpu in whole} - lost
            for kind, uuids in (("seen", seen), ("lost", lost), ("unknown", unknown)):
                families.add("goodput_gpus", {"kind": kind}, len(uuids))
        return bool(expected)

    def _numa(self, gpu: Merged) -> str:
        node = self._bus.numa_node(gpu.pci)
        return "" if node is None else str(node)
