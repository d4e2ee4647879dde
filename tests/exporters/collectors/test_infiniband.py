"""RDMA ports: parsers on known and on any text, the collector on trees as six drivers show them and on broken ones."""

from __future__ import annotations

import contextlib
import os
import shutil

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.node import network_tree
from support.node.broken_files import BREAKS, break_file, exposition, parse_or_raise
from support.node.network_tree import counters, devices, port
from support.node.node_tree import Clock, samples

from goodput.metrics import Families
from goodput_exporters.collector import CollectorError, NoData, ParseError, Settings
from goodput_exporters.collectors.infiniband.collector import (
    DEVICES_MAX,
    INFO_SECONDS,
    PORTS_MAX,
    SLOW_SECONDS,
    InfiniBand,
)
from goodput_exporters.system import infiniband as parse

BYTES, PACKETS = "goodput_infiniband_bytes_total", "goodput_infiniband_packets_total"
ERRORS, CONGESTION = "goodput_infiniband_errors_total", "goodput_infiniband_congestion_total"
RETRANSMITS, SATURATED = "goodput_infiniband_retransmits_total", "goodput_infiniband_saturated"
UP, RATE = "goodput_infiniband_up", "goodput_infiniband_rate_bytes_per_second"


class Node:
    """A collector on a tree that the test writes."""

    def __init__(self, root):
        self.root = root
        self.clock = Clock()
        self.collector = InfiniBand(
            Settings(directory="", sysfs=str(root / "sys"), monotonic_ns=self.clock.monotonic_ns)
        )

    def write(self, files: dict[str, str]) -> Node:
        network_tree.write(self.root, files)
        return self

    def path(self, name: str):
        return self.root / network_tree.ROOT / name

    def read(self, problem: str | None = None) -> dict:
        """The samples of one run; `problem` is a pattern of the error that it must raise."""
        families = Families("node")
        if problem is None:
            self.collector.collect(families)
        else:
            with pytest.raises(CollectorError, match=problem):
                self.collector.collect(families)
        return samples(families)


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def of(found: dict, name: str, device: str, number: str = "1") -> dict:
    """{the other labels' values: value} of one series of one port."""
    # Labels come in sorted order: device, then direction, kind or operation, then port.
    keys = [key for key in found if key[0] == name and key[1][0] == device and number in key[1][1:]]
    return {"/".join(part for part in key[1][1:] if part != number): found[key] for key in keys}


# Parsers


@pytest.mark.parametrize("parser", [parse.parse_counter, parse.parse_rate, parse.parse_state])
def test_any_text_parses_or_raises(parser):
    @given(
        st.one_of(
            st.text(),
            st.integers().map(str),
            st.lists(
                st.sampled_from(["4", ": ", "ACTIVE", "N/A", "400", ".", "5", " Gb/sec", "²", "-", "\0"])
            ).map("".join),
        )
    )
    @example("9" * 5000)
    @example("9" * 5000 + " Gb/sec")
    @example("²: ACTIVE")
    @example("٣ Gb/sec")
    def run(text):
        parse_or_raise(parser, text, lambda value: value is None or value >= 0)

    run()


@pytest.mark.parametrize(
    "text, rate",
    [
        ("400 Gb/sec (4X NDR)\n", 50e9),
        ("800 Gb/sec (4X XDR)", 100e9),
        ("100 Gb/sec (2X HDR)", 12.5e9),
        ("2.5 Gb/sec (1X SDR)", 312.5e6),
        ("56.25 Gb/sec (4X FDR)", 7_031_250_000),
        ("10 Gb/sec", 1.25e9),
        ("0 Gb/sec (1X SDR)", None),
    ],
)
def test_a_rate_is_in_bytes_per_second(text, rate):
    assert parse.parse_rate(text) == rate


@pytest.mark.parametrize(
    "text", ["", "400", "400 Gb", "fast Gb/sec", "-1 Gb/sec", "4.Gb/sec", "1e3 Gb/sec", ".5 Gb/sec"]
)
def test_what_is_no_rate(text):
    with pytest.raises(ParseError):
        parse.parse_rate(text)


