"""The protocol that every collector implements, its settings and its errors.

A collector is a class with a `name`, built as `Class(settings)`. `collect(families)` adds its series to a
`goodput.metrics.Families("node")` and raises afterwards if something failed: what was added before is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct


class NoData(Exception):
    """The device or file to collect from does not exist. Not an error."""


class CollectorError(Exception):
    """Something exists but could not be used; the text names it and its path."""


class ParseError(ValueError):
    """The text of a counter file is not in the format that the kernel documents."""


# Network interfaces: with hardware, a bond of others, IP over InfiniBand, all others (of containers, bridges, tunnels).
NETWORK_KINDS = ("physical", "bond", "infiniband", "virtual")


class Settings(Struct, frozen=True):
    """Root paths, clocks and bounds of the collectors."""

    directory: str
    sysfs: str = "/sys"
    procfs: str = "/proc"
    rootfs: str = "/"  # where the host's root is mounted
    interval_seconds: float = 1.0
    grace_seconds: float = 60.0
    keep_seconds_max: float = 86_400.0
    pages_max: int = 4096
    user_pages_max: int = 256  # of each user but root and the agent's own
    gpus_expected: int | None = None  # None: counted on the PCI bus
    gpu_interval_seconds: float = 1.0
    dcgm_endpoint: str = ""  # URL of a dcgm-exporter, such as http://127.0.0.1:9400/metrics
    dcgm_fields: str = ""  # dcgm-exporter's list of counters, a file; "" for the usual ones
    drivers: tuple[str, ...] | None = None  # GPU drivers to use; None: all
    paths: tuple[str, ...] = ()  # whose file systems are monitored, besides the network file systems
    textfile_directories: tuple[str, ...] = ()  # of *.prom files that other programs write
    probe: str = ""  # file of this node's kept `goodput probe`, "" for none
    container_logs: str = "/var/log/containers"  # where the kubelet links container logs
    pod_resources: str = "/var/lib/kubelet/pod-resources/kubelet.sock"  # the kubelet's API
    network_kinds: tuple[str, ...] = ()  # (): the first three, or all where there is none of those
    kernel_log: str = "/dev/kmsg"
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    unix_ns: Callable[[], int] = time.time_ns


class Collector(Protocol):
    name: str

    def collect(self, families) -> None: ...
