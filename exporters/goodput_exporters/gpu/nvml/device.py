"""One GPU or MIG instance as NVML sees it: identity, queries, and which queries it does not support.

An unsupported query is retried once per RETRY_SECONDS; its `fallback`, if any, is used meanwhile. A query without
permission is reported once and treated the same. Any other error costs its readings in this sample.
"""

from __future__ import annotations

from goodput_exporters.gpu.nvml.gpm import Gpm
from goodput_exporters.gpu.nvml.queries import (
    COMPUTE,
    FIELDS,
    FUNCTION_NOT_FOUND,
    GRAPHICS,
    Field,
    Query,
    call,
    is_plausible,
    query_fields,
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
# Not supported, no such function, struct version unknown to the driver, removed.
_UNSUPPORTED = (_NOT_SUPPORTED, FUNCTION_NOT_FOUND, 25, 26)
# The GPU is lost (fell off the bus), or needs a reset.
LOST = (15, 16)
# The library is not open, or the kernel driver was unloaded.
LIBRARY_CLOSED = (_UNINITIALIZED, _DRIVER_NOT_LOADED)


class LostError(Exception):
    """The driver can no longer reach this GPU."""


class LibraryClosedError(Exception):
    """The library, or the kernel driver behind it, is gone."""


class Device:
    """`handle` is NVML's. A MIG instance also has its GPU instance's id and its GPU's handle, which GPM needs.

    The methods that query raise LostError and LibraryClosedError, and append other errors to `problems`.
    """

    def __init__(self, nvml, handle, identity: Gpu, gpu_instance: int | None = None, gpu_handle=None):
        self.nvml, self.handle, self.identity = nvml, handle, identity
        self._gpu_instance, self._gpu_handle = gpu_instance, gpu_handle or handle
        self.instances: dict[str, Device] = {}
        self.is_mig = False
        self._gpm: Gpm | None = None
        self._round = 0
        self._retry_ns: dict[str, int] = {}
        self._field_retry_ns: dict[int, int] = {}

    @property
    def uuid(self) -> str:
        return self.identity.uuid

    def close(self) -> None:
        """Release what the library holds for this device and its instances."""
        self.close_gpm()
        for instance in self.instances.values():
            instance.close()
        self.instances = {}

    def forget_unsupported(self) -> None:
        """Retry every query, as after a change of the MIG mode."""
        self._retry_ns.clear()
        self._field_retry_ns.clear()

    def read(self, queries: tuple[Query, ...], now_ns: int, problems: list[str]) -> dict[str, float]:
        readings: dict[str, float] = {}
        for query in queries:
            self._keep(readings, self._run(query, now_ns, problems) or {}, problems)
        return readings

    def read_fields(self, now_ns: int, problems: list[str]) -> dict[str, float]:
        """The readings of nvmlDeviceGetFieldValues."""
        fields = tuple(field for field in FIELDS if now_ns >= self._field_retry_ns.get(field.number, now_ns))
        query = Query(
            "nvmlDeviceGetFieldValues", lambda nvml, device: query_fields(nvml, device.handle, fields)
        )
        readings: dict[str, float] = {}
        for field, error, value in self._run(query, now_ns, problems) or ():
            if error:
                self._handle_field_error(field, error, now_ns, problems)
            elif value is not None:
                self._keep(readings, dict([reading_of(field, value)]), problems)
        return readings

    def pids(self, now_ns: int, problems: list[str]) -> tuple[list[int] | None, int | None]:
        """(processes on the GPU, number of compute processes); None where the driver does not know."""
        compute = self._run(COMPUTE, now_ns, problems)
        graphics = self._run(GRAPHICS, now_ns, problems)
        if compute is None:
            return None, None
        return sorted({*compute, *(graphics or ())})[:PROCESSES_MAX], len(set(compute))

    def take_gpm(self, round_number: int, now_ns: int, problems: list[str]) -> None:
        """Take a GPM sample where the device supports GPM."""
        self._round = round_number
        self._run(_TAKE_GPM, now_ns, problems)

    def has_gpm_window(self) -> bool:
        return self._gpm is not None and self._gpm.is_ready()

    def read_gpm(self, request, now_ns: int, problems: list[str]) -> dict[str, float]:
        """The readings between the last two GPM samples."""
        readings: dict[str, float] = {}
        gpm = self._gpm
        if gpm is not None and gpm.is_ready():
            query = Query("nvmlGpmMetricsGet", lambda nvml, device: gpm.read(request))
            self._keep(readings, self._run(query, now_ns, problems) or {}, problems)
        return readings

    def close_gpm(self) -> None:
        if self._gpm is not None:
            self._gpm.close()
            self._gpm = None

    def _keep(self, readings: dict[str, float], found: dict[str, float], problems: list[str]) -> None:
        """Add the plausible values to the readings."""
        for key, value in found.items():
            if not is_plausible(key, value):
                problems.append(f"{self.uuid}: {key} is {value}")
            else:
                # GPM's percentages are sometimes a little above 100.
                readings[key] = min(float(value), 1.0) if key.startswith("activity/") else float(value)

    def _run(self, query: Query | None, now_ns: int, problems: list[str]):
        """The result of the query or of a fallback; None where there is none."""
        while query is not None:
            if now_ns >= self._retry_ns.get(query.name, now_ns):
                try:
                    return query.run(self.nvml, self)
                except self.nvml.NVMLError as error:
                    if not self._handle_error(query, error.value, now_ns, problems):
                        return None
                except Exception as error:
                    # An untested version of the binding, or an answer that it cannot decode.
                    problems.append(f"{self.uuid}: {query.name}: {error}")
                    return None
            query = query.fallback
        return None

    def _handle_error(self, query: Query, code: int, now_ns: int, problems: list[str]) -> bool:
        """True where the query's fallback may be used."""
        text = f"{query.name}: {self.nvml.NVMLError(code)}"
        if code in LOST:
            raise LostError(text)
        if code in LIBRARY_CLOSED:
            raise LibraryClosedError(text)
        is_unsupported = code in _UNSUPPORTED
        if is_unsupported or code == NO_PERMISSION:
            self._retry_ns[query.name] = now_ns + RETRY_SECONDS * 1_000_000_000
        if code == NO_PERMISSION and query.fallback is not None:
            # The older form of a call needs the same permission.
            self._retry_ns[query.fallback.name] = self._retry_ns[query.name]
        if not is_unsupported and code != _NO_DATA:
            problems.append(f"{self.uuid}: {text}")
        return is_unsupported

    def _handle_field_error(self, field: Field, code: int, now_ns: int, problems: list[str]) -> None:
        # Drivers return "invalid argument" for a field number that is newer than they are.
        if code in (*_UNSUPPORTED, _INVALID_ARGUMENT):
            self._field_retry_ns[field.number] = now_ns + RETRY_SECONDS * 1_000_000_000
        else:
            query = Query(
                f"field {field.key}", lambda nvml, device: query_fields(nvml, device.handle, (field,))
            )
            self._handle_error(query, code, now_ns, problems)

    def _take_gpm(self) -> None:
        nvml = self.nvml
        if self._gpm is None:
            if not call(nvml, "nvmlGpmQueryDeviceSupport", self._gpu_handle).isSupportedDevice:
                raise nvml.NVMLError(_NOT_SUPPORTED)
            self._gpm = Gpm(nvml, self._gpu_handle, self._gpu_instance)
        self._gpm.take(self._round)


_TAKE_GPM = Query("nvmlGpmSampleGet", lambda nvml, device: device._take_gpm())
