"""One GPU, or one MIG instance of one, as NVML knows it: its identity, what it has been found not to support, its reads.

In: the binding and a handle. Out: readings, pids, and problem texts appended to a list. A call that the device or the
driver does not support is remembered and asked again once in RETRY_SECONDS; its `instead`, if any, is asked meanwhile. A
call that may not be made says so once and is treated the same. Another error costs its readings this time. A GPU that
was lost raises `Lost`, a library that was shut down `Ended`.
It knows no other device; which samples are taken when is drivers/nvml.py's.
"""

from __future__ import annotations

from goodput_exporters.gpu.nvml.gpm import Gpm
from goodput_exporters.gpu.nvml.queries import (
    COMPUTE,
    FIELDS,
    FUNCTION_NOT_FOUND,
    GRAPHICS,
    Field,
    Reader,
    ask_fields,
    call,
    is_sane,
    reading_of,
)
from goodput_exporters.gpu.sample import PROCESSES_MAX, Gpu

RETRY_SECONDS = 3600
_UNINITIALIZED, _INVALID_ARGUMENT, _NOT_SUPPORTED, NO_PERMISSION, _DRIVER_NOT_LOADED, _NO_DATA = (
    1,
    2,
    3,
    4,
    9,
    21,
)
# Not supported, no such function, the struct's version unknown to the driver, withdrawn.
_ABSENT = (_NOT_SUPPORTED, FUNCTION_NOT_FOUND, 25, 26)
# GPU is lost (fell off the bus), reset required.
LOST = (15, 16)
# The library is not open, or the driver went away under it.
ENDED = (_UNINITIALIZED, _DRIVER_NOT_LOADED)


class Lost(Exception):
    """The driver cannot reach this GPU any more."""


class Ended(Exception):
    """The library, or the driver behind it, is no longer there."""


