"""RDMA devices: InfiniBand, RoCE, EFA and Omni-Path ports, from /sys/class/infiniband.

In: a sysfs root and the monotonic clock. Out: the `goodput_infiniband_*` series; `device` is the RDMA device,
`port` its port's number. Traffic over the port's line rate is its saturation:

    rate(goodput_infiniband_bytes_total[1m]) / ignoring(direction) group_left goodput_infiniband_rate_bytes_per_second

Traffic and state are read at every run; errors, congestion and the rest once in SLOW_SECONDS, what hardly ever
changes once in INFO_SECONDS, and served from memory in between: many drivers ask the firmware for each file.
At most DEVICES_MAX devices, physical functions first, and PORTS_MAX ports. Reading a port takes 0.05 ms, and
0.5 ms once in SLOW_SECONDS.

Values are the device's own: cumulative, reset when it is. A narrow counter at its maximum goes on standing there:
`goodput_infiniband_saturated` names each that can tell of no more, `..._saturated_counters` says how many a port
has, 0 included. A file that cannot be read costs its series.
It does not know which rank uses which port.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from goodput_exporters.collector import CollectorError, NoData, ParseError, Settings
from goodput_exporters.system import infiniband as parse
from goodput_exporters.system.files import clean, label, listing, names, natural, read

DEVICES_MAX = 64
PORTS_MAX = 128
PROBLEMS_MAX = 8
SLOW_SECONDS = 5.0
INFO_SECONDS = 30.0


class InfiniBand:
    name = "infiniband"

    def __init__(self, settings: Settings):
        self._root = os.path.join(settings.sysfs, "class/infiniband")
        self._now_ns = settings.monotonic_ns
        self._ports: dict[tuple[str, str], _Port] = {}

    def collect(self, families) -> None:
        problems: list[str] = []
        # A port that was gone is a new one when it comes back: its counters may have another source.
        known, self._ports = self._ports, {}
        devices = self._devices()
        kept = devices[:DEVICES_MAX]
        families.add("goodput_infiniband_devices_left_out", {}, len(devices) - len(kept))
        for device in kept:
            for number in self._numbers(device, problems)[: PORTS_MAX - len(self._ports)]:
                key = device, number
                self._ports[key] = known.get(key) or _Port(os.path.join(self._root, device), *key)
        now_ns = self._now_ns()
        for port in self._ports.values():
            port.collect(families, now_ns, problems)
        if problems:
            raise CollectorError("; ".join(problems[:PROBLEMS_MAX]))

    def _devices(self) -> list[str]:
        devices = listing(self._root)
        if not devices:
            raise NoData(f"{self._root}: no device")
        if len(devices) > DEVICES_MAX:
            devices.sort(
                key=lambda name: (
                    os.path.exists(os.path.join(self._root, name, "device/physfn")),
                    natural(name),
                )
            )
        return devices

    def _numbers(self, device: str, problems: list[str]) -> list[str]:
        try:
            numbers = listing(os.path.join(self._root, device, "ports")) or []
        except CollectorError as error:
            problems.append(str(error))
            return []
        return [number for number in numbers if number.isascii() and number.isdigit() and len(number) <= 5]


class _Port:
    """One port: what was read of it and when, and which files its traffic comes from."""

    def __init__(self, device_path: str, device: str, number: str):
        self._device_path = device_path
        self._path = os.path.join(device_path, "ports", number)
        self._labels = {"device": label(device), "port": number}
        self._slow_ns = self._info_ns = None
        self._sources: dict[tuple[str, str], tuple[str, int]] = {}
        # Whether traffic counters have 32 bits; narrow counters read, by kind: whether they are saturated.
        self._narrow = False
        self._slow_saturated: dict[str, bool] = {}
        self._slow: list[tuple[str, dict, float]] = []
        self._info: list[tuple[str, dict, float]] = []
        self._slow_problems: list[str] = []
        self._info_problems: list[str] = []

    def collect(self, families, now_ns: int, problems: list[str]) -> None:
        if _due(self._info_ns, now_ns, INFO_SECONDS):
            self._info_ns, self._info, self._info_problems = now_ns, [], []
            self._read_info()
        if _due(self._slow_ns, now_ns, SLOW_SECONDS):
            self._slow_ns, self._slow, self._slow_problems, self._slow_saturated = now_ns, [], [], {}
            self._read_slow()
        fast: list[tuple[str, dict, float]] = []
        saturated = dict(self._slow_saturated)
        self._read_fast(fast, saturated, problems)
        for name, labels, value in (*self._info, *fast, *self._slow):
            families.add(name, labels, value)
        self._add_saturated(families, saturated)
        # A problem lasts as long as what was read with it.
        problems += self._info_problems + self._slow_problems

    def _add_saturated(self, families, saturated: dict[str, bool]) -> None:
        """A series for each that is, and none for the many that are not: they would be a fifth of all."""
        kinds = [kind for kind, is_saturated in saturated.items() if is_saturated]
        if saturated:
            families.add("goodput_infiniband_saturated_counters", self._labels, len(kinds))
        for kind in kinds:
            families.add("goodput_infiniband_saturated", {**self._labels, "kind": kind}, 1)

    def _value(self, name: str, parser: Callable, problems: list[str]):
        """A file's parsed value, None where it is absent or a problem."""
        path = f"{self._path}/{name}"
        try:
            text = read(path)
            return None if text is None else parser(text)
        except CollectorError as error:
            problems.append(label(str(error)))
        except ParseError as error:
            problems.append(label(f"{path}: {error}"))
        return None

    # Every run

    def _read_fast(self, found: list, saturated: dict[str, bool], problems: list[str]) -> None:
        state = self._value("state", parse.parse_state, problems)
        if state is not None:
            found.append(("goodput_infiniband_up", self._labels, float(state == parse.ACTIVE)))
            found.append(self._state("logical", parse.LOGICAL_STATES, state))
        for (series, direction), (name, factor) in self._sources.items():
            value = self._value(name, parse.parse_counter, problems)
            if value is None:
                continue
            found.append((series, {**self._labels, "direction": direction}, value * factor))
            if self._narrow and name.startswith("counters/") and value <= parse.NARROW_MAX:
                saturated[name.removeprefix("counters/")] = value == parse.NARROW_MAX

    def _state(self, kind: str, states: dict[int, str], number: int) -> tuple[str, dict, float]:
        labels = {**self._labels, "kind": kind, "state": states.get(number, "unknown")}
        return "goodput_infiniband_state", labels, 1.0

    # Once in SLOW_SECONDS

    def _read_slow(self) -> None:
        standard, hardware = self._names("counters"), self._names("hw_counters")
        self._narrow = not standard.intersection(parse.WIDE_ONLY)
        self._choose_sources(standard, hardware)
        physical = self._value("phys_state", parse.parse_state, self._slow_problems)
        if physical is not None:
            self._slow.append(self._state("physical", parse.PHYSICAL_STATES, physical))
        rate = self._value("rate", parse.parse_rate, self._slow_problems)
        if rate is not None:
            self._slow.append(("goodput_infiniband_rate_bytes_per_second", self._labels, rate))
        for name in parse.STANDARD_BITS:
            if name in standard:
                self._read_standard(name)
        self._read_hardware(hardware)

    def _names(self, directory: str) -> set[str]:
        try:
            return set(names(f"{self._path}/{directory}") or ())
        except CollectorError as error:
            self._slow_problems.append(str(error))
            return set()

    def _choose_sources(self, standard: set[str], hardware: set[str]) -> None:
        """Choose each traffic counter's file, once: to change it would be a jump that no traffic made."""
        for key, (name, factor, others) in parse.TRAFFIC.items():
            if key in self._sources:
                continue
            if name in standard and self._is_counted(f"counters/{name}"):
                self._sources[key] = f"counters/{name}", factor
                continue
            other = next((other for other in others if other in hardware), None)
            if other is not None:
                self._sources[key] = f"hw_counters/{other}", 1

    def _is_counted(self, name: str) -> bool:
        """Whether the file tells of a counter, be it one that cannot be read now."""
        try:
            text = read(f"{self._path}/{name}")
            return text is not None and parse.parse_counter(text) is not None
        except (CollectorError, ParseError):
            return True

    def _read_standard(self, name: str) -> None:
        value = self._value(f"counters/{name}", parse.parse_counter, self._slow_problems)
        if value is None:
            return
        kind = name.lower()
        if name == "port_xmit_wait":
            self._slow.append((parse.WAIT, self._labels, value))
        else:
            self._slow.append((parse.ERRORS, {**self._labels, "kind": kind}, value))
        self._slow_saturated[kind] = parse.saturated(name, value)

    def _read_hardware(self, present: set[str]) -> None:
        seen = set()
        for name, (series, label_name, kind) in parse.HARDWARE.items():
            # A driver that has a counter under two names has it once.
            if name not in present or (series, kind) in seen:
                continue
            value = self._value(f"hw_counters/{name}", parse.parse_counter, self._slow_problems)
            if value is not None:
                seen.add((series, kind))
                self._slow.append(
                    (series, {**self._labels, label_name: kind} if label_name else self._labels, value)
                )

    # Once in INFO_SECONDS

    def _read_info(self) -> None:
        device = os.path.join(self._device_path, "device")
        numa = self._text(f"{device}/numa_node")
        labels = {
            **self._labels,
            "link_layer": self._text(f"{self._path}/link_layer"),
            "driver": _target(f"{device}/driver"),
            "netdev": self._text(f"{self._path}/gid_attrs/ndevs/0") or self._netdev(device),
            "pci": _target(device),
            "numa": "" if numa.startswith("-") else numa,
            "firmware": self._text(f"{self._device_path}/fw_ver"),
            "board": self._text(f"{self._device_path}/board_id"),
            "node_guid": self._text(f"{self._device_path}/node_guid"),
        }
        self._info.append(("goodput_infiniband_info", labels, 1.0))

    def _text(self, path: str) -> str:
        try:
            return clean(read(path))
        except CollectorError as error:
            self._info_problems.append(label(str(error)))
            return ""

    def _netdev(self, device: str) -> str:
        """The network interface of the same port of the same PCI function, as IP over InfiniBand has one."""
        try:
            interfaces = (listing(f"{device}/net") or [])[:PORTS_MAX]
        except CollectorError as error:
            self._info_problems.append(str(error))
            return ""
        at = str(int(self._labels["port"]) - 1)
        return next(
            (clean(label(name)) for name in interfaces if self._text(f"{device}/net/{name}/dev_port") == at),
            "",
        )


def _due(last_ns: int | None, now_ns: int, seconds: float) -> bool:
    return last_ns is None or not 0 <= now_ns - last_ns < seconds * 1e9


def _target(path: str) -> str:
    """The last part of what a link points to, empty where there is no link."""
    try:
        return clean(label(os.path.basename(os.readlink(path))))
    except OSError:
        return ""