def test_a_counter_and_a_state():
    assert parse.parse_counter("18446744073709551615\n") == 2**64 - 1
    assert parse.parse_counter("N/A (no PMA)\n") is None
    assert parse.parse_state("4: ACTIVE\n") == 4
    for text in ("", "-1", "1 2", "0x10", "unknown"):
        with pytest.raises(ParseError):
            parse.parse_counter(text)
    for text in ("", "ACTIVE", ": ACTIVE", "-1: X", "4 ACTIVE"):
        with pytest.raises(ParseError):
            parse.parse_state(text)


def test_no_kind_comes_from_both_directories():
    standard = {(parse.ERRORS, name.lower()) for name in parse.STANDARD_BITS}
    assert not standard & {(series, kind) for series, _, kind in parse.HARDWARE.values()}


# Devices as their drivers show them


def test_data_counters_count_four_byte_words(node):
    found = node.write(devices()).read()
    assert of(found, BYTES, "mlx5_0") == {"transmit": 4 * ((1 << 40) + 1), "receive": 4 * 15}
    assert of(found, PACKETS, "mlx5_0") == {"transmit": 16, "receive": 17}
    assert of(found, UP, "mlx5_0") == {"": 1}
    assert of(found, RATE, "mlx5_0") == {"": 50e9}
    assert of(found, "goodput_infiniband_state", "mlx5_0") == {"logical/active": 1, "physical/link_up": 1}
    assert of(found, "goodput_infiniband_xmit_wait_ticks_total", "mlx5_0") == {"": 13}
    assert of(found, CONGESTION, "mlx5_0") == {
        "out_of_buffer": 1004, "roce_slow_restart": 1021, "roce_slow_restart_cnps": 1022, "roce_slow_restart_trans": 1023,
        "rp_cnp_ignored": 1024, "rp_cnp_handled": 1025, "np_ecn_marked_roce_packets": 1026, "np_cnp_sent": 1027,
    }  # fmt: skip
    assert of(found, RETRANSMITS, "mlx5_0") == {
        "rnr_nak_retry_err": 1007, "packet_seq_err": 1008, "implied_nak_seq_err": 1009, "local_ack_timeout_err": 1010,
        "roce_adp_retrans": 1019, "roce_adp_retrans_to": 1020,
    }  # fmt: skip
    assert of(found, ERRORS, "mlx5_0") == {
        "symbol_error": 1, "link_error_recovery": 2, "link_downed": 3, "port_rcv_errors": 4,
        "port_rcv_remote_physical_errors": 5, "port_rcv_switch_relay_errors": 6, "port_xmit_discards": 7,
        "port_xmit_constraint_errors": 8, "port_rcv_constraint_errors": 9, "local_link_integrity_errors": 7,
        "excessive_buffer_overrun_errors": 7, "vl15_dropped": 12, "out_of_sequence": 1005, "duplicate_request": 1006,
        "resp_local_length_error": 1011, "resp_cqe_error": 1012, "req_cqe_error": 1013,
        "req_remote_invalid_request": 1014, "req_remote_access_errors": 1015, "resp_remote_access_errors": 1016,
        "resp_cqe_flush_error": 1017, "req_cqe_flush_error": 1018, "rx_icrc_encapsulated": 1028,
    }  # fmt: skip


@pytest.mark.parametrize(
    "rate", ["2.5 Gb/sec (1X SDR)", "100 Gb/sec (2X HDR)", "400 Gb/sec (8X HDR)", "168 Gb/sec (12X FDR)"]
)
@pytest.mark.parametrize("link_layer", ["InfiniBand", "Ethernet"])
def test_bytes_independent_of_lanes_and_link_layer(node, rate, link_layer):
    node.write(
        {**port("mlx5_0", rate=rate, link_layer=link_layer), **counters("mlx5_0", ["port_xmit_data"], 1000)}
    )
    assert of(node.read(), BYTES, "mlx5_0") == {"transmit": 4000}


def test_roce(node):
    found = node.write(devices()).read()
    assert of(found, BYTES, "mlx5_10") == {"transmit": 4 * 15, "receive": 4 * 16}
    assert of(found, RATE, "mlx5_10") == {"": 25e9}
    assert of(found, CONGESTION, "mlx5_10")["np_cnp_sent"] == 2027


