"""Network interfaces: parsers on any text, the collector on fixture trees and broken ones, drivers' own counters."""

import contextlib
import os
import shutil
import socket

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.node.broken_files import BREAKS, break_file, exposition, parse_or_raise
from support.node.node_tree import samples

from goodput.metrics import Families
from goodput_exporters.collector import NETWORK_KINDS, CollectorError, NoData, ParseError
from goodput_exporters.collectors.ethernet import collector
from goodput_exporters.collectors.ethernet.collector import DEVICES_MAX, ETHTOOL_SECONDS, Ethernet
from goodput_exporters.system.network import parse_carrier, parse_speed


@pytest.fixture
def settings(settings):
    """All kinds of interfaces."""
    return replace(settings, network_kinds=NETWORK_KINDS)


def collect(settings) -> dict:
    families = Families("node")
    Ethernet(settings).collect(families)
    return samples(families)


def devices(found: dict) -> set[str]:
    return {labels[0] for name, labels in found if name == "goodput_network_bytes_total"}


PARSERS = [parse_speed, parse_carrier, collector.parse_tcp_timeouts]
WORDS = ["TcpExt:", " ", "\n", "TCPTimeouts", "5", "-1", "²", "IpExt:", "\0"]


@pytest.mark.parametrize("parse", PARSERS)
def test_any_text_parses_or_raises(parse):
    @given(st.one_of(st.text(), st.integers().map(str), st.lists(st.sampled_from(WORDS)).map("".join)))
    @example("²")
    @example("9" * 5000)
    @example("-")
    def run(text):
        parse_or_raise(parse, text, lambda value: value is None or value >= 0)

    run()


@pytest.mark.parametrize(
    "text, speed",
    [
        ("100000\n", 12_500_000_000),
        ("-1\n", None),
        ("4294967295\n", None),
        ("65535", None),
        ("0", None),
        ("1", 125_000),
    ],
)
def test_speed_is_in_bytes_per_second(text, speed):
    assert parse_speed(text) == speed


def test_the_fixture_tree(settings):
    found = collect(settings)
    assert devices(found) == {"eth0", "eth1", "docker0"}
    assert found["goodput_network_bytes_total", ("eth1", "transmit")] == 1001
    assert found["goodput_network_packets_total", ("eth0", "receive")] == 10
    assert found["goodput_network_errors_total", ("eth0", "receive")] == 20
    assert found["goodput_network_drops_total", ("eth1", "transmit")] == 1031
    assert found["goodput_network_speed_bytes_per_second", ("eth0",)] == 12.5e9
    assert ("goodput_network_speed_bytes_per_second", ("eth1",)) not in found  # -1: unknown
    assert ("goodput_network_speed_bytes_per_second", ("docker0",)) not in found
    assert (found["goodput_network_up", ("eth0",)], found["goodput_network_up", ("eth1",)]) == (1, 0)
    assert ("goodput_network_up", ("docker0",)) not in found
    assert found["goodput_network_carrier_changes_total", ("eth0",)] == 3


def test_malformed_file_costs_only_its_series(tree, settings):
    (tree / "sys/class/net/eth0/statistics/rx_bytes").write_text("many\n")
    families = Families("node")
    with pytest.raises(CollectorError, match="eth0/statistics/rx_bytes"):
        Ethernet(settings).collect(families)
    found = samples(families)
    assert ("goodput_network_bytes_total", ("eth0", "receive")) not in found
    assert found["goodput_network_bytes_total", ("eth0", "transmit")] == 1


def test_a_node_without_interfaces_is_no_data(tree, settings):
    for name in ("eth0", "eth1", "docker0"):
        (tree / "sys/class/net" / name).rename(tree / name)
    with pytest.raises(NoData):
        collect(settings)
    (tree / "sys").rename(tree / "nosys")
    with pytest.raises(NoData):
        collect(settings)


def test_interfaces_are_bounded_hardware_first(tree, settings):
    for number in range(2 * DEVICES_MAX):
        statistics = tree / f"sys/class/net/a{number:03}/statistics"
        statistics.mkdir(parents=True)
        (statistics / "rx_bytes").write_text("1\n")
    found = devices(collect(settings))
    assert len(found) == DEVICES_MAX and {"eth0", "eth1"} <= found and "a000" in found


def interfaces(tree, names, **files):
    for name in names:
        root = tree / "sys/class/net" / name
        (root / "statistics").mkdir(parents=True)
        for file, text in {"statistics/rx_bytes": "1\n", "type": "1\n", **files}.items():
            (root / file).parent.mkdir(exist_ok=True)
            (root / file).write_text(text)


