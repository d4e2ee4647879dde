"""The NVML queries, and how each result becomes readings in base units.

Units are from NVML's reference (docs.nvidia.com/deploy/nvml-api, nvml.h) and named beside each query.

nvmlDeviceGetPcieThroughput measures for 20 ms within the call, and is called only where dcgm-exporter's fields of it are
wanted and GPM has no rate. Left out on purpose: the PCIe byte fields 197 and 198, which wrap at an undocumented width;
field numbers 199, 200 and above 250, which NVIDIA gave to other quantities from one driver to the next, except where
throttle_fields knows the driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property, lru_cache, partial
from typing import Any

from msgspec import Struct

from goodput_exporters.gpu.nvidia.status_codes import bit_error_ratio, recovery_key, throttle_readings

KIB = 1024
MIB = 1024 * 1024
NANO = 1e-9
MILLI = 1e-3
MEGA = 1e6
PERCENT = 0.01
# NVML's error codes (nvmlReturn_t), which are part of its ABI.
UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 1, 2, 3, 4
DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 9, 10, 12, 13
LOST, RESET_REQUIRED, NO_DATA, STRUCT_VERSION, REMOVED, GPU_NOT_FOUND = 15, 16, 21, 25, 26, 28
# An nvmlFieldValue_t's scope for "all links together" (nvml.h, NVLink throughput counters).
_ALL_LINKS = 0xFFFF_FFFF


# A number in one of the binding's structures, whose own attribute access takes five times as long: it looks for bytes.
number_of = object.__getattribute__


class Query(Struct, frozen=True):
    """`run(nvml, device)` returns readings or pids and raises the binding's NVMLError; `fallback` is for other drivers."""

    name: str
    run: Callable[[Any, Any], Any]
    fallback: Query | None = None


def call(nvml, function: str, *arguments):
    """Call the binding's function; one that an older binding lacks raises the error of an older driver."""
    found = getattr(nvml, function, None)
    if found is None:
        raise nvml.NVMLError(FUNCTION_NOT_FOUND)
    return found(*arguments)


def structure(nvml, name: str):
    """One of the binding's structures; one that an older binding lacks raises the error of an older driver."""
    found = getattr(nvml, name, None)
    if found is None:
        raise nvml.NVMLError(FUNCTION_NOT_FOUND)
    return found()


def number_query(key: str, function: str, factor: float, *arguments, fallback: Query | None = None) -> Query:
    def read(nvml, device) -> dict[str, float]:
        return {key: call(nvml, function, device.handle, *arguments) * factor}

    return Query(f"{function}({key})", read, fallback)


def _utilization(nvml, device) -> dict[str, float]:
    # Percent of the driver's own sampling period, 1/6 s to 1 s (nvmlUtilization_t).
    rates = nvml.nvmlDeviceGetUtilizationRates(device.handle)
    return {
        "activity/utilization": rates.gpu * PERCENT,
        "activity/memory_controller": rates.memory * PERCENT,
    }


def _memory(nvml, device) -> dict[str, float]:
    # Bytes. `used` excludes the driver's reserved memory in version 2 and includes it in version 1.
    memory = nvml.nvmlDeviceGetMemoryInfo(device.handle, nvml.nvmlMemory_v2)
    return {f"memory/{kind}": getattr(memory, kind) for kind in ("total", "used", "free", "reserved")}


def _memory_v1(nvml, device) -> dict[str, float]:
    memory = nvml.nvmlDeviceGetMemoryInfo(device.handle)
    return {f"memory/{kind}": getattr(memory, kind) for kind in ("total", "used", "free")}


def _reasons(function: str, nvml, device) -> dict[str, float]:
    return throttle_readings(call(nvml, function, device.handle))


def _engine(unit: str, function: str) -> Query:
    def read(nvml, device) -> dict[str, float]:
        # Percent of the second number's microseconds.
        return {f"activity/{unit}": call(nvml, function, device.handle)[0] * PERCENT}

    return Query(function, read)


def _performance_state(nvml, device) -> dict[str, float]:
    state = nvml.nvmlDeviceGetPerformanceState(device.handle)
    return {"performance_state": state} if 0 <= state <= 15 else {}  # NVML_PSTATE_UNKNOWN is 32.


