"""The table of DCGM's fields: what reading each is, its unit, type and names.

Numbers, names and units are those of dcgm_fields.h (2.x to 4.5), of the aliases in dcgm_fields.py (4.6) and of NVIDIA's
reference of field identifiers (4.7); see dcgm_fields.py beside this for what they disagree about.
"""

from __future__ import annotations

from typing import NamedTuple

EVENT_REASONS, XID, NAME, NVML_INDEX, RECOVERY_ACTION, PAGES_PENDING = 112, 230, 50, 52, 1523, 392
SM_CYCLES_ELAPSED, SM_CYCLES_ACTIVE, MEMORY_TEMPERATURE = 1084, 1085, 140
UTILIZATION, UTILIZATION_RATIO, ENERGY_JOULES = 203, 1613, 1611
FABRIC_STATUS, FABRIC_HEALTH, PERFORMANCE_STATE = 170, 174, 190

_ONE = (1, 1)
_PERCENT = (1, 100)
_MEGAHERTZ = (1_000_000, 1)
_MEBIBYTES = (1 << 20, 1)
_KILOBYTES = (1000, 1)
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


TABLE = [
    _dev(100, "clock/sm", _MEGAHERTZ, "SM_CLOCK"),
    _dev(101, "clock/memory", _MEGAHERTZ, "MEM_CLOCK"),
    _dev(EVENT_REASONS, "", _ONE, "CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS"),
    _dev(MEMORY_TEMPERATURE, "temperature/memory", _ONE, "MEMORY_TEMP", "MEMORY_TEMP_CELSIUS"),
    _dev(150, "temperature/core", _ONE, "GPU_TEMP", "GPU_TEMP_CELSIUS"),
    _dev(155, "power", _ONE, "POWER_USAGE", "BOARD_POWER_WATTS", double=True),
    _dev(156, "energy", _MILLIJOULES, "TOTAL_ENERGY_CONSUMPTION"),
    _dev(164, "power_limit", _ONE, "ENFORCED_POWER_LIMIT", "BOARD_POWER_LIMIT_ENFORCED_WATTS", double=True),
    # Deprecated: NVML's measurement of 20 ms. Fields 1009 and 1010, which are means, come later and win.
    _dev(200, "link_rate/pcie/transmit", _KILOBYTES, "PCIE_TX_THROUGHPUT"),
    _dev(201, "link_rate/pcie/receive", _KILOBYTES, "PCIE_RX_THROUGHPUT"),
    _dev(202, "pcie_replays", _ONE, "PCIE_REPLAY_COUNTER", "PCIE_REPLAY_TOTAL"),
    _dev(UTILIZATION, "activity/utilization", _PERCENT, "GPU_UTIL", "GPU_UTIL_RATIO"),
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
    _dev(ENERGY_JOULES, "energy", _ONE, "GPUENERGY_JOULES_TOTAL"),
    # Its exporter name is that of 203 in 4.6; see field_of_name.
    _dev(UTILIZATION_RATIO, "activity/utilization", _ONE, double=True),
    _dev(1614, "activity/memory_controller", _ONE, "MEMORY_UTIL_RATIO", double=True),
    _dev(1617, "throttle/power", _ONE, "GPU_POWER_THROTTLE_SECONDS_TOTAL", double=True),
    _dev(1618, "throttle/thermal", _ONE, "GPU_THERMAL_THROTTLE_SECONDS_TOTAL", double=True),
    _dev(1625, "memory/total", _ONE, "FB_CAPACITY_BYTES", instance=True),
    _dev(1626, "memory/free", _ONE, "FB_FREE_BYTES", instance=True),
    _dev(1627, "memory/used", _ONE, "FB_USED_BYTES", instance=True),
    _dev(1628, "memory/reserved", _ONE, "FB_RESERVED_BYTES", instance=True),
    _dev(1648, "link_rate/nvlink/both", _ONE, "NVLINK_THROUGHPUT_BYTES_PER_SECOND"),
]  # fmt: skip

