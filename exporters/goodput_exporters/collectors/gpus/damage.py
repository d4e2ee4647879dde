"""Events of GPUs from the records of all drivers: damage, throttling, loss and return, and the last XID.

They are made in the agent, whose state survives the replacement of a driver's process. Damage is an error counter that is
higher than when the same driver last reported it: its first value is no event, nor one after a reset of the counter, as
by a reload of the driver. What several drivers report of a GPU is one event: a counter's growth
up to the highest value reported, a loss until no driver reports it any more, an XID within XID_SECONDS. A GPU
that a driver has listed before and does not list any more is lost, unless it lists none.

    monitor = DamageMonitor(); sample = monitor.with_events(sample); monitor.possible(sample)["GPU-1"]
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import structs

from goodput_exporters.gpu.drivers import XID_DRIVERS
from goodput_exporters.gpu.nvidia.xid import lookup
from goodput_exporters.gpu.sample import EVENTS_MAX, Event, Gpu, Sample

DEVICES_MAX, XIDS_MAX = 512, 64
QUIET_NS = 60 * 10**9
# The report of a lost GPU expires when its driver reports nothing for so long.
CLAIM_NS = 120 * 10**9
# A dcgm-exporter shows an XID up to its interval, 30 s by default, after NVML does.
XID_NS = 120 * 10**9

# (keys, of which the first that the GPU ever had counts; kind; severity; description)
COUNTERS = (
    (("ecc/correctable/aggregate", "ecc/correctable/volatile"), "ecc", "info", "correctable memory errors"),
    (("ecc/uncorrectable/aggregate", "ecc/uncorrectable/volatile"), "ecc", "critical", "uncorrectable memory errors"),
    (("rows_remapped/correctable",), "row_remap", "warning", "rows remapped after correctable errors"),
    (("rows_remapped/uncorrectable",), "row_remap", "warning", "rows remapped after uncorrectable errors"),
    (("rows_remapped/pending",), "row_remap", "warning", "row remap that waits for a reset"),
    (("rows_remapped/failure",), "row_remap", "critical", "row remap that failed"),
    (("pages_retired/single_bit",), "page_retired", "warning", "pages retired after single-bit errors"),
    (("pages_retired/double_bit",), "page_retired", "warning", "pages retired after double-bit errors"),
    (("pages_retired/pending",), "page_retired", "warning", "page retirement that waits for a reboot"),
    (("pages_retired/retired",), "page_retired", "warning", "memory pages retired"),
    (("pages_retired/unreservable",), "page_retired", "critical", "bad memory pages that stay in use"),
    (("ecc/deferred/volatile",), "ecc", "warning", "uncorrectable memory errors found before the data was used"),
    (("xgmi_links/down",), "link_down", "critical", "XGMI links down"),
)  # fmt: skip
# Reasons that mean a fault, not a configured limit.
FAULT_REASONS = (
    *("hw_slowdown", "hw_thermal", "hw_power_brake", "thermal", "memory_thermal", "regulator_thermal"),
)


@dataclass
class _Report:
    """What one driver has reported of one GPU: its newest readings by key, its last XID, and whether it reached it."""

    readings: dict[str, float] = field(default_factory=dict)
    last_xid: int | None = None
    is_listed: bool = False


@dataclass
class _Device:
    """One GPU by all drivers. Times are by the monotonic clock of the samples.

    reported     by key of a counter: the highest value for which an event was made
    lost         by driver that reports it as lost: when it last did
    quiet_until  by reason of throttling
    xids         by number: the driver that reported it last, and when
    """

    reports: dict[str, _Report] = field(default_factory=dict)
    reported: dict[str, float] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    quiet_until_ns: dict[str, int] = field(default_factory=dict)
    xids: dict[int, tuple[str, int]] = field(default_factory=dict)

    def note_xid(self, number: int, driver: str, now_ns: int) -> None:
        self.xids.pop(number, None)
        self.xids[number] = driver, now_ns
        if len(self.xids) > XIDS_MAX:
            del self.xids[next(iter(self.xids))]


class DamageMonitor:
    def __init__(self, unix_ns: Callable[[], int] = time.time_ns):
        self._unix_ns = unix_ns
        self._lock = threading.Lock()  # each driver has a thread
        self._devices: dict[str, _Device] = {}  # by UUID, the longest unseen first

    def with_events(self, sample: Sample) -> Sample:
        """The sample with the events that its records mean, after those that it has."""
        with self._lock:
            events = self._events(sample)
        return structs.replace(sample, events=[*sample.events, *events][-EVENTS_MAX:]) if events else sample

    def possible(self, sample: Sample) -> dict[str, frozenset[tuple[str, str]]]:
        """(kind, severity) of the warnings and critical events that a sample's driver can report, by UUID of its GPUs."""
        found = {}
        with self._lock:
            for gpu in (gpu for gpu in sample.gpus if not gpu.parent):
                device = self._devices.get(gpu.uuid) or _Device()
                report = device.reports.get(sample.driver) or _Report()
                declared = frozenset(pair for pair in gpu.event_kinds if pair[1] != "info")
                found[gpu.uuid] = _possible(sample.driver, report.readings) | declared
        return found

    def _events(self, sample: Sample) -> list[Event]:
        driver, now_ns, time_ns = sample.driver, sample.monotonic_ns, self._unix_ns()
        for event in sample.events:
            if event.kind == "xid" and event.device in self._devices:
                self._devices[event.device].note_xid(event.code, driver, now_ns)
        whole = [gpu for gpu in sample.gpus if not gpu.parent]
        events = []
        for gpu in whole:
            device = self._device(gpu.uuid)
            events += _loss(device, driver, gpu, now_ns, time_ns)
            if not gpu.lost:
                if sample.full:
                    events += _changes(device, driver, gpu, now_ns, time_ns)
                events += _last_xid(device, sample, gpu, time_ns)
        listed = {gpu.uuid for gpu in whole}
        for uuid, device in self._devices.items() if listed else ():
            if driver in device.reports and uuid not in listed:
                gone = Gpu(uuid, lost=True, why=f"no longer listed by {driver}")
                events += _loss(device, driver, gone, now_ns, time_ns)
        return events

    def _device(self, uuid: str) -> _Device:
        device = self._devices.pop(uuid, None) or _Device()
        self._devices[uuid] = device
        if len(self._devices) > DEVICES_MAX:
            del self._devices[next(iter(self._devices))]
        return device


