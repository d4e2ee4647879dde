"""A node's processors, memory, disks, file systems and sensors."""

from __future__ import annotations

import numpy as np

CPUS = 128
MEMORY_BYTES = 2 << 40
DAY_SECONDS = 86_400.0


def add(node) -> None:
    _pressure(node)
    _disk(node)
    _filesystems(node)
    _processors(node)
    _memory(node)
    _lustre(node)
    _nfs(node)
    _machine(node)


def _pressure(node) -> None:
    pressures = {
        ("cpu", "some"): 0.12 * node.traffic,
        ("io", "some"): 0.02 + 0.4 * node.saving,
        ("io", "full"): 0.004 + 0.3 * node.saving,
        ("memory", "some"): 0.001,
        ("memory", "full"): 0,
    }
    for (resource, kind), rate in pressures.items():
        node.counter("goodput_host_pressure_seconds_total", rate, resource=resource, kind=kind)
    node.counter("goodput_host_tcp_retransmits_total", 0.4 + np.abs(node.noise(0.3)))
    node.rare_events("goodput_host_tcp_retransmits_total", 6, 500)


def _disk(node) -> None:
    disk = {"device": "nvme0n1"}
    node.counter("goodput_host_disk_busy_seconds_total", 0.05 + 0.9 * node.saving, **disk)
    node.gauge("goodput_host_disk_in_flight", 2 + 20 * node.saving, **disk)
    operations = 150 + 3000 * node.saving
    node.counter("goodput_host_disk_operations_total", operations, **disk, direction="write")
    seconds = operations * (0.0004 + 0.02 * node.saving)
    node.counter("goodput_host_disk_operation_seconds_total", seconds, **disk, direction="write")
    for direction, rate in {"write": 131_072 * operations, "read": 3e8}.items():
        node.counter("goodput_host_disk_bytes_total", rate, **disk, direction=direction)


def _filesystems(node) -> None:
    # Scratch fills with checkpoints, and old ones are removed every night; the shared one hardly moves.
    of_day = (node.times % DAY_SECONDS) / DAY_SECONDS
    for mount, fstype, source, size, free in (
        ("/scratch", "xfs", "/dev/nvme0n1p1", 7e12, 0.7 - 0.48 * of_day),
        ("/shared", "lustre", "10.4.0.1@o2ib:/data", 2e15, 0.31 - 0 * of_day),
        ("/home", "nfs4", "10.4.0.9:/home", 5e13, 0.4 - 0 * of_day),
    ):
        node.gauge("goodput_filesystem_info", 1, mount=mount, fstype=fstype, source=source)
        node.gauge("goodput_filesystem_up", 1, mount=mount)
        node.gauge("goodput_filesystem_readonly", 0, mount=mount)
        node.gauge("goodput_filesystem_response_seconds", 4e-4, mount=mount)
        node.gauge("goodput_filesystem_size_bytes", size, mount=mount)
        available = size * np.clip(free + node.noise(0.002), 0, 1)
        node.gauge("goodput_filesystem_available_bytes", available, mount=mount)
        node.gauge("goodput_filesystem_inodes", 1e9, mount=mount, kind="total")
        node.gauge("goodput_filesystem_inodes", 6e8, mount=mount, kind="free")


def _processors(node) -> None:
    shares = {"user": 0.06 + 0.3 * node.traffic, "system": 0.05, "iowait": 0.01 + 0.1 * node.saving}
    shares["idle"] = 1 - sum(shares.values())
    for mode, share in shares.items():
        node.counter("goodput_host_cpu_seconds_total", CPUS * share, mode=mode)
    node.gauge("goodput_host_cpus", CPUS)
    node.gauge("goodput_host_load1_ratio", shares["user"])
    node.gauge("goodput_host_processes_blocked", 12 * node.saving)
    for name in ("oom_kills", "major_faults"):
        node.counter(f"goodput_host_{name}_total", 0)


