"""amdgpu's gpu_metrics: the table of sensors and accumulators that the GPU's firmware keeps, in sysfs and from amdsmi.

The layout differs by chip and is named by the table's header. Sources: the kernel's kgd_pp_interface.h for sysfs,
amdsmi.h for the library, which has one layout for all chips. What a chip does not have is all ones. A table with an
unknown header gives nothing.

    fields = parse(body); keys = readings(fields); keys |= Throttling().update(fields, monotonic_ns)
"""

from __future__ import annotations

import functools
import itertools
import struct
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

HEADER = (("structure_size", "H"), ("format_revision", "B"), ("content_revision", "B"))
_THROTTLING = ("prochot", "ppt", "socket_thm", "vr_thm", "hbm_thm")


def _throttling(number: str) -> tuple[tuple[str, str], ...]:
    return (("accumulation_counter", number), *((f"{name}_residency_acc", number) for name in _THROTTLING))


# (name, format of the struct module), in the order of the C structure; alignment is C's.
V1_3 = (
    *HEADER,
    *(("temperature_edge", "H"), ("temperature_hotspot", "H"), ("temperature_mem", "H"), ("temperature_vr", "3H")),
    *(("average_gfx_activity", "H"), ("average_umc_activity", "H"), ("average_mm_activity", "H")),
    *(("average_socket_power", "H"), ("energy_accumulator", "Q"), ("system_clock_counter", "Q")),
    *(("average_clocks", "7H"), ("current_gfxclk", "H"), ("current_socclk", "H"), ("current_uclk", "H")),
    *(("current_video_clocks", "4H"), ("throttle_status", "I"), ("current_fan_speed", "H")),
    *(("pcie_link_width", "H"), ("pcie_link_speed", "H"), ("gfx_activity_acc", "I"), ("mem_activity_acc", "I")),
    *(("temperature_hbm", "4H"), ("firmware_timestamp", "Q"), ("voltages", "3H"), ("indep_throttle_status", "Q")),
)  # fmt: skip
_SENSORS = (
    *(("temperature_hotspot", "H"), ("temperature_mem", "H"), ("temperature_vrsoc", "H")),
    *(("current_socket_power", "H"), ("average_gfx_activity", "H"), ("average_umc_activity", "H")),
)
_LINKS_1_4 = (
    *(("pcie_link_width", "H"), ("pcie_link_speed", "H"), ("xgmi_link_width", "H"), ("xgmi_link_speed", "H")),
    *(("gfx_activity_acc", "I"), ("mem_activity_acc", "I"), ("pcie_bandwidth_acc", "Q"), ("pcie_bandwidth_inst", "Q")),
    *(("pcie_l0_to_recov_count_acc", "Q"), ("pcie_replay_count_acc", "Q"), ("pcie_replay_rover_count_acc", "Q")),
)  # fmt: skip
_XGMI = (("xgmi_read_data_acc", "8Q"), ("xgmi_write_data_acc", "8Q"))
_LINKS = (*_LINKS_1_4, ("pcie_nak_sent_count_acc", "I"), ("pcie_nak_rcvd_count_acc", "I"), *_XGMI)
_CLOCKS = (
    *(
        ("firmware_timestamp", "Q"),
        ("current_gfxclks", "8H"),
        ("current_socclks", "4H"),
        ("current_vclks", "8H"),
    ),
    ("current_uclk", "H"),
)
_COUNTERS = (("energy_accumulator", "Q"), ("system_clock_counter", "Q"))
_STATUS = (("throttle_status", "I"), ("gfxclk_lock_status", "I"))
PARTITIONS = 8


def _partitions(jpeg_engines: int, further: int) -> tuple[tuple[str, str], ...]:
    """xcp_stats, with `further` arrays behind those that all revisions have."""
    one = ("gfx_busy_acc", "8Q"), *(("further", "8Q"),) * further
    return (
        *(("num_partition", "H"), ("alignment", "0Q")),
        *(
            field
            for i in range(PARTITIONS)
            for field in (
                *(("gfx_busy_inst", "8I"), (f"jpeg_busy_{i}", f"{jpeg_engines}H"), (f"vcn_busy_{i}", "4H")),
                *one,
            )
        ),
        *(("pcie_lc_perf_other_end_recovery", "I"), ("alignment", "0Q")),
    )


