"""GPU drivers: one folder each, with a class in `driver.py`. Each runs in a process of its own (supervisor.py).

A driver is a class with a `name`, built as `Class(options)`. A call into it may hang, crash or return nonsense; that
costs only its own process. It imports its library in `open`.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Protocol

import goodput_exporters.gpu as gpu
from goodput_exporters.collector import CollectorError
from goodput_exporters.gpu.sample import Sample

# Of two drivers that read the same value, the earlier here wins; drivers not listed come last.
PRECEDENCE = ("dcgm", "nvml", "amd", "dcgm_endpoint")
DRIVERS_MAX = 8


@dataclass(frozen=True)
class Options:
    """Options of a driver, from the command line of its process."""

    sysfs: str = "/sys"
    procfs: str = "/proc"
    dcgm_endpoint: str = ""  # URL of a dcgm-exporter, such as http://127.0.0.1:9400/metrics
    interval_seconds: float = 1.0  # between samples


class Driver(Protocol):
    """A driver may also have a static method `absence(options)`, which the agent itself calls every few seconds.

    It returns why there is certainly nothing to sample, from files alone; "" where `open` has to find out.
    """

    name: str

    def open(self) -> None:
        """Raises NoData without the library or a device, CollectorError where they cannot be used."""

    def sample(self, full: bool) -> Sample:
        """Everything where `full`, else the fast changing values: activity, power, energy.

        What fails for one GPU or one reading is left out and named in `problems`.
        """
        ...

    def close(self) -> None:
        """Release the library. Never called after a hang."""


def discover() -> list[str]:
    """Names of the drivers in this folder, in order of precedence; one that cannot be imported is included."""
    (here,) = gpu.__path__
    names = [name for name in os.listdir(here) if os.path.exists(os.path.join(here, name, "driver.py"))]
    return sorted(filter(_is_driver_module, names), key=precedence)[:DRIVERS_MAX]


def precedence(name: str) -> tuple[int, str]:
    return (PRECEDENCE.index(name) if name in PRECEDENCE else len(PRECEDENCE), name)


def load(name: str, module_name: str = "") -> type:
    """The driver's class; `module_name` may be a module elsewhere, as MODULE or MODULE:CLASS. Raises CollectorError."""
    module_name, _, class_name = (module_name or f"{__package__}.{name}.driver").partition(":")
    module = importlib.import_module(module_name)
    for value in vars(module).values():
        is_local = isinstance(value, type) and value.__module__ == module.__name__
        if is_local and _is_driver(value) and class_name in ("", value.__name__):
            return value
    raise CollectorError(f"{module_name} has no driver class {class_name}")


def absence(name: str, options: Options) -> str:
    """Why a driver has certainly nothing to sample; "" where its process has to find out. Raises nothing."""
    try:
        check = getattr(load(name), "absence", None)
        return check(options) if check else ""
    except Exception:
        return ""


def _is_driver(value: type) -> bool:
    methods = ("open", "sample", "close")
    has_name = isinstance(getattr(value, "name", None), str)
    return has_name and all(callable(getattr(value, method, None)) for method in methods)


def _is_driver_module(name: str) -> bool:
    try:
        load(name)
    except CollectorError:
        return False
    except Exception:
        return True
    return True
