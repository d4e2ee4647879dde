"""DCGM fields by field ID: the reading that each one is, and the conversion of raw values to base units.

IDs are the keys because names are not stable: 4.6 renamed most of them, and 4.7 gave one of the new names to another
field. Missing is never 0: a blank value, one of the wrong type, a negative one and a share above 1.05 give no reading.

Sources: dcgm_fields.h, dcgm_fields.py and dcgmvalue.py of NVIDIA/DCGM (2.x to 4.6), dcgm-exporter's default counters,
NVIDIA's reference of field identifiers (4.7). Where they disagree: throttle times 240 to 247 are nanoseconds (header,
reference, measurements), though comments of the Python bindings say microseconds; 1009 to 1012 and 449 are rates,
though older counter files say counter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from goodput_exporters.gpu.nvidia.status_codes import bit_error_ratio, recovery_key, throttle_readings

# dcgmvalue.py: 16 values from each of these on mean blank, not found, not supported, not permitted. A 64-bit counter
# may exceed the 32-bit blanks, so only those 16 values are blank, and 2**47 is blank only in doubles.
INT32_BLANK = 0x7FFFFFF0
INT64_BLANK = 0x7FFFFFFFFFFFFFF0
FP64_BLANK = 140_737_488_355_328.0

EVENT_REASONS, XID, NAME, NVML_INDEX, RECOVERY_ACTION, PAGES_PENDING = 112, 230, 50, 52, 1523, 392
SM_CYCLES_ELAPSED, SM_CYCLES_ACTIVE, MEMORY_TEMPERATURE = 1084, 1085, 140
_RAW_BIT_ERROR_RATIOS = (1215, 1217)
# A share of time may be rounded to more than 1, but not beyond this.
_ACTIVITY_MAX = 1.05
_UTILIZATION, _UTILIZATION_RATIO, _ENERGY_JOULES = 203, 1613, 1611

_ONE = (1, 1)
_PERCENT = (1, 100)
_MEGAHERTZ = (1_000_000, 1)
_MEBIBYTES = (1 << 20, 1)
_MILLIJOULES = (1, 1000)
_NANOSECONDS = (1, 1_000_000_000)
# Fields 449, 843 and 897 are KiB/s divided by 1000, not by 1024 (DCGM's reference and source).
_KIBIBYTES_TIMES_1000 = (1_024_000, 1)


class Field(NamedTuple):
    """One field. A reading is raw × multiply ÷ divide; `names` are those in dcgm-exporter's output, oldest first.

    `double` is its type (else a 64-bit integer). `instance`: a GPU instance has its own value; what else a MIG
    instance reports (power, clocks, errors) is its GPU's and must not be counted once for each instance.
    """

    number: int
    key: str
    scale: tuple[int, int]
    double: bool
    instance: bool
    names: tuple[str, ...]


def _dev(number: int, key: str, scale: tuple[int, int], *names: str, double=False, instance=False) -> Field:
    return Field(number, key, scale, double, instance, tuple(f"DCGM_FI_DEV_{name}" for name in names))


def _prof(number: int, key: str, *names: str, double=True, instance=True) -> Field:
    return Field(number, key, _ONE, double, instance, tuple(f"DCGM_FI_PROF_{name}" for name in names))


_TABLE = [
    _dev(100, "clock/sm", _MEGAHERTZ, "SM_CLOCK"),
    _dev(101, "clock/memory", _MEGAHERTZ, "MEM_CLOCK"),
    _dev(EVENT_REASONS, "", _ONE, "CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS"),
    _dev(MEMORY_TEMPERATURE, "temperature/memory", _ONE, "MEMORY_TEMP", "MEMORY_TEMP_CELSIUS"),
    _dev(150, "temperature/core", _ONE, "GPU_TEMP", "GPU_TEMP_CELSIUS"),
    _dev(155, "power", _ONE, "POWER_USAGE", "BOARD_POWER_WATTS", double=True),
    _dev(156, "energy", _MILLIJOULES, "TOTAL_ENERGY_CONSUMPTION"),
    _dev(164, "power_limit", _ONE, "ENFORCED_POWER_LIMIT", "BOARD_POWER_LIMIT_ENFORCED_WATTS", double=True),
    _dev(202, "pcie_replays", _ONE, "PCIE_REPLAY_COUNTER", "PCIE_REPLAY_TOTAL"),
    _dev(_UTILIZATION, "activity/utilization", _PERCENT, "GPU_UTIL", "GPU_UTIL_RATIO"),
    _dev(204, "activity/memory_controller", _PERCENT, "MEM_COPY_UTIL"),
    _dev(XID, "", _ONE, "XID_ERRORS", "XID_ERROR"),
    _dev(235, "pcie_generation/max", _ONE, "PCIE_MAX_LINK_GEN"),
    _dev(236, "pcie_lanes/max", _ONE, "PCIE_MAX_LINK_WIDTH"),
    _dev(237, "pcie_generation/current", _ONE, "PCIE_LINK_GEN"),
    _dev(238, "pcie_lanes/current", _ONE, "PCIE_LINK_WIDTH"),
    _dev(240, "throttle/power", _NANOSECONDS, "POWER_VIOLATION"),
    _dev(241, "throttle/thermal", _NANOSECONDS, "THERMAL_VIOLATION"),
    _dev(242, "throttle/sync_boost", _NANOSECONDS, "SYNC_BOOST_VIOLATION"),
    _dev(243, "throttle/board_limit", _NANOSECONDS, "BOARD_LIMIT_VIOLATION"),
    _dev(244, "throttle/low_utilization", _NANOSECONDS, "LOW_UTIL_VIOLATION"),
    _dev(245, "throttle/reliability", _NANOSECONDS, "RELIABILITY_VIOLATION"),
    _dev(246, "throttle/app_clocks", _NANOSECONDS, "TOTAL_APP_CLOCKS_VIOLATION"),
    _dev(247, "throttle/base_clocks", _NANOSECONDS, "TOTAL_BASE_CLOCKS_VIOLATION"),
    _dev(250, "memory/total", _MEBIBYTES, "FB_TOTAL", instance=True),
    _dev(251, "memory/free", _MEBIBYTES, "FB_FREE", instance=True),
    _dev(252, "memory/used", _MEBIBYTES, "FB_USED", instance=True),
    _dev(253, "memory/reserved", _MEBIBYTES, "FB_RESERVED", instance=True),
    _dev(310, "ecc/correctable/volatile", _ONE, "ECC_SBE_VOL_TOTAL"),
    _dev(311, "ecc/uncorrectable/volatile", _ONE, "ECC_DBE_VOL_TOTAL"),
    _dev(312, "ecc/correctable/aggregate", _ONE, "ECC_SBE_AGG_TOTAL"),
    _dev(313, "ecc/uncorrectable/aggregate", _ONE, "ECC_DBE_AGG_TOTAL"),
    _dev(390, "pages_retired/single_bit", _ONE, "RETIRED_SBE", "PAGE_RETIRED_SBE_TOTAL"),
    _dev(391, "pages_retired/double_bit", _ONE, "RETIRED_DBE", "PAGE_RETIRED_DBE_TOTAL"),
    _dev(PAGES_PENDING, "pages_retired/pending", _ONE, "RETIRED_PENDING", "PAGE_RETIRED_PENDING"),
    _dev(393, "rows_remapped/uncorrectable", _ONE, "UNCORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_UNCORRECTABLE_TOTAL"),
    _dev(394, "rows_remapped/correctable", _ONE, "CORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_CORRECTABLE_TOTAL"),
    _dev(395, "rows_remapped/failure", _ONE, "ROW_REMAP_FAILURE", "ROW_REMAP_FAILED"),
    _dev(396, "rows_remapped/pending", _ONE, "ROW_REMAP_PENDING"),
    _dev(409, "nvlink_errors/crc_flit", _ONE, "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVLINK_CRC_FLIT_ERROR_TOTAL"),
    _dev(419, "nvlink_errors/crc_data", _ONE, "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "NVLINK_CRC_DATA_ERROR_TOTAL"),
    _dev(429, "nvlink_errors/replay", _ONE, "NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVLINK_REPLAY_ERROR_TOTAL"),
    _dev(439, "nvlink_errors/recovery", _ONE, "NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "NVLINK_RECOVERY_ERROR_TOTAL"),
    # NVLink 4.
    _dev(497, "nvlink_errors/crc", _ONE, "NVLINK_ERROR_DL_CRC", "NVLINK_CRC_ERROR_TOTAL"),
    _dev(498, "nvlink_errors/recovery", _ONE, "NVLINK_ERROR_DL_RECOVERY", "NVLINK_RECOVERY_TOTAL"),
    _dev(499, "nvlink_errors/replay", _ONE, "NVLINK_ERROR_DL_REPLAY", "NVLINK_REPLAY_TOTAL"),
    # Sum of both directions: used only where they are not reported separately.
    _dev(449, "link_rate/nvlink/both", _KIBIBYTES_TIMES_1000, "NVLINK_BANDWIDTH_TOTAL", "NVLINK_THROUGHPUT_TOTAL"),
    _dev(843, "link_rate/nvlink/transmit", _KIBIBYTES_TIMES_1000, "NVLINK_TX_BANDWIDTH_TOTAL", "NVLINK_TX_THROUGHPUT_TOTAL"),
    _dev(897, "link_rate/nvlink/receive", _KIBIBYTES_TIMES_1000, "NVLINK_RX_BANDWIDTH_TOTAL", "NVLINK_RX_THROUGHPUT_TOTAL"),
    _prof(1001, "activity/engine", "GR_ENGINE_ACTIVE", "GR_ENGINE_UTIL_RATIO"),
    _prof(1002, "activity/sm", "SM_ACTIVE", "SM_UTIL_RATIO"),
    _prof(1003, "activity/sm_occupancy", "SM_OCCUPANCY", "SM_OCCUPANCY_RATIO"),
    _prof(1004, "activity/tensor", "PIPE_TENSOR_ACTIVE", "TENSOR_UTIL_RATIO"),
    _prof(1005, "activity/dram", "DRAM_ACTIVE", "DRAM_UTIL_RATIO"),
    _prof(1006, "activity/fp64", "PIPE_FP64_ACTIVE", "FP64_UTIL_RATIO"),
    _prof(1007, "activity/fp32", "PIPE_FP32_ACTIVE", "FP32_UTIL_RATIO"),
    _prof(1008, "activity/fp16", "PIPE_FP16_ACTIVE", "FP16_UTIL_RATIO"),
    _prof(1009, "link_rate/pcie/transmit", "PCIE_TX_BYTES", double=False, instance=False),
    _prof(1010, "link_rate/pcie/receive", "PCIE_RX_BYTES", double=False, instance=False),
    _prof(1011, "link_rate/nvlink/transmit", "NVLINK_TX_BYTES", double=False, instance=False),
    _prof(1012, "link_rate/nvlink/receive", "NVLINK_RX_BYTES", double=False, instance=False),
    _prof(SM_CYCLES_ELAPSED, "", "SM_CYCLES_ELAPSED_TOTAL", double=False),
    _prof(SM_CYCLES_ACTIVE, "", "SM_CYCLES_ACTIVE_TOTAL", double=False),
    _prof(1091, "link_bytes/pcie/transmit", "PCIE_TX_BYTES_TOTAL", double=False, instance=False),
    _prof(1092, "link_bytes/pcie/receive", "PCIE_RX_BYTES_TOTAL", double=False, instance=False),
    _dev(1201, "link_bytes/nvlink/transmit", _ONE, "NVLINK_COUNT_TX_BYTES", "NVLINK_TX_BYTES_TOTAL"),
    _dev(1203, "link_bytes/nvlink/receive", _ONE, "NVLINK_COUNT_RX_BYTES", "NVLINK_RX_BYTES_TOTAL"),
    _dev(1204, "nvlink_errors/malformed_packets", _ONE, "NVLINK_COUNT_RX_MALFORMED_PACKET_ERRORS", "NVLINK_RX_PACKET_MALFORMED_TOTAL"),
    _dev(1205, "nvlink_errors/buffer_overruns", _ONE, "NVLINK_COUNT_RX_BUFFER_OVERRUN_ERRORS", "NVLINK_RX_PACKET_DROPPED_TOTAL"),
    _dev(1206, "nvlink_errors/receive", _ONE, "NVLINK_COUNT_RX_ERRORS", "NVLINK_RX_ERROR_TOTAL"),
    _dev(1207, "nvlink_errors/receive_remote", _ONE, "NVLINK_COUNT_RX_REMOTE_ERRORS", "NVLINK_RX_REMOTE_ERROR_TOTAL"),
    _dev(1208, "nvlink_errors/receive_general", _ONE, "NVLINK_COUNT_RX_GENERAL_ERRORS", "NVLINK_RX_GENERAL_ERROR_TOTAL"),
    _dev(1209, "nvlink_errors/local_link_integrity", _ONE, "NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS", "NVLINK_INTEGRITY_ERROR_TOTAL"),
    _dev(1210, "nvlink_errors/transmit_discards", _ONE, "NVLINK_COUNT_TX_DISCARDS"),
    _dev(1211, "nvlink_errors/recovery_successful", _ONE, "NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS", "NVLINK_RECOVERY_SUCCESSFUL_TOTAL"),
    _dev(1212, "nvlink_errors/recovery_failed", _ONE, "NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", "NVLINK_RECOVERY_FAILED_TOTAL"),
    _dev(1213, "nvlink_errors/recovery_events", _ONE, "NVLINK_COUNT_LINK_RECOVERY_EVENTS", "NVLINK_RECOVERY_EVENT_TOTAL"),
    _dev(1214, "nvlink_errors/symbol", _ONE, "NVLINK_COUNT_RX_SYMBOL_ERRORS", "NVLINK_RX_SYMBOL_ERROR_TOTAL"),
    _dev(1215, "nvlink_bit_errors/symbol", _ONE, "NVLINK_COUNT_SYMBOL_BER", "NVLINK_SYMBOL_BER_RAW"),
    _dev(1216, "nvlink_bit_errors/symbol", _ONE, "NVLINK_COUNT_SYMBOL_BER_FLOAT", "NVLINK_SYMBOL_BER_RATIO", double=True),
    _dev(1217, "nvlink_bit_errors/effective", _ONE, "NVLINK_COUNT_EFFECTIVE_BER", "NVLINK_EFFECTIVE_BER_RAW"),
    _dev(1218, "nvlink_bit_errors/effective", _ONE, "NVLINK_COUNT_EFFECTIVE_BER_FLOAT", "NVLINK_EFFECTIVE_BER_RATIO", double=True),
    _dev(1219, "nvlink_errors/effective", _ONE, "NVLINK_COUNT_EFFECTIVE_ERRORS", "NVLINK_EFFECTIVE_ERROR_TOTAL"),
    _dev(1220, "nvlink_errors/ecc_data", _ONE, "NVLINK_ECC_DATA_ERROR_COUNT_TOTAL", "NVLINK_ECC_ERROR_TOTAL"),
    _dev(RECOVERY_ACTION, "", _ONE, "GET_GPU_RECOVERY_ACTION", "GPU_RECOVERY_ACTION"),
    # The same in base units, since 4.7.
    _dev(1603, "clock/sm", _ONE, "SM_CLOCK_HERTZ"),
    _dev(1604, "clock/memory", _ONE, "MEMORY_CLOCK_HERTZ"),
    _dev(_ENERGY_JOULES, "energy", _ONE, "GPU_ENERGY_JOULES_TOTAL"),
    # Its exporter name is that of 203 in 4.6; see field_of_name.
    _dev(_UTILIZATION_RATIO, "activity/utilization", _ONE, double=True),
    _dev(1614, "activity/memory_controller", _ONE, "MEMORY_UTIL_RATIO", double=True),
    _dev(1617, "throttle/power", _ONE, "GPU_POWER_THROTTLE_SECONDS_TOTAL", double=True),
    _dev(1618, "throttle/thermal", _ONE, "GPU_THERMAL_THROTTLE_SECONDS_TOTAL", double=True),
    _dev(1625, "memory/total", _ONE, "FB_CAPACITY_BYTES", instance=True),
    _dev(1626, "memory/free", _ONE, "FB_FREE_BYTES", instance=True),
    _dev(1627, "memory/used", _ONE, "FB_USED_BYTES", instance=True),
    _dev(1628, "memory/reserved", _ONE, "FB_RESERVED_BYTES", instance=True),
    _dev(1648, "link_rate/nvlink/both", _ONE, "NVLINK_THROUGHPUT_BYTES_PER_SECOND"),
]  # fmt: skip
FIELDS: dict[int, Field] = {field.number: field for field in _TABLE}
_BY_NAME: dict[str, Field] = {name: field for field in _TABLE for name in field.names}

# Fields to watch. Profiling counters may be held by another process and are refused together, without the others.
PROFILING = tuple(range(1001, 1013))
FAST = (155, 156, _UTILIZATION, 204)
SLOW = (
    *(NAME, NVML_INDEX, 100, 101, EVENT_REASONS, 140, 150, 164, 202, 235, 236, 237, 238),
    *range(240, 248),
    *range(250, 254),
    *range(310, 314),
    *(390, 391, PAGES_PENDING, 393, 394, 395, 396, 409, 419, 429, 439, 449, *range(497, 500), 843, 897),
    *range(1204, 1221),
    RECOVERY_ACTION,
)
# Since 4.6, and on Hopper and later only.
TOTALS = (SM_CYCLES_ELAPSED, SM_CYCLES_ACTIVE, 1091, 1092, 1201, 1203)


def is_blank(raw: object, double: bool) -> bool:
    """Whether a DCGM value means "no value". So does any string: none of these fields is one."""
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not abs(raw) < math.inf:
        return True
    if double:
        return raw >= FP64_BLANK
    return raw >= INT64_BLANK or INT32_BLANK <= raw <= INT32_BLANK + 15


def number_of(field: Field, raw: object) -> float | None:
    """A field's raw value, None where it is blank or impossible."""
    if not isinstance(raw, int | float) or is_blank(raw, field.double):
        return None
    return None if raw < 0 and not field.key.startswith("temperature/") else raw