def _memory(node) -> None:
    kinds = {"total": 1.0, "available": 0.65, "cached": 0.25, "dirty": 1e-4, "shared": 0.004}
    for kind, share in {**kinds, "swap_total": 0, "swap_free": 0}.items():
        node.gauge("goodput_host_memory_bytes", share * MEMORY_BYTES, kind=kind)
    for numa in ("0", "1"):
        for kind, share in {"total": 1.0, "free": 0.58, "file": 0.22}.items():
            node.gauge("goodput_numa_memory_bytes", share * MEMORY_BYTES / 2, node=numa, kind=kind)
        node.gauge("goodput_numa_cpus", CPUS // 2, node=numa)
        for kind, rate in {"hit": 9e4, "miss": 120, "foreign": 120, "local": 8.9e4, "other": 900}.items():
            node.counter("goodput_numa_pages_total", rate, node=numa, kind=kind)


def _lustre(node) -> None:
    for direction, rate in {"read": 4e8, "write": 7e7}.items():
        labels = {"filesystem": "data", "direction": direction}
        node.counter("goodput_lustre_bytes_total", rate, **labels)
    for operation, rate, seconds in (("read", 450, 0.002), ("write", 70, 0.003), ("open", 12, 0.001)):
        labels = {"filesystem": "data", "operation": operation}
        node.counter("goodput_lustre_operations_total", rate, **labels)
        node.counter("goodput_lustre_operation_seconds_total", rate * seconds, **labels)


def _nfs(node) -> None:
    """Home directories: little is read, and most of that from the page cache."""
    for direction, rate in {"read": 2e6, "write": 1e5}.items():
        for side, share in {"application": 1.0, "server": 0.1}.items():
            labels = {"mount": "/home", "direction": direction, "side": side}
            node.counter("goodput_nfs_bytes_total", share * rate, **labels)
    for operation, rate, seconds in (("GETATTR", 40, 0.0004), ("READ", 12, 0.0011), ("WRITE", 2, 0.0025)):
        labels = {"mount": "/home", "operation": operation}
        for name in ("operations", "transmissions"):
            node.counter(f"goodput_nfs_{name}_total", rate, **labels)
        for name in ("timeouts", "errors"):
            node.counter(f"goodput_nfs_{name}_total", 0, **labels)
        for part, share in {"queue": 0.02, "response": 0.95, "total": 1.0}.items():
            name = "goodput_nfs_operation_seconds_total"
            node.counter(name, share * rate * seconds, **labels, part=part)


def _machine(node) -> None:
    """Two sockets and an NVMe disk, warmer under load; one module has had a few correctable errors."""
    for number in ("0", "1"):
        sensor = {"chip": "coretemp", "device": f"coretemp.{number}", "sensor": f"Package id {number}"}
        _sensor(node, sensor, 42 + 25 * node.traffic, 98)
        for kind in ("core", "package"):
            node.counter("goodput_host_cpu_throttles_total", 0, package=number, kind=kind)
        for kind in ("correctable", "uncorrectable"):
            node.counter("goodput_host_memory_errors_total", 0, controller=number, kind=kind)
    _sensor(node, {"chip": "nvme", "device": "nvme0", "sensor": "Composite"}, 38 + 20 * node.saving, 85)
    module = {"controller": "0", "module": "dimm3", "slot": "CPU0_DIMM_B1", "kind": "correctable"}
    node.gauge("goodput_host_memory_module_errors_total", 3, **module)
    node.gauge("goodput_host_nvme_up", 1, device="nvme0")
    nvme = {"device": "nvme0", "model": "SAMSUNG MZQL23T8HCLS", "firmware": "GDC5602Q", "state": "live"}
    node.gauge("goodput_host_nvme_info", 1, **nvme)
    for warning in ("spare", "temperature", "reliability", "read_only"):
        node.gauge("goodput_host_nvme_warning", 0, device="nvme0", warning=warning)
    for name, value in (("wear_ratio", 0.12), ("spare_ratio", 1.0), ("media_errors_total", 0)):
        node.gauge(f"goodput_host_nvme_{name}", value, device="nvme0")
    for name, rate in (("packets", 2e5 * node.traffic), ("dropped", 0), ("squeezed", 0.02)):
        node.counter(f"goodput_host_softnet_{name}_total", rate)
    node.gauge("goodput_host_clock_synchronised", 1)
    node.gauge("goodput_host_clock_correction_seconds", 2e-5 + node.noise(4e-6))
    for kind, seconds in (("estimated", 1e-4), ("maximum", 4e-3)):
        node.gauge("goodput_host_clock_error_seconds", seconds, kind=kind)
    for kind, share in (("busy", 0.5 + 0.3 * node.traffic), ("interrupt", 0.1 + 0.2 * node.traffic)):
        node.counter("goodput_host_processor_seconds_total", share, cpu="0", kind=kind)
    node.gauge("goodput_host_huge_pages", 0, page_bytes=str(2 << 20), kind="free")


def _sensor(node, labels: dict[str, str], celsius, limit: float) -> None:
    node.gauge("goodput_host_temperature_celsius", celsius + node.noise(0.4), **labels)
    node.gauge("goodput_host_temperature_limit_celsius", limit, **labels, kind="crit")
    node.gauge("goodput_host_temperature_alarm", 0, **labels)