class Device:
    """`handle` is NVML's. A MIG instance has the id of its GPU instance, and its GPU's handle: GPM asks that one."""

    def __init__(self, nvml, handle, identity: Gpu, gpu_instance: int | None = None, gpu_handle=None):
        self.nvml, self.handle, self.identity = nvml, handle, identity
        self._gpu_instance, self._gpu_handle = gpu_instance, gpu_handle or handle
        self.instances: dict[str, Device] = {}
        self.is_mig = False
        self._gpm: Gpm | None = None
        self._round = 0
        self._retry_ns: dict[str, int] = {}
        self._field_retry_ns: dict[int, int] = {}
        self._fields = FIELDS

    @property
    def uuid(self) -> str:
        return self.identity.uuid

    def close(self) -> None:
        """Give back what the library holds for this device and its instances."""
        self.close_gpm()
        for instance in self.instances.values():
            instance.close()
        self.instances = {}

    def forget_unsupported(self) -> None:
        """Ask for everything anew, as after a change of the MIG mode."""
        self._retry_ns.clear()
        self._field_retry_ns.clear()
        self._fields = FIELDS

    def read(self, readers: tuple[Reader, ...], now_ns: int, problems: list[str]) -> dict[str, float]:
        """The readings of these readers that are to be had. Raises Lost, Ended."""
        readings: dict[str, float] = {}
        for reader in readers:
            found = self._ask(reader, now_ns, problems)
            if found:
                self.keep(readings, found, problems)
        return readings

    def read_fields(self, now_ns: int, problems: list[str]) -> dict[str, float]:
        """The readings of nvmlDeviceGetFieldValues. Raises Lost, Ended."""
        self._ask_absent_fields_again(now_ns)
        readings: dict[str, float] = {}
        for field, error, value in self._ask(_ASK_FIELDS, now_ns, problems) or ():
            if error:
                self._field_failed(field, error, now_ns, problems)
            elif value is not None:
                self.keep(readings, dict([reading_of(field, value)]), problems)
        return readings

    def pids(self, now_ns: int, problems: list[str]) -> tuple[list[int] | None, int | None]:
        """(processes on the GPU, how many of them compute); None where the driver does not say. Raises Lost, Ended."""
        compute = self._ask(COMPUTE, now_ns, problems)
        graphics = self._ask(GRAPHICS, now_ns, problems)
        if compute is None:
            return None, None
        return sorted({*compute, *(graphics or ())})[:PROCESSES_MAX], len(set(compute))

    def take_gpm(self, round_number: int, now_ns: int, problems: list[str]) -> None:
        """Take a GPM sample where the device has GPM. Raises Lost, Ended."""
        self._round = round_number
        self._ask(_TAKE_GPM, now_ns, problems)

    def has_gpm_window(self) -> bool:
        return self._gpm is not None and self._gpm.is_ready()

    def read_gpm(self, request, now_ns: int, problems: list[str]) -> dict[str, float]:
        """The readings between the last two GPM samples. Raises Lost, Ended."""
        readings: dict[str, float] = {}
        if self.has_gpm_window():
            reader = Reader("nvmlGpmMetricsGet", lambda nvml, device: self._gpm.read(request))
            self.keep(readings, self._ask(reader, now_ns, problems) or {}, problems)
        return readings

    def close_gpm(self) -> None:
        if self._gpm is not None:
            self._gpm.close()
            self._gpm = None

    def keep(self, readings: dict[str, float], found: dict[str, float], problems: list[str]) -> None:
        """Add what can be true to the readings; what cannot is left out and named."""
        for key, value in found.items():
            if not is_sane(key, value):
                problems.append(f"{self.uuid}: {key} is {value}")
            else:
                # GPM's percentages come out a little above 100 now and then.
                readings[key] = min(float(value), 1.0) if key.startswith("activity/") else float(value)

    def _ask(self, reader: Reader | None, now_ns: int, problems: list[str]):
        """What the reader, or one that stands in for it, answers; None where there is no answer."""
        while reader is not None:
            if now_ns >= self._retry_ns.get(reader.name, now_ns):
                try:
                    return reader.read(self.nvml, self)
                except self.nvml.NVMLError as error:
                    if not self._failed(reader, error.value, now_ns, problems):
                        return None
                except Exception as error:
                    # A binding of another version than those tested, or an answer that it cannot read.
                    problems.append(f"{self.uuid}: {reader.name}: {error}")
                    return None
            reader = reader.instead
        return None

    def _failed(self, reader: Reader, code: int, now_ns: int, problems: list[str]) -> bool:
        """Judge an error; True where another call may stand in for this one. Raises Lost, Ended."""
        if code in LOST:
            raise Lost(f"{reader.name}: {self.say(code)}")
        if code in ENDED:
            raise Ended(f"{reader.name}: {self.say(code)}")
        is_absent = code in _ABSENT
        if is_absent or code == NO_PERMISSION:
            self._retry_ns[reader.name] = now_ns + RETRY_SECONDS * 1_000_000_000
        if code == NO_PERMISSION and reader.instead is not None:
            # Who may not make this call may not make its older form either.
            self._retry_ns[reader.instead.name] = self._retry_ns[reader.name]
        if not is_absent and code != _NO_DATA:
            problems.append(f"{self.uuid}: {reader.name}: {self.say(code)}")
        return is_absent

    def say(self, code: int) -> str:
        return str(self.nvml.NVMLError(code))

    def _take_gpm(self) -> None:
        nvml = self.nvml
        if self._gpm is None:
            if not call(nvml, "nvmlGpmQueryDeviceSupport", self._gpu_handle).isSupportedDevice:
                raise nvml.NVMLError(_NOT_SUPPORTED)
            self._gpm = Gpm(nvml, self._gpu_handle, self._gpu_instance)
        self._gpm.take(self._round)

    def _field_failed(self, field: Field, code: int, now_ns: int, problems: list[str]) -> None:
        # Drivers answer so for a field number that is newer than they are.
        if code in (*_ABSENT, _INVALID_ARGUMENT):
            self._field_retry_ns[field.number] = now_ns + RETRY_SECONDS * 1_000_000_000
            self._fields = tuple(known for known in self._fields if known is not field)
        else:
            self._failed(Reader(f"field {field.key}", ask_fields), code, now_ns, problems)

    def _ask_absent_fields_again(self, now_ns: int) -> None:
        due = [number for number, at_ns in self._field_retry_ns.items() if now_ns >= at_ns]
        for number in due:
            del self._field_retry_ns[number]
        if due:
            self._fields = tuple(field for field in FIELDS if field.number not in self._field_retry_ns)


_ASK_FIELDS = Reader(
    "nvmlDeviceGetFieldValues", lambda nvml, device: ask_fields(nvml, device.handle, device._fields)
)
_TAKE_GPM = Reader("nvmlGpmSampleGet", lambda nvml, device: device._take_gpm())