_VIDEO_1_4 = (("vcn_activity", "4H"),)
_VIDEO_1_5 = (*_VIDEO_1_4, ("jpeg_activity", "32H"))
_END = ("padding", "H"), ("alignment", "0Q")
V1_4 = (*HEADER, *_SENSORS, *_VIDEO_1_4, *_COUNTERS, *_STATUS, *_LINKS_1_4, *_XGMI, *_CLOCKS, *_END)
V1_5 = (*HEADER, *_SENSORS, *_VIDEO_1_5, *_COUNTERS, *_STATUS, *_LINKS, *_CLOCKS, *_END)
_LOCK = (("gfxclk_lock_status", "I"),)
V1_6 = (
    *(*HEADER, *_SENSORS, *_COUNTERS, *_throttling("I"), *_LOCK, *_LINKS, *_CLOCKS),
    *_partitions(jpeg_engines=32, further=0),
)
_V1_7 = (
    *(*HEADER, *_SENSORS, ("mem_max_bandwidth", "Q"), *_COUNTERS, *_throttling("I"), *_LOCK, *_LINKS),
    *(("xgmi_link_status", "8H"), ("padding", "H"), *_CLOCKS),
)
V1_7 = (*_V1_7, *_partitions(jpeg_engines=32, further=1))
V1_8 = (*_V1_7, *_partitions(jpeg_engines=40, further=3))
# Of amdsmi_gpu_metrics_t, until amdsmi 24.6 and since 24.7.
AMDSMI_24_6 = (
    *(*V1_3, ("current_socket_power", "H"), ("vcn_activity", "4H"), ("gfxclk_lock_status", "I")),
    *(("xgmi_link_width", "H"), ("xgmi_link_speed", "H"), ("pcie_bandwidth_acc", "Q"), ("pcie_bandwidth_inst", "Q")),
    *(("pcie_l0_to_recov_count_acc", "Q"), ("pcie_replay_count_acc", "Q"), ("pcie_replay_rover_count_acc", "Q")),
    *(("xgmi_read_data_acc", "8Q"), ("xgmi_write_data_acc", "8Q"), ("current_gfxclks", "8H"), ("clocks", "12H")),
    *(("jpeg_activity", "32H"), ("pcie_nak_sent_count_acc", "I"), ("pcie_nak_rcvd_count_acc", "I")),
)  # fmt: skip
AMDSMI = (*AMDSMI_24_6, *_throttling("Q"))
SYSFS = {(1, 3): V1_3, (1, 4): V1_4, (1, 5): V1_5, (1, 6): V1_6, (1, 7): V1_7, (1, 8): V1_8}

Layout = tuple[tuple[str, str], ...]
_UNKNOWN = {"B": 0xFF, "H": 0xFFFF, "I": 0xFFFF_FFFF, "Q": 0xFFFF_FFFF_FFFF_FFFF}
_READ = {
    *("average_gfx_activity", "average_umc_activity", "current_socket_power", "average_socket_power"),
    *("energy_accumulator", "temperature_edge", "temperature_hotspot", "temperature_mem"),
    *("current_gfxclks", "current_gfxclk", "current_uclk", "pcie_link_width", "pcie_link_speed"),
    *("pcie_replay_count_acc", "xgmi_read_data_acc", "xgmi_write_data_acc", "xgmi_link_status"),
    *(name for name, _ in _throttling("Q")),
    *("average_mm_activity", "vcn_activity", "jpeg_activity"),
    *(f"{engine}_busy_{i}" for engine in ("vcn", "jpeg") for i in range(PARTITIONS)),
    *(
        "indep_throttle_status",
        "pcie_l0_to_recov_count_acc",
        "pcie_nak_sent_count_acc",
        "pcie_nak_rcvd_count_acc",
    ),
}
_PCIE_ERRORS = {
    "l0_to_recovery": "pcie_l0_to_recov_count_acc",
    "naks_sent": "pcie_nak_sent_count_acc",
    "naks_received": "pcie_nak_rcvd_count_acc",
}
# A busy GPU may report a little more than 100 %.
PERCENT_MAX, WATTS_MAX, CELSIUS_MAX = 105, 10_000, 250
_JOULES_PER_TICK = 2.0**-16  # 15.259 uJ
# PCIe generation by transfer rate in 0.1 GT/s per lane.
_GENERATIONS = {25: 1.0, 50: 2.0, 80: 3.0, 160: 4.0, 320: 5.0, 640: 6.0}
REASONS = {
    "prochot": "hw_slowdown",  # an external signal, such as of the board
    "ppt": "power",
    "socket_thm": "thermal",
    "vr_thm": "regulator_thermal",
    "hbm_thm": "memory_thermal",
}
# Reasons by bit of indep_throttle_status, SMU_THROTTLER_*_BIT in amdgpu_smu.h.
_BITS = (
    *(("power", range(8)), ("current", range(16, 24)), ("hw_slowdown", range(46, 48))),
    *(("thermal", (32, 33, 35, 36, 37, 42, 43)), ("memory_thermal", (34,))),
    ("regulator_thermal", (38, 39, 40, 41, 44, 45)),
)
_MASKS = {reason: sum(1 << bit for bit in bits) for reason, bits in _BITS}


