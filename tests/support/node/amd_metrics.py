"""amdgpu's gpu_metrics as ctypes lays it out, by the declarations of the kernel's kgd_pp_interface.h."""

from __future__ import annotations

import ctypes

from goodput_exporters.gpu.amd import gpu_metrics

U16, U32, U64 = ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
HEADER = [("structure_size", U16), ("format_revision", ctypes.c_uint8), ("content_revision", ctypes.c_uint8)]
SENSORS = [
    *((name, U16) for name in ("temperature_hotspot", "temperature_mem", "temperature_vrsoc")),
    *((name, U16) for name in ("curr_socket_power", "average_gfx_activity", "average_umc_activity")),
]
RESIDENCIES = [
    (name, U32)
    for name in ("accumulation_counter", *(f"{each}_residency_acc" for each in gpu_metrics.REASONS))
]
LINKS_1_4 = [
    *((name, U16) for name in ("pcie_link_width", "pcie_link_speed", "xgmi_link_width", "xgmi_link_speed")),
    *(("gfx_activity_acc", U32), ("mem_activity_acc", U32)),
    *(
        (name, U64)
        for name in (
            *("pcie_bandwidth_acc", "pcie_bandwidth_inst", "pcie_l0_to_recov_count_acc"),
            *("pcie_replay_count_acc", "pcie_replay_rover_count_acc"),
        )
    ),
]
XGMI = [("xgmi_read_data_acc", U64 * 8), ("xgmi_write_data_acc", U64 * 8)]
LINKS = [*LINKS_1_4, ("pcie_nak_sent_count_acc", U32), ("pcie_nak_rcvd_count_acc", U32), *XGMI]
CLOCKS = [
    ("firmware_timestamp", U64),
    ("current_gfxclk", U16 * 8),
    ("other_clocks", U16 * 12),
    ("current_uclk", U16),
]


COUNTERS = [("energy_accumulator", U64), ("system_clock_counter", U64)]
STATUS, LOCK = [("throttle_status", U32), ("gfxclk_lock_status", U32)], [("gfxclk_lock_status", U32)]


def partitions(jpeg_engines: int, *further: str) -> list[tuple]:
    class Xcp(ctypes.Structure):
        _fields_ = [
            *(("gfx_busy_inst", U32 * 8), ("jpeg_busy", U16 * jpeg_engines), ("vcn_busy", U16 * 4)),
            *(("gfx_busy_acc", U64 * 8), *((name, U64 * 8) for name in further)),
        ]

    return [("num_partition", U16), ("xcp_stats", Xcp * 8), ("pcie_lc_perf_other_end_recovery", U32)]


class V1_4(ctypes.Structure):
    _fields_ = [
        *(*HEADER, *SENSORS, ("vcn_activity", U16 * 4), *COUNTERS, *STATUS, *LINKS_1_4, *XGMI, *CLOCKS),
        ("padding", U16),
    ]


class V1_5(ctypes.Structure):
    _fields_ = [
        *(*HEADER, *SENSORS, ("vcn_activity", U16 * 4), ("jpeg_activity", U16 * 32), *COUNTERS, *STATUS),
        *(*LINKS, *CLOCKS, ("padding", U16)),
    ]


class V1_6(ctypes.Structure):
    _fields_ = [
        *(*HEADER, *SENSORS, *COUNTERS, *RESIDENCIES, *LOCK, *LINKS, *CLOCKS),
        *partitions(32),
    ]


class V1_7(ctypes.Structure):
    _fields_ = [
        *(*HEADER, *SENSORS, ("mem_max_bandwidth", U64), *COUNTERS, *RESIDENCIES, *LOCK, *LINKS),
        *(("xgmi_link_status", U16 * 8), ("padding", U16), *CLOCKS, *partitions(32, "below_host_limit")),
    ]


class V1_8(ctypes.Structure):
    _fields_ = [
        *(*HEADER, *SENSORS, ("mem_max_bandwidth", U64), *COUNTERS, *RESIDENCIES, *LOCK, *LINKS),
        *(("xgmi_link_status", U16 * 8), ("padding", U16), *CLOCKS, *partitions(40, "power", "heat", "low")),
    ]


TABLES = {4: V1_4, 5: V1_5, 6: V1_6, 7: V1_7, 8: V1_8}


# What a table of `table` is, worked out by hand.
EXPECTED = {
    "activity/utilization": 0.93,
    "activity/memory_controller": 0.31,
    "activity/video": 0.30,
    "activity/jpeg": 0.85,
    "power": 640.0,
    "energy": 1000.0,
    "temperature/core": 61.0,
    "temperature/junction": 61.0,
    "temperature/memory": 48.0,
    "clock/sm": 2.1e9,
    "clock/memory": 1.3e9,
    "pcie_generation/current": 5.0,
    "pcie_lanes/current": 16.0,
    "pcie_replays": 9.0,
    "pcie_errors/l0_to_recovery": 21.0,
    "pcie_errors/naks_sent": 22.0,
    "pcie_errors/naks_received": 23.0,
    "link_bytes/xgmi/receive": 3 * 1024.0,
    "link_bytes/xgmi/transmit": 7 * 1024.0,
}


def table(kind, revision: int, cycles: int = 100_000, ppt: int = 5_000):
    """A table with all unknown but what EXPECTED has."""
    made = kind.from_buffer_copy(b"\xff" * ctypes.sizeof(kind))
    made.structure_size, made.format_revision, made.content_revision = ctypes.sizeof(kind), 1, revision
    made.temperature_hotspot, made.temperature_mem, made.curr_socket_power = 61, 48, 640
    made.average_gfx_activity, made.average_umc_activity = 93, 31
    made.energy_accumulator = 65536 * 1000
    made.accumulation_counter, made.ppt_residency_acc = cycles, ppt
    # Two partitions, of which the first has two engines for video and one for JPEG; all others are unknown.
    if revision >= 6:
        first, second, *_ = made.xcp_stats
        first.vcn_busy[0], first.vcn_busy[1], second.vcn_busy[0] = 10, 20, 60
        first.jpeg_busy[0], second.jpeg_busy[31] = 100, 70
    else:
        made.vcn_activity[0], made.vcn_activity[1], made.vcn_activity[3] = 10, 20, 60
        if revision == 5:
            made.jpeg_activity[0], made.jpeg_activity[31] = 100, 70
    made.pcie_link_width, made.pcie_link_speed, made.pcie_replay_count_acc = 16, 320, 9
    made.pcie_l0_to_recov_count_acc, made.pcie_nak_sent_count_acc, made.pcie_nak_rcvd_count_acc = 21, 22, 23
    made.xgmi_read_data_acc[0], made.xgmi_read_data_acc[1], made.xgmi_write_data_acc[0] = 1, 2, 7
    made.current_gfxclk[0], made.current_gfxclk[3], made.current_uclk = 2050, 2100, 1300
    return made
