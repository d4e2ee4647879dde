"""What happened to GPUs: XIDs from NVML's event sets, and counters of damage that grew.

In: the binding, devices, and the readings of full samples. Out: gpu.Events, and the count of XIDs per GPU as readings
`xid/<number>/<class>`, from this process's start: NVML keeps no such count, and one that is lost with the process is a
counter that resets. XIDs of one kind that came in one poll are one event that says how many; all are counted.
A first sight of a counter is no event. Bounds: XIDS_POLLED_MAX per GPU and poll (the rest waits in the library),
EVENTS_POLLED_MAX events of them, NUMBERS_MAX numbers per GPU (beyond that `xid/other/unknown`).
It does not know how a lost GPU is found; see drivers/nvml.py.
"""

from __future__ import annotations

from collections import Counter

from goodput_exporters.gpu.nvidia import xid
from goodput_exporters.gpu.nvml.device import LOST
from goodput_exporters.gpu.sample import Event

XIDS_POLLED_MAX = 1024
EVENTS_POLLED_MAX = 64
NUMBERS_MAX = 48
THROTTLE_QUIET_SECONDS = 60
_XID_EVENTS = 0x8  # nvmlEventTypeXidCriticalError
_NOT_SUPPORTED, _TIMEOUT, _FUNCTION_NOT_FOUND = 3, 10, 13
# A GPU instance's id in an event that is of no MIG instance.
_NO_INSTANCE = 0xFFFF_FFFF


class XidWatch:
    """An event set for each GPU that tells of XIDs.

    One set for all would fail as a whole while one of its GPUs is lost. The set of a GPU that is lost is kept and asked
    on: what it still holds, often the XID that says why, comes out then or when the GPU is back.
    """

    def __init__(self, nvml):
        self._nvml = nvml
        # By the GPU's uuid; None where the GPU, or the library, has no events.
        self._sets: dict[str, object | None] = {}
        self._counts: dict[str, Counter[str]] = {}
        # A GPU that should have a set has none.
        self.is_partial = False

    def watch(self, devices: list, problems: list[str]) -> None:
        """Watch these GPUs too, if they are not watched yet."""
        self.is_partial = False
        for device in devices:
            if device.uuid not in self._sets:
                self._open(device, problems)

    def poll(self, time_ns: int, problems: list[str]) -> list[Event]:
        """XIDs since the last poll; never waits."""
        found: Counter[tuple[str, int, int]] = Counter()
        for uuid, events in list(self._sets.items()):
            taken = 0
            while events is not None and taken < XIDS_POLLED_MAX:
                try:
                    data = self._nvml.nvmlEventSetWait_v2(events, 0)
                except self._nvml.NVMLError as error:
                    self._note_end(uuid, error, problems)
                    break
                taken += 1
                if data.eventType & _XID_EVENTS:
                    found[uuid, data.eventData, data.gpuInstanceId] += 1
        return self._events(found, time_ns)

    def readings(self, uuid: str) -> dict[str, float]:
        """XIDs of a GPU so far, by number and class."""
        return {key: float(count) for key, count in self._counts.get(uuid, {}).items()}

    def forget(self, uuid: str) -> None:
        """Watch this GPU no more."""
        events = self._sets.pop(uuid, None)
        if events is not None:
            try:
                self._nvml.nvmlEventSetFree(events)
            except self._nvml.NVMLError:
                pass

    def close(self) -> None:
        for uuid in list(self._sets):
            self.forget(uuid)

    def _open(self, device, problems: list[str]) -> None:
        where = "nvmlEventSetCreate"
        try:
            self._sets[device.uuid] = self._nvml.nvmlEventSetCreate()
            where = "nvmlDeviceRegisterEvents"
            self._nvml.nvmlDeviceRegisterEvents(device.handle, _XID_EVENTS, self._sets[device.uuid])
        except self._nvml.NVMLError as error:
            self._give_up(device.uuid, f"{device.uuid}: {where}", error, problems)

    def _note_end(self, uuid: str, error, problems: list[str]) -> None:
        """A poll ended: with nothing left, or the GPU lost, which others tell of, or the set unusable."""
        if error.value not in (_TIMEOUT, *LOST):
            self._give_up(uuid, f"{uuid}: nvmlEventSetWait_v2", error, problems)

    def _give_up(self, uuid: str, where: str, error, problems: list[str]) -> None:
        """Go on without a set for this GPU: for good where it is not supported, else until the next `watch`."""
        self.forget(uuid)
        if error.value in (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND):
            self._sets[uuid] = None
        else:
            self.is_partial = True
            problems.append(f"{where}: {error}")

    def _events(self, found: Counter, time_ns: int) -> list[Event]:
        events = []
        for (uuid, number, instance), times in found.items():
            what = xid.lookup(number)
            counts = self._counts.setdefault(uuid, Counter())
            key = f"xid/{number}/{what.kind}"
            counts[key if key in counts or len(counts) < NUMBERS_MAX else "xid/other/unknown"] += times
            text = [f"to do: {what.action}"] if what.action != "none" else []
            text += [f"{times} times"] if times > 1 else []
            text += [f"GPU instance {instance}"] if instance != _NO_INSTANCE else []
            events.append(Event("xid", uuid, time_ns, number, what.name, what.severity, ", ".join(text)))
        return events[:EVENTS_POLLED_MAX]


