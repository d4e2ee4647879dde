"""GPU drivers: a folder each, with a class in `driver.py`. Each runs in a process of its own (supervisor.py).

A call into a driver may hang, crash or return nonsense; that costs only its own process. A driver imports its library
in `open`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol, TypeVar

from msgspec import Struct

from goodput_exporters.gpu.sample import Sample

T = TypeVar("T")

# MODULE:CLASS by name. Of two drivers that read the same value, the earlier here wins.
DRIVERS = {
    "dcgm": "goodput_exporters.gpu.dcgm.driver:Dcgm",
    "nvml": "goodput_exporters.gpu.nvml.driver:Nvml",
    "amd": "goodput_exporters.gpu.amd.driver:Amd",
    "dcgm_endpoint": "goodput_exporters.gpu.dcgm_endpoint.driver:DcgmEndpoint",
}

# Those of NVIDIA's GPUs, which have XIDs.
XID_DRIVERS = ("dcgm", "nvml", "dcgm_endpoint")


class Options(Struct, frozen=True):
    """What a driver is built with."""

    sysfs: str = "/sys"
    procfs: str = "/proc"
    dcgm_endpoint: str = ""  # URL of a dcgm-exporter, such as http://127.0.0.1:9400/metrics
    interval_seconds: float = 1.0  # between samples
    dcgm_fields: tuple[str, ...] = ()  # names of DCGM's fields to read that are not read anyway


class Driver(Protocol):
    """Built as `Class(options)`. May have a static method `absence(options)`, which the agent calls every few seconds.

    It returns why there is certainly nothing to sample, from files alone; "" where `open` has to find out. One that connects
    to a service may have a static method `is_reachable(options)`: whether that accepts connections, within a second. One that
    holds nothing between samples has `is_reopened` False: its process goes on when samples fail, and is not replaced with a
    wait.
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


def precedence(name: str) -> tuple[int, str]:
    """A sort key; drivers that are not in DRIVERS come last."""
    names = list(DRIVERS)
    return (names.index(name) if name in names else len(names)), name


def load(path: str) -> Callable[[Options], Driver]:
    """The class at MODULE:CLASS."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def absence(path: str, options: Options) -> str:
    """Why a driver has certainly nothing to sample; "" where its process has to find out. Raises nothing."""
    return _answer(path, "absence", options, "")


def is_reachable(path: str, options: Options) -> bool:
    """False where the service that a driver connects to does not accept connections. Raises nothing."""
    return _answer(path, "is_reachable", options, True)


def _answer(path: str, method: str, options: Options, otherwise: T) -> T:
    try:
        check = getattr(load(path), method, None)
        return check(options) if check else otherwise
    except Exception:
        return otherwise