def _bar1(nvml, device) -> dict[str, float]:
    memory = call(nvml, "nvmlDeviceGetBAR1MemoryInfo", device.handle)  # bytes
    return {"bar1/total": memory.bar1Total, "bar1/used": memory.bar1Used, "bar1/free": memory.bar1Free}


# NVML_PERF_POLICY_* of nvmlDeviceGetViolationStatus, and the field with the same value (the call is to be removed
# with CUDA 14). nvmlViolationTime_t.violationTime is in nanoseconds and cumulative.
_POLICIES = {
    "power": (0, 74),
    "thermal": (1, 75),
    "sync_boost": (2, 76),
    "board_limit": (3, 77),
    "low_utilization": (4, 78),
    "reliability": (5, 79),
    "app_clocks": (10, 80),
    "base_clocks": (11, 81),
}


def _throttle(reason: str) -> Query:
    policy, number = _POLICIES[reason]
    key = f"throttle/{reason}"

    def read(nvml, device) -> dict[str, float]:
        return {key: call(nvml, "nvmlDeviceGetViolationStatus", device.handle, policy).violationTime * NANO}

    field = Field(number, key, NANO)
    return Query(
        f"nvmlDeviceGetViolationStatus({reason})", read, Query(f"field({reason})", partial(_field, field))
    )


# NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN and the two after it, in nanoseconds: the number of the first by the
# driver's version, from and to which it holds (nvml.h as in nvidia-ml-py 12.575.51 to 13.580.65, and from 13.580.82 on).
# In 570 and since 580.82, 251 is the state of power smoothing.
_CAUSES = ("sw_thermal", "hw_thermal", "hw_power_brake")
_FIRST_CAUSES = (((575, 51), (580, 65), 251), ((580, 82), (9999,), 269))


class Field(Struct, frozen=True, dict=True):
    """One of nvmlDeviceGetFieldValues: number (NVML_FI_DEV_*), scope, and the reading it becomes.

    `after` is the field with the same meaning on older GPUs: this one is asked where that one is not supported. Fields
    of one reading that are both supported, as one for each link, are added up.
    """

    number: int
    key: str
    factor: float = 1.0
    scope: int = 0
    after: Field | None = None

    @cached_property
    def name(self) -> str:
        """For messages, and to remember that it is not supported."""
        scope = {0: "", _ALL_LINKS: " of all links"}.get(self.scope, f" of link {self.scope}")
        return f"field {self.number} ({self.key}){scope}"