def test_interfaces_are_read_by_kind(tree, settings):
    interfaces(tree, ["bond0"], **{"bonding/mode": "802.3ad 4\n"})
    interfaces(tree, ["ib0.8001"], type="32\n")
    interfaces(tree, ["vethab12"])
    (tree / "sys/class/net/bonding_masters").write_text("bond0\n")
    by_kind = {
        ("physical",): {"eth0", "eth1"},
        ("bond",): {"bond0"},
        ("infiniband",): {"ib0.8001"},
        ("virtual",): {"docker0", "vethab12"},
    }
    for kinds, names in by_kind.items():
        found = collect(replace(settings, network_kinds=kinds))
        assert devices(found) == names
        assert found["goodput_network_devices_filtered", ()] == 6 - len(names)
    default = replace(settings, network_kinds=())
    assert devices(collect(default)) == {"eth0", "eth1", "bond0", "ib0.8001"}
    # A container's own network has none of these.
    for name in ("eth0", "eth1", "bond0", "ib0.8001"):
        shutil.rmtree(tree / "sys/class/net" / name)
    assert devices(collect(default)) == {"docker0", "vethab12"}


def test_a_thousand_interfaces_of_containers_cost_one_listing(tree, settings, monkeypatch):
    interfaces(tree, [f"veth{number}" for number in range(1000)])
    now, looked = [0], []
    ethernet = Ethernet(replace(settings, network_kinds=(), monotonic_ns=lambda: now[0]))

    def collected():
        families = Families("node")
        ethernet.collect(families)
        return samples(families)

    kind = ethernet._kind
    monkeypatch.setattr(ethernet, "_kind", lambda name: looked.append(name) or kind(name))
    for seconds in range(3):
        now[0] = seconds * 10**9
        found = collected()
        assert devices(found) == {"eth0", "eth1"} and found["goodput_network_devices_filtered", ()] == 1001
    assert len(looked) == len(set(looked))  # Each once in three scrapes.
    before = len(looked)
    # One that comes is looked at by itself; a name may get another interface.
    interfaces(tree, ["ens9"], **{"device/vendor": "0x15b3\n"})
    assert "ens9" in devices(collected()) and looked[before:] == ["ens9"]
    shutil.rmtree(tree / "sys/class/net/veth7")
    interfaces(tree, ["veth7"], **{"device/vendor": "0x15b3\n"})
    now[0] = round((collector.KIND_SECONDS + 1) * 10**9)
    assert "veth7" in devices(collected())


NETSTAT = (
    "TcpExt: SyncookiesSent TCPTimeouts TCPLossProbes\nTcpExt: 1 42 3\n"
    "IpExt: InNoRoutes TCPTimeouts\nIpExt: 7 8\n"
)


def test_tcp_timeouts(tree, settings):
    assert ("goodput_network_tcp_timeouts_total", ()) not in collect(settings)
    (tree / "proc/net/netstat").write_text(NETSTAT)
    assert collect(settings)["goodput_network_tcp_timeouts_total", ()] == 42
    assert collector.parse_tcp_timeouts("TcpExt: A B\nTcpExt: 1 2\n") is None
    for text in (
        "",
        "TcpExt: TCPTimeouts\n",
        "TcpExt: A TCPTimeouts\nTcpExt: 1\n",
        "TcpExt: TCPTimeouts\nTcpExt: x\n",
    ):
        with pytest.raises(ParseError):
            collector.parse_tcp_timeouts(text)


def test_tcp_series_without_interfaces(tree, settings):
    (tree / "proc/net/netstat").write_text(NETSTAT)
    shutil.rmtree(tree / "sys/class/net")
    families = Families("node")
    with pytest.raises(NoData):
        Ethernet(settings).collect(families)
    assert samples(families) == {("goodput_network_tcp_timeouts_total", ()): 42}


def test_this_kernels_netstat():
    try:
        with open("/proc/net/netstat") as file:
            text = file.read()
    except OSError:
        pytest.skip("no /proc/net/netstat here")
    assert collector.parse_tcp_timeouts(text) is not None


@pytest.mark.parametrize("how", [how for how in BREAKS if how not in ("empty", "missing")])
@pytest.mark.parametrize("file", ["statistics/rx_bytes", "speed", "carrier", "carrier_changes"])
def test_broken_file_costs_only_its_series(tree, settings, how, file):
    whole = collect(settings)
    break_file(tree / "sys/class/net/eth0" / file, how)
    families = Families("node")
    with pytest.raises(CollectorError, match=f"eth0/{file}"):
        Ethernet(settings).collect(families)
    found = samples(families)
    assert len(whole) - len(found) == 1 and found.items() <= whole.items()