def test_efa_counts_bytes(node):
    found = node.write(devices()).read()
    assert of(found, BYTES, "rdmap0s31") == {"transmit": 3000, "receive": 3002}
    assert of(found, PACKETS, "rdmap0s31") == {"transmit": 3001, "receive": 3003}
    assert of(found, "goodput_infiniband_operation_bytes_total", "rdmap0s31") == {
        "send": 3005, "receive": 3007, "read": 3010, "read_response": 3012, "write": 3014, "write_receive": 3016,
    }  # fmt: skip
    assert of(found, ERRORS, "rdmap0s31") == {
        "rx_drops": 3004, "rdma_read_wr_err": 3011, "rdma_write_wr_err": 3015, "unresponsive_remote_events": 3020,
        "impaired_remote_conn_events": 3021,
    }  # fmt: skip
    assert of(found, RETRANSMITS, "rdmap0s31") == {"packets": 3018, "retrans_timeout_events": 3019}
    assert of(found, "goodput_infiniband_retransmit_bytes_total", "rdmap0s31") == {"": 3017}


def test_bnxt_re_without_performance_queries(node):
    found = node.write(devices()).read()
    assert of(found, BYTES, "bnxt_re0") == {"transmit": 4004, "receive": 4002}
    assert of(found, PACKETS, "bnxt_re0") == {"transmit": 4003, "receive": 4001}
    assert of(found, RETRANSMITS, "bnxt_re0") == {
        "local_ack_timeout_err": 4008, "packet_seq_err": 4009, "rnr_nak_retry_err": 4011, "implied_nak_seq_err": 4012,
    }  # fmt: skip
    assert of(found, ERRORS, "bnxt_re0") == {
        "rx_roce_errors": 4006, "rx_roce_discards": 4007, "req_transport_retries_exceeded": 4010,
        "unrecoverable_err": 4013, "duplicate_request": 4014, "res_mem_err": 4015, "res_tx_pci_err": 4016,
        "out_of_sequence": 4017,
    }  # fmt: skip
    assert of(found, CONGESTION, "bnxt_re0") == {
        "out_of_buffer": 4018, "np_cnp_sent": 4020, "rp_cnp_handled": 4021, "np_ecn_marked_roce_packets": 4022,
    }  # fmt: skip
    assert of(found, SATURATED, "bnxt_re0") == {}


def test_ionic(node):
    found = node.write(devices()).read()
    assert of(found, BYTES, "ionic_0") == {"transmit": 5000, "receive": 5002}
    assert of(found, PACKETS, "ionic_0") == {"transmit": 5001, "receive": 5003}
    assert of(found, RETRANSMITS, "ionic_0") == {
        "packet_seq_err": 5007, "rnr_nak_retry_err": 5008, "implied_nak_seq_err": 5009, "local_ack_timeout_err": 5010,
        "packets": 5011,
    }  # fmt: skip
    assert of(found, CONGESTION, "ionic_0") == {
        "np_cnp_sent": 5004, "rp_cnp_handled": 5005, "np_ecn_marked_roce_packets": 5006, "out_of_buffer": 5014,
    }  # fmt: skip
    assert of(found, ERRORS, "ionic_0") == {"req_transport_retries_exceeded": 5013, "out_of_sequence": 5015}


def test_omni_path(node):
    found = node.write(devices()).read()
    assert of(found, BYTES, "hfi1_0") == {"transmit": 4 * 16, "receive": 4 * 17}
    assert of(found, RETRANSMITS, "hfi1_0") == {
        "packets": 6000, "local_ack_timeout_err": 6001, "packet_seq_err": 6002, "rnr_nak_retry_err": 6003,
    }  # fmt: skip


def test_a_second_port_that_is_down(node):
    found = node.write(devices()).read()
    assert of(found, UP, "mthca0", "1") == {"": 1}
    assert of(found, UP, "mthca0", "2") == {"": 0}
    assert of(found, "goodput_infiniband_state", "mthca0", "2") == {"logical/down": 1, "physical/polling": 1}
    assert of(found, RATE, "mthca0", "2") == {"": 312.5e6}
    assert of(found, BYTES, "mthca0", "2") == {"transmit": 4 * 18, "receive": 4 * 19}


