"""Network interfaces: traffic, errors, line rate and link, from /sys/class/net.

In: a sysfs root. Out: the `goodput_network_*` series of every interface but `lo`, IP over InfiniBand
included; `device` is the interface's name, `direction` receive or transmit. At most DEVICES_MAX interfaces,
those with hardware behind them first: a node full of pods has hundreds of virtual ones. What the kernel does
not tell (the speed of a link that is down, -1) is absent, not zero.
Reading one interface takes about 0.2 ms. It does not know which rank uses which interface.
"""

from __future__ import annotations

import os

from goodput_exporters.collectors import CollectorError, NoData, ParseError, Settings, parse_count, read_text

DEVICES_MAX = 64
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

    def __init__(self, settings: Settings):
        self._root = os.path.join(settings.sysfs, "class/net")

    def collect(self, families) -> None:
        problems = []
        for device in self._devices():
            for name, labels, path, parse in _series(os.path.join(self._root, device), device):
                try:
                    text = read_text(path)
                    value = None if text is None else parse(text)
                except (CollectorError, ParseError) as error:
                    problems.append(f"{path}: {error}")
                    continue
                if value is not None:
                    families.add(name, labels, value)
        if problems:
            raise CollectorError("; ".join(problems[:8]))

    def _devices(self) -> list[str]:
        try:
            names = [name for name in os.listdir(self._root) if name != "lo"]
        except OSError as error:
            raise NoData(f"{self._root}: {error.strerror}") from None
        # Files such as bonding_masters lie there too.
        names = [name for name in names if os.path.isdir(os.path.join(self._root, name))]
        if not names:
            raise NoData(f"{self._root}: no interface but lo")
        return sorted(names, key=lambda name: (not self._has_hardware(name), name))[:DEVICES_MAX]

    def _has_hardware(self, name: str) -> bool:
        return os.path.exists(os.path.join(self._root, name, "device"))


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
