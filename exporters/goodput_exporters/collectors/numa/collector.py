"""NUMA: memory and processors of each node, and where GPUs, network devices and ranks are.

In: sysfs (devices/system/node, PCI devices, class/net, class/infiniband), procfs of the living ranks of
collectors/ranks.py, handed over by `follow`. Out: the `goodput_numa_*` series, `goodput_rank_numa_node` and
`goodput_rank_cpus`.

A rank is misplaced where it may run on no processor of its GPU's node: `goodput_rank_cpus` has the node as a label,
to be joined with the label numa of goodput_gpu_info. It is its main thread that is looked at; other threads and a
loader's workers may be elsewhere. A device whose node is unknown (-1) has no series.

At most NODES_MAX nodes and DEVICES_MAX devices of a kind; where devices are is read every DEVICES_SECONDS. A look at
2 nodes and 8 ranks takes about 2 ms. It does not know which GPU a rank uses.

Formats: Documentation/ABI/stable/sysfs-devices-node and admin-guide/numastat.rst of the kernel; proc(5).
"""

from __future__ import annotations

import os
import re

from goodput.wire.identity import clean_text
from goodput_exporters.collector import CollectorError, NoData, ParseError, Settings, parse_count, read_text
from goodput_exporters.gpu.pci import PciBus, parse_node
from goodput_exporters.system.processes import Processes
from goodput_exporters.system.ranks import RankProcess

