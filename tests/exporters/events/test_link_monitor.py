"""Links that go down, come back, flap, vanish and retransmit, on a sysfs tree that changes between polls."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.node import network_tree
from support.node.network_tree import counters, port

from goodput_exporters.events import link_monitor
from goodput_exporters.events.link_monitor import (
    GONE_MAX,
    LINKS_MAX,
    RDMA_PER_SECOND,
    TCP_PER_SECOND,
    LinkMonitor,
)
from goodput_exporters.system import files

WINDOW_SECONDS = link_monitor.WINDOW_NS / 1e9
AGAIN = "hw_counters/local_ack_timeout_err"


class Net:
    """The tree under a node's links, and what a poll reports, as (kind, device, severity)."""

    def __init__(self, tree: Path, settings, clock):
        self.tree, self.clock = tree, clock
        self.links = LinkMonitor(replace(settings, monotonic_ns=clock.monotonic_ns))

    def interface(self, name: str, **files: object) -> None:
        for file, text in files.items():
            self.write(f"sys/class/net/{name}/{file}", text)

    def rdma(self, at: str, **files: object) -> None:
        device, number = at.split("/")
        for file, text in files.items():
            self.write(f"{network_tree.ROOT}/{device}/ports/{number}/{file.replace('__', '/')}", text)

    def write(self, name: str, text: object) -> None:
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def tcp(self, again: int, sent: int) -> None:
        self.write("proc/net/snmp", f"Tcp: OutSegs RetransSegs\nTcp: {sent} {again}")

    def poll(self, after_seconds: float = 2.0) -> list[tuple[str, str, str]]:
        self.clock.seconds += after_seconds
        return [(event.kind, event.device, event.severity) for event in self.links.poll()]


@pytest.fixture
def net(tree, settings, clock):
    network_tree.write(tree, {**port("mlx5_0"), **counters("mlx5_0", ["link_downed"], 0)})
    network_tree.write(
        tree, counters("mlx5_0", ["local_ack_timeout_err", "packet_seq_err"], 0, "hw_counters")
    )
    found = Net(tree, settings, clock)
    assert found.poll() == []
    return found


def test_link_down_and_up_are_reported_once(net):
    net.interface("eth0", carrier=0, carrier_changes=4)
    assert net.poll() == [("link_down", "eth0", "warning")]
    assert net.poll() == []
    net.interface("eth0", carrier=1, carrier_changes=5)
    assert net.poll() == [("link_up", "eth0", "info")]
    assert net.poll() == []
    net.rdma("mlx5_0/1", state="1: DOWN", counters__link_downed=1)
    (event,) = net.links.poll()
    assert (event.kind, event.device, event.severity) == ("link_down", "mlx5_0/1", "critical")
    assert event.time_ns == net.clock.unix_ns() and event.text
    net.rdma("mlx5_0/1", state="2: INIT")
    assert net.poll() == []
    net.rdma("mlx5_0/1", state="4: ACTIVE")
    assert net.poll() == [("link_up", "mlx5_0/1", "info")]


def test_link_never_up_is_not_down(net):
    """eth1 of the fixture has no carrier; docker0 has no device behind it."""
    net.interface("docker0", carrier=0, carrier_changes=9)
    assert net.poll() == []
    net.interface("eth1", carrier=1, carrier_changes=1)
    assert net.poll() == []
    net.interface("eth1", carrier=0, carrier_changes=2)
    assert net.poll() == [("link_down", "eth1", "warning")]


def test_link_down_between_polls_has_flapped(net):
    net.interface("eth0", carrier_changes=5)
    assert net.poll() == [("link_flap", "eth0", "warning")]
    net.rdma("mlx5_0/1", counters__link_downed=1)
    assert net.poll() == [("link_flap", "mlx5_0/1", "critical")]
    assert net.poll() == []
    # A counter that begins anew, or was not there for a while, has not grown.
    net.interface("eth0", carrier_changes=0)
    assert net.poll() == []
    (net.tree / "sys/class/net/eth0/carrier_changes").unlink()
    assert net.poll() == []
    net.interface("eth0", carrier_changes=0)
    assert net.poll() == []
    net.interface("eth0", carrier_changes=2)
    assert net.poll() == [("link_flap", "eth0", "warning")]


def test_administratively_down_interface_is_down(net):
    """The kernel returns EINVAL for `carrier` then; here the file is missing, which has the same effect."""
    net.interface("eth0", operstate="down")
    assert net.poll() == []  # its carrier says otherwise
    (net.tree / "sys/class/net/eth0/carrier").unlink()
    assert net.poll() == [("link_down", "eth0", "warning")]
    net.interface("eth0", operstate="up", carrier=1, carrier_changes=5)
    assert net.poll() == [("link_up", "eth0", "info")]


def test_unreadable_and_malformed_files_are_ignored(net, monkeypatch):
    for text in ("", "perhaps", "-1", "1 1"):
        net.interface("eth0", carrier=text, carrier_changes=text)
        net.rdma(
            "mlx5_0/1",
            state=text.replace("1", "up"),
            counters__link_downed=text,
            hw_counters__local_ack_timeout_err=text,
        )
        net.write("proc/net/snmp", text)
        assert net.poll(WINDOW_SECONDS) == [], text
    (net.tree / "sys/class/net/eth0/carrier").unlink()
    (net.tree / "sys/class/net/eth0/carrier").mkdir()
    assert net.poll() == []

    def refused(path, *_):
        raise link_monitor.CollectorError(f"{path}: Input/output error")

    with (
        monkeypatch.context() as broken
    ):  # A folder that cannot be listed does not say that all in it is gone.
        broken.setattr(link_monitor, "list_names", refused)
        assert net.poll() == []
    with monkeypatch.context() as broken:
        broken.setattr(files, "read_text", refused)
        assert net.poll() == []
    (net.tree / "sys/class/net/eth0/carrier").rmdir()
    net.interface("eth0", carrier=0)
    net.rdma("mlx5_0/1", state="1: DOWN")
    assert [kind for kind, _, _ in net.poll()] == ["link_down", "link_down"]