def field_of_name(name: str, raw: object = None) -> Field | None:
    """The field with this name in any DCGM version, None for a field that is not in the table.

    DCGM_FI_DEV_GPU_UTIL_RATIO is field 203 in 4.6, an integer percentage, and field 1613 from 4.7 on, a ratio, which
    dcgm-exporter writes with a decimal point: the value's type decides.
    """
    field = _BY_NAME.get(name)
    if field is not None and name == "DCGM_FI_DEV_GPU_UTIL_RATIO" and isinstance(raw, float):
        return FIELDS[_UTILIZATION_RATIO]
    return field


def readings_of(values: Mapping[int, object], instance: bool = False) -> dict[str, float]:
    """Readings of one device from its raw values by field ID; for a GPU instance, only its own."""
    found: dict[str, float] = {}
    for number in sorted(values):
        field = FIELDS.get(number)
        if field is None or (instance and not field.instance):
            continue
        value = number_of(field, values[number])
        if value is None or (number == _ENERGY_JOULES and "energy" in found):
            continue
        if number == MEMORY_TEMPERATURE and not value:  # GDDR has no sensor.
            continue
        if number == EVENT_REASONS:
            found.update(throttle_readings(int(value)))
        elif number in _RAW_BIT_ERROR_RATIOS:
            found[field.key] = bit_error_ratio(value)
        elif number == RECOVERY_ACTION:
            found[recovery_key(value)] = 1.0
        elif field.key:
            multiply, divide = field.scale
            reading = value * multiply / divide
            if reading <= _ACTIVITY_MAX or not field.key.startswith("activity/"):
                found[field.key] = reading
    if "pages_retired/pending" in found:
        found["pages_retired/pending"] = min(1.0, found["pages_retired/pending"])
    if "link_rate/nvlink/transmit" in found and "link_rate/nvlink/receive" in found:
        found.pop("link_rate/nvlink/both", None)
    return found