@lru_cache(16)
def throttle_fields(driver_version: str) -> tuple[Field, ...]:
    """The throttle times by cause of a driver such as 580.95.05; none where their numbers are not known."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", driver_version)
    version = (int(found[1]), int(found[2])) if found else ()
    return tuple(
        Field(first + at, f"throttle/{cause}", NANO)
        for begin, end, first in _FIRST_CAUSES
        if begin <= version <= end
        for at, cause in enumerate(_CAUSES)
    )


RECOVERY = Field(230, "recovery")  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
# NVLink errors, all links together. Until NVLink 3 _CRC_FLIT, _CRC_DATA, _REPLAY and _RECOVERY_ERROR_COUNT_TOTAL.
_NVLINK = {"crc_flit": 38, "crc_data": 45, "replay": 52, "recovery": 59}
_NVLINK_FIELDS = {kind: Field(number, f"nvlink_errors/{kind}") for kind, number in _NVLINK.items()}
# NVLink 4: NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, _RECOVERY and _CRC, for all links or else for each.
_NVLINK_4 = {"replay": (161, "replay"), "recovery": (162, "recovery"), "crc": (163, "crc_flit")}
_NVLINK_4_FIELDS = {
    kind: Field(number, f"nvlink_errors/{kind}", 1.0, _ALL_LINKS, _NVLINK_FIELDS[older])
    for kind, (number, older) in _NVLINK_4.items()
}
LINKS_MAX = 18  # of a GPU of NVLink 4
# NVLink 5: NVML_FI_DEV_NVLINK_COUNT_*. 205 and 216 to 218 are deprecated.
_NVLINK_5 = {
    206: "malformed_packets", 207: "buffer_overruns", 208: "receive", 209: "receive_remote", 210: "receive_general",
    211: "local_link_integrity", 212: "transmit_discards", 213: "recovery_successful", 214: "recovery_failed",
    215: "recovery_events", 219: "effective", 221: "symbol",
}  # fmt: skip
BIT_ERROR_RATIOS = (
    Field(220, "nvlink_bit_errors/effective", 1.0, _ALL_LINKS),
    Field(222, "nvlink_bit_errors/symbol", 1.0, _ALL_LINKS),
)
_RATIO_NUMBERS = tuple(field.number for field in BIT_ERROR_RATIOS)
# NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX: KiB since the driver was loaded, despite the name.
_TRANSMIT = Field(138, "link_bytes/nvlink/transmit", KIB, _ALL_LINKS)
_RECEIVE = Field(139, "link_bytes/nvlink/receive", KIB, _ALL_LINKS)
# NVML_FI_DEV_PCIE_*: the correctable errors in all, and their kinds.
_PCIE_ERRORS = {
    169: "l0_to_recovery", 173: "correctable", 174: "naks_received", 175: "receiver", 176: "bad_tlp", 177: "naks_sent",
    178: "bad_dllp", 179: "non_fatal", 180: "fatal", 181: "unsupported_request", 182: "lcrc", 183: "lane",
}  # fmt: skip
FIELDS = (
    Field(3, "ecc/correctable/volatile"),
    Field(4, "ecc/uncorrectable/volatile"),
    Field(5, "ecc/correctable/aggregate"),
    Field(6, "ecc/uncorrectable/aggregate"),
    Field(29, "pages_retired/single_bit"),
    Field(30, "pages_retired/double_bit"),
    Field(31, "pages_retired/pending"),
    *_NVLINK_FIELDS.values(),
    *_NVLINK_4_FIELDS.values(),
    *(
        Field(field.number, field.key, 1.0, link, field)
        for field in _NVLINK_4_FIELDS.values()
        for link in range(LINKS_MAX)
    ),
    *(Field(number, f"nvlink_errors/{kind}", 1.0, _ALL_LINKS) for number, kind in _NVLINK_5.items()),
    Field(160, "nvlink_errors/ecc_data"),
    *BIT_ERROR_RATIOS,
    Field(82, "temperature/memory"),
    Field(94, "pcie_replays"),
    *(Field(number, f"pcie_errors/{kind}") for number, kind in _PCIE_ERRORS.items()),
    Field(186, "power_instant", MILLI),  # NVML_FI_DEV_POWER_INSTANT, mW; of the GPU, scope 0
    _TRANSMIT,
    _RECEIVE,
    # NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES and _RCV_BYTES, of NVLink 5.
    Field(202, _TRANSMIT.key, 1.0, _ALL_LINKS, _TRANSMIT),
    Field(204, _RECEIVE.key, 1.0, _ALL_LINKS, _RECEIVE),
    Field(142, "rows_remapped/correctable"),
    Field(143, "rows_remapped/uncorrectable"),
    Field(144, "rows_remapped/pending"),
    Field(145, "rows_remapped/failure"),
    RECOVERY,
)
# The member of the union nvmlValue_t by nvmlValueType_t.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
# NVML_VALUE_NOT_AVAILABLE is -1, in the width of the type.
_NOT_AVAILABLE = {1: (0xFFFF_FFFF,), 2: (2**64 - 1,), 3: (2**64 - 1,)}


def query_fields(nvml, handle, fields: tuple[Field, ...]) -> list[tuple[Field, int, float | None]]:
    """(field, NVML's error or 0, value) for each field, in one call. Raises NVMLError where the call itself fails."""
    answers = nvml.nvmlDeviceGetFieldValues(handle, [(field.number, field.scope) for field in fields])
    return [
        (field, error, None) if (error := number_of(answer, "nvmlReturn")) else (field, 0, value_of(answer))
        for field, answer in zip(fields, answers, strict=True)
    ]


def value_of(answer) -> float | None:
    """The number in an nvmlFieldValue_t; None for an unknown type and for NVML_VALUE_NOT_AVAILABLE."""
    kind = number_of(answer, "valueType")
    if not 0 <= kind < len(_MEMBERS):
        return None
    value = getattr(number_of(answer, "value"), _MEMBERS[kind], None)
    return None if value in _NOT_AVAILABLE.get(kind, ()) else value


def reading_of(field: Field, value: float) -> tuple[str, float]:
    """(key, value in base units) of a field."""
    if field is RECOVERY:
        return recovery_key(value), 1.0
    if field.number in _RATIO_NUMBERS:
        return field.key, bit_error_ratio(value)
    return field.key, value * field.factor


def _field(field: Field, nvml, device) -> dict[str, float]:
    ((_, error, value),) = query_fields(nvml, device.handle, (field,))
    if error:
        raise nvml.NVMLError(error)
    return {} if value is None else dict([reading_of(field, value)])


def _pids(function: str, nvml, device) -> list[int]:
    return [process.pid for process in call(nvml, function, device.handle)]


def _processes(kind: str) -> Query:
    new, old = (f"nvmlDeviceGet{kind}RunningProcesses_v{version}" for version in (3, 2))
    return Query(new, partial(_pids, new), Query(old, partial(_pids, old)))


COMPUTE, GRAPHICS = _processes("Compute"), _processes("Graphics")

MEMORY = Query("nvmlDeviceGetMemoryInfo_v2", _memory, Query("nvmlDeviceGetMemoryInfo", _memory_v1))
_TEMPERATURE_V = number_query("temperature/core", "nvmlDeviceGetTemperatureV", 1.0, 0)
_NOW, _BEFORE_535 = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"

FAST = (
    Query("nvmlDeviceGetUtilizationRates", _utilization),
    # mW; averaged over the last second on Ampere (except GA100) and later, which is why phases use the energy.
    number_query("power", "nvmlDeviceGetPowerUsage", MILLI),
    number_query("energy", "nvmlDeviceGetTotalEnergyConsumption", MILLI),  # mJ since the driver was loaded
    MEMORY,
)
FULL = (
    *FAST,
    number_query("power_limit", "nvmlDeviceGetEnforcedPowerLimit", MILLI),  # mW
    number_query("clock/sm", "nvmlDeviceGetClockInfo", MEGA, 1),  # MHz; NVML_CLOCK_SM
    number_query("clock/memory", "nvmlDeviceGetClockInfo", MEGA, 2),  # MHz; NVML_CLOCK_MEM
    number_query("clock/video", "nvmlDeviceGetClockInfo", MEGA, 3),  # MHz; NVML_CLOCK_VIDEO
    _engine("encoder", "nvmlDeviceGetEncoderUtilization"),
    _engine("decoder", "nvmlDeviceGetDecoderUtilization"),
    _engine("jpeg", "nvmlDeviceGetJpgUtilization"),
    _engine("ofa", "nvmlDeviceGetOfaUtilization"),
    Query("nvmlDeviceGetPerformanceState", _performance_state),
    number_query("fan", "nvmlDeviceGetFanSpeed", PERCENT),  # of the maximum, which it may exceed
    Query("nvmlDeviceGetBAR1MemoryInfo", _bar1),
    # Degrees Celsius.
    number_query("temperature/core", "nvmlDeviceGetTemperature", 1.0, 0, fallback=_TEMPERATURE_V),
    number_query("temperature_margin", "nvmlDeviceGetMarginTemperature", 1.0),
    Query(_NOW, partial(_reasons, _NOW), Query(_BEFORE_535, partial(_reasons, _BEFORE_535))),
    *(_throttle(reason) for reason in _POLICIES),
    number_query("pcie_generation/current", "nvmlDeviceGetCurrPcieLinkGeneration", 1.0),
    number_query("pcie_generation/max", "nvmlDeviceGetMaxPcieLinkGeneration", 1.0),
    number_query("pcie_lanes/current", "nvmlDeviceGetCurrPcieLinkWidth", 1.0),
    number_query("pcie_lanes/max", "nvmlDeviceGetMaxPcieLinkWidth", 1.0),
)
# KB/s of the 20 ms in the call, nvmlPcieUtilCounter_t.
PCIE_THROUGHPUT = tuple(
    number_query(f"link_rate/pcie/{way}", "nvmlDeviceGetPcieThroughput", 1000.0, counter)
    for counter, way in enumerate(("transmit", "receive"))
)
# A MIG instance has only its own memory and processes; everything else is the whole GPU's.
MIG = (MEMORY,)
