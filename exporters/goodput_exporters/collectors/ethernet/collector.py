"""Network interfaces from /sys/class/net: traffic, errors, line rate, link state; pauses and drops of the hardware.

Interfaces of the kinds in Settings.network_kinds, by default those that carry a node's traffic: with hardware, bonds of
them, IP over InfiniBand; all where there is none of these, as in a container's own network. A node full of pods has a thousand virtual ones, which cost a look at their kind every
KIND_SECONDS and are counted. At most DEVICES_MAX, those with hardware first. What the kernel does not know (the speed of a link that is down, -1) is
absent, not zero. Where the sysfs root is the running kernel's /sys, drivers are also read through ethtool every
ETHTOOL_SECONDS. Cost: 0.1 ms per interface.

Formats: Documentation/ABI/testing/sysfs-class-net-statistics; /proc/net/netstat in proc(5).
"""

from __future__ import annotations

import os
import socket

from goodput_exporters.collector import NETWORK_KINDS, CollectorError, NoData, Settings
from goodput_exporters.collectors.ethernet.ethtool import Ethtool
from goodput_exporters.system.files import (
    CounterFiles,
    clean,
    label,
    natural_key,
    parse_count,
    parse_protocol,
)
from goodput_exporters.system.interval import Interval
from goodput_exporters.system.network import parse_carrier, parse_speed

DEVICES_MAX = 64
KIND_SECONDS = 30.0
PHYSICAL, BOND, INFINIBAND, VIRTUAL = NETWORK_KINDS
_IPOIB = "32"  # ARPHRD_INFINIBAND
ETHTOOL_SECONDS = 10.0
_NETSTAT_BYTES_MAX = 1 << 20
_STATISTICS = {
    "bytes": "goodput_network_bytes_total",
    "packets": "goodput_network_packets_total",
    "errors": "goodput_network_errors_total",
    "dropped": "goodput_network_drops_total",
}
_DIRECTIONS = {"rx": "receive", "tx": "transmit"}


class Ethernet:
    name = "ethernet"

    def __init__(self, settings: Settings, ethtool: Ethtool | None = None):
        self._root = os.path.join(settings.sysfs, "class/net")
        self._netstat = os.path.join(settings.procfs, "net/netstat")
        # A recorded tree's interfaces are not this kernel's.
        self._ethtool = ethtool or (Ethtool() if os.path.realpath(settings.sysfs) == "/sys" else None)
        self._selected = settings.network_kinds
        self._kinds: dict[str, str] = {}  # by name
        self._kind_interval = Interval(KIND_SECONDS, settings.monotonic_ns)
        self._ethtool_interval = Interval(ETHTOOL_SECONDS, settings.monotonic_ns)
        self._ethtool_series: dict[str, list[tuple[str, dict, float]]] = {}
        self._ethtool_problems: list[str] = []

    def collect(self, families) -> None:
        files = CounterFiles()
        tcp = files.read(self._netstat, parse_tcp_timeouts, _NETSTAT_BYTES_MAX)
        families.add("goodput_network_tcp_timeouts_total", {}, tcp)
        devices, filtered = self._devices()
        families.add("goodput_network_devices_filtered", {}, filtered)
        families.add("goodput_network_devices_left_out", {}, max(0, len(devices) - DEVICES_MAX))
        devices = devices[:DEVICES_MAX]
        for device in devices:
            for name, labels, path, parse in _sources(os.path.join(self._root, device), label(device)):
                families.add(name, labels, files.read(path, parse))
        if self._ethtool is not None:
            self._add_ethtool(self._ethtool, families, devices)
            files.problems += self._ethtool_problems
        files.raise_problems()

    def _devices(self) -> tuple[list[str], int]:
        """(interfaces of the selected kinds, number of the others)."""
        known = {} if self._kind_interval.is_due() else self._kinds
        try:
            names = os.listdir(self._root)
        except OSError as error:
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                raise NoData(f"{self._root}: no such folder") from None
            raise CollectorError(f"{label(self._root)}: {error.strerror}") from None
        self._kinds = {
            name: known[name] if name in known else self._kind(name) for name in names if name != "lo"
        }
        # Files such as bonding_masters lie there too.
        kinds = {name: kind for name, kind in self._kinds.items() if kind}
        if not kinds:
            raise NoData(f"{self._root}: no interface but lo")
        wanted = self._selected or (PHYSICAL, BOND, INFINIBAND)
        if not self._selected and not set(wanted).intersection(kinds.values()):
            wanted = NETWORK_KINDS
        selected = [name for name, kind in kinds.items() if kind in wanted]
        selected.sort(key=lambda name: (kinds[name] != PHYSICAL, natural_key(name)))
        return selected, len(kinds) - len(selected)

    def _kind(self, name: str) -> str:
        """A member of NETWORK_KINDS, "" for what is no interface."""
        path = os.path.join(self._root, name)
        if os.path.exists(f"{path}/device"):
            return PHYSICAL
        if os.path.exists(f"{path}/bonding"):
            return BOND
        if CounterFiles().read(f"{path}/type", clean) == _IPOIB:
            return INFINIBAND
        return VIRTUAL if os.path.isdir(path) else ""

    def _add_ethtool(self, ethtool: Ethtool, families, devices: list[str]) -> None:
        if self._ethtool_interval.is_due():
            self._read_ethtool(ethtool, devices)
        for device in devices:
            for name, labels, value in self._ethtool_series.get(device, ()):
                families.add(name, {"device": label(device), **labels}, value)

    def _read_ethtool(self, ethtool: Ethtool, devices: list[str]) -> None:
        self._ethtool_series, self._ethtool_problems = {}, []
        ethtool.keep(set(devices))
        for device in devices:
            if not (self._kinds.get(device) == PHYSICAL and self._is_in_our_namespace(device)):
                continue
            try:
                self._ethtool_series[device] = ethtool.read(device)
            except CollectorError as error:
                self._ethtool_problems.append(str(error))

    def _is_in_our_namespace(self, device: str) -> bool:
        """Whether the ioctl means the same interface: a mounted /sys may be of another network namespace."""
        files = CounterFiles()
        index = files.read(os.path.join(self._root, device, "ifindex"), parse_count)
        self._ethtool_problems += files.problems
        try:
            return index == socket.if_nametoindex(device)
        except OSError:
            return False


def _sources(root: str, device: str):
    """Yield (series, labels, path, parser) for one interface."""
    for kind, name in _STATISTICS.items():
        for prefix, direction in _DIRECTIONS.items():
            labels = {"device": device, "direction": direction}
            yield name, labels, f"{root}/statistics/{prefix}_{kind}", parse_count
    labels = {"device": device}
    yield "goodput_network_speed_bytes_per_second", labels, f"{root}/speed", parse_speed
    yield "goodput_network_up", labels, f"{root}/carrier", parse_carrier
    yield "goodput_network_carrier_changes_total", labels, f"{root}/carrier_changes", parse_count


def parse_tcp_timeouts(text: str) -> int | None:
    """/proc/net/netstat: expired TCP retransmission timers, None where not counted. Raises ParseError."""
    return parse_protocol(text, "TcpExt", ("TCPTimeouts",)).get("TCPTimeouts")
