"""Processors, load, memory, swap, pressure, disks, packets and clock of this host. About 1 ms per scrape.

A missing file costs its series; a malformed or unreadable one also fails the run. Seconds per disk operation are
the rate of goodput_host_disk_operation_seconds_total over that of goodput_host_disk_operations_total.

Formats: proc(5); Documentation/accounting/psi.rst, admin-guide/iostats.rst and admin-guide/mm/hugetlbpage.rst of the
kernel.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from goodput.metrics import Families
from goodput_exporters.collector import NoData, ParseError, Settings
from goodput_exporters.collectors.host.clock import ClockState, read_clock
from goodput_exporters.collectors.host.softnet import SoftnetTotals, parse_softnet
from goodput_exporters.system.files import CounterFiles, parse_count, parse_meminfo, parse_protocol

SECTOR_BYTES = 512  # in /proc/diskstats, whatever the disk's own sector size
FILE_BYTES_MAX = 1 << 20
DISKS_MAX = 256
PROCESSORS_MAX, PROCESSOR = 1024, "goodput_host_processor_seconds_total"
HUGE_PAGE_SIZES_MAX = 16
CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
# Idle and iowait of a sleeping processor are estimates that can decrease; a larger decrease is a reset.
CPU_STEP_BACK_SECONDS_MAX = 3.0
MEMORY_KINDS = {
    "MemTotal": "total",
    "MemFree": "free",
    "MemAvailable": "available",
    "Buffers": "buffers",
    "Cached": "cached",
    "SReclaimable": "reclaimable",
    "Dirty": "dirty",
    "Writeback": "writeback",
    "Shmem": "shared",  # /dev/shm, which loader workers fill, and other memory without a backing file
    "SwapTotal": "swap_total",
    "SwapFree": "swap_free",
}
# Series, labels, and whether the count is of pages.
VMSTAT_SERIES = {
    "pswpin": ("goodput_host_swap_bytes_total", {"direction": "in"}, True),
    "pswpout": ("goodput_host_swap_bytes_total", {"direction": "out"}, True),
    "pgmajfault": ("goodput_host_major_faults_total", {}, False),
    "oom_kill": ("goodput_host_oom_kills_total", {}, False),
}
# The files of one size in /sys/kernel/mm/hugepages.
HUGE_PAGE_KINDS = {
    "nr_hugepages": "total",
    "free_hugepages": "free",
    "resv_hugepages": "reserved",
    "surplus_hugepages": "surplus",
}
_HUGE_PAGES = re.compile(r"hugepages-([1-9]\d{0,11})kB")
# Lines of /proc/stat: those of single numbers or of all processors, and those of each processor.
_TOTALS = re.compile(r"^(cpu|procs_blocked|btime)\b(.*)$", re.MULTILINE)
_PROCESSORS = re.compile(r"^cpu(\d{1,5})((?:[ ]\d{1,20}){4,})[ ]*$", re.MULTILINE | re.ASCII)
_PROCESSOR_NAMES = re.compile(r"^cpu\d{1,5}(?= |$)", re.MULTILINE | re.ASCII)
_NOT_A_DISK = re.compile(r"(?:z?ram|loop|fd|sr)\d")
_PARTITION = re.compile(r"(?:(?:[hsv]d|xvd)[a-z]+\d+|(?:nvme\d+n\d+|mmcblk\d+)p\d+)$")


class Stat(NamedTuple):
    """/proc/stat: ticks of all processors by mode, processors online, tasks in uninterruptible sleep, boot time.

    `processors` has the ticks of each one by kind, up to PROCESSORS_MAX: busy, and interrupt, which is part of it;
    `malformed` says how many of their lines could not be read.
    """

    modes: dict[str, int]
    cpus: int
    blocked: int | None
    boot_unix_seconds: int | None
    processors: dict[str, dict[str, int]]
    malformed: int


class Disk(NamedTuple):
    """One line of /proc/diskstats in base units; times are summed over completed operations."""

    read_bytes: int
    read_operations: int
    read_seconds: float
    written_bytes: int
    write_operations: int
    write_seconds: float
    in_flight: int
    busy_seconds: float


class Host:
    name = "host"

    def __init__(self, settings: Settings, clock: Callable[[], ClockState | None] = read_clock):
        """`clock` returns the state of the running kernel's clock."""
        self._procfs, self._clock_state = settings.procfs, clock
        self._block = os.path.join(settings.sysfs, "block")
        self._huge_page_root = os.path.join(settings.sysfs, "kernel/mm/hugepages")
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._cpu_seconds: dict[str, float] = {}
        self._softnet_totals = SoftnetTotals()
        self._files = CounterFiles()

    def collect(self, families) -> None:
        self._files = CounterFiles()
        sources = (
            *(self._cpu, self._memory, self._huge_pages, self._vmstat, self._pressure, self._disks),
            *(self._tcp, self._softnet, self._clock),
        )
        found = [source(families) for source in sources]
        self._files.raise_problems()
        if not any(found):
            raise NoData(f"{self._procfs}: none of the files exists")

    def _read(self, name: str, parse: Callable):
        return self._files.read(os.path.join(self._procfs, name), parse, FILE_BYTES_MAX)

    # Each of these adds its series and returns whether it found any.

    def _cpu(self, families) -> bool:
        stat = self._read("stat", parse_stat)
        if stat is None:
            return False
        for mode, ticks in stat.modes.items():
            seconds = without_small_decrease(self._cpu_seconds.get(mode, 0.0), ticks / self._ticks_per_second)
            self._cpu_seconds[mode] = seconds
            families.add("goodput_host_cpu_seconds_total", {"mode": mode}, seconds)
        families.add("goodput_host_cpus", {}, stat.cpus)
        families.add("goodput_host_processes_blocked", {}, stat.blocked)
        families.add("goodput_host_boot_timestamp_seconds", {}, stat.boot_unix_seconds)
        for cpu, kinds in stat.processors.items():
            for kind, ticks in kinds.items():
                families.add_row(PROCESSOR, _processor_row(cpu, kind), ticks / self._ticks_per_second)
        if stat.malformed:
            self._files.problems.append(
                f"{self._procfs}/stat: {stat.malformed} malformed lines of processors"
            )
        load = self._read("loadavg", parse_loadavg)
        if load is not None and stat.cpus:
            families.add("goodput_host_load1_ratio", {}, load / stat.cpus)
        return True

    def _memory(self, families) -> bool:
        kinds = self._read("meminfo", parse_memory) or {}
        for kind, size in kinds.items():
            families.add("goodput_host_memory_bytes", {"kind": kind}, size)
        return bool(kinds)

    def _huge_pages(self, families) -> bool:
        found = False
        for name in self._files.names(self._huge_page_root)[:HUGE_PAGE_SIZES_MAX]:
            match = _HUGE_PAGES.fullmatch(name)
            for file, kind in HUGE_PAGE_KINDS.items() if match else ():
                count = self._files.read(f"{self._huge_page_root}/{name}/{file}", parse_count)
                labels = {"page_bytes": str(int(match[1]) * 1024) if match else "", "kind": kind}
                families.add("goodput_host_huge_pages", labels, count)
                found |= count is not None
        return found

    def _vmstat(self, families) -> bool:
        counts = self._read("vmstat", parse_vmstat) or {}
        for name, (series, labels, is_pages) in VMSTAT_SERIES.items():
            if name in counts:
                families.add(series, labels, counts[name] * (self._page_bytes if is_pages else 1))
        return bool(counts)

    def _pressure(self, families) -> bool:
        found = False
        for resource in ("cpu", "memory", "io"):
            waits = self._read(f"pressure/{resource}", parse_pressure) or {}
            for kind, seconds in waits.items():
                labels = {"resource": resource, "kind": kind}
                families.add("goodput_host_pressure_seconds_total", labels, seconds)
            found |= bool(waits)
        return found

    def _disks(self, families) -> bool:
        disks = self._read("diskstats", parse_diskstats) or {}
        try:
            listed = set(os.listdir(self._block))
        except OSError:
            listed = None
        whole = [name for name in disks if is_whole_disk(name, listed)][:DISKS_MAX]
        for name in whole:
            disk = disks[name]
            for direction, values in (("read", disk[0:3]), ("write", disk[3:6])):
                labels = {"device": name, "direction": direction}
                for quantity, value in zip(("bytes", "operations", "operation_seconds"), values, strict=True):
                    families.add(f"goodput_host_disk_{quantity}_total", labels, value)
            families.add("goodput_host_disk_in_flight", {"device": name}, disk.in_flight)
            families.add("goodput_host_disk_busy_seconds_total", {"device": name}, disk.busy_seconds)
        return bool(whole)

    def _tcp(self, families) -> bool:
        segments = self._read("net/snmp", parse_tcp_retransmits)
        families.add("goodput_host_tcp_retransmits_total", {}, segments)
        return segments is not None

    def _softnet(self, families) -> bool:
        found = self._read("net/softnet_stat", parse_softnet)
        if found is None:
            return False
        if found.malformed:
            path = f"{self._procfs}/net/softnet_stat"
            self._files.problems.append(f"{path}: {found.malformed} malformed lines")
        totals = self._softnet_totals.add(found.processors)
        families.add("goodput_host_softnet_packets_total", {}, totals.processed)
        families.add("goodput_host_softnet_dropped_total", {}, totals.dropped)
        families.add("goodput_host_softnet_squeezed_total", {}, totals.squeezed)
        return bool(found.processors)

    def _clock(self, families) -> bool:
        # A recorded tree is another machine's: there, self is no link.
        is_live = os.path.islink(os.path.join(self._procfs, "self"))
        state = self._clock_state() if is_live else None
        if state is None:
            return False
        families.add("goodput_host_clock_synchronised", {}, float(state.is_synchronised))
        families.add("goodput_host_clock_correction_seconds", {}, state.offset_seconds)
        for kind in ("estimated", "maximum"):
            error = getattr(state, f"{kind}_error_seconds")
            families.add("goodput_host_clock_error_seconds", {"kind": kind}, error)
        return True


