"""Drivers' own statistics: the tables, a made-up kernel behind the ioctl, and the real kernel with a veth pair."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
import uuid
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from goodput.metrics import Families
from goodput_exporters.collector import CollectorError
from goodput_exporters.collectors.ethernet import ethtool
from goodput_exporters.collectors.ethernet.ethtool import Ethtool, parse_names, select_statistics


class Kernel:
    """What is behind SIOCETHTOOL: interfaces, each a list of (name, value). It writes as the kernel does."""

    def __init__(self):
        self.interfaces: dict[str, list[tuple[str, int]]] = {}
        self.calls = 0
        self.refuse: int | None = None
        # By command: what happens to the driver just before it.
        self.before: dict[int, Callable] = {}

    def ioctl(self, sock, number: int, request: bytes) -> int:
        self.calls += 1
        assert number == 0x8946 and len(request) == 40
        name, address = struct.unpack_from("16sP", request)
        command = ctypes.c_uint32.from_address(address).value
        if self.refuse is not None:
            raise OSError(self.refuse, os.strerror(self.refuse))
        device = name.rstrip(b"\0").decode()
        if device not in self.interfaces:
            raise OSError(errno.ENODEV, "No such device")
        if command in self.before:
            self.before[command]()
        answer = self._answer(command, self.interfaces[device], address)
        ctypes.memmove(address, answer, len(answer))
        return 0

    def _answer(self, command: int, statistics: list, address: int) -> bytes:
        count = len(statistics)
        if command == 0x37:
            mask = ctypes.c_uint64.from_address(address + 8).value
            assert mask == 2
            return struct.pack("=IIQI", command, 0, mask if count else 0, count)
        if command == 0x1B:
            names = b"".join(name.encode().ljust(32, b"\0") for name, _ in statistics)
            return struct.pack("=III", command, 1, count) + names
        assert command == 0x1D
        return struct.pack(f"=II{count}Q", command, count, *(value for _, value in statistics))


@pytest.fixture
def kernel(monkeypatch):
    kernel = Kernel()
    monkeypatch.setattr(fcntl, "ioctl", kernel.ioctl)
    return kernel


def found(reader: Ethtool, device: str = "eth0") -> dict:
    return {(series, *labels.values()): value for series, labels, value in reader.read(device)}


# The tables


def test_every_series_is_in_the_catalogue():
    families = Families("node")
    for series, labels, _ in ethtool.KNOWN.values():
        families.add(series, {"device": "eth0", **labels}, 1)


def test_names_fit_their_slot():
    assert all(len(name) < 32 for name in ethtool.KNOWN)


PAUSES, SECONDS = "goodput_network_pause_frames_total", "goodput_network_pause_seconds_total"
DROPS, ERRORS = "goodput_network_hardware_drops_total", "goodput_network_hardware_errors_total"
ALLOWANCE = "goodput_network_allowance_exceeded_total"
# As each driver names them; what is not in the second column is left out.
DRIVERS = {
    "mlx5": {
        "rx_packets": None,
        "rx_out_of_buffer": (DROPS, "receive", "out_of_buffer"),
        "rx_discards_phy": (DROPS, "receive", "discard"),
        "tx_discards_phy": (DROPS, "transmit", "discard"),
        "rx_crc_errors_phy": (ERRORS, "crc"),
        "rx_symbol_err_phy": (ERRORS, "symbol"),
        "link_down_events_phy": (ERRORS, "link_down"),
        "rx_pause_ctrl_phy": (PAUSES, "receive", "all"),
        "tx_pause_ctrl_phy": (PAUSES, "transmit", "all"),
        "rx_prio3_pause": (PAUSES, "receive", "3"),
        "tx_prio3_pause": (PAUSES, "transmit", "3"),
        "rx_prio3_pause_transition": None,
        "rx_prio3_bytes": None,
        # Older drivers leave a blank at its end.
        "tx_pause_storm_warning_events ": (ERRORS, "pause_storm_warning"),
        "tx_pause_storm_error_events": (ERRORS, "pause_storm"),
        "rx_ecn_mark": ("goodput_network_ecn_marked_packets_total",),
        "rx0_packets": None,
    },
    "bnxt_en": {
        "[0]: rx_ucast_packets": None,
        "rx_pause_frames": (PAUSES, "receive", "all"),
        "tx_pause_frames": (PAUSES, "transmit", "all"),
        "rx_pfc_frames": None,
        "rx_pfc_ena_frames_pri5": (PAUSES, "receive", "5"),
        "tx_pfc_ena_frames_pri5": (PAUSES, "transmit", "5"),
        "pfc_pri5_rx_transitions": None,
        "rx_stat_discard": (DROPS, "receive", "discard"),
        "rx_fcs_err_frames": (ERRORS, "crc"),
    },
    "ice": {
        "link_xon_rx.nic": None,
        "link_xoff_rx.nic": (PAUSES, "receive", "all"),
        "link_xoff_tx.nic": (PAUSES, "transmit", "all"),
        "rx_priority_7_xoff.nic": (PAUSES, "receive", "7"),
        "tx_priority_7_xoff.nic": (PAUSES, "transmit", "7"),
        "tx_priority_7_xon.nic": None,
        "rx_dropped.nic": (DROPS, "receive", "discard"),
        "tx_dropped_link_down.nic": (DROPS, "transmit", "link_down"),
        "rx_crc_errors.nic": (ERRORS, "crc"),
    },
    "ena": {
        "bw_in_allowance_exceeded": (ALLOWANCE, "bandwidth_receive"),
        "bw_out_allowance_exceeded": (ALLOWANCE, "bandwidth_transmit"),
        "pps_allowance_exceeded": (ALLOWANCE, "packets"),
        "conntrack_allowance_exceeded": (ALLOWANCE, "connections"),
        "conntrack_allowance_available": None,
        "linklocal_allowance_exceeded": (ALLOWANCE, "link_local"),
        "queue_0_tx_cnt": None,
    },
    "ionic": {
        "frames_rx_bad_fcs": (ERRORS, "crc"),
        "frames_rx_pause": (PAUSES, "receive", "all"),
        "frames_rx_pripause": (PAUSES, "receive", "pfc"),
        "frames_tx_pripause": (PAUSES, "transmit", "pfc"),
        "frames_rx_dropped": (DROPS, "receive", "discard"),
        "frames_rx_pri_3": None,
    },
}


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_drivers_names(kernel, driver):
    names = list(DRIVERS[driver])
    kernel.interfaces["eth0"] = [(name, 100 + at) for at, name in enumerate(names)]
    expected = {key: 100 + at for at, key in enumerate(DRIVERS[driver].values()) if key is not None}
    assert found(Ethtool()) == expected


@pytest.mark.parametrize(
    "name, key",
    [
        ("rx_prio3_pause_duration", (SECONDS, "receive", "3")),
        ("tx_global_pause_duration", (SECONDS, "transmit", "all")),
        ("pfc_pri6_tx_duration_us", (SECONDS, "transmit", "6")),
        ("rx_pripause_0_1us_count", (SECONDS, "receive", "0")),
        ("rx_pause_1us_count", (SECONDS, "receive", "all")),
    ],
)
def test_durations_are_in_seconds(kernel, name, key):
    kernel.interfaces["eth0"] = [(name, 2_500_000)]
    assert found(Ethtool()) == {key: pytest.approx(2.5)}


@given(st.lists(st.one_of(st.sampled_from(sorted(ethtool.KNOWN)), st.text(max_size=31)), max_size=60))
@example(["rx_dropped.nic", "frames_rx_dropped", "rx_dropped.nic"])
def test_no_duplicate_series(names):
    planned = select_statistics(names)
    keys = [(series, *labels.values()) for _, series, labels, _ in planned]
    assert (
        len(set(keys))
        == len(keys)
        == len(
            {
                ethtool.KNOWN[name][:1] + tuple(ethtool.KNOWN[name][1].values())
                for name in names
                if name in ethtool.KNOWN
            }
        )
    )
    assert all(ethtool.KNOWN[names[index]][0] == series for index, series, _, _ in planned)


@given(st.binary(max_size=200))
@example(b"\xff" * 32)
def test_any_block_gives_names(block):
    names = parse_names(block)
    assert len(names) == len(block) // 32 and all("\0" not in name for name in names)


# The calls


def test_changed_statistic_names_are_followed(kernel):
    """PFC is moved to another priority: as many statistics, other names."""
    kernel.interfaces["eth0"] = [("rx_prio3_pause", 5)]
    reader = Ethtool()
    assert found(reader) == {(PAUSES, "receive", "3"): 5}
    kernel.interfaces["eth0"] = [("rx_prio4_pause", 7)]
    assert found(reader) == {(PAUSES, "receive", "4"): 7}


def test_driver_reconfigured_between_two_calls(kernel):
    """The kernel writes more than was requested: the reading is dropped, and the next one is whole."""
    few = [("rx_out_of_buffer", 1)]
    many = [(f"rx{number}_packets", number) for number in range(5000)] + few
    kernel.interfaces["eth0"] = few
    kernel.before[0x1D] = lambda: kernel.interfaces.update(eth0=many)
    reader = Ethtool()
    assert found(reader) == {}
    assert found(reader) == {(DROPS, "receive", "out_of_buffer"): 1}


def test_driver_reconfigured_and_back(kernel):
    """The names of one set-up and the values of another are not put together."""
    few = [("rx_packets", 1), ("rx_bytes", 2)]
    kernel.interfaces["eth0"] = few
    kernel.before[0x1B] = lambda: kernel.interfaces.update(eth0=[("rx_out_of_buffer", 9), *few])
    kernel.before[0x1D] = lambda: kernel.interfaces.update(eth0=few)
    reader = Ethtool()
    assert found(reader) == {}


def test_thousands_of_statistics(kernel):
    kernel.interfaces["eth0"] = [(f"rx{number}_packets", 2**64 - 1) for number in range(20_000)] + [
        ("rx_discards_phy", 2**64 - 1)
    ]
    assert found(Ethtool()) == {(DROPS, "receive", "discard"): 2**64 - 1}


def test_too_many_statistics_are_refused(kernel):
    kernel.interfaces["eth0"] = [("x", 0)] * (ethtool.STATISTICS_MAX + 1)
    with pytest.raises(CollectorError, match="'eth0': 65537 statistics"):
        Ethtool().read("eth0")
    assert kernel.calls == 1


def test_absent_statistics_are_no_error(kernel):
    kernel.interfaces["eth0"] = []
    reader = Ethtool()
    assert reader.read("eth0") == reader.read("gone") == reader.read("a" * 16) == []
    kernel.refuse = errno.EOPNOTSUPP
    assert reader.read("eth0") == []
    kernel.refuse = errno.EPERM
    with pytest.raises(CollectorError, match="ethtool 'eth0': Operation not permitted"):
        reader.read("eth0")


def test_gone_interfaces_leak_nothing(kernel):
    reader = Ethtool()
    opened = len(os.listdir("/proc/self/fd"))
    for number in range(100):
        kernel.interfaces[f"eth{number}"] = [("rx_out_of_buffer", number)]
        assert found(reader, f"eth{number}") == {(DROPS, "receive", "out_of_buffer"): number}
        reader.keep({f"eth{number}"})
    assert list(reader._plans) == ["eth99"] and len(os.listdir("/proc/self/fd")) == opened


# The real kernel

READ_VETH = """
import json, socket
from goodput.metrics import Families
from goodput_exporters.collector import CollectorError, Settings
from goodput_exporters.collectors.ethernet.collector import Ethernet
from goodput_exporters.collectors.ethernet.ethtool import Ethtool, parse_names

