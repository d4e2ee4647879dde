"""Network interfaces: traffic, errors, line rate and link, from /sys/class/net; pauses and drops of the hardware.

In: sysfs and procfs roots, and the monotonic clock; where the sysfs root is the running kernel's /sys, what the
driver counts as well (ethtool.py). Out: the `goodput_network_*` series of every interface but `lo`, IP over
InfiniBand included; `device` is the interface's name, `direction` receive or transmit. At most DEVICES_MAX
interfaces, those with hardware behind them first: a node full of pods has hundreds of virtual ones. What the
kernel does not tell (the speed of a link that is down, -1) is absent, not zero.

Reading one interface takes about 0.1 ms. Drivers are asked once in ETHTOOL_SECONDS, of interfaces with hardware
alone, and their answers are served from memory in between. It does not know which rank uses which interface.

Formats: Documentation/ABI/testing/sysfs-class-net-statistics; /proc/net/netstat in proc(5).
"""

from __future__ import annotations

import os
import socket

from goodput_exporters.collector import CollectorError, NoData, ParseError, Settings, parse_count, read_text
from goodput_exporters.collectors.ethernet.ethtool import Ethtool
from goodput_exporters.system.files import label, listing, natural, read

DEVICES_MAX = 64
PROBLEMS_MAX = 8
ETHTOOL_SECONDS = 10.0
_STATISTICS = {
    "bytes": "goodput_network_bytes_total",
    "packets": "goodput_network_packets_total",
    "errors": "goodput_network_errors_total",
    "dropped": "goodput_network_drops_total",
}
_DIRECTIONS = {"rx": "receive", "tx": "transmit"}
# The kernel's SPEED_UNKNOWN is -1, which some drivers hand on unsigned.
_SPEED_UNKNOWN = (0, 65_535, 4_294_967_295)
_BYTES_PER_SECOND_PER_MEGABIT = 125_000


class Ethernet:
    name = "ethernet"

    def __init__(self, settings: Settings, ethtool: Ethtool | None = None):
        self._root = os.path.join(settings.sysfs, "class/net")
        self._netstat = os.path.join(settings.procfs, "net/netstat")
        self._now_ns = settings.monotonic_ns
        # A recorded tree's interfaces are not this kernel's.
        self._ethtool = ethtool or (Ethtool() if os.path.realpath(settings.sysfs) == "/sys" else None)
        self._asked_ns: int | None = None
        self._answers: dict[str, list[tuple[str, dict, float]]] = {}
        self._ethtool_problems: list[str] = []

    def collect(self, families) -> None:
        problems: list[str] = []
        self._tcp(families, problems)
        devices = self._devices()
        kept = devices[:DEVICES_MAX]
        families.add("goodput_network_devices_left_out", {}, len(devices) - len(kept))
        for device in kept:
            for name, labels, path, parse in _series(os.path.join(self._root, device), label(device)):
                value = _value(path, read, parse, problems)
                if value is not None:
                    families.add(name, labels, value)
        if self._ethtool is not None:
            self._hardware(families, kept, problems)
        if problems:
            raise CollectorError("; ".join(problems[:PROBLEMS_MAX]))

    def _tcp(self, families, problems: list[str]) -> None:
        timeouts = _value(self._netstat, read_text, parse_netstat, problems)
        if timeouts is not None:
            families.add("goodput_network_tcp_timeouts_total", {}, timeouts)

    def _devices(self) -> list[str]:
        # Files such as bonding_masters lie there too.
        names = [name for name in listing(self._root) or () if name != "lo" and self._is_there(name, "")]
        if not names:
            raise NoData(f"{self._root}: no interface but lo")
        return sorted(names, key=lambda name: (not self._has_hardware(name), natural(name)))

    def _is_there(self, name: str, part: str) -> bool:
        return os.path.isdir(os.path.join(self._root, name, part))

    def _has_hardware(self, name: str) -> bool:
        return os.path.exists(os.path.join(self._root, name, "device"))

    # What drivers count

    def _hardware(self, families, devices: list[str], problems: list[str]) -> None:
        now_ns = self._now_ns()
        if self._asked_ns is None or not 0 <= now_ns - self._asked_ns < ETHTOOL_SECONDS * 1e9:
            self._asked_ns = now_ns
            self._ask(devices)
        for device in devices:
            for name, labels, value in self._answers.get(device, ()):
                families.add(name, {"device": label(device), **labels}, value)
        problems += self._ethtool_problems

    def _ask(self, devices: list[str]) -> None:
        self._answers, self._ethtool_problems = {}, []
        self._ethtool.keep(set(devices))
        for device in devices:
            if not (self._has_hardware(device) and self._is_of_this_namespace(device)):
                continue
            try:
                self._answers[device] = self._ethtool.read(device)
            except CollectorError as error:
                self._ethtool_problems.append(str(error))

    def _is_of_this_namespace(self, device: str) -> bool:
        """Whether the ioctl means the interface of sysfs: a mounted /sys may be of another network namespace."""
        try:
            return parse_number(
                read(os.path.join(self._root, device, "ifindex")) or ""
            ) == socket.if_nametoindex(device)
        except (CollectorError, ParseError, OSError):
            return False


def _value(path: str, read_file, parse, problems: list[str]):
    """A file's parsed value, None where it is absent or a problem."""
    try:
        text = read_file(path)
        return None if text is None else parse(text)
    except CollectorError as error:
        problems.append(label(str(error)))
    except ParseError as error:
        problems.append(label(f"{path}: {error}"))
    return None


def _series(root: str, device: str):
    """Yield (series, labels, file, parser) for one interface."""
    for kind, name in _STATISTICS.items():
        for prefix, direction in _DIRECTIONS.items():
            labels = {"device": device, "direction": direction}
            yield name, labels, f"{root}/statistics/{prefix}_{kind}", parse_number
    of_device = {"device": device}
    yield "goodput_network_speed_bytes_per_second", of_device, f"{root}/speed", parse_speed
    yield "goodput_network_up", of_device, f"{root}/carrier", parse_carrier
    yield "goodput_network_carrier_changes_total", of_device, f"{root}/carrier_changes", parse_number


def parse_number(text: str) -> int:
    """A counter file's number. Raises ParseError."""
    return parse_count(text.strip())


def parse_speed(text: str) -> int | None:
    """Bytes per second from a speed in Mbit/s, None where it is unknown. Raises ParseError."""
    text = text.strip()
    if text.startswith("-"):
        parse_count(text[1:])
        return None
    speed = parse_count(text)
    return None if speed in _SPEED_UNKNOWN else speed * _BYTES_PER_SECOND_PER_MEGABIT


def parse_carrier(text: str) -> int:
    """1 with carrier, 0 without. Raises ParseError."""
    carrier = parse_count(text.strip())
    if carrier > 1:
        raise ParseError(f"{carrier} is neither carrier nor none")
    return carrier


def parse_netstat(text: str) -> int | None:
    """/proc/net/netstat: times a TCP retransmission timer ran out, None where the kernel does not say.

    Raises ParseError.
    """
    lines = [line.split() for line in text.splitlines() if line.startswith("TcpExt:")]
    if len(lines) != 2:
        raise ParseError(f"{len(lines)} TcpExt lines, want 2")
    names, values = lines
    if "TCPTimeouts" not in names:
        return None
    at = names.index("TCPTimeouts")
    if at >= len(values):
        raise ParseError("the TcpExt line of values is shorter than that of names")
    return parse_count(values[at])