# Settings, limits and errors by place, which change rarely, and what else of a GPU is of no interest every second.
_BOARD = (
    _dev(90, "bar1/total", _MEBIBYTES, "BAR1_TOTAL"),
    _dev(92, "bar1/used", _MEBIBYTES, "BAR1_USED"),
    _dev(93, "bar1/free", _MEBIBYTES, "BAR1_FREE"),
    _dev(102, "clock/video", _MEGAHERTZ, "VIDEO_CLOCK"),
    _dev(110, "clock_limit/sm/application", _MEGAHERTZ, "APP_SM_CLOCK"),
    _dev(111, "clock_limit/memory/application", _MEGAHERTZ, "APP_MEM_CLOCK"),
    _dev(113, "clock_limit/sm/max", _MEGAHERTZ, "MAX_SM_CLOCK"),
    _dev(114, "clock_limit/memory/max", _MEGAHERTZ, "MAX_MEM_CLOCK"),
    _dev(115, "clock_limit/video/max", _MEGAHERTZ, "MAX_VIDEO_CLOCK"),
    _dev(151, "temperature_limit/memory_max", _ONE, "MEM_MAX_OP_TEMP", "MEMORY_MAX_OP_TEMP_CELSIUS"),
    _dev(152, "temperature_limit/core_max", _ONE, "GPU_MAX_OP_TEMP", "GPU_MAX_OP_TEMP_CELSIUS"),
    _dev(153, "temperature_margin", _ONE, "GPU_TEMP_LIMIT", "GPU_TEMP_MARGIN_CELSIUS"),
    _dev(157, "power_instant", _ONE, "POWER_USAGE_INSTANT", "BOARD_POWER_RAW_WATTS", double=True),
    _dev(158, "temperature_limit/slowdown", _ONE, "SLOWDOWN_TEMP", "GPU_TEMP_SLOWDOWN_CELSIUS"),
    _dev(159, "temperature_limit/shutdown", _ONE, "SHUTDOWN_TEMP", "GPU_TEMP_SHUTDOWN_CELSIUS"),
    _dev(160, "power_setting/requested", _ONE, "POWER_MGMT_LIMIT", "BOARD_POWER_LIMIT_REQUESTED_WATTS", double=True),
    _dev(161, "power_setting/min", _ONE, "POWER_MGMT_LIMIT_MIN", "BOARD_POWER_LIMIT_MIN_WATTS", double=True),
    _dev(162, "power_setting/max", _ONE, "POWER_MGMT_LIMIT_MAX", "BOARD_POWER_LIMIT_MAX_WATTS", double=True),
    _dev(163, "power_setting/default", _ONE, "POWER_MGMT_LIMIT_DEF", "BOARD_POWER_LIMIT_DEFAULT_WATTS", double=True),
    _dev(FABRIC_STATUS, "", _ONE, "FABRIC_MANAGER_STATUS"),
    _dev(FABRIC_HEALTH, "", _ONE, "FABRIC_HEALTH_MASK"),
    _dev(PERFORMANCE_STATE, "performance_state", _ONE, "PSTATE", "GPU_PSTATE"),
    _dev(191, "fan", _PERCENT, "FAN_SPEED"),
    _dev(206, "activity/encoder", _PERCENT, "ENC_UTIL"),
    _dev(207, "activity/decoder", _PERCENT, "DEC_UTIL"),
    _dev(285, "c2c_links/present", _ONE, "C2C_LINK_COUNT", "C2C_LINK_QUANTITY"),
    _dev(300, "ecc_mode/current", _ONE, "ECC_CURRENT", "ECC_MODE"),
    _dev(301, "ecc_mode/pending", _ONE, "ECC_PENDING"),
    _dev(346, "ecc_threshold", _ONE, "THRESHOLD_SRM", "SRAM_EXCEEDED"),
    *(
        _dev(number, f"remap_banks/{spare}", _ONE, f"BANKS_REMAP_ROWS_AVAIL_{spare.upper()}", f"BANK_REMAP_AVAIL_{spare.upper()}")
        for number, spare in enumerate(("max", "high", "partial", "low", "none"), 385)
    ),
    _dev(526, "vgpu_license/licensed", _ONE, "VGPU_LICENSE_STATUS"),
    _dev(1400, "c2c_errors/crc", _ONE, "C2C_LINK_ERROR_INTR"),
    _dev(1401, "c2c_errors/replay", _ONE, "C2C_LINK_ERROR_REPLAY"),
    _dev(1402, "c2c_errors/replay_back_to_back", _ONE, "C2C_LINK_ERROR_REPLAY_B2B"),
    _dev(1422, "throttle/sw_thermal", _NANOSECONDS, "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS"),
    _dev(1423, "throttle/hw_thermal", _NANOSECONDS, "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS"),
    _dev(1424, "throttle/hw_power_brake", _NANOSECONDS, "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS"),
    _dev(1501, "pcie_errors/correctable", _ONE, "PCIE_COUNT_CORRECTABLE_ERRORS", "PCIE_CORRECTABLE_ERROR_TOTAL"),
)  # fmt: skip
# Pipes by kind, which not every GPU counts beside the other profiling fields.
_PIPES = (
    _prof(1013, "activity/tensor_imma", "PIPE_TENSOR_IMMA_ACTIVE", "IMMA_UTIL_RATIO"),
    _prof(1014, "activity/tensor_hmma", "PIPE_TENSOR_HMMA_ACTIVE", "HMMA_UTIL_RATIO"),
    _prof(1015, "activity/tensor_dfma", "PIPE_TENSOR_DFMA_ACTIVE", "DFMA_UTIL_RATIO"),
    _prof(1016, "activity/integer", "PIPE_INT_ACTIVE", "INT_UTIL_RATIO"),
    _prof(1076, "link_rate/c2c/transmit", "C2C_TX_ALL_BYTES", double=False, instance=False),
    _prof(1078, "link_rate/c2c/receive", "C2C_RX_ALL_BYTES", double=False, instance=False),
)