@pytest.mark.parametrize(
    "state, up, name",
    [("2: INIT", 0, "init"), ("5: ACTIVE_DEFER", 0, "active_defer"), ("9: NEW", 0, "unknown")],
)
def test_only_active_is_up(node, state, up, name):
    found = node.write(port("mlx5_0", state=state)).read()
    assert of(found, UP, "mlx5_0") == {"": up}
    assert found["goodput_infiniband_state", ("mlx5_0", "logical", "1", name)] == 1


def info(found: dict) -> dict:
    """{device: the info series' labels}, port 1 of each."""
    names = "board device driver firmware link_layer netdev node_guid numa pci port".split()  # noqa: SIM905
    every = [dict(zip(names, key[1], strict=True)) for key in found if key[0] == "goodput_infiniband_info"]
    return {labels["device"]: labels for labels in every if labels["port"] == "1"}


def test_info(node):
    node.write(devices())
    # As in sysfs, where device is a link to the PCI function, and driver one to the driver.
    function = node.root / "sys/devices/pci0000:3a/0000:3b:00.0"
    function.parent.mkdir(parents=True)
    node.path("mlx5_0/device").rename(function)
    (function / "driver").symlink_to("../../../bus/pci/drivers/mlx5_core")
    node.path("mlx5_0/device").symlink_to("../../../devices/pci0000:3a/0000:3b:00.0")
    found = info(node.read())
    assert found["mlx5_0"] == {
        "board": "MT_0000000838", "device": "mlx5_0", "driver": "mlx5_core", "firmware": "28.39.1002",
        "link_layer": "InfiniBand", "netdev": "ib0", "node_guid": network_tree.GUID, "numa": "1",
        "pci": "0000:3b:00.0", "port": "1",
    }  # fmt: skip
    assert found["mlx5_10"]["netdev"] == "eth2"
    assert found["rdmap0s31"]["netdev"] == ""


def test_port_has_interface_of_its_number(node):
    files = {**port("mlx4_0"), **port("mlx4_0", number=2)}
    node.write({**files, "mlx4_0/device/net/eth0/dev_port": "0\n", "mlx4_0/device/net/eth1/dev_port": "1\n"})
    netdevs = {key[1][9]: key[1][5] for key in node.read() if key[0] == "goodput_infiniband_info"}
    assert netdevs == {"1": "eth0", "2": "eth1"}


def test_a_numa_node_that_is_unknown_is_empty(node):
    assert (
        info(node.write({**port("mlx5_0"), "mlx5_0/device/numa_node": "-1\n"}).read())["mlx5_0"]["numa"] == ""
    )


# One source for each series


def test_standard_counters_take_precedence(node):
    node.write({**port("bnxt_re0"), **counters("bnxt_re0", network_tree.BNXT, 1_000_000, "hw_counters")})
    node.write(counters("bnxt_re0", network_tree.STANDARD, 1))
    assert of(node.read(), BYTES, "bnxt_re0") == {"transmit": 4 * 14, "receive": 4 * 15}


def test_each_direction_has_its_own_source(node):
    node.write({**port("bnxt_re0"), **counters("bnxt_re0", network_tree.BNXT, 1_000_000, "hw_counters")})
    node.write(counters("bnxt_re0", ["port_xmit_data"], 1))
    assert of(node.read(), BYTES, "bnxt_re0") == {"transmit": 4, "receive": 1_000_002}


def test_failing_standard_counter_is_not_replaced(node):
    """Another counter in its place would be a jump that no traffic made."""
    node.write({**port("bnxt_re0"), **counters("bnxt_re0", ["tx_bytes"], 1_000_000, "hw_counters")})
    node.write({"bnxt_re0/ports/1/counters/port_xmit_data": "junk\n"})
    assert of(node.read("port_xmit_data: 'junk.*is not a count"), BYTES, "bnxt_re0") == {}
    node.clock.seconds += 100
    node.path("bnxt_re0/ports/1/counters/port_xmit_data").write_text("N/A (no PMA)\n")
    assert of(node.read(), BYTES, "bnxt_re0") == {}
    node.path("bnxt_re0/ports/1/counters/port_xmit_data").unlink()
    assert of(node.read(), BYTES, "bnxt_re0") == {}
    node.path("bnxt_re0/ports/1/counters/port_xmit_data").write_text("7\n")
    assert of(node.read(), BYTES, "bnxt_re0") == {"transmit": 28}