class _Field(NamedTuple):
    name: str
    offset: int
    format: str
    unknown: int


@functools.lru_cache(16)
def fields_of(layout: Layout) -> tuple[_Field, ...]:
    """Each field with its offset in bytes, aligned as a C compiler does."""
    before = itertools.accumulate((number for _, number in layout), initial="@")
    return tuple(
        _Field(name, struct.calcsize(f"{formats}0{number[-1]}"), number, _UNKNOWN[number[-1]])
        for (name, number), formats in zip(layout, before, strict=False)
    )


@functools.lru_cache(16)
def size(layout: Layout) -> int:
    """Bytes from the beginning to the end of the last field."""
    return struct.calcsize("@" + "".join(number for _, number in layout))


def is_whole(body: bytes) -> bool:
    """Whether a table of sysfs is as long as its header says, and as its layout where that is known."""
    if len(body) < 4:
        return False
    declared, layout = int.from_bytes(body[:2], sys.byteorder), SYSFS.get((body[2], body[3]))
    return len(body) >= declared and (layout is None or declared == size(layout))


def parse(body: bytes, layout: Layout | None = None) -> dict[str, Any]:
    """Fields by name, those of more than one number as a list; without `layout` the header names it.

    What is unknown is left out, and nothing is known where the table is of another layout or too short.
    """
    if layout is None:
        layout = SYSFS.get((body[2], body[3])) if len(body) >= 4 else None
    if layout is None or len(body) < size(layout):
        return {}
    fields: dict[str, Any] = {}
    for name, at, number, unknown in fields_of(layout):
        if name in _READ:
            values = [value for value in struct.unpack_from(number, body, at) if value != unknown]
            if values:
                fields[name] = values if len(number) > 1 else values[0]
    return fields


def readings(fields: Mapping[str, Any]) -> dict[str, float]:
    """Readings in the units of sample.FAMILIES, without throttling."""
    found: dict[str, float] = {}
    for key, name in (("utilization", "average_gfx_activity"), ("memory_controller", "average_umc_activity")):
        if fields.get(name, PERCENT_MAX + 1) <= PERCENT_MAX:
            found[f"activity/{key}"] = fields[name] / 100
    video = [*_listed(fields.get("average_mm_activity")), *fields.get("vcn_activity", ())]
    engines = {"video": [*video, *_of_partitions(fields, "vcn")]}
    engines["jpeg"] = [*fields.get("jpeg_activity", ()), *_of_partitions(fields, "jpeg")]
    for key, percents in engines.items():
        known = [percent for percent in percents if percent <= PERCENT_MAX]
        if known:
            found[f"activity/{key}"] = sum(known) / len(known) / 100
    power = fields.get("current_socket_power", fields.get("average_socket_power"))
    if power is not None and power < WATTS_MAX:
        found["power"] = float(power)
    # 0 where the firmware does not count it.
    if fields.get("energy_accumulator"):
        found["energy"] = fields["energy_accumulator"] * _JOULES_PER_TICK
    # MI300 has no edge sensor: its core temperature is the hot spot's.
    hotspot, memory = fields.get("temperature_hotspot"), fields.get("temperature_mem")
    core = fields.get("temperature_edge", hotspot)
    for key, value in (("core", core), ("junction", hotspot), ("memory", memory)):
        if value is not None and 0 < value < CELSIUS_MAX:
            found[f"temperature/{key}"] = float(value)
    clocks = fields.get("current_gfxclks") or [fields.get("current_gfxclk", 0)]
    for key, megahertz in (("sm", max(clocks)), ("memory", fields.get("current_uclk", 0))):
        if megahertz:
            found[f"clock/{key}"] = megahertz * 1e6
    return found | _link_readings(fields)