class Everything(Ethernet):
    def _has_hardware(self, name):
        return True

def statistics(device):
    names, values = reader.fetch(device)
    return dict(zip(parse_names(names), values, strict=True))

reader, families = Ethtool(), Families("node")
Everything(Settings(directory="")).collect(families)
print(json.dumps({
    "va": statistics("va"), "vb": statistics("vb"), "lo": statistics("lo"),
    "known": reader.read("va"), "none": statistics("nosuch"),
    "index": {name: socket.if_nametoindex(name) for name in ("va", "vb")},
    "series": [[s.name, s.labels, s.value] for family in families for s in family.samples],
}))
"""


@pytest.fixture(scope="module")
def veth():
    """What is read in a network namespace with a veth pair that is up."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs ip of iproute2 and root for a network namespace")
    name = f"goodput-{uuid.uuid4().hex[:8]}"

    def ip(*arguments):
        return subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=300)

    made = ip("netns", "add", name)
    if made.returncode != 0:
        pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
    try:
        pair = ip("-n", name, "link", "add", "va", "type", "veth", "peer", "name", "vb")
        if pair.returncode != 0:
            pytest.skip(f"no veth here: {pair.stderr.strip()}")
        for device in ("va", "vb"):
            ip("-n", name, "link", "set", device, "up")
        done = subprocess.run(
            ["ip", "netns", "exec", name, sys.executable, "-c", READ_VETH],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)
    finally:
        ip("netns", "del", name)


def test_the_kernels_own_statistics(veth):
    """A veth's driver tells the index of its peer: a value that is known from elsewhere."""
    assert veth["va"]["peer_ifindex"] == veth["index"]["vb"]
    assert veth["vb"]["peer_ifindex"] == veth["index"]["va"]
    assert veth["none"] == {} and veth["known"] == []
    assert all(name and name.isprintable() for name in veth["va"])


def test_the_collector_on_a_real_sys(veth):
    series = {
        (name, labels.get("device"), labels.get("direction")): value for name, labels, value in veth["series"]
    }
    assert {"va", "vb"} <= {device for _, device, _ in series}
    assert series["goodput_network_up", "va", None] == 1
    assert series["goodput_network_carrier_changes_total", "va", None] >= 1
    assert ("goodput_network_tcp_timeouts_total", None, None) in series


def test_the_interfaces_of_this_machine():
    reader = Ethtool()
    for device in os.listdir("/sys/class/net"):
        names, values = reader.fetch(device)
        assert len(parse_names(names)) == len(values) and all(0 <= value < 2**64 for value in values)
