"""Memory and processors of each NUMA node, and the nodes of GPUs, network devices and ranks.

A rank is misplaced where it may run on no processor of its GPU's node: join `goodput_rank_cpus` (label node) with
the label numa of goodput_gpu_info. Only a rank's main thread is read. A device of unknown node (-1) has no series.
About 2 ms with 2 nodes and 8 ranks; the nodes of devices are read every DEVICES_SECONDS.

Formats: Documentation/ABI/stable/sysfs-devices-node and admin-guide/numastat.rst of the kernel; proc(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from goodput.wire.identity import clean_text
from goodput_exporters.collector import NoData, ParseError, Settings
from goodput_exporters.gpu.pci import PciBus, parse_node
from goodput_exporters.system.files import CounterFiles, parse_count, parse_meminfo
from goodput_exporters.system.interval import Interval
from goodput_exporters.system.processes import Processes
from goodput_exporters.system.ranks import RankProcess

NODES_MAX = 64
DEVICES_MAX = 64
DEVICES_SECONDS = 60.0
CPUS_MAX = 65_536
MEMORY_KINDS = {"MemTotal": "total", "MemFree": "free", "FilePages": "file"}
PAGE_KINDS = {
    "numa_hit": "hit",
    "numa_miss": "miss",
    "numa_foreign": "foreign",
    "local_node": "local",
    "other_node": "other",
}
_NODE = re.compile(r"node(\d{1,4})")


class Numa:
    """`ranks` returns the living rank processes."""

    name = "numa"

    def __init__(self, settings: Settings, processes: Processes | None = None):
        self._sysfs = settings.sysfs
        self._processes = processes or Processes(settings.procfs)
        self._bus = PciBus(settings.sysfs, settings.monotonic_ns)
        self.ranks: Callable[[], list[RankProcess]] = list
        self._devices: list[tuple[str, str, int]] = []
        self._devices_problems: list[str] = []
        self._devices_interval = Interval(DEVICES_SECONDS, settings.monotonic_ns)

    def collect(self, families) -> None:
        files = CounterFiles()
        nodes = self._add_nodes(families, files)
        devices = self._device_nodes()
        files.problems += self._devices_problems
        for device, kind, node in devices:
            families.add("goodput_numa_device_node", {"device": device, "kind": kind}, node)
        if nodes:
            # The collector `attribution` finds them too, and reports what is malformed then.
            for rank, pid in self._processes.find(self.ranks()).items():
                self._add_rank(families, rank, pid, nodes, files)
        files.raise_problems()
        if not nodes and not devices:
            raise NoData(f"{self._sysfs}/devices/system/node: no NUMA node")

    def _add_nodes(self, families, files: CounterFiles) -> dict[int, int]:
        """The processors of each node, as a bit mask, after adding the node's series."""
        root = os.path.join(self._sysfs, "devices/system/node")
        numbers = sorted({int(match[1]) for name in files.names(root) if (match := _NODE.fullmatch(name))})
        nodes = {}
        for number in numbers[:NODES_MAX]:
            labels = {"node": str(number)}
            for kind, size in (files.read(f"{root}/node{number}/meminfo", parse_memory) or {}).items():
                families.add("goodput_numa_memory_bytes", {**labels, "kind": kind}, size)
            for kind, count in (files.read(f"{root}/node{number}/numastat", parse_numastat) or {}).items():
                families.add("goodput_numa_pages_total", {**labels, "kind": kind}, count)
            cpus = files.read(f"{root}/node{number}/cpulist", parse_cpus)
            if cpus is not None:
                families.add("goodput_numa_cpus", labels, cpus.bit_count())
                nodes[number] = cpus
        return nodes

    def _device_nodes(self) -> list[tuple[str, str, int]]:
        """(device, kind, node) of each GPU and network device whose node is known."""
        if self._devices_interval.is_due():
            files = CounterFiles()
            nodes = {pci: self._bus.numa_node(pci, files) for pci in (self._bus.gpus() or [])[:DEVICES_MAX]}
            self._devices = [(pci, "gpu", node) for pci, node in nodes.items() if node is not None]
            self._devices += self._network_devices("net", "network", files)
            self._devices += self._network_devices("infiniband", "infiniband", files)
            self._devices_problems = files.problems
        return self._devices

    def _network_devices(self, folder: str, kind: str, files: CounterFiles) -> list[tuple[str, str, int]]:
        root = os.path.join(self._sysfs, "class", folder)
        found: dict[str, int] = {}
        for name in files.names(root):
            node = files.read(f"{root}/{name}/device/numa_node", parse_node)
            if node is not None and len(found) < DEVICES_MAX:
                found[clean_text(name, 64)] = node
        return [(name, kind, node) for name, node in found.items()]

    def _add_rank(
        self, families, rank: RankProcess, pid: int, nodes: dict[int, int], files: CounterFiles
    ) -> None:
        mask = self._processes.status(pid, "Cpus_allowed_list", parse_cpus, files)
        stat = self._processes.stat(pid, files)
        if stat is None or stat.start_ticks != rank.start_ticks:
            return  # It has ended, and what was read may be another process's.
        labels = {"run": rank.run, "rank": str(rank.rank)}
        for node, cpus in nodes.items():
            if mask and cpus:
                families.add("goodput_rank_cpus", {**labels, "node": str(node)}, (mask & cpus).bit_count())
            if stat.processor >= 0 and cpus >> min(stat.processor, CPUS_MAX) & 1:
                families.add("goodput_rank_numa_node", labels, node)


def parse_cpus(text: str) -> int:
    """A processor list such as 0-3,8 as a bit mask; 0 for an empty one. Raises ParseError."""
    mask = 0
    for part in text.strip().split(",") if text.strip() else ():
        first, dash, last = part.partition("-")
        low = parse_count(first)
        high = parse_count(last) if dash else low
        if not low <= high < CPUS_MAX:
            raise ParseError(f"no processor list in {part[:40]!r}")
        mask |= (1 << high + 1) - (1 << low)
    return mask


def parse_memory(text: str) -> dict[str, int]:
    """A node's meminfo: bytes by kind. Raises ParseError."""
    return parse_meminfo(text, MEMORY_KINDS)


def parse_numastat(text: str) -> dict[str, int]:
    """A node's numastat, in pages. Raises ParseError."""
    words = [line.split() for line in text.splitlines()]
    kinds = {PAGE_KINDS[pair[0]]: parse_count(pair[-1]) for pair in words if pair and pair[0] in PAGE_KINDS}
    if not kinds:
        raise ParseError(f"none of {', '.join(PAGE_KINDS)}")
    return kinds
