"""Series of a host: processors, memory, pressure, disks, TCP."""

from __future__ import annotations

from goodput.metrics.metric import declare

SERIES = declare(
    "node",
    [
        ("goodput_host_cpu_seconds_total", "counter", "seconds", "mode", "CPU time of the host by mode."),
        ("goodput_host_cpus", "gauge", "", "", "Processors that are on line."),
        ("goodput_host_load1_ratio", "gauge", "", "", "One-minute load average per processor."),
        ("goodput_host_memory_bytes", "gauge", "bytes", "kind", "Host memory: total, available, cached, dirty."),
        ("goodput_host_pressure_seconds_total", "counter", "seconds", "resource kind",
         "Time in which some or all (full) tasks waited for cpu, memory or io (PSI)."),
        ("goodput_host_disk_bytes_total", "counter", "bytes", "device direction", "Bytes read from and written to a disk."),
        ("goodput_host_disk_busy_seconds_total", "counter", "seconds", "device", "Time in which the disk had requests."),
        ("goodput_host_tcp_retransmits_total", "counter", "", "", "TCP segments sent again."),
    ],
)  # fmt: skip
