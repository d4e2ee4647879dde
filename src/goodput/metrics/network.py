"""Series of network interfaces and InfiniBand ports."""

from __future__ import annotations

from goodput.metrics.metric import declare

SERIES = declare(
    "node",
    [
        ("goodput_network_bytes_total", "counter", "bytes", "device direction", "Bytes through a network interface."),
        ("goodput_network_packets_total", "counter", "", "device direction", "Packets through a network interface."),
        ("goodput_network_errors_total", "counter", "", "device direction", "Errors of a network interface."),
        ("goodput_network_drops_total", "counter", "", "device direction", "Packets dropped by a network interface."),
        ("goodput_network_speed_bytes_per_second", "gauge", "bytes per second", "device",
         "Line rate of a network interface, where known."),
        ("goodput_network_up", "gauge", "bool", "device", "1 if the interface has carrier."),
        ("goodput_network_carrier_changes_total", "counter", "", "device", "Times the link went up or down."),
    ],
)  # fmt: skip
