"""Collectors: one source of series per file of this folder, found here by being in it.

In: `Settings` (root paths, clocks, bounds). Out: values added to a `goodput.metrics.Families("node")`.

A collector is a class with a `name`, built as `Class(settings)`. Its `collect(families)` adds what it can
and then, if something was wrong, raises: what was added before is kept. `NoData` says that the device or file
is absent, which is not an error. The loop (lane.py) times and counts; a collector does neither. Adding one is
one new file here; a file that cannot be imported becomes a collector that fails, so it is seen as a series.

    for Class in discover():
        Class(settings).collect(families)
"""

from __future__ import annotations

import errno
import importlib
import os
import pkgutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

# What a missing file or device answers with: no such entry, no such device, a device that has no such value
# (sysfs), pressure accounting switched off at boot (procfs).
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.EINVAL, errno.EOPNOTSUPP)


class NoData(Exception):
    """The thing to collect from is not there. Not an error."""


class CollectorError(Exception):
    """Something was there and could not be used; the text says what and where."""


class ParseError(ValueError):
    """A counter file whose text is not what the kernel documents."""


@dataclass(frozen=True)
class Settings:
    """Where a collector may look, its clocks and its bounds."""

    directory: str
    sysfs: str = "/sys"
    procfs: str = "/proc"
    interval_seconds: float = 1.0
    grace_seconds: float = 60.0
    keep_seconds_max: float = 86_400.0
    pages_max: int = 4096
    # None: counted on the PCI bus.
    gpus_expected: int | None = None
    gpu_interval_seconds: float = 1.0
    # Of a dcgm-exporter, as http://127.0.0.1:9400/metrics; "" for none.
    dcgm_endpoint: str = ""
    # GPU drivers to ask; None: all there are.
    drivers: tuple[str, ...] | None = None
    # Whose file systems are watched, besides those of the network.
    paths: tuple[str, ...] = ()
    # Where the kubelet links the logs of containers, by names that say whose they are.
    container_logs: str = "/var/log/containers"
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    unix_ns: Callable[[], int] = time.time_ns


class Collector(Protocol):
    name: str

    def collect(self, families) -> None: ...


def discover() -> list[type]:
    """The collector class of each module in this folder, by module name."""
    return [_load(info.name) for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name)]


def _load(module_name: str) -> type:
    try:
        module = importlib.import_module(f"{__name__}.{module_name}")
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module.__name__ and _is_collector(value):
                return value
        problem = f"collectors/{module_name}.py has no class with a name and collect()"
    except Exception as error:
        problem = f"collectors/{module_name}.py: {error}"
    return _broken(module_name, problem)


def _is_collector(value: type) -> bool:
    return isinstance(getattr(value, "name", None), str) and callable(getattr(value, "collect", None))


def _broken(module_name: str, problem: str) -> type:
    class Broken:
        name = module_name

        def __init__(self, settings: Settings):
            pass

        def collect(self, families) -> None:
            raise CollectorError(problem)

    return Broken


def read_text(path: str, bytes_max: int = 1 << 20) -> str | None:
    """A counter file's text, None where it is absent. Raises CollectorError where it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            # A file of many records, as vmstat or mountinfo, gives no more than some 4 KiB to one read.
            text = b""
            while len(text) < bytes_max and (part := os.read(fd, min(1 << 16, bytes_max - len(text)))):
                text += part
            return text.decode("utf-8", "replace")
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise CollectorError(f"{path}: {error.strerror}") from None


def parse_count(text: str) -> int:
    """A non-negative decimal number as the kernel prints it. Raises ParseError."""
    if text.isascii() and text.isdigit() and len(text) <= 20:
        return int(text)
    raise ParseError(f"{text[:40]!r} is no count")