# (keys, the first of which that the GPU has ever had counts; kind; severity; what there is more of)
_COUNTERS = (
    (("ecc/correctable/aggregate", "ecc/correctable/volatile"), "ecc", "info", "correctable memory errors"),
    (("ecc/uncorrectable/aggregate", "ecc/uncorrectable/volatile"), "ecc", "critical", "uncorrectable memory errors"),
    (("rows_remapped/correctable",), "row_remap", "warning", "rows remapped after correctable errors"),
    (("rows_remapped/uncorrectable",), "row_remap", "warning", "rows remapped after uncorrectable errors"),
    (("rows_remapped/pending",), "row_remap", "warning", "row remap that waits for a reset"),
    (("rows_remapped/failure",), "row_remap", "critical", "row remap that failed"),
    (("pages_retired/single_bit",), "page_retired", "warning", "pages retired after single-bit errors"),
    (("pages_retired/double_bit",), "page_retired", "warning", "pages retired after double-bit errors"),
    (("pages_retired/pending",), "page_retired", "warning", "page retirement that waits for a reboot"),
)  # fmt: skip
# Reasons that mean trouble, not a limit that someone set.
_TROUBLE = ("hw_slowdown", "hw_thermal", "hw_power_brake", "thermal")


class Increases:
    """Remembers the last value of each counter of damage, per GPU."""

    def __init__(self):
        self._before: dict[str, dict[str, float]] = {}
        self._quiet_until_ns: dict[tuple[str, str], int] = {}

    def events(self, uuid: str, readings: dict[str, float], now_ns: int, time_ns: int) -> list[Event]:
        """An event for each counter that is higher than it was when last seen. `now_ns` is monotonic."""
        before = self._before.setdefault(uuid, {})
        events = []
        for keys, kind, severity, what in _COUNTERS:
            key = next((key for key in keys if key in before or key in readings), None)
            now, last = readings.get(key), before.get(key)
            if now is not None and last is not None and now > last:
                text = f"{now - last:.0f} {what}, {now:.0f} in all"
                events.append(Event(kind, uuid, time_ns, 0, what, severity, text))
        for reason in self._throttles(uuid, before, readings, now_ns):
            events.append(
                Event("throttle", uuid, time_ns, 0, reason, "warning", f"clocks held down: {reason}")
            )
        before.update(readings)
        return events

    def _throttles(self, uuid: str, before: dict, readings: dict, now_ns: int) -> list[str]:
        begun = []
        for reason in _TROUBLE:
            key = f"throttled/{reason}"
            begins = readings.get(key) == 1 and before.get(key) == 0
            # Clocks at a limit come and go many times a minute.
            if begins and now_ns >= self._quiet_until_ns.get((uuid, reason), now_ns):
                self._quiet_until_ns[uuid, reason] = now_ns + THROTTLE_QUIET_SECONDS * 1_000_000_000
                begun.append(reason)
        return begun
