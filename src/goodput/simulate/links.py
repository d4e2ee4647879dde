"""A node's Ethernet interfaces and its InfiniBand ports."""

from __future__ import annotations

import numpy as np


def add(node) -> None:
    _ethernet(node)
    _infiniband(node)


def _ethernet(node) -> None:
    for device, up, speed in (("eth0", 1, 12.5e9), ("eth1", 0, None), ("docker0", 1, None)):
        node.gauge("goodput_network_up", up, device=device)
        node.counter("goodput_network_carrier_changes_total", 0, device=device)
        if speed:
            node.gauge("goodput_network_speed_bytes_per_second", speed, device=device)
        for direction in ("receive", "transmit"):
            labels = {"device": device, "direction": direction}
            rate = (0.6e9 * node.traffic + 6e9 * node.saving) * (device == "eth0") + 1e4
            node.counter("goodput_network_bytes_total", rate, **labels)
            node.counter("goodput_network_packets_total", rate / 4000, **labels)
            node.counter("goodput_network_errors_total", 0, **labels)
            node.counter("goodput_network_drops_total", 0, **labels)
    # Containers come and go all day.
    node.rare_events("goodput_network_carrier_changes_total", 60, 8, device="docker0")
    paused = {"device": "eth0", "direction": "receive", "priority": "3"}
    rate = 0.002 * node.traffic + 0.02 * node.saving
    node.counter("goodput_network_pause_seconds_total", rate, **paused)


def _infiniband(node) -> None:
    for device, line_rate, share in (("mlx5_0", 50e9, 0.5), ("mlx5_9", 25e9, 0.02)):
        port = {"device": device, "port": "1"}
        info = {"link_layer": "InfiniBand", "driver": "mlx5_core", "netdev": "", "pci": "", "numa": "0"}
        info |= {"firmware": "28.40", "board": f"MT_{device}", "node_guid": f"{node.name}:{device}"}
        node.gauge("goodput_infiniband_info", 1, **port, **info)
        node.gauge("goodput_infiniband_up", 1, **port)
        node.gauge("goodput_infiniband_rate_bytes_per_second", line_rate, **port)
        for direction in ("receive", "transmit"):
            sent = line_rate * share * node.traffic * np.clip(1 + node.noise(0.05), 0, 1.2)
            node.counter("goodput_infiniband_bytes_total", sent, **port, direction=direction)
            node.counter("goodput_infiniband_packets_total", sent / 4096, **port, direction=direction)
        marked = line_rate * share * node.traffic / 4096 * 0.004
        name = "goodput_infiniband_congestion_total"
        node.counter(name, marked, **port, kind="np_ecn_marked_roce_packets")
        node.counter(name, 2 * node.traffic, **port, kind="out_of_buffer")
        node.counter("goodput_infiniband_errors_total", 0, **port, kind="link_downed")
        node.counter("goodput_infiniband_xmit_wait_ticks_total", 2e5 * node.traffic, **port)
        name = "goodput_infiniband_retransmits_total"
        node.rare_events(name, 4, 40, **port, kind="local_ack_timeout_err")
