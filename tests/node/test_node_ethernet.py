"""Network interfaces: parsers on any text, the collector on a fixture tree."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from node_tree import samples

from goodput.metrics import Families
from goodput_exporters.collectors import CollectorError, NoData, ParseError, ethernet
from goodput_exporters.collectors.ethernet import DEVICES_MAX, Ethernet


def collect(settings) -> dict:
    families = Families("node")
    Ethernet(settings).collect(families)
    return samples(families)


def devices(found: dict) -> set[str]:
    return {labels[0] for name, labels in found if name == "goodput_network_bytes_total"}


@pytest.mark.parametrize("parse", [ethernet.parse_number, ethernet.parse_speed, ethernet.parse_carrier])
def test_any_text_gives_a_value_or_a_parse_error(parse):
    @given(st.one_of(st.text(), st.integers().map(str)))
    @example("²")
    @example("9" * 5000)
    @example("-")
    def run(text):
        try:
            value = parse(text)
        except ParseError:
            return
        assert value is None or value >= 0

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
    assert ethernet.parse_speed(text) == speed


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


def test_a_malformed_file_costs_only_its_series(tree, settings):
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


def test_interfaces_are_bounded_and_hardware_comes_first(tree, settings):
    for number in range(2 * DEVICES_MAX):
        statistics = tree / f"sys/class/net/a{number:03}/statistics"
        statistics.mkdir(parents=True)
        (statistics / "rx_bytes").write_text("1\n")
    found = devices(collect(settings))
    assert len(found) == DEVICES_MAX and {"eth0", "eth1"} <= found and "a000" in found


def test_this_machine():
    families = Families("node")
    from goodput_exporters.collectors import Settings

    try:
        Ethernet(Settings(directory="")).collect(families)
    except NoData:
        pytest.skip("no network interface but lo here")
    assert devices(samples(families))
