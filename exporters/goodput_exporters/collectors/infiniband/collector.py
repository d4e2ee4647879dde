"""RDMA ports (InfiniBand, RoCE, EFA, Omni-Path) from /sys/class/infiniband.

Traffic and state are read at every scrape, errors and congestion every SLOW_SECONDS, static information every
INFO_SECONDS, since many drivers ask the firmware for each file. Cost per port: 0.05 ms, and 0.5 ms every
SLOW_SECONDS. A narrow counter stops at its maximum instead of wrapping: `goodput_infiniband_saturated` names it.

Saturation of a port is its traffic over its line rate:

    rate(goodput_infiniband_bytes_total[1m]) / ignoring(direction) group_left goodput_infiniband_rate_bytes_per_second
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from goodput.metrics import Families
from goodput_exporters.collector import NoData, Settings
from goodput_exporters.system import infiniband as tables
from goodput_exporters.system.files import CounterFiles, clean, label, list_names, natural_key
from goodput_exporters.system.interval import Interval

DEVICES_MAX = 64
PORTS_MAX = 128
SLOW_SECONDS = 5.0
INFO_SECONDS = 30.0
_PORT = re.compile(r"[0-9]{1,5}")


class InfiniBand:
    name = "infiniband"

    def __init__(self, settings: Settings):
        self._root = os.path.join(settings.sysfs, "class/infiniband")
        self._monotonic_ns = settings.monotonic_ns
        self._ports: dict[tuple[str, str], _Port] = {}

    def collect(self, families) -> None:
        files = CounterFiles()
        # A port that disappeared is a new one when it comes back: its counters may have another source.
        known, self._ports = self._ports, {}
        devices = self._devices()
        families.add("goodput_infiniband_devices_left_out", {}, max(0, len(devices) - DEVICES_MAX))
        for device in devices[:DEVICES_MAX]:
            for number in self._port_numbers(device, files)[: PORTS_MAX - len(self._ports)]:
                key = device, number
                self._ports[key] = known.get(key) or _Port(self._root, *key, self._monotonic_ns)
        for port in self._ports.values():
            port.collect(families, files)
        files.raise_problems()

    def _devices(self) -> list[str]:
        """All devices; where there are too many, physical functions come first."""
        devices = list_names(self._root)
        if not devices:
            raise NoData(f"{self._root}: no device")
        if len(devices) > DEVICES_MAX:
            is_virtual = {name: os.path.exists(f"{self._root}/{name}/device/physfn") for name in devices}
            devices.sort(key=lambda name: (is_virtual[name], natural_key(name)))
        return devices

    def _port_numbers(self, device: str, files: CounterFiles) -> list[str]:
        return [name for name in files.names(f"{self._root}/{device}/ports") if _PORT.fullmatch(name)]


@dataclass
class _Reading:
    """Series read together, the problems met, and narrow counters by kind: whether they are saturated."""

    series: list[tuple[str, tuple[str, ...], float | None]] = field(default_factory=list)  # name, row, value
    files: CounterFiles = field(default_factory=CounterFiles)
    saturated: dict[str, bool] = field(default_factory=dict)


class _Port:
    """One port: its last slow and static readings, and the files of its traffic counters."""

    def __init__(self, root: str, device: str, number: str, monotonic_ns: Callable[[], int]):
        self._device_path = os.path.join(root, device)
        self._path = f"{self._device_path}/ports/{number}"
        self._labels = {"device": label(device), "port": number}
        self._rows: dict[tuple[str, ...], tuple[str, ...]] = {}  # by series and values of its other labels
        self._slow, self._slow_interval = _Reading(), Interval(SLOW_SECONDS, monotonic_ns)
        self._info, self._info_interval = _Reading(), Interval(INFO_SECONDS, monotonic_ns)
        # By series, direction and, for its packets by kind, the kind: the file and its factor.
        self._sources: dict[tuple[str, ...], tuple[str, int]] = {}
        self._is_narrow = False  # traffic counters have 32 bits
        self._was_below: set[str] = set()  # the shortest counters that were seen below their maximum

    def collect(self, families, files: CounterFiles) -> None:
        if self._info_interval.is_due():
            self._info = _Reading()
            self._read_info(self._info)
        if self._slow_interval.is_due():
            self._slow = _Reading()
            self._read_slow(self._slow)
        fast = _Reading()
        self._read_fast(fast)
        saturated = {**self._slow.saturated, **fast.saturated}
        for reading in (self._info, fast, self._slow):
            for name, row, value in reading.series:
                if value is not None:
                    families.add_row(name, row, value)
            files.problems += reading.files.problems
        if saturated:
            families.add("goodput_infiniband_saturated_counters", self._labels, sum(saturated.values()))
        # Only those that are: the many that are not would be a fifth of all series.
        for kind in (kind for kind, is_saturated in saturated.items() if is_saturated):
            families.add("goodput_infiniband_saturated", {**self._labels, "kind": kind}, 1)

    def _read_fast(self, reading: _Reading) -> None:
        state = reading.files.read(f"{self._path}/state", tables.parse_state)
        if state is not None:
            reading.series.append(self._value("goodput_infiniband_up", float(state == tables.ACTIVE)))
            reading.series.append(self._state("logical", tables.LOGICAL_STATES, state))
        for (series, *values), (name, factor) in self._sources.items():
            value = reading.files.read(f"{self._path}/{name}", tables.parse_counter)
            if value is None:
                continue
            labels = dict(zip(("direction", "cast"), values, strict=False))
            reading.series.append(self._value(series, value * factor, **labels))
            if self._is_narrow and name.startswith("counters/") and value <= tables.NARROW_MAX:
                reading.saturated[name.removeprefix("counters/")] = value == tables.NARROW_MAX

    def _state(self, kind: str, states: dict[int, str], number: int) -> tuple:
        state = states.get(number, "unknown")
        return self._value("goodput_infiniband_state", 1.0, kind=kind, state=state)

    def _value(self, series: str, value: float | None, **labels: str) -> tuple:
        """An entry of _Reading.series."""
        key = series, *labels.values()
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = Families("node").row_of(series, {**self._labels, **labels})
        return series, row, value

    def _read_slow(self, reading: _Reading) -> None:
        files, series = reading.files, reading.series
        standard = set(files.names(f"{self._path}/counters"))
        extended = set(files.names(f"{self._path}/counters_ext"))
        hardware = set(files.names(f"{self._path}/hw_counters"))
        self._is_narrow = not standard.intersection(tables.WIDE_ONLY)
        self._choose_sources(standard, extended, hardware)
        physical = files.read(f"{self._path}/phys_state", tables.parse_state)
        if physical is not None:
            series.append(self._state("physical", tables.PHYSICAL_STATES, physical))
        rate = files.read(f"{self._path}/rate", tables.parse_rate)
        series.append(self._value("goodput_infiniband_rate_bytes_per_second", rate))
        for name in tables.STANDARD_BITS:
            if name in standard:
                self._read_standard(name, reading)
        if tables.RECEIVE_DISCARDS in standard:
            value = files.read(f"{self._path}/counters/{tables.RECEIVE_DISCARDS}", tables.parse_counter)
            series.append(self._value(tables.ERRORS, value, kind=tables.RECEIVE_DISCARDS))
        self._read_hardware(hardware, reading)
        if tables.LIFESPAN in hardware:
            milliseconds = files.read(f"{self._path}/hw_counters/{tables.LIFESPAN}", tables.parse_counter)
            seconds = None if milliseconds is None else milliseconds / 1000
            series.append(self._value("goodput_infiniband_lifespan_seconds", seconds))

    def _choose_sources(self, standard: set[str], extended: set[str], hardware: set[str]) -> None:
        """Choose each traffic counter's file once: a later change would look like a jump in traffic."""
        for key, (name, cast) in tables.CASTS.items():
            if (
                key not in self._sources
                and name in standard
                and self._has_counter(f"{self._path}/counters/{name}")
            ):
                self._sources[key] = f"counters/{name}", 1
            elif key not in self._sources and cast in extended:
                self._sources[key] = f"counters_ext/{cast}", 1
        for key, (name, factor, alternatives) in tables.TRAFFIC.items():
            if key in self._sources:
                continue
            wide = f"{name}_64"
            if (
                self._is_narrow
                and wide in extended
                and self._has_counter(f"{self._path}/counters_ext/{wide}")
            ):
                self._sources[key] = f"counters_ext/{wide}", factor
            elif name in standard and self._has_counter(f"{self._path}/counters/{name}"):
                self._sources[key] = f"counters/{name}", factor
            elif hardware.intersection(alternatives):
                other = next(other for other in alternatives if other in hardware)
                self._sources[key] = f"hw_counters/{other}", 1

    def _has_counter(self, path: str) -> bool:
        """Whether the device has this counter, even one that cannot be read now."""
        files = CounterFiles()
        return files.read(path, tables.parse_counter) is not None or bool(files.problems)

    def _read_standard(self, name: str, reading: _Reading) -> None:
        value = reading.files.read(f"{self._path}/counters/{name}", tables.parse_counter)
        if value is None:
            return
        kind = name.lower()
        if name == "port_xmit_wait":
            reading.series.append(self._value(tables.WAIT, value))
        else:
            reading.series.append(self._value(tables.ERRORS, value, kind=kind))
        is_saturated = tables.is_saturated(name, value)
        if tables.STANDARD_BITS[name] <= tables.SHORT_BITS:
            # Healthy ports have them at the maximum from the start.
            if not is_saturated:
                self._was_below.add(name)
            is_saturated = is_saturated and name in self._was_below
        reading.saturated[kind] = is_saturated

    def _read_hardware(self, present: set[str], reading: _Reading) -> None:
        added = set()
        for name, (series, label_name, kind) in tables.HARDWARE.items():
            # A driver that has one counter under two names exposes it once.
            if name not in present or (series, kind) in added:
                continue
            value = reading.files.read(f"{self._path}/hw_counters/{name}", tables.parse_counter)
            if value is not None:
                added.add((series, kind))
                labels = {label_name: kind} if label_name else {}
                reading.series.append(self._value(series, value, **labels))

    def _read_info(self, reading: _Reading) -> None:
        def text(path: str) -> str:
            return reading.files.read(path, clean) or ""

        device = os.path.join(self._device_path, "device")
        numa = text(f"{device}/numa_node")
        labels = {
            **self._labels,
            "link_layer": text(f"{self._path}/link_layer"),
            "driver": _link_target(f"{device}/driver"),
            "netdev": text(f"{self._path}/gid_attrs/ndevs/0") or self._ipoib_interface(device, reading.files),
            "pci": _link_target(device),
            "numa": "" if numa.startswith("-") else numa,
            "firmware": text(f"{self._device_path}/fw_ver"),
            "board": text(f"{self._device_path}/board_id"),
            "node_guid": text(f"{self._device_path}/node_guid"),
        }
        name = "goodput_infiniband_info"
        reading.series.append((name, Families("node").row_of(name, labels), 1.0))

    def _ipoib_interface(self, device: str, files: CounterFiles) -> str:
        """The network interface of this port of the PCI function, as IP over InfiniBand has one."""
        number = str(int(self._labels["port"]) - 1)
        for name in files.names(f"{device}/net")[:PORTS_MAX]:
            if files.read(f"{device}/net/{name}/dev_port", clean) == number:
                return clean(label(name))
        return ""


def _link_target(path: str) -> str:
    """The last part of a symbolic link's target, empty where there is no link."""
    try:
        return clean(label(os.path.basename(os.readlink(path))))
    except OSError:
        return ""