@lru_cache(2 * PROCESSORS_MAX)
def _processor_row(cpu: str, kind: str) -> tuple[str, ...]:
    return Families("node").row_of(PROCESSOR, {"cpu": cpu, "kind": kind})


def without_small_decrease(before: float, now: float) -> float:
    """The new value of a counter, or the old one where it decreased by at most CPU_STEP_BACK_SECONDS_MAX."""
    return before if before - CPU_STEP_BACK_SECONDS_MAX <= now < before else now


def parse_stat(text: str) -> Stat:
    """/proc/stat. Raises ParseError."""
    # The line of interrupts may have thousands of numbers, and is not looked at.
    lines = {name: rest.split() for name, rest in _TOTALS.findall(text)}
    if "cpu" not in lines:
        raise ParseError("no cpu line")
    processors = {}
    for cpu, numbers in _PROCESSORS.findall(text)[:PROCESSORS_MAX]:
        user, nice, system, _, _, irq, softirq, steal, *_ = (*map(int, numbers.split()), 0, 0, 0, 0)
        processors[str(int(cpu))] = {
            "busy": user + nice + system + irq + softirq + steal,
            "interrupt": irq + softirq,
        }
    cpus = len(_PROCESSOR_NAMES.findall(text))
    blocked, boot = (lines.get(name) for name in ("procs_blocked", "btime"))
    return Stat(
        _modes(lines["cpu"]),
        cpus,
        None if blocked is None else parse_count(" ".join(blocked)),
        None if boot is None else parse_count(" ".join(boot)),
        processors,
        min(cpus, PROCESSORS_MAX) - len(processors),
    )