def _of_partitions(fields: Mapping[str, Any], engine: str) -> list[int]:
    """The percents of the engines of all partitions."""
    return [percent for i in range(PARTITIONS) for percent in fields.get(f"{engine}_busy_{i}", ())]


def _listed(value: int | None) -> list[int]:
    return [] if value is None else [value]


def _link_readings(fields: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    if "pcie_replay_count_acc" in fields:
        found["pcie_replays"] = float(fields["pcie_replay_count_acc"])
    found |= {
        f"pcie_errors/{kind}": float(fields[name]) for kind, name in _PCIE_ERRORS.items() if name in fields
    }
    if fields.get("pcie_link_speed") in _GENERATIONS:
        found["pcie_generation/current"] = _GENERATIONS[fields["pcie_link_speed"]]
    if fields.get("pcie_link_width"):
        found["pcie_lanes/current"] = float(fields["pcie_link_width"])
    for direction, name in (("receive", "xgmi_read_data_acc"), ("transmit", "xgmi_write_data_acc")):
        if name in fields:
            found[f"link_bytes/xgmi/{direction}"] = sum(fields[name]) * 1024.0
    if "xgmi_link_status" in fields:
        up = sum(status == 1 for status in fields["xgmi_link_status"])
        found["xgmi_links/up"] = float(up)
        found["xgmi_links/down"] = float(len(fields["xgmi_link_status"]) - up)
    return found


class Throttling:
    """One GPU's throttling: seconds by reason since the first update, and whether clocks are throttled now.

    The firmware counts cycles, and of them those in which each limit held: their ratio is the share of the time
    between two tables. Chips without these counters have bits that say what throttles now.
    """

    def __init__(self):
        self._before: dict[str, int] = {}
        self._before_ns = 0
        self._seconds: dict[str, float] = {}
        self._now: dict[str, float] = {}

    def update(self, fields: Mapping[str, Any], monotonic_ns: int) -> dict[str, float]:
        """The readings `throttle`, 0 at first, and `throttled`, from counters beginning with the second table."""
        counts = {REASONS[name]: fields.get(f"{name}_residency_acc") for name in _THROTTLING}
        counts = {reason: count for reason, count in counts.items() if count is not None}
        cycles = fields.get("accumulation_counter")
        if cycles is None or not counts:
            return _status_readings(fields.get("indep_throttle_status"))
        self._seconds = dict.fromkeys(counts, 0.0) | self._seconds
        passed = cycles - self._before.get("cycles", cycles)
        if passed > 0:
            elapsed = (monotonic_ns - self._before_ns) / 1e9
            for reason, count in counts.items():
                grown = min(max(count - self._before.get(reason, count), 0), passed)
                self._seconds[reason] += elapsed * grown / passed
                self._now[reason] = float(grown > 0)
        if passed or not self._before:
            self._before, self._before_ns = {"cycles": cycles, **counts}, monotonic_ns
        seconds = {f"throttle/{reason}": value for reason, value in self._seconds.items()}
        return seconds | {f"throttled/{reason}": value for reason, value in self._now.items()}


def _status_readings(status: int | None) -> dict[str, float]:
    if status is None:
        return {}
    return {f"throttled/{reason}": float(bool(status & mask)) for reason, mask in _MASKS.items()}