def test_broken_interface_costs_no_other(tree, settings):
    shutil.rmtree(tree / "sys/class/net/eth0")
    for name, how in (("loop0", "loop"), ("pipe", "fifo"), ("file", "junk"), ("statistics", "directory")):
        BREAKS[how](tree / "sys/class/net" / name)
    (tree / "sys/class/net/eth1/statistics/rx_bytes").unlink()
    found = collect(settings)
    assert {labels[0] for _, labels in found if labels} == {"eth1", "docker0"}


def test_non_utf8_name_can_be_exposed(tree, settings):
    (tree / "sys/class/net/eth0").rename(tree / "sys/class/net/eth\udcff")
    (tree / "sys/class/net/eth\udcff/speed").write_text("fast")
    families = Families("node")
    with pytest.raises(CollectorError) as problem:
        Ethernet(settings).collect(families)
    str(problem.value).encode()
    assert rb"eth\\udcff" in exposition(families)


def test_what_is_left_out_is_counted(tree, settings):
    assert collect(settings)["goodput_network_devices_left_out", ()] == 0
    for number in range(2 * DEVICES_MAX):
        (tree / f"sys/class/net/a{number}").mkdir()
    assert collect(settings)["goodput_network_devices_left_out", ()] == DEVICES_MAX + 3


# What drivers count


class Driver:
    """In place of Ethtool: answers for every interface, and records the names."""

    def __init__(self):
        self.requested, self.kept, self.value, self.problem = [], None, 1, None

    def keep(self, devices):
        self.kept = devices

    def read(self, device):
        self.requested.append(device)
        if self.problem:
            raise CollectorError(self.problem)
        labels = {"direction": "receive", "priority": "3"}
        return [("goodput_network_pause_frames_total", labels, self.value)]


PAUSED = "goodput_network_pause_frames_total", ("eth0", "receive", "3")


@pytest.fixture
def driver(tree, monkeypatch):
    for name, index in (("eth0", 2), ("eth1", 3), ("docker0", 4)):
        (tree / "sys/class/net" / name / "ifindex").write_text(f"{index}\n")
    monkeypatch.setattr(socket, "if_nametoindex", {"eth0": 2, "eth1": 33, "docker0": 4}.__getitem__)
    return Driver()


def test_ethtool_reads_hardware_of_this_namespace(settings, driver):
    families = Families("node")
    Ethernet(settings, driver).collect(families)
    found = samples(families)
    # docker0 has no hardware, the eth1 of this namespace is another interface.
    assert driver.requested == ["eth0"] and found[PAUSED] == 1
    assert driver.kept == {"eth0", "eth1", "docker0"}


def test_ethtool_reads_are_cached(tree, settings, driver, clock):
    collector = Ethernet(settings, driver)

    def read():
        families = Families("node")
        collector.collect(families)
        return samples(families).get(PAUSED)

    seen = [read()]
    driver.value = 2
    for seconds in (ETHTOOL_SECONDS * 0.9, ETHTOOL_SECONDS * 0.2):
        clock.seconds += seconds
        seen.append(read())
    assert seen == [1, 1, 2] and driver.requested == ["eth0", "eth0"]
    # What is gone is not served from memory.
    (tree / "sys/class/net/eth0").rename(tree / "eth0")
    assert read() is None


def test_refusing_driver_costs_only_its_series(settings, driver, clock):
    whole = collect(settings)
    driver.problem = "ethtool 'eth0': Operation not permitted"
    collector = Ethernet(settings, driver)
    for _ in range(2):
        families = Families("node")
        with pytest.raises(CollectorError, match="Operation not permitted"):
            collector.collect(families)
        assert samples(families) == whole
        clock.seconds += ETHTOOL_SECONDS / 4
    assert driver.requested == ["eth0"]


def test_ethtool_is_off_for_recorded_trees(settings):
    assert Ethernet(settings)._ethtool is None
    assert Ethernet(replace(settings, sysfs="/sys/"))._ethtool is not None


def test_flapping_interfaces_leak_nothing(tree, settings, driver, clock):
    collector = Ethernet(settings, driver)
    opened = len(os.listdir("/proc/self/fd"))
    for number in range(40):
        path = tree / f"sys/class/net/eth{number}"
        path.mkdir(exist_ok=True)
        with contextlib.suppress(CollectorError):
            collector.collect(Families("node"))
        shutil.rmtree(path)
        clock.seconds += ETHTOOL_SECONDS
    assert len(os.listdir("/proc/self/fd")) == opened and not collector._ethtool_series


def test_this_machine():
    families = Families("node")
    from goodput_exporters.collector import Settings

    try:
        Ethernet(Settings(directory="")).collect(families)
    except NoData:
        pytest.skip("no network interface but lo here")
    assert devices(samples(families))
