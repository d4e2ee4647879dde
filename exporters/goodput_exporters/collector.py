"""What every collector is written against: its protocol, its settings, its errors, and how it reads a counter file.

A collector is a class with a `name`, built as `Class(settings)`. Its `collect(families)` adds what it can to a
`goodput.metrics.Families("node")` and then raises if something was wrong: what was added before is kept. `NoData`
says that the device or file is absent, which is not an error. `collector_runner` times and counts.
"""

from __future__ import annotations

import errno
import os
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
