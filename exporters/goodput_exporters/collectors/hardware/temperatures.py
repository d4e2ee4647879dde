"""Temperatures from sysfs' hwmon and thermal zones: processors, NVMe, NICs, memory, boards.

Of a processor's cores and the single sensors of an NVMe there is no series, only of the whole. A sensor whose reading
fails has no value: some never answer, and others not while their device sleeps. Formats:
Documentation/hwmon/sysfs-interface.rst and driver-api/thermal/sysfs-api.rst of the kernel.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

from goodput_exporters.collector import CollectorError, ParseError
from goodput_exporters.system.files import CounterFiles, clean, parse_count, read_text

DEVICES_MAX, SENSORS_MAX = 64, 16
# Beyond this a sensor is not connected, or its driver does not know it.
CELSIUS_MIN, CELSIUS_MAX = -100.0, 250.0
LIMITS = ("max", "crit")
_MONITOR = re.compile(r"hwmon\d{1,4}")
_ZONE = re.compile(r"thermal_zone\d{1,4}")
_SENSOR = re.compile(r"(temp\d{1,3})_input")
_PART = re.compile(r"(?:Core|Sensor) \d+")
# AMD GPUs are a driver's (gpu/amd), which has their temperatures.
_OF_GPUS = frozenset(("amdgpu", "radeon", "nouveau"))


def read_temperatures(sysfs: str, files: CounterFiles) -> Iterator[tuple]:
    """(series, labels, value) of each sensor, its limits and its alarm."""
    root, known = f"{sysfs}/class/hwmon", set()
    for name in [name for name in files.names(root) if _MONITOR.fullmatch(name)][:DEVICES_MAX]:
        yield from _monitor(f"{root}/{name}", name, files, known)
    root = f"{sysfs}/class/thermal"
    for name in [name for name in files.names(root) if _ZONE.fullmatch(name)][:DEVICES_MAX]:
        sensor = files.read(f"{root}/{name}/type", clean) or ""
        labels = {"chip": "thermal_zone", "device": name, "sensor": sensor}
        yield "goodput_host_temperature_celsius", labels, _read(f"{root}/{name}/temp", files)


def _monitor(path: str, name: str, files: CounterFiles, known: set[tuple]) -> Iterator[tuple]:
    """`known` has the labels of all sensors, since two monitors of a device may name them alike."""
    chip = files.read(f"{path}/name", clean) or ""
    if chip in _OF_GPUS:
        return
    # Such as nvme0, coretemp.0 or 0000:01:00.0; a monitor without a device is named by its own number.
    is_linked = os.path.islink(f"{path}/device")
    device = clean(os.path.basename(os.path.realpath(f"{path}/device"))) if is_linked else name
    shown = 0
    for entry in files.names(path):
        match = _SENSOR.fullmatch(entry)
        sensor = match[1] if match else ""
        label = files.read(f"{path}/{sensor}_label", clean) or sensor
        if not match or _PART.fullmatch(label) or shown == SENSORS_MAX:
            continue
        shown += 1
        if (chip, device, label) in known:
            label = f"{label} {name} {sensor}"
        known.add((chip, device, label))
        labels = {"chip": chip, "device": device, "sensor": label}
        yield from _sensor(f"{path}/{sensor}", labels, files)


def _sensor(path: str, labels: dict[str, str], files: CounterFiles) -> Iterator[tuple]:
    yield "goodput_host_temperature_celsius", labels, _read(f"{path}_input", files)
    for limit in LIMITS:
        value = _read(f"{path}_{limit}", files)
        yield "goodput_host_temperature_limit_celsius", {**labels, "kind": limit}, value
    alarms = [_read(f"{path}_{kind}alarm", files, parse_count) for kind in ("", "crit_")]
    given = [alarm for alarm in alarms if alarm is not None]
    yield "goodput_host_temperature_alarm", labels, float(any(given)) if given else None


def _read(path: str, files: CounterFiles, parse: Callable[[str], float | None] | None = None) -> float | None:
    try:
        text = read_text(path)
    except CollectorError:
        return None
    return None if text is None else files.parse(path, text, parse or parse_celsius)


def parse_celsius(text: str) -> float | None:
    """Degrees from thousandths, None for what no machine reaches. Raises ParseError."""
    text = text.strip()
    try:
        value = (-1 if text.startswith("-") else 1) * parse_count(text.removeprefix("-")) / 1000
    except ParseError:
        raise ParseError(f"{text[:40]!r} is no temperature") from None
    return value if CELSIUS_MIN <= value <= CELSIUS_MAX else None
