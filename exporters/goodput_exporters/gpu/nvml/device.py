"""One GPU or MIG instance as NVML sees it: identity, queries, and which queries it does not support.

An unsupported query is retried once per RETRY_SECONDS; its `fallback`, if any, is used meanwhile. A query without
permission is reported once and treated the same. Any other error costs its readings in this sample.
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from goodput_exporters.gpu.nvml import queries
from goodput_exporters.gpu.nvml.gpm import Gpm
from goodput_exporters.gpu.nvml.links import LINKS
from goodput_exporters.gpu.nvml.queries import FIELDS, Field, Query, query_fields, throttle_fields
from goodput_exporters.gpu.nvml.rare_queries import RARE, RARE_FIELDS
from goodput_exporters.gpu.plausible import is_plausible
from goodput_exporters.gpu.sample import PROCESSES_MAX, Gpu

RETRY_SECONDS = 3600
RARE_SECONDS = 60
_UNSUPPORTED = (
    *(queries.NOT_SUPPORTED, queries.FUNCTION_NOT_FOUND, queries.STRUCT_VERSION, queries.REMOVED),
)
LOST = (queries.LOST, queries.RESET_REQUIRED)
# The library is not open, or the kernel driver was unloaded.
LIBRARY_CLOSED = (queries.UNINITIALIZED, queries.DRIVER_NOT_LOADED)


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
        self._fields = (*FIELDS, *throttle_fields(identity.driver_version))
        self.instances: dict[str, Device] = {}
        self.is_mig = False
        self._gpm: Gpm | None = None
        self._retry_ns: dict[str, int] = {}  # by the name of a query or field
        self._rare: dict[str, float] = {}  # readings of the rare queries, which each full sample repeats
        self._rare_ns: int | None = None  # when they were read
        self.implausible: Counter[str] = (
            Counter()
        )  # readings left out, by family, until the driver takes them
        self._pcie: dict[str, float] = {}  # by measure_pcie, which each full sample repeats

    @property
    def uuid(self) -> str:
        return self.identity.uuid

    def close(self) -> None:
        """Release what the library holds for this device and its instances."""
        self.close_gpm()
        self._rare, self._rare_ns, self._pcie = {}, None, {}
        for instance in self.instances.values():
            instance.close()
        self.instances = {}

    def forget_unsupported(self) -> None:
        """Retry every query, as after a change of the MIG mode."""
        self._retry_ns.clear()

    def read(self, request, full: bool, now_ns: int, problems: list[str]) -> Gpu:
        """The readings and, where `full`, the processes. `request` is gpm.metrics_request."""
        selected = (queries.FULL if full else queries.FAST) if self._gpu_instance is None else queries.MIG
        gpm = self._gpm
        if gpm is not None and gpm.is_ready():
            selected += (Query("nvmlGpmMetricsGet", lambda nvml, device: gpm.read(request)),)
        readings: dict[str, float] = {}
        for query in selected:
            self._keep(readings, self._run(query, now_ns, problems) or {}, problems)
        pids = None
        if full:
            compute = self._run(queries.COMPUTE, now_ns, problems)
            graphics = self._run(queries.GRAPHICS, now_ns, problems)
            if compute is not None:
                pids = sorted({*compute, *(graphics or ())})[:PROCESSES_MAX]
                readings["processes"] = float(len(set(compute)))
            if self._gpu_instance is None:
                readings.update(self._read_fields(self._fields, now_ns, problems))
                readings.update(self._read_rare(now_ns, problems))
                readings = self._pcie | readings
        return replace(self.identity, readings=readings, pids=pids)

    def _read_rare(self, now_ns: int, problems: list[str]) -> dict[str, float]:
        """The readings of what changes rarely, at most RARE_SECONDS old."""
        if self._rare_ns is None or now_ns - self._rare_ns >= RARE_SECONDS * 1_000_000_000:
            self._rare, self._rare_ns = {}, now_ns
            for query in (*RARE, *LINKS):
                self._keep(self._rare, self._run(query, now_ns, problems) or {}, problems)
            self._rare |= self._read_fields(RARE_FIELDS, now_ns, problems)
        return self._rare

    def _read_fields(self, among: tuple[Field, ...], now_ns: int, problems: list[str]) -> dict[str, float]:
        """The readings of nvmlDeviceGetFieldValues."""
        fields = tuple(
            field
            for field in among
            if now_ns >= self._retry_ns.get(field.name, now_ns)
            and (field.after is None or field.after.name in self._retry_ns)
        )
        query = Query(
            "nvmlDeviceGetFieldValues", lambda nvml, device: query_fields(nvml, device.handle, fields)
        )
        readings: dict[str, float] = {}
        for field, error, value in self._run(query, now_ns, problems) or ():
            if error:
                # Drivers return "invalid argument" for a field number that is newer than they are.
                code = queries.NOT_SUPPORTED if error == queries.INVALID_ARGUMENT else error
                self._handle_error(field.name, code, now_ns, problems)
                continue
            self._retry_ns.pop(field.name, None)
            # Cards with GDDR have no sensor in their memory, and some drivers answer 0.
            if value is None or (field.key == "temperature/memory" and not value):
                continue
            if field.after is None or field.after.name in self._retry_ns:
                key, number = queries.reading_of(field, value)
                self._keep(readings, {key: readings.get(key, 0.0) + number}, problems)
        return readings

    def measure_pcie(self, now_ns: int, problems: list[str]) -> None:
        """Measure the traffic over PCIe, for 40 ms; not where GPM has it."""
        self._pcie = {}
        if self._gpm is None:
            for query in queries.PCIE_THROUGHPUT:
                self._keep(self._pcie, self._run(query, now_ns, problems) or {}, problems)

    def take_gpm(self, round_number: int, now_ns: int, problems: list[str]) -> None:
        """Take a GPM sample where the device supports GPM."""
        query = Query("nvmlGpmSampleGet", lambda nvml, device: self._take_gpm(round_number))
        self._run(query, now_ns, problems)

    def close_gpm(self) -> None:
        if self._gpm is not None:
            self._gpm.close()
            self._gpm = None

    def _keep(self, readings: dict[str, float], found: dict[str, float], problems: list[str]) -> None:
        """Add the plausible values to the readings."""
        for key, value in found.items():
            if 0.0 <= value <= 1.0:  # is plausible for any key
                readings[key] = float(value)
            elif not is_plausible(key, value):
                self.implausible[key.partition("/")[0]] += 1
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
                    if not self._handle_error(query.name, error.value, now_ns, problems, query.fallback):
                        return None
                except Exception as error:
                    # An untested version of the binding, or an answer that it cannot decode.
                    problems.append(f"{self.uuid}: {query.name}: {error}")
                    return None
            query = query.fallback
        return None

    def _handle_error(
        self, name: str, code: int, now_ns: int, problems: list[str], fallback: Query | None = None
    ) -> bool:
        """True where the fallback may be used."""
        text = f"{name}: {self.nvml.NVMLError(code)}"
        if code in LOST:
            raise LostError(text)
        if code in LIBRARY_CLOSED:
            raise LibraryClosedError(text)
        if code in _UNSUPPORTED or code == queries.NO_PERMISSION:
            self._retry_ns[name] = now_ns + RETRY_SECONDS * 1_000_000_000
        if code == queries.NO_PERMISSION and fallback is not None:
            # The older form of a call needs the same permission.
            self._retry_ns[fallback.name] = self._retry_ns[name]
        if code not in (*_UNSUPPORTED, queries.NO_DATA):
            problems.append(f"{self.uuid}: {text}")
        return code in _UNSUPPORTED

    def _take_gpm(self, round_number: int) -> None:
        if self._gpm is None:
            if not queries.call(self.nvml, "nvmlGpmQueryDeviceSupport", self._gpu_handle).isSupportedDevice:
                raise self.nvml.NVMLError(queries.NOT_SUPPORTED)
            self._gpm = Gpm(self.nvml, self._gpu_handle, self._gpu_instance)
        self._gpm.take(round_number)