def _by_place() -> list[Field]:
    """ECC errors by place: of each, single and double bit ones of since the driver was loaded, then of all time."""
    first = {
        "l1": 314,
        "l2": 316,
        "device": 318,
        "register": 320,
        "texture": 322,
        "shm": 334,
        "cbu": 336,
        "sram": 342,
    }
    names = {"device": "DEV", "register": "REG", "texture": "TEX", "sram": "SRM"}
    # From a place's volatile errors to its aggregate ones.
    further = {"shm": 4, "cbu": 4, "sram": 2}
    return [
        _dev(
            number + (further.get(place, 10) if scope == "aggregate" else 0) + bits,
            f"ecc_location/{('correctable', 'uncorrectable')[bits]}/{scope}/{place}",
            _ONE,
            f"ECC_{'SD'[bits]}BE_{scope[:3].upper()}_{names.get(place, place.upper())}",
        )
        for place, number in first.items()
        for scope in ("volatile", "aggregate")
        for bits in (0, 1)
    ]


def _by_link() -> list[Field]:
    """Errors and rates of each NVLink. The numbers of links above the fifth are where there was room."""
    errors = {"crc_flit": ("CRC_FLIT", 400, 451, 406, 481), "crc_data": ("CRC_DATA", 410, 457, 416, 484)}
    errors |= {"replay": ("REPLAY", 420, 463, 426, 487), "recovery": ("RECOVERY", 430, 469, 436, 491)}
    found = []
    for kind, (name, of_0, of_6, of_12, of_15) in errors.items():
        for link in range(LINKS_MAX):
            start, first = next(
                (s, f) for s, f in ((of_15, 15), (of_12, 12), (of_6, 6), (of_0, 0)) if link >= f
            )
            key, name_of_link = f"nvlink_link_errors/{link}/{kind}", f"NVLINK_{name}_ERROR"
            names = (f"{name_of_link}_COUNT_L{link}", f"{name_of_link}_L{link}_TOTAL")
            found.append(_dev(start + link - first, key, _ONE, *names))
    for link in range(LINKS_MAX):
        transmit, receive = f"nvlink_link_rate/{link}/transmit", f"nvlink_link_rate/{link}/receive"
        found += [
            _dev(825 + link, transmit, _KIBIBYTES_TIMES_1000, f"NVLINK_TX_BANDWIDTH_L{link}"),
            _dev(879 + link, receive, _KIBIBYTES_TIMES_1000, f"NVLINK_RX_BANDWIDTH_L{link}"),
            _prof(1040 + 2 * link, transmit, f"NVLINK_L{link}_TX_BYTES", double=False, instance=False),
            _prof(1041 + 2 * link, receive, f"NVLINK_L{link}_RX_BYTES", double=False, instance=False),
        ]
    return found


LINKS_MAX = 18
_PLACES, _LINKS = _by_place(), _by_link()
TABLE += [*_BOARD, *_PIPES, *_PLACES, *_LINKS]

# Fields to watch. Profiling counters may be held by another process and are refused together, without the others.
PROFILING = tuple(range(1001, 1013))
PIPES = tuple(field.number for field in _PIPES)
FAST = (155, 156, UTILIZATION, 204)
_RARE_ON_BOARD = {
    110,
    111,
    113,
    114,
    115,
    151,
    152,
    *range(158, 164),
    FABRIC_STATUS,
    FABRIC_HEALTH,
    285,
    300,
    301,
    346,
    *range(385, 390),
    526,
}
SLOW = (
    *(NAME, NVML_INDEX, 100, 101, EVENT_REASONS, 140, 150, 164, 202, 235, 236, 237, 238),
    *range(240, 248),
    *range(250, 254),
    *range(310, 314),
    *(390, 391, PAGES_PENDING, 393, 394, 395, 396, 409, 419, 429, 439, 449, *range(497, 500), 843, 897),
    *range(1204, 1221),
    RECOVERY_ACTION,
    *(field.number for field in _BOARD if field.number not in _RARE_ON_BOARD),
)  # fmt: skip
RARE = (
    *sorted(_RARE_ON_BOARD),
    *(field.number for field in _PLACES),
    *(field.number for field in _LINKS if field.key.startswith("nvlink_link_errors/")),
)
# Since 4.6, and on Hopper and later only.
TOTALS = (SM_CYCLES_ELAPSED, SM_CYCLES_ACTIVE, 1091, 1092, 1201, 1203)
# Rates of each link and the measurements of PCIe, read where an exporter has them; the host engine is not asked to measure
# them unless a list of counters names them.
UNWATCHED = (200, 201, *(field.number for field in _LINKS if field.number not in RARE))