def _modes(fields: list[str]) -> dict[str, int]:
    """Ticks by mode. Raises ParseError."""
    if len(fields) < 4:
        raise ParseError("the cpu line has fewer than four modes")
    # Guest time, further right, is part of user and nice already.
    return {mode: parse_count(ticks) for mode, ticks in zip(CPU_MODES, fields, strict=False)}


def parse_loadavg(text: str) -> float:
    """/proc/loadavg: the one-minute load. Raises ParseError."""
    first = text.split()[:1]
    try:
        load = float(first[0])
    except (IndexError, ValueError):
        raise ParseError(f"no load average in {text[:40]!r}") from None
    if not (math.isfinite(load) and load >= 0):
        raise ParseError(f"load average is {load}")
    return load


def parse_memory(text: str) -> dict[str, int]:
    """/proc/meminfo: bytes by kind. Raises ParseError."""
    return parse_meminfo(text, MEMORY_KINDS)


def parse_vmstat(text: str) -> dict[str, int]:
    """/proc/vmstat: the counts of VMSTAT_SERIES that are present. Raises ParseError."""
    counts = {}
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name in VMSTAT_SERIES:
            counts[name] = parse_count(number)
    if not counts:
        raise ParseError(f"none of {', '.join(VMSTAT_SERIES)}")
    return counts


def parse_pressure(text: str) -> dict[str, float]:
    """/proc/pressure/*: seconds in which some tasks, or all (full), were stalled. Raises ParseError."""
    waits = {}
    for line in text.splitlines():
        kind, *fields = line.split() or [""]
        totals = [field[len("total=") :] for field in fields if field.startswith("total=")]
        if kind in ("some", "full"):
            if len(totals) != 1:
                raise ParseError(f"no total in {line[:60]!r}")
            waits[kind] = parse_count(totals[0]) / 1e6
    if not waits:
        raise ParseError("neither some nor full")
    return waits


def parse_diskstats(text: str) -> dict[str, Disk]:
    """/proc/diskstats by device. Raises ParseError."""
    disks = {}
    for line in text.splitlines():
        fields = line.split()
        if not fields:
            continue
        if len(fields) < 14:
            raise ParseError(f"{len(fields)} fields in {line[:60]!r}, expected 14")
        reads, _, read, read_ms, writes, _, written, write_ms, in_flight, busy_ms, _ = map(
            parse_count, fields[3:14]
        )
        disks[fields[2]] = Disk(
            *(read * SECTOR_BYTES, reads, read_ms / 1000),
            *(written * SECTOR_BYTES, writes, write_ms / 1000),
            *(in_flight, busy_ms / 1000),
        )
    return disks


def parse_tcp_retransmits(text: str) -> int:
    """/proc/net/snmp: retransmitted TCP segments. Raises ParseError."""
    counts = parse_protocol(text, "Tcp", ("RetransSegs",))
    if not counts:
        raise ParseError("the Tcp line has no RetransSegs")
    return counts["RetransSegs"]


def is_whole_disk(name: str, listed: set[str] | None) -> bool:
    """Whether a device is a whole disk: by /sys/block (`listed`) where that is readable, else by its name."""
    if _NOT_A_DISK.match(name):
        return False
    # /sys replaces a slash in a device's name by an exclamation mark.
    return name.replace("/", "!") in listed if listed is not None else not _PARTITION.match(name)