NODES_MAX = 64
DEVICES_MAX = 64
DEVICES_SECONDS = 60.0
CPUS_MAX = 65_536
PROBLEMS_MAX = 8
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
    name = "numa"

    def __init__(self, settings: Settings, processes: Processes | None = None):
        self._sysfs, self._monotonic_ns = settings.sysfs, settings.monotonic_ns
        self._processes = processes or Processes(settings.procfs)
        self._bus = PciBus(settings.sysfs, settings.monotonic_ns)
        self._ranks = None
        self._devices: list[tuple[str, str, int]] = []
        self._devices_ns: int | None = None

    def follow(self, ranks) -> None:
        """Take the ranks from `ranks.processes()`."""
        self._ranks = ranks

    def collect(self, families) -> None:
        problems: list[str] = []
        nodes = self._nodes(families, problems)
        devices = self._where_devices_are(problems)
        for device, kind, node in devices:
            families.add("goodput_numa_device_node", {"device": device, "kind": kind}, node)
        if nodes and self._ranks is not None:
            for rank, pid in self._processes.find(self._ranks.processes()).items():
                self._add_rank(families, rank, pid, nodes)
        if problems:
            raise CollectorError("; ".join(problems[:PROBLEMS_MAX]))
        if not nodes and not devices:
            raise NoData(f"{self._sysfs}/devices/system/node: no NUMA node")

    # -- nodes

    def _nodes(self, families, problems: list[str]) -> dict[int, int]:
        """The processors of each node, as a mask, after adding the node's series."""
        root = os.path.join(self._sysfs, "devices/system/node")
        numbers = sorted(int(match[1]) for name in _listed(root) if (match := _NODE.fullmatch(name)))
        nodes = {}
        for number in dict.fromkeys(numbers[:NODES_MAX]):
            of_node = {"node": str(number)}
            memory = self._read(f"{root}/node{number}/meminfo", parse_meminfo, problems) or {}
            for kind, size in memory.items():
                families.add("goodput_numa_memory_bytes", {**of_node, "kind": kind}, size)
            pages = self._read(f"{root}/node{number}/numastat", parse_numastat, problems) or {}
            for kind, count in pages.items():
                families.add("goodput_numa_pages_total", {**of_node, "kind": kind}, count)
            cpus = self._read(f"{root}/node{number}/cpulist", parse_cpus, problems)
            if cpus is not None:
                families.add("goodput_numa_cpus", of_node, cpus.bit_count())
                nodes[number] = cpus
        return nodes

    def _read(self, path: str, parse, problems: list[str]):
        try:
            text = read_text(path)
            return None if text is None else parse(text)
        except CollectorError as error:
            problems.append(str(error))
        except ParseError as error:
            problems.append(f"{path}: {error}")
        return None

    # -- devices

    def _where_devices_are(self, problems: list[str]) -> list[tuple[str, str, int]]:
        """(device, kind, node) of each GPU and network device whose node is known."""
        now_ns = self._monotonic_ns()
        if self._devices_ns is None or (now_ns - self._devices_ns) / 1e9 >= DEVICES_SECONDS:
            self._devices_ns = now_ns
            self._devices = [*self._gpus(), *self._network("net", "network", problems)]
            self._devices += self._network("infiniband", "infiniband", problems)
        return self._devices

    def _gpus(self) -> list[tuple[str, str, int]]:
        nodes = [
            (address, self._bus.numa_node(address)) for address in (self._bus.gpus() or [])[:DEVICES_MAX]
        ]
        return [(address, "gpu", node) for address, node in nodes if node is not None]

    def _network(self, folder: str, kind: str, problems: list[str]) -> list[tuple[str, str, int]]:
        root = os.path.join(self._sysfs, "class", folder)
        found: dict[str, int] = {}
        for name in sorted(_listed(root)):
            node = self._read(f"{root}/{name}/device/numa_node", parse_node, problems)
            if node is not None and len(found) < DEVICES_MAX:
                found[clean_text(name, 64)] = node
        return [(name, kind, node) for name, node in found.items()]

    # -- ranks

    def _add_rank(self, families, rank: RankProcess, pid: int, nodes: dict[int, int]) -> None:
        allowed = self._processes.status(pid).get("Cpus_allowed_list", "")
        stat = self._processes.stat(pid)
        if stat is None or stat.start_ticks != rank.start_ticks:
            return  # It has ended, and what was read may be another's.
        of_rank = {"run": rank.run, "rank": str(rank.rank)}
        try:
            mask = parse_cpus(allowed)
        except ParseError:
            mask = 0
        for node, cpus in nodes.items():
            if mask and cpus:
                families.add("goodput_rank_cpus", {**of_rank, "node": str(node)}, (mask & cpus).bit_count())
            if stat.processor >= 0 and cpus >> min(stat.processor, CPUS_MAX) & 1:
                families.add("goodput_rank_numa_node", of_rank, node)


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def parse_cpus(text: str) -> int:
    """A list as 0-3,8 as a mask of bits; 0 for an empty one. Raises ParseError."""
    mask = 0
    for part in text.strip().split(",") if text.strip() else ():
        first, dash, last = part.partition("-")
        low = parse_count(first)
        high = parse_count(last) if dash else low
        if not low <= high < CPUS_MAX:
            raise ParseError(f"no processors in {part[:40]!r}")
        mask |= (1 << high + 1) - (1 << low)
    return mask


def parse_meminfo(text: str) -> dict[str, int]:
    """A node's meminfo, `Node 0 MemTotal: 1 kB`: bytes of MEMORY_KINDS. Raises ParseError."""
    kinds = {}
    for line in text.splitlines():
        words = line.split()
        kind = MEMORY_KINDS.get(words[2].rstrip(":")) if len(words) > 3 and words[0] == "Node" else None
        if kind is not None:
            if words[4:] != ["kB"]:
                raise ParseError(f"{words[2]} in {words[4:]}")
            kinds[kind] = parse_count(words[3]) * 1024
    if "total" not in kinds:
        raise ParseError("no MemTotal")
    return kinds


def parse_numastat(text: str) -> dict[str, int]:
    """A node's numastat, in pages. Raises ParseError."""
    words = [line.split() for line in text.splitlines()]
    kinds = {PAGE_KINDS[pair[0]]: parse_count(pair[-1]) for pair in words if pair and pair[0] in PAGE_KINDS}
    if not kinds:
        raise ParseError(f"none of {', '.join(PAGE_KINDS)}")
    return kinds