def test_returning_device_may_change_source(node):
    node.write({**port("bnxt_re0"), **counters("bnxt_re0", ["tx_bytes"], 1_000_000, "hw_counters")})
    node.write(counters("bnxt_re0", ["port_xmit_data"], 5))
    assert of(node.read(), BYTES, "bnxt_re0") == {"transmit": 20}
    node.path("bnxt_re0").rename(node.root / "away")
    with pytest.raises(NoData):
        node.read()
    shutil.rmtree(node.root / "away/ports/1/counters")
    (node.root / "away").rename(node.path("bnxt_re0"))
    assert of(node.read(), BYTES, "bnxt_re0") == {"transmit": 1_000_000}


def test_counter_under_two_names_appears_once(node):
    node.write(
        {**port("bnxt_re0"), **counters("bnxt_re0", ["out_of_buffer", "rx_out_of_buffer"], 8, "hw_counters")}
    )
    assert of(node.read(), CONGESTION, "bnxt_re0") == {"out_of_buffer": 8}


# Narrow counters


STUCK = "goodput_infiniband_saturated_counters"


# As drivers/infiniband/core/sysfs.c of the kernel has them.
MAXIMA = {
    "symbol_error": 65_535,
    "link_error_recovery": 255,
    "link_downed": 255,
    "port_rcv_errors": 65_535,
    "port_rcv_remote_physical_errors": 65_535,
    "port_rcv_switch_relay_errors": 65_535,
    "port_xmit_discards": 65_535,
    "port_xmit_constraint_errors": 255,
    "port_rcv_constraint_errors": 255,
    "local_link_integrity_errors": 15,
    "excessive_buffer_overrun_errors": 15,
    "VL15_dropped": 65_535,
    "port_xmit_wait": 4_294_967_295,
}


def test_every_standard_counter_has_a_maximum():
    assert set(MAXIMA) == set(parse.STANDARD_BITS)


@pytest.mark.parametrize("name, most", MAXIMA.items())
def test_counter_at_maximum_is_saturated(node, name, most):
    node.write(port("mlx5_0"))
    for value, flags in ((most - 1, {}), (most, {name.lower(): 1}), (most + 1, {}), (0, {})):
        node.write({f"mlx5_0/ports/1/counters/{name}": f"{value}\n"})
        found = node.read()
        series = "goodput_infiniband_xmit_wait_ticks_total" if name == "port_xmit_wait" else ERRORS
        assert list(of(found, series, "mlx5_0").values()) == [value]
        assert of(found, SATURATED, "mlx5_0") == flags
        assert of(found, STUCK, "mlx5_0") == {"": len(flags)}
        node.clock.seconds += 100


@pytest.mark.parametrize("name", ["local_link_integrity_errors", "excessive_buffer_overrun_errors"])
def test_short_counter_full_from_the_start_is_not_saturated(node, name):
    """Healthy ports have 15 there."""
    node.write({**port("mlx5_0"), f"mlx5_0/ports/1/counters/{name}": "15\n"})
    found = node.read()
    assert list(of(found, ERRORS, "mlx5_0").values()) == [15]
    assert of(found, SATURATED, "mlx5_0") == {} and of(found, STUCK, "mlx5_0") == {"": 0}


def test_traffic_of_older_kernels_is_read_in_64_bits(node):
    extended = {
        "port_xmit_data_64": 2**40,
        "port_rcv_data_64": 2**41,
        "port_xmit_packets_64": 2**33,
        "port_unicast_rcv_packets": 2**34,
    }
    files = {f"mthca0/ports/1/counters_ext/{name}": f"{value}\n" for name, value in extended.items()}
    node.write({**port("mthca0"), **counters("mthca0", network_tree.STANDARD, 4), **files})
    found = node.read()
    assert of(found, BYTES, "mthca0") == {"transmit": 2**42, "receive": 2**43}
    assert of(found, "goodput_infiniband_packets_total", "mthca0")["transmit"] == 2**33
    assert found["goodput_infiniband_cast_packets_total", ("unicast", "mthca0", "receive", "1")] == 2**34


