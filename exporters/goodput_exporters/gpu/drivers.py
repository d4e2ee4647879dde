"""Drivers: who can say something of a node's GPUs, one file each, run in a process of its own (driver_process.py).

A driver is a class with a `name`, built as `Class(options)`. A call into it may hang, crash or lie; that costs its own
process and nothing else. It imports what it needs in `open`.

    open()          raises NoData where the library or the device is not there, CollectorError where it cannot be used
    sample(full)    a gpu.Sample: all it knows where `full`, else what changes fast: activity, power, energy. What
                    fails for one GPU or one reading is left out and named in `problems`
    close()         gives the driver back; it is never called after a hang
    absence(options)  not all have it: a static function that the agent itself calls every few seconds. Why there is
                    surely nothing to drive, by a look at files that are no driver's; "" where `open` has to see
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Protocol

import goodput_exporters.gpu as gpu
from goodput_exporters.collector import CollectorError
from goodput_exporters.gpu.sample import Sample

# Of two drivers that know one reading of one GPU, the earlier here is believed; others come after these.
ORDER = ("dcgm", "nvml", "amd", "dcgm_endpoint")
DRIVERS_MAX = 8


@dataclass(frozen=True)
class Options:
    """What a driver is told, from the command line of its process."""

    sysfs: str = "/sys"
    procfs: str = "/proc"
    # Of a dcgm-exporter, as http://127.0.0.1:9400/metrics; "" for none.
    dcgm_endpoint: str = ""
    # How often it will be asked.
    interval_seconds: float = 1.0


class Driver(Protocol):
    name: str

    def open(self) -> None: ...

    def sample(self, full: bool) -> Sample: ...

    def close(self) -> None: ...


def discover() -> list[str]:
    """Modules of this folder that are drivers, in ORDER; a module that cannot be imported is one that fails."""
    (here,) = gpu.__path__
    names = [name for name in os.listdir(here) if os.path.exists(os.path.join(here, name, "driver.py"))]
    return sorted(filter(_is_driver_module, names), key=rank)[:DRIVERS_MAX]


def rank(name: str) -> tuple[int, str]:
    """Where a driver stands in the order of belief."""
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)


def load(name: str, module_name: str = "") -> type:
    """The driver's class; `module_name` may name a module elsewhere. Raises CollectorError where there is none."""
    module_name, _, wanted = (module_name or f"{__package__}.{name}.driver").partition(":")
    module = importlib.import_module(module_name)
    for value in vars(module).values():
        ours = isinstance(value, type) and value.__module__ == module.__name__ and _is_driver(value)
        if ours and wanted in ("", value.__name__):
            return value
    raise CollectorError(f"{module_name} has no driver class {wanted}")


def absence(name: str, options: Options) -> str:
    """Why a driver of this folder has surely nothing to drive; "" where its process has to see. Raises nothing."""
    try:
        look = getattr(load(name), "absence", None)
        return look(options) if look else ""
    except Exception:
        return ""


def _is_driver(value: type) -> bool:
    calls = ("open", "sample", "close")
    return isinstance(getattr(value, "name", None), str) and all(
        callable(getattr(value, c, 0)) for c in calls
    )


def _is_driver_module(name: str) -> bool:
    try:
        load(name)
    except CollectorError:
        return False
    except Exception:
        return True
    return True
