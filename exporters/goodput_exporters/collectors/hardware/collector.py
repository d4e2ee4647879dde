"""Health of the machine from sysfs: memory errors (EDAC), temperatures, throttled processors, NVMe controllers.

Reading a temperature may be a message to a device, and a processor's count may wake it up: what was read is served for
READ_SECONDS. A missing file costs its series; a malformed or unreadable one also fails the run. About 1.5 ms with 2 sockets
of 64 cores, besides what the devices take.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from goodput_exporters.collector import CollectorError, NoData, Settings
from goodput_exporters.collectors.hardware.memory_errors import read_memory_errors
from goodput_exporters.collectors.hardware.nvme import read_nvme
from goodput_exporters.collectors.hardware.nvme_health import NvmeHealth
from goodput_exporters.collectors.hardware.temperatures import read_temperatures
from goodput_exporters.collectors.hardware.throttles import Throttles
from goodput_exporters.system.files import CounterFiles
from goodput_exporters.system.interval import Interval

READ_SECONDS = 10.0


class Value(NamedTuple):
    series: str
    labels: dict[str, str]
    value: float


class Hardware:
    name = "hardware"

    def __init__(self, settings: Settings):
        self._sysfs = settings.sysfs
        self._interval = Interval(READ_SECONDS, settings.monotonic_ns)
        self._throttles = Throttles(settings.sysfs)
        self.nvme_health = NvmeHealth(settings.sysfs, settings.rootfs, settings.monotonic_ns)
        self._values: list[Value] = []
        self._problem = ""

    def collect(self, families) -> None:
        if self._interval.is_due():
            self._read()
        for series, labels, value in self._values:
            families.add(series, labels, value)
        if self._problem:
            raise CollectorError(self._problem)
        if not self._values:
            raise NoData(
                f"{self._sysfs}: neither memory controllers nor sensors, as in most virtual machines"
            )

    def _read(self) -> None:
        files = CounterFiles()
        self._values = [Value(*found) for found in self._found(files) if found[2] is not None]
        self._problem = ""
        try:
            files.raise_problems()
        except CollectorError as error:
            self._problem = str(error)

    def _found(self, files: CounterFiles) -> Iterator[tuple]:
        yield from read_memory_errors(self._sysfs, files)
        yield from read_temperatures(self._sysfs, files)
        yield from self._throttles.read(files)
        yield from read_nvme(self._sysfs, files, self.nvme_health)
