"""node_exporter on the same trees as an oracle for network and InfiniBand values, and where it is known to differ.

Differences of version 1.5, each shown here:
- One RDMA device without a directory of standard counters (EFA, ionic) and it exposes no RDMA device at all; so it
  does where one file of one of them is malformed. Here each costs no other.
- An unknown speed, -1, comes out as -125000 bytes per second. Here it is absent.
- It takes drops from /proc/net/dev, where the kernel adds packets missed for want of a buffer to those dropped.
  Here they are the kernel's rx_dropped alone, as /sys has it.
- It has no counters of drivers (hw_counters), so nothing of EFA, congestion or retransmits.
"""

from __future__ import annotations

import re
import subprocess
import time

import httpx
import pytest
from support.node import network_tree
from support.node.node_tree import samples, write_tree
from support.servers.servers import free_ports, require

from goodput.metrics import Families
from goodput_exporters.collector import NETWORK_KINDS, CollectorError, Settings
from goodput_exporters.collectors.ethernet.collector import Ethernet
from goodput_exporters.collectors.infiniband.collector import InfiniBand

PROGRAM = "prometheus-node-exporter"
READY_SECONDS_MAX = 60
SAMPLE = re.compile(r"(node_\w+)\{(.*)\} (\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')

BYTES, PACKETS = "goodput_infiniband_bytes_total", "goodput_infiniband_packets_total"
TRAFFIC = {
    "port_data_transmitted_bytes": (BYTES, "transmit"),
    "port_data_received_bytes": (BYTES, "receive"),
    "port_packets_transmitted": (PACKETS, "transmit"),
    "port_packets_received": (PACKETS, "receive"),
}
KINDS = {
    "symbol_error": "symbol_error",
    "link_error_recovery": "link_error_recovery",
    "link_downed": "link_downed",
    "port_errors_received": "port_rcv_errors",
    "port_receive_remote_physical_errors": "port_rcv_remote_physical_errors",
    "port_receive_switch_relay_errors": "port_rcv_switch_relay_errors",
    "port_discards_transmitted": "port_xmit_discards",
    "port_constraint_errors_transmitted": "port_xmit_constraint_errors",
    "port_constraint_errors_received": "port_rcv_constraint_errors",
    "local_link_integrity_errors": "local_link_integrity_errors",
    "excessive_buffer_overrun_errors": "excessive_buffer_overrun_errors",
    "vl15_dropped": "vl15_dropped",
}
PHYSICAL = {5: "link_up", 2: "polling"}
NETWORK = {
    "bytes": "goodput_network_bytes_total",
    "packets": "goodput_network_packets_total",
    "errs": "goodput_network_errors_total",
}
# What it has and we have not: the packets by kind of address, of which the packets above are the sums; and what is
# compared otherwise.
LEFT_OUT = {
    "node_infiniband_unicast_packets_received_total",
    "node_infiniband_unicast_packets_transmitted_total",
    "node_infiniband_multicast_packets_received_total",
    "node_infiniband_multicast_packets_transmitted_total",
    "node_infiniband_info",
    "node_infiniband_state_id",
    "node_infiniband_physical_state_id",
}


def theirs(root) -> dict:
    """{(name, device, port): value} of node_exporter on the tree."""
    (port,) = free_ports(1)
    command = [
        PROGRAM, f"--path.sysfs={root}/sys", f"--path.procfs={root}/proc", "--collector.disable-defaults",
        "--collector.infiniband", "--collector.netclass", "--collector.netdev",
        # It would ask the running kernel, not the tree.
        "--no-collector.netdev.netlink", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        text = page(f"http://127.0.0.1:{port}/metrics", process)
    finally:
        process.terminate()
        process.wait(120)
    found = {}
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match:
            labels = dict(LABEL.findall(match[2]))
            found[match[1], labels.get("device"), labels.get("port")] = float(match[3])
    return found


def page(url: str, process) -> str:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while True:
        assert process.poll() is None, "node_exporter ended"
        try:
            return httpx.get(url, timeout=5, trust_env=False).text
        except httpx.TransportError:
            assert time.monotonic() < deadline, "node_exporter does not answer"
            time.sleep(0.02)


def ours(root, problem: str | None = None) -> dict:
    settings = Settings("", sysfs=f"{root}/sys", procfs=f"{root}/proc", network_kinds=NETWORK_KINDS)
    families = Families("node")
    for collector in (InfiniBand(settings), Ethernet(settings)):
        try:
            collector.collect(families)
        except CollectorError as error:
            assert problem is not None and problem in str(error), error
    return samples(families)


def same(name: str, device: str, port: str | None) -> tuple | None:
    """The key under which we have one of their samples, None where we should not have it."""
    part = name.removeprefix("node_infiniband_").removesuffix("_total")
    if part in TRAFFIC:
        series, direction = TRAFFIC[part]
        return series, (device, direction, port)
    if part in KINDS:
        return "goodput_infiniband_errors_total", (device, KINDS[part], port)
    if part == "port_transmit_wait":
        return "goodput_infiniband_xmit_wait_ticks_total", (device, port)
    if part == "rate_bytes_per_second":
        return "goodput_infiniband_rate_bytes_per_second", (device, port)
    network = re.fullmatch(r"node_network_(receive|transmit)_(bytes|packets|errs)_total", name)
    if network:
        return NETWORK[network[2]], (device, network[1])
    return {
        "node_network_carrier": ("goodput_network_up", (device,)),
        "node_network_carrier_changes_total": ("goodput_network_carrier_changes_total", (device,)),
        "node_network_speed_bytes": ("goodput_network_speed_bytes_per_second", (device,)),
    }.get(name)


@pytest.fixture
def tree(tmp_path):
    """RDMA devices of which node_exporter can read every one, and interfaces, in both of the kernel's places."""
    require(PROGRAM)
    whole = network_tree.devices()
    network_tree.write(
        tmp_path, {name: text for name, text in whole.items() if not name.startswith(("rdmap", "ionic"))}
    )
    write_tree(tmp_path)
    lines = [
        "Inter-|   Receive |  Transmit",
        " face |bytes packets errs drop fifo frame compressed multicast|bytes ...",
    ]
    for device in ("eth0", "eth1", "docker0"):
        at = tmp_path / "sys/class/net" / device / "statistics"
        (at / "rx_missed_errors").write_text("1000\n")
        read = {path.name: int(path.read_text()) for path in at.iterdir()}
        receive = [
            read["rx_bytes"],
            read["rx_packets"],
            read["rx_errors"],
            read["rx_dropped"] + read["rx_missed_errors"],
        ]
        transmit = [read["tx_bytes"], read["tx_packets"], read["tx_errors"], read["tx_dropped"]]
        lines.append(" ".join(map(str, (f"{device}:", *receive, 0, 0, 0, 0, *transmit, 0, 0, 0, 0))))
    (tmp_path / "proc/net/dev").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_value_for_value(tree):
    them, us = theirs(tree), ours(tree)
    compared, unknown = {}, set()
    for (name, device, port), value in them.items():
        key = same(name, device, port)
        # The loopback interface is left out here, as all its series are.
        if device == "lo" or (name == "node_network_speed_bytes" and value < 0):
            continue
        if key is None:
            unknown.add(name)
            continue
        assert us.get(key) == value, (name, device, port)
        compared[key] = value
    assert not {name for name in unknown if name.startswith("node_infiniband")} - LEFT_OUT
    # All of ours that can be among theirs were, so that nothing is compared with nothing.
    series = {key[0] for key in compared}
    assert len(series) == 11 and len(compared) > 100
    own = set(network_tree.MLX5 + network_tree.BNXT)
    standard = {key for key in us if key[0] in series and key[1][0] != "bnxt_re0" and not own & set(key[1])}
    assert standard == {key for key in compared if key[1][0] != "bnxt_re0"}


def test_states(tree):
    them, us = theirs(tree), ours(tree)
    ports = [(device, port) for name, device, port in them if name == "node_infiniband_state_id"]
    assert len(ports) == 6
    for device, port in ports:
        logical = them["node_infiniband_state_id", device, port]
        physical = them["node_infiniband_physical_state_id", device, port]
        assert us["goodput_infiniband_up", (device, port)] == (logical == 4)
        assert us["goodput_infiniband_state", (device, "physical", port, PHYSICAL[physical])] == 1


def test_node_exporter_differs_in_speed_and_drops(tree):
    them, us = theirs(tree), ours(tree)
    assert them["node_network_speed_bytes", "eth1", None] == -125_000
    assert ("goodput_network_speed_bytes_per_second", ("eth1",)) not in us
    drops = us["goodput_network_drops_total", ("eth0", "receive")]
    assert them["node_network_receive_drop_total", "eth0", None] == drops + 1000
    assert (
        them["node_network_transmit_drop_total", "eth0", None]
        == us["goodput_network_drops_total", ("eth0", "transmit")]
    )


def test_node_exporter_differs_without_standard_counters(tree):
    network_tree.write(tree, network_tree.devices())
    them, us = theirs(tree), ours(tree)
    assert not [name for name, _, _ in them if name.startswith("node_infiniband")]
    assert {key[1][0] for key in us if key[0] == BYTES} == {
        "mlx5_0", "mlx5_10", "rdmap0s31", "bnxt_re0", "ionic_0", "hfi1_0", "mthca0",
    }  # fmt: skip


def test_node_exporter_differs_for_malformed_files(tree):
    whole = ours(tree)
    network_tree.write(tree, {"mlx5_0/ports/1/counters/symbol_error": "junk\n"})
    them, us = theirs(tree), ours(tree, problem="mlx5_0/ports/1/counters/symbol_error")
    assert not [name for name, _, _ in them if name.startswith("node_infiniband")]
    assert len(whole) - len(us) == 1