def test_packets_by_cast_discards_and_lifespan(node):
    node.write({**port("mlx5_0"), **counters("mlx5_0", network_tree.WIDE, 11)})
    node.write(
        {"mlx5_0/ports/1/counters/port_rcv_discards": "7\n", "mlx5_0/ports/1/hw_counters/lifespan": "10\n"}
    )
    found = node.read()
    casts = {labels: value for (name, labels), value in found.items() if name.endswith("cast_packets_total")}
    assert casts == {
        ("unicast", "mlx5_0", "transmit", "1"): 11,
        ("unicast", "mlx5_0", "receive", "1"): 12,
        ("multicast", "mlx5_0", "transmit", "1"): 13,
        ("multicast", "mlx5_0", "receive", "1"): 14,
    }
    assert of(found, ERRORS, "mlx5_0") == {"port_rcv_discards": 7}
    assert of(found, "goodput_infiniband_lifespan_seconds", "mlx5_0") == {"": 0.01}


def test_traffic_counters_of_32_bits_saturate(node):
    node.write({**port("mthca0"), "mthca0/ports/1/counters/port_xmit_data": "4294967295\n"})
    node.write({"mthca0/ports/1/counters/port_rcv_packets": "4294967295\n"})
    node.write({"mthca0/ports/1/counters/port_rcv_data": "4294967294\n"})
    found = node.read()
    assert of(found, BYTES, "mthca0") == {"transmit": 4 * 4294967295, "receive": 4 * 4294967294}
    assert of(found, SATURATED, "mthca0") == {"port_xmit_data": 1, "port_rcv_packets": 1}
    assert of(found, STUCK, "mthca0") == {"": 2}
    # Beyond 32 bits: the device has wider ones.
    node.write({"mthca0/ports/1/counters/port_xmit_data": "4294967296\n"})
    assert of(node.read(), SATURATED, "mthca0") == {"port_rcv_packets": 1}


def test_wide_traffic_counters_do_not_saturate(node):
    node.write({**port("mlx5_0"), **counters("mlx5_0", [*network_tree.STANDARD, *network_tree.WIDE], 0)})
    node.write({"mlx5_0/ports/1/counters/port_xmit_data": "4294967295\n"})
    assert of(node.read(), SATURATED, "mlx5_0") == {}


def test_counter_beyond_32_bits_is_not_narrow(node):
    """Some devices have 64 bits for traffic and none of the files that tell of it."""
    node.write({**port("mlx4_0"), "mlx4_0/ports/1/counters/port_xmit_data": "4294967296\n"})
    assert of(node.read(), STUCK, "mlx4_0") == {}


def test_no_saturation_series_without_narrow_counters(node):
    node.write({**port("rdmap0s31"), **counters("rdmap0s31", network_tree.EFA, 4294967295, "hw_counters")})
    found = node.read()
    assert of(found, STUCK, "rdmap0s31") == of(found, SATURATED, "rdmap0s31") == {}


# Counters as they are, at the pace that is due


def test_counters_are_exposed_unchanged(node):
    """Growth, a reset, an absence and a return."""
    node.write({**port("mlx5_0"), **counters("mlx5_0", ["symbol_error"], 1)})
    data = node.path("mlx5_0/ports/1/counters/port_xmit_data")
    data.write_text("100\n")
    seen = []
    for text in ("100", "250", "3", None, "1000", "18446744073709551615", "0"):
        data.unlink() if text is None else data.write_text(text + "\n")
        seen.append(of(node.read(), BYTES, "mlx5_0").get("transmit"))
        node.clock.seconds += 0.3
    assert seen == [400, 1000, 12, None, 4000, 4 * (2**64 - 1), 0]


def test_errors_are_cached_and_traffic_is_not(node):
    node.write({**port("mlx5_0"), **counters("mlx5_0", ["symbol_error", "port_xmit_data"], 1)})
    node.read()
    node.write(counters("mlx5_0", ["symbol_error", "port_xmit_data"], 11))
    node.write({"mlx5_0/ports/1/state": "1: DOWN\n", "mlx5_0/fw_ver": "29.0\n"})
    node.clock.seconds += SLOW_SECONDS * 0.9
    found = node.read()
    assert (of(found, ERRORS, "mlx5_0"), of(found, BYTES, "mlx5_0")) == (
        {"symbol_error": 1},
        {"transmit": 48},
    )
    assert of(found, UP, "mlx5_0") == {"": 0}
    node.clock.seconds += SLOW_SECONDS * 0.2
    found = node.read()
    assert of(found, ERRORS, "mlx5_0") == {"symbol_error": 11}
    assert info(found)["mlx5_0"]["firmware"] == "28.39.1002"
    node.clock.seconds += INFO_SECONDS
    assert info(node.read())["mlx5_0"]["firmware"] == "29.0"


