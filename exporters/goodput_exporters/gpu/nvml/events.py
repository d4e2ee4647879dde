"""XIDs of NVIDIA GPUs from NVML's event sets. Those of one kind that arrive in one poll become one event with a count."""

from __future__ import annotations

import contextlib
import ctypes
from collections import Counter

from goodput_exporters.gpu.nvidia.xid import lookup
from goodput_exporters.gpu.nvml.device import LOST
from goodput_exporters.gpu.nvml.queries import FUNCTION_NOT_FOUND, NOT_SUPPORTED, TIMEOUT
from goodput_exporters.gpu.sample import Event

# Per GPU and poll; the rest stays in the library until the next poll.
XIDS_POLLED_MAX = 1024
EVENTS_POLLED_MAX = 64
_XID_EVENTS = 0x8  # nvmlEventTypeXidCriticalError
# The GPU instance id of an event that belongs to no MIG instance.
_NO_INSTANCE = 0xFFFF_FFFF


class XidMonitor:
    """Receives XIDs through one event set for each GPU.

    A set for all GPUs would fail as a whole while one of them is lost. The set of a lost GPU is kept and polled: what
    it still holds, often the XID that explains the loss, comes out then or when the GPU is back.
    """

    def __init__(self, nvml):
        self._nvml = nvml
        # By the GPU's UUID; None where the GPU, or the library, has no events.
        self._sets: dict[str, object | None] = {}
        self._handles: dict[str, object] = {}  # by UUID
        self.is_incomplete = False  # a GPU that supports events has no set

    def watch(self, devices: list, problems: list[str]) -> None:
        """Also watch these GPUs."""
        self.is_incomplete = False
        for device in devices:
            if device.uuid not in self._sets:
                self._open(device, problems)

    def poll(self, time_ns: int, problems: list[str]) -> list[Event]:
        """XIDs since the last poll. Never waits."""
        found: Counter[tuple[str, int, int]] = Counter()
        for uuid, event_set in list(self._sets.items()):
            polled = 0
            while event_set is not None and polled < XIDS_POLLED_MAX:
                try:
                    data = self._nvml.nvmlEventSetWait_v2(event_set, 0)
                except self._nvml.NVMLError as error:
                    # A timeout means that the set is empty; a lost GPU is reported elsewhere.
                    if error.value not in (TIMEOUT, *LOST):
                        self._give_up(uuid, f"{uuid}: nvmlEventSetWait_v2", error, problems)
                    break
                polled += 1
                if data.eventType & _XID_EVENTS:
                    found[self._gpu_of(data, uuid, problems), data.eventData, data.gpuInstanceId] += 1
        # In a storm of many kinds, the rest becomes one event per GPU, so that all are counted.
        shown = found if len(found) <= EVENTS_POLLED_MAX else dict(found.most_common(EVENTS_POLLED_MAX - 1))
        rest: Counter[str] = Counter()
        for (uuid, number, instance), count in found.items():
            rest[uuid] += count if (uuid, number, instance) not in shown else 0
        events = [_xid_event(*key, count, time_ns) for key, count in shown.items()]
        return events + [_xid_event(uuid, 0, _NO_INSTANCE, count, time_ns) for uuid, count in (+rest).items()]

    def _gpu_of(self, data, uuid: str, problems: list[str]) -> str:
        """The GPU that an event names, if it is one of those that are watched, else the set's. Raises nothing."""
        named = getattr(data, "device", None)
        if named is None or _address(named) == _address(self._handles.get(uuid)):
            return uuid
        try:
            other = self._nvml.nvmlDeviceGetUUID(named)
        except (self._nvml.NVMLError, ValueError):
            return uuid  # That GPU may be lost; a handle may also have been given out anew.
        if other == uuid or other not in self._handles:
            return uuid  # As of a MIG instance.
        problems.append(f"{uuid}: its event set has an XID of {other}")
        return other

    def forget(self, uuid: str) -> None:
        """Stop watching a GPU."""
        self._handles.pop(uuid, None)
        event_set = self._sets.pop(uuid, None)
        if event_set is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(event_set)

    def close(self) -> None:
        for uuid in list(self._sets):
            self.forget(uuid)

    def _open(self, device, problems: list[str]) -> None:
        call = "nvmlEventSetCreate"
        try:
            self._sets[device.uuid] = self._nvml.nvmlEventSetCreate()
            call = "nvmlDeviceRegisterEvents"
            self._nvml.nvmlDeviceRegisterEvents(device.handle, _XID_EVENTS, self._sets[device.uuid])
            self._handles[device.uuid] = device.handle
        except self._nvml.NVMLError as error:
            self._give_up(device.uuid, f"{device.uuid}: {call}", error, problems)

    def _give_up(self, uuid: str, where: str, error, problems: list[str]) -> None:
        """Go on without a set for this GPU: for good where it is unsupported, else until the next `watch`."""
        self.forget(uuid)
        if error.value in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
            self._sets[uuid] = None
        else:
            self.is_incomplete = True
            problems.append(f"{where}: {error}")


def _xid_event(uuid: str, number: int, instance: int, count: int, time_ns: int) -> Event:
    xid = lookup(number)
    text = [f"to do: {xid.action}"] if xid.action != "none" else []
    text += [f"{count} times"] if count > 1 else []
    text += [f"GPU instance {instance}"] if instance != _NO_INSTANCE else []
    return Event("xid", uuid, time_ns, number, xid.name, xid.severity, ", ".join(text), count)


def _address(handle) -> int | None:
    """The address in one of the binding's handles, which are pointers that do not compare by it."""
    return ctypes.cast(handle, ctypes.c_void_p).value if handle is not None else None
