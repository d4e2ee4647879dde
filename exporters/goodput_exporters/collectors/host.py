"""The host: processors, load, memory, pressure, disks and TCP, from /proc.

In: procfs and sysfs roots. Out: the `goodput_host_*` series. Each file has a pure parser here; one that is
missing costs its series, one that is malformed or unreadable costs its series and makes the run a failed one.
Reading all takes about 1 ms. It does not know which process used what.

Formats: proc(5); Documentation/accounting/psi.rst and admin-guide/iostats.rst of the kernel.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable

from goodput_exporters.collectors import CollectorError, NoData, ParseError, Settings, parse_count, read_text

SECTOR_BYTES = 512  # In /proc/diskstats, whatever the disk's own sectors are.
DISKS_MAX = 256
CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
# Idle and iowait of a sleeping processor are estimates that can step back; a larger step is a reset.
CPU_STEP_BACK_SECONDS_MAX = 3.0
MEMORY_KINDS = {"MemTotal": "total", "MemAvailable": "available", "Cached": "cached", "Dirty": "dirty"}
_NO_DISK = re.compile(r"(?:z?ram|loop|fd|sr)\d")
_PARTITION = re.compile(r"(?:(?:[hsv]d|xvd)[a-z]+\d+|(?:nvme\d+n\d+|mmcblk\d+)p\d+)$")


class Host:
    name = "host"

    def __init__(self, settings: Settings):
        self._procfs = settings.procfs
        self._block = os.path.join(settings.sysfs, "block")
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._cpu_seconds: dict[str, float] = {}

    def collect(self, families) -> None:
        problems, found = [], 0
        sources = (self._cpu, self._memory, self._pressure("cpu"), self._pressure("memory"))
        for source in (*sources, self._pressure("io"), self._disks, self._tcp):
            try:
                found += source(families)
            except (CollectorError, ParseError) as error:
                problems.append(str(error))
        if problems:
            raise CollectorError("; ".join(problems))
        if not found:
            raise NoData(f"{self._procfs}: none of the files is there")

    def _read(self, name: str, parse: Callable):
        """The parsed file, None where it is absent."""
        path = os.path.join(self._procfs, name)
        text = read_text(path)
        try:
            return None if text is None else parse(text)
        except ParseError as error:
            raise ParseError(f"{path}: {error}") from None

    # Each of these adds its series and returns whether there was anything.

    def _cpu(self, families) -> bool:
        stat = self._read("stat", parse_stat)
        if stat is None:
            return False
        modes, cpus = stat
        for mode, ticks in modes.items():
            seconds = steady(self._cpu_seconds.get(mode, 0.0), ticks / self._ticks_per_second)
            self._cpu_seconds[mode] = seconds
            families.add("goodput_host_cpu_seconds_total", {"mode": mode}, seconds)
        families.add("goodput_host_cpus", {}, cpus)
        load = self._read("loadavg", parse_loadavg)
        if load is not None and cpus:
            families.add("goodput_host_load1_ratio", {}, load / cpus)
        return True

    def _memory(self, families) -> bool:
        kinds = self._read("meminfo", parse_meminfo) or {}
        for kind, size in kinds.items():
            families.add("goodput_host_memory_bytes", {"kind": kind}, size)
        return bool(kinds)

    def _pressure(self, resource: str) -> Callable:
        def add(families) -> bool:
            waits = self._read(f"pressure/{resource}", parse_pressure) or {}
            for kind, seconds in waits.items():
                labels = {"resource": resource, "kind": kind}
                families.add("goodput_host_pressure_seconds_total", labels, seconds)
            return bool(waits)

        return add

    def _disks(self, families) -> bool:
        disks = self._read("diskstats", parse_diskstats) or {}
        try:
            listed = set(os.listdir(self._block))
        except OSError:
            listed = None
        whole = [name for name in disks if is_whole_disk(name, listed)][:DISKS_MAX]
        for name in whole:
            read, written, busy_seconds = disks[name]
            for direction, size in (("read", read), ("write", written)):
                labels = {"device": name, "direction": direction}
                families.add("goodput_host_disk_bytes_total", labels, size)
            families.add("goodput_host_disk_busy_seconds_total", {"device": name}, busy_seconds)
        return bool(whole)

    def _tcp(self, families) -> bool:
        segments = self._read("net/snmp", parse_snmp)
        if segments is not None:
            families.add("goodput_host_tcp_retransmits_total", {}, segments)
        return segments is not None


def steady(before: float, now: float) -> float:
    """A counter that does not follow small steps back."""
    return before if before - CPU_STEP_BACK_SECONDS_MAX <= now < before else now


def parse_stat(text: str) -> tuple[dict[str, int], int]:
    """/proc/stat: ticks of all processors by mode, and how many processors are on line. Raises ParseError."""
    modes, cpus = None, 0
    for line in text.splitlines():
        fields = line.split()
        if fields and fields[0] == "cpu":
            if len(fields) < 5:
                raise ParseError("the cpu line has fewer than four modes")
            # Guest time, further right, is part of user and nice already.
            modes = {mode: parse_count(ticks) for mode, ticks in zip(CPU_MODES, fields[1:], strict=False)}
        elif fields and re.fullmatch(r"cpu[0-9]+", fields[0]):
            cpus += 1
    if modes is None:
        raise ParseError("no cpu line")
    return modes, cpus


def parse_loadavg(text: str) -> float:
    """/proc/loadavg: the one-minute load. Raises ParseError."""
    first = text.split()[:1]
    try:
        load = float(first[0])
    except (IndexError, ValueError):
        raise ParseError(f"no load in {text[:40]!r}") from None
    if not (math.isfinite(load) and load >= 0):
        raise ParseError(f"load {load}")
    return load


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo: bytes of total, available, cached and dirty, where they are there. Raises ParseError."""
    kinds = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in MEMORY_KINDS:
            number, *unit = rest.split() or [""]
            if unit not in (["kB"], []):
                raise ParseError(f"{name} in {unit}")
            kinds[MEMORY_KINDS[name]] = parse_count(number) * (1024 if unit else 1)
    if "total" not in kinds:
        raise ParseError("no MemTotal")
    return kinds