def test_gone_device_has_no_series(node):
    node.write({**port("mlx5_0"), **port("mlx5_1"), **port("mlx5_1", number=2)})
    node.read()
    shutil.rmtree(node.path("mlx5_0"))
    shutil.rmtree(node.path("mlx5_1/ports/2"))
    left = {key[1] for key in node.read() if key[0] == RATE}
    assert left == {("mlx5_1", "1")}
    shutil.rmtree(node.path("mlx5_1"))
    with pytest.raises(NoData):
        node.read()
    assert not node.collector._ports


def test_flapping_devices_leak_nothing(node):
    node.write(port("mlx5_99"))
    node.read()
    opened = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        node.write({**port(f"mlx5_{number}"), **counters(f"mlx5_{number}", ["port_xmit_data"], number)})
        assert of(node.read(), BYTES, f"mlx5_{number}") == {"transmit": 4 * number}
        shutil.rmtree(node.path(f"mlx5_{number}"))
        node.clock.seconds += 1.7
    node.read()
    assert len(os.listdir("/proc/self/fd")) == opened and len(node.collector._ports) == 1


# Broken trees


TWO = {name: text for name, text in devices().items() if name.startswith("mlx5_")}


@pytest.mark.parametrize("how", [how for how in BREAKS if how != "missing"])
@pytest.mark.parametrize(
    "name, series",
    [
        ("counters/port_xmit_data", BYTES),
        ("counters/symbol_error", ERRORS),
        ("hw_counters/np_cnp_sent", CONGESTION),
        ("rate", RATE),
        ("state", UP),
    ],
)
def test_broken_file_costs_only_its_series(node, how, name, series):
    whole = node.write(TWO).read()
    break_file(node.path(f"mlx5_0/ports/1/{name}"), how)
    node.clock.seconds += SLOW_SECONDS
    found = node.read(f"mlx5_0/ports/1/{name}")
    lost = set(whole) - set(found)
    assert lost and {key[1][0] for key in lost} == {"mlx5_0"} and series in {key[0] for key in lost}
    assert len(lost) <= 2 and all(found[key] == whole[key] for key in found if key[0] != STUCK)
    # Cached readings keep their problems.
    node.clock.seconds += SLOW_SECONDS / 2
    assert node.read(f"mlx5_0/ports/1/{name}") == found


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("part", ["", "/ports", "/ports/1", "/ports/1/counters", "/ports/1/hw_counters"])
def test_file_in_place_of_directory(node, how, part):
    whole = node.write(TWO).read()
    break_file(node.path(f"mlx5_0{part}"), how)
    node.clock.seconds += SLOW_SECONDS
    found = node.read("mlx5_0.*symbolic links" if how == "loop" else None)
    assert {key: value for key, value in whole.items() if "mlx5_0" not in key[1]}.items() <= found.items()
    in_it = CONGESTION if part.endswith("hw_counters") else BYTES
    assert of(whole, in_it, "mlx5_0") and not of(found, in_it, "mlx5_0")


@pytest.mark.parametrize("how", BREAKS)
def test_a_class_that_is_no_directory(node, how):
    node.write({})
    (node.root / "sys/class").mkdir(parents=True)
    break_file(node.path(""), how)
    with pytest.raises(CollectorError if how == "loop" else NoData):
        node.read()


OWN = {name: text for name, text in devices().items() if name.startswith("mlx5_0/ports")}