class SmCycles:
    """SM activity between two calls from cycle totals (1084, 1085), for a GPU without field 1002.

    The first call for a device, and one after a reset, gives none.
    """

    def __init__(self):
        self._before: dict[object, tuple[float, float]] = {}

    def add_activity(self, device: object, values: Mapping[int, object], readings: dict[str, float]) -> None:
        """Add activity/sm to `readings` where they lack it."""
        elapsed = number_of(FIELDS[SM_CYCLES_ELAPSED], values.get(SM_CYCLES_ELAPSED))
        active = number_of(FIELDS[SM_CYCLES_ACTIVE], values.get(SM_CYCLES_ACTIVE))
        before = self._before.pop(device, None)
        if elapsed is None or active is None:
            return
        self._before[device] = elapsed, active
        if before is not None and elapsed > before[0] and 0 <= active - before[1] <= elapsed - before[0]:
            readings.setdefault("activity/sm", (active - before[1]) / (elapsed - before[0]))

    def keep(self, devices) -> None:
        """Drop other devices."""
        self._before = {device: pair for device, pair in self._before.items() if device in devices}


def instance_uuid(parent: str, instance: int | str) -> str:
    """A UUID for a GPU instance, which has none in DCGM, in CUDA's old form (MIG-GPU-…/1)."""
    return f"MIG-{parent}/{instance}"