def parse_pressure(text: str) -> dict[str, float]:
    """/proc/pressure/*: seconds in which some, and all (full), tasks waited. Raises ParseError."""
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


def parse_diskstats(text: str) -> dict[str, tuple[int, int, float]]:
    """/proc/diskstats: bytes read, bytes written and busy seconds by device. Raises ParseError."""
    disks = {}
    for line in text.splitlines():
        fields = line.split()
        if not fields:
            continue
        if len(fields) < 14:
            raise ParseError(f"{len(fields)} fields in {line[:60]!r}, want 14")
        read, written, busy_ms = (parse_count(fields[at]) for at in (5, 9, 12))
        disks[fields[2]] = read * SECTOR_BYTES, written * SECTOR_BYTES, busy_ms / 1000
    return disks


def parse_snmp(text: str) -> int:
    """/proc/net/snmp: TCP segments sent again. Raises ParseError."""
    lines = [line.split() for line in text.splitlines() if line.startswith("Tcp:")]
    if len(lines) != 2 or "RetransSegs" not in lines[0]:
        raise ParseError("no Tcp lines with RetransSegs")
    at = lines[0].index("RetransSegs")
    if at >= len(lines[1]):
        raise ParseError("the Tcp line of values is shorter than that of names")
    return parse_count(lines[1][at])


def is_whole_disk(name: str, listed: set[str] | None) -> bool:
    """Whether a device is a whole disk: by /sys/block (`listed`, where it was readable), else by its name."""
    if _NO_DISK.match(name):
        return False
    # /sys writes a slash of a device's name as an exclamation mark.
    return name.replace("/", "!") in listed if listed is not None else not _PARTITION.match(name)
