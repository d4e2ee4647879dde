"""Drivers: who can say something of a node's GPUs, one file each, run in a process of its own (driver_process.py).

A driver is a class with a `name`, built as `Class(options)`. A call into it may hang, crash or lie; that costs its own
process and nothing else. It imports what it needs in `open`.

    open()          raises NoData where the library or the device is not there, CollectorError where it cannot be used
    sample(full)    a gpu.Sample: all it knows where `full`, else what changes fast: activity, power, energy. What
                    fails for one GPU or one reading is left out and named in `problems`
    close()         gives the driver back; it is never called after a hang
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from goodput_exporters.gpu import Sample


@dataclass(frozen=True)
class Options:
    """What a driver is told, from the command line of its process."""

    sysfs: str = "/sys"
    procfs: str = "/proc"
    # Of a dcgm-exporter, as http://127.0.0.1:9400/metrics; "" for none.
    dcgm_endpoint: str = ""


class Driver(Protocol):
    name: str

    def open(self) -> None: ...

    def sample(self, full: bool) -> Sample: ...

    def close(self) -> None: ...