def test_any_damage_costs_only_what_is_damaged(tmp_path_factory):
    """Which series a file gives is learnt by taking it away; then many are broken at once."""
    base = Node(tmp_path_factory.mktemp("whole")).write(TWO)
    whole, lost_with = base.read(), {}
    names = [name for name in OWN if name.rsplit("/", 1)[1] not in network_tree.WIDE]
    for name in names:
        text = base.path(name).read_text()
        base.path(name).unlink()
        base.clock.seconds += 100
        lost_with[name] = set(whole) - set(base.read())
        base.path(name).write_text(text)

    @given(st.dictionaries(st.sampled_from(sorted(names)), st.sampled_from(sorted(BREAKS)), max_size=12))
    @hypothesis_settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
    def run(broken):
        for name, how in broken.items():
            break_file(base.path(name), how)
        base.clock.seconds += 100
        families = Families("node")
        with contextlib.suppress(CollectorError):
            base.collector.collect(families)
        found = samples(families)
        lost = set().union(*(lost_with[name] for name in broken))
        # What info says of a broken text is an empty or a strange label, not a series less.
        counted = {key: value for key, value in whole.items() if key[0] != "goodput_infiniband_info"}
        assert {key: value for key, value in counted.items() if key not in lost}.items() <= found.items()
        assert not [key for key in lost if key in found and key[0] != "goodput_infiniband_info"]
        for name in broken:
            break_file(base.path(name), "missing")
            base.path(name).write_text(OWN[name])

    run()


PARTS = [*"mlx5_0 ports 1 counters hw_counters port_xmit_data state rate device net".split(), "\udcff"]  # noqa: SIM905


@given(
    st.dictionaries(
        st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map("/".join),
        st.one_of(st.binary(max_size=40), st.sampled_from(["loop", "fifo", "directory"])),
        max_size=12,
    )
)
@hypothesis_settings(max_examples=80, suppress_health_check=list(HealthCheck), deadline=None)
def test_any_tree_raises_only_collector_errors(tmp_path_factory, tree):
    node = Node(tmp_path_factory.mktemp("any"))
    for name, what in tree.items():
        path = node.path(name)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(what) if isinstance(what, bytes) else BREAKS[what](path)
    families = Families("node")
    with contextlib.suppress(CollectorError, NoData):
        node.collector.collect(families)
    samples(families)
    shutil.rmtree(node.root)


def test_non_utf8_name_can_be_exposed(node):
    node.write(port("mlx5_0"))
    node.path("mlx5_0").rename(node.path("mlx\udcff"))
    node.path("mlx\udcff/ports/1/rate").write_text("junk")
    families = Families("node")
    with pytest.raises(CollectorError) as problem:
        node.collector.collect(families)
    str(problem.value).encode()
    assert rb"mlx\\udcff" in exposition(families)


# Bounds


def test_devices_are_bounded_physical_functions_first(node):
    for number in range(DEVICES_MAX + 6):
        node.path(f"mlx5_{number}/ports/1").mkdir(parents=True)
        node.path(f"mlx5_{number}/ports/1/rate").write_text("100 Gb/sec (4X EDR)")
        if 4 <= number < 14:
            node.path(f"mlx5_{number}/device/physfn").mkdir(parents=True)
    found = node.read()
    seen = {key[1][0] for key in found if key[0] == RATE}
    # Of ten virtual functions four fit in, the first by number.
    assert seen == {f"mlx5_{number}" for number in range(DEVICES_MAX + 6) if not 8 <= number < 14}
    assert found["goodput_infiniband_devices_left_out", ()] == 6


def test_thousands_of_devices_and_ports(node):
    for number in range(3000):
        node.path(f"mlx5_{number}").mkdir(parents=True)
    for number in range(1, PORTS_MAX + 50):
        node.path(f"mlx5_0/ports/{number}").mkdir(parents=True)
    found = node.read()
    assert len([key for key in found if key[0] == "goodput_infiniband_info"]) == PORTS_MAX
    assert found["goodput_infiniband_devices_left_out", ()] == 3000 - DEVICES_MAX


def test_a_device_without_ports(node):
    node.path("mlx5_0").mkdir(parents=True)
    assert node.read() == {("goodput_infiniband_devices_left_out", ()): 0}


def test_non_port_names_are_skipped(node):
    node.write(port("mlx5_0"))
    for name in ("x", "²", "1x", "-1", "123456"):
        node.path(f"mlx5_0/ports/{name}").mkdir()
    assert {key[1][-1] for key in node.read() if key[0] == "goodput_infiniband_info"} == {"1"}


def test_this_machine():
    families = Families("node")
    with contextlib.suppress(NoData):
        InfiniBand(Settings(directory="")).collect(families)
    samples(families)