def _loss(device: _Device, driver: str, gpu: Gpu, now_ns: int, time_ns: int) -> list[Event]:
    """An event where the first driver reports the GPU as lost, and one where the last driver does so no more."""
    reported = {name for name, at_ns in device.lost.items() if name == driver or now_ns - at_ns <= CLAIM_NS}
    if gpu.lost:
        device.reports.setdefault(driver, _Report())
        device.lost[driver] = now_ns
        return [] if reported else [Event("lost", gpu.uuid, time_ns, 0, "GPU is lost", "critical", gpu.why)]
    if device.lost.pop(driver, None) is None or reported - {driver}:
        return []
    return [Event("back", gpu.uuid, time_ns, 0, "GPU is back", "info")]


def _changes(device: _Device, driver: str, gpu: Gpu, now_ns: int, time_ns: int) -> list[Event]:
    """Events of a GPU that the driver reaches, compared with what the driver reported of it before."""
    report = device.reports.setdefault(driver, _Report())
    events = []
    for keys, kind, severity, description in COUNTERS:
        key = next((key for key in keys if key in report.readings or key in gpu.readings), "")
        grown = _growth(device.reported, key, report.readings.get(key), gpu.readings.get(key))
        if grown > 0:
            text = f"{grown:.0f} {description}, {gpu.readings[key]:.0f} in all"
            events.append(Event(kind, gpu.uuid, time_ns, 0, description, severity, text))
    for reason in FAULT_REASONS:
        key = f"throttled/{reason}"
        begins = gpu.readings.get(key) == 1 and report.readings.get(key) == 0
        # Clocks at a limit go up and down many times a minute.
        if begins and now_ns >= device.quiet_until_ns.get(reason, now_ns):
            device.quiet_until_ns[reason] = now_ns + QUIET_NS
            text = f"clocks held down: {reason}"
            events.append(Event("throttle", gpu.uuid, time_ns, 0, reason, "warning", text))
    report.readings.update(gpu.readings)
    return events


def _last_xid(device: _Device, sample: Sample, gpu: Gpu, time_ns: int) -> list[Event]:
    """An event where a driver that has only the last XID shows another one than before."""
    driver, now_ns, number = sample.driver, sample.monotonic_ns, gpu.last_xid
    report = device.reports.setdefault(driver, _Report())
    is_first, report.is_listed = not report.is_listed, True
    before = report.last_xid or 0  # A GPU that was listed without one had none.
    if number is None:
        return []
    report.last_xid = number
    if is_first or number in (0, before):
        return []
    reporter, at_ns = device.xids.get(number, (driver, 0))
    device.note_xid(number, driver, now_ns)
    if (reporter != driver and now_ns - at_ns <= XID_NS) or _has_xid(sample, gpu.uuid, number):
        return []
    xid = lookup(number)
    text = "" if xid.action == "none" else f"to do: {xid.action}"
    return [Event("xid", gpu.uuid, time_ns, number, xid.name, xid.severity, text)]


def _has_xid(sample: Sample, uuid: str, number: int) -> bool:
    return any((event.kind, event.device, event.code) == ("xid", uuid, number) for event in sample.events)


def _growth(reported: dict[str, float], key: str, before: float | None, now: float | None) -> float:
    """By how much a counter grew beyond what was reported of it; 0 for its first value and where it was reset."""
    if before is None or now is None:
        return 0.0
    if now < before:
        reported.pop(key, None)
        return 0.0
    grown = now - max(before, reported.get(key, before))
    if grown > 0:
        reported[key] = now
    return max(grown, 0.0)


def _possible(driver: str, readings: dict[str, float]) -> frozenset[tuple[str, str]]:
    pairs = {("lost", "critical")}
    if driver in XID_DRIVERS:
        pairs |= {("xid", "warning"), ("xid", "critical")}
    if any(f"throttled/{reason}" in readings for reason in FAULT_REASONS):
        pairs.add(("throttle", "warning"))
    for keys, kind, severity, _ in COUNTERS:
        if severity != "info" and not readings.keys().isdisjoint(keys):
            pairs.add((kind, severity))
    return frozenset(pairs)