def test_gone_device_is_down_until_it_returns(net):
    shutil.move(net.tree / "sys/class/net/eth0", net.tree / "eth0")
    shutil.move(net.tree / network_tree.ROOT, net.tree / "infiniband")
    assert net.poll() == [("link_down", "eth0", "warning"), ("link_down", "mlx5_0/1", "critical")]
    shutil.rmtree(net.tree / "sys/class/net/eth1")  # was never up
    assert net.poll() == []
    shutil.move(net.tree / "eth0", net.tree / "sys/class/net/eth0")
    shutil.move(net.tree / "infiniband", net.tree / network_tree.ROOT)
    net.rdma("mlx5_0/1", state="1: DOWN")
    assert net.poll() == [("link_up", "eth0", "info")]
    net.rdma("mlx5_0/1", state="4: ACTIVE")
    assert net.poll() == [("link_up", "mlx5_0/1", "info")]


def test_retransmits_are_reported_at_onset(net):
    reported, count = [], 0
    for a_second in (0, RDMA_PER_SECOND + 1, 5000, 5000, RDMA_PER_SECOND, 0, RDMA_PER_SECOND + 1):
        count += int(a_second * WINDOW_SECONDS)
        net.rdma("mlx5_0/1", **{AGAIN.replace("/", "__"): count})
        reported.append(net.poll(WINDOW_SECONDS))
    storm = [("retransmits", "mlx5_0/1", "warning")]
    assert reported == [[], storm, [], [], [], [], storm]


def test_retransmits_sum_all_port_counters(net):
    share = int(0.6 * RDMA_PER_SECOND * WINDOW_SECONDS)
    net.rdma("mlx5_0/1", hw_counters__local_ack_timeout_err=share, hw_counters__packet_seq_err=1)
    assert net.poll(WINDOW_SECONDS) == []
    net.rdma("mlx5_0/1", hw_counters__local_ack_timeout_err=2 * share, hw_counters__packet_seq_err=share)
    assert net.poll(WINDOW_SECONDS) == [("retransmits", "mlx5_0/1", "warning")]


def test_reset_counters_are_no_retransmits(net):
    first, second = "hw_counters__local_ack_timeout_err", "hw_counters__packet_seq_err"
    net.rdma("mlx5_0/1", **{first: 10**9, second: 10**9})
    assert net.poll(WINDOW_SECONDS)  # a storm indeed
    assert net.poll(WINDOW_SECONDS) == []
    folder = net.tree / network_tree.ROOT / "mlx5_0/ports/1/hw_counters"
    shutil.move(folder, net.tree / "aside")
    assert net.poll(WINDOW_SECONDS) == []
    shutil.move(net.tree / "aside", folder)
    assert net.poll(WINDOW_SECONDS) == []
    net.rdma("mlx5_0/1", **{first: 3, second: 10**9 + int(2 * RDMA_PER_SECOND * WINDOW_SECONDS)})
    assert net.poll(WINDOW_SECONDS) == [("retransmits", "mlx5_0/1", "warning")]


def test_tcp_retransmits_need_a_share_of_segments(net):
    window, many = WINDOW_SECONDS, int(2 * TCP_PER_SECOND * WINDOW_SECONDS)
    net.tcp(0, 0)
    net.poll(window)
    for again, sent, storm in (
        (many, 200 * many, []),
        (many, 10 * many, [("retransmits", "tcp", "warning")]),
    ):
        net.tcp(again, sent)
        assert net.poll(window) == storm
        net.tcp(0, 0)  # The host's counters began anew.
        assert net.poll(window) == []
    few = int(0.5 * TCP_PER_SECOND * window)
    net.tcp(few, few)
    assert net.poll(window) == []


def test_polls_within_a_window_report_at_its_end(net):
    reported = []
    for poll in range(1, 11):
        net.rdma("mlx5_0/1", hw_counters__local_ack_timeout_err=poll * 2 * 5 * RDMA_PER_SECOND)
        reported += [(poll, *event) for event in net.poll(2.0)]
    assert reported == [(5, "retransmits", "mlx5_0/1", "warning")]


def test_virtual_interfaces_do_not_use_up_the_limit(net):
    for number in range(LINKS_MAX + 1):
        net.interface(f"cali{number}", carrier=1)
    net.interface("eth0", carrier=0)
    assert net.poll() == [("link_down", "eth0", "warning")]


def test_gone_names_are_forgotten(net):
    for number in range(3 * GONE_MAX):
        name = f"vf{number}"
        net.interface(name, carrier=1, carrier_changes=1, device="x")
        network_tree.write(net.tree, {**port(name), **counters(name, ["packet_seq_err"], 0, "hw_counters")})
        assert net.poll() == []
        shutil.rmtree(net.tree / "sys/class/net" / name)
        shutil.rmtree(net.tree / network_tree.ROOT / name)
        assert {kind for kind, _, _ in net.poll()} == {"link_down"}
    held = (net.links._up, net.links._changes, net.links._retransmits, net.links._retransmitting)
    assert max(map(len, held)) <= GONE_MAX + 8
