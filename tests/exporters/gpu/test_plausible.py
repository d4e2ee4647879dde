"""Readings that a driver answers with success and no device can have: absent, and counted by quantity."""

import pytest
from support.node.fake_drivers import full_readings, gpu
from support.node.nvml_stub.fixtures import (
    EXPECTED,
    EXPECTED_GPM,
    clock,
    control,
    driver,
    library,
    load,
    sampled,
)
from support.paths import TESTS
from support.servers.servers import wait_until

from goodput.metrics import Families
from goodput_exporters.collectors.gpus.series import add_driver
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.plausible import LIMITS, is_plausible, plausible_part
from goodput_exporters.gpu.sample import COMPONENT_FAMILIES, FAMILIES, Component, Sample, decode, encode
from goodput_exporters.gpu.supervisor import DriverSupervisor

FIXTURES = (clock, control, driver, library, load)

KNOWN = FAMILIES.keys() | {family for families in COMPONENT_FAMILIES.values() for family in families}


def part_of(readings: dict[str, float], component: dict[str, float] | None = None) -> Sample:
    components = [Component("nvswitch", "0", component)] if component else []
    return plausible_part(Sample("nvml", 0, [gpu(0, readings=readings)], components=components))


def test_every_family_has_limits():
    assert LIMITS.keys() == KNOWN


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ("power", (0.0, 75.5, 2700.0), (3.7e6, -1.0, float("nan"))),
        ("power_limit", (1400.0,), (3.7e6,)),
        ("temperature/core", (-20.0, 0.0, 110.0), (2e9, -300.0)),
        ("temperature_margin", (-5.0, 60.0), (2e9,)),
        ("clock/sm", (0.0, 3.1e9), (4e15, -1.0)),
        ("activity/sm", (0.0, 1.0, 1.03), (2.03, -0.1)),
        ("fan", (0.3, 1.2), (42.0,)),
        ("energy", (5e9,), (2.0**64, -1.0)),
        ("ecc/correctable/volatile", (0.0, 2.0**32), (2.0**64 - 1,)),
        ("pcie_replays", (2.0**32 - 1,), (2.0**63,)),
        ("link_bytes/nvlink/transmit", (2.0**64,), (1e30, -1.0)),
        ("link_rate/pcie/receive", (6.4e10,), (1e18,)),
        ("nvlink_bit_errors/effective", (0.0, 1.5e-254), (1e9,)),
        ("throttle/power", (1e8,), (1.8e10, -1.0)),
        ("throttled/power", (0.0, 1.0), (2.0, -1.0)),
        ("memory/total", (3e11,), (2.0**63, -1.0)),
    ],
)
def test_limits_let_devices_through_and_no_garbage(key, right, wrong):
    assert all(is_plausible(key, value) for value in right)
    assert not any(is_plausible(key, value) for value in wrong)


def test_whole_samples_of_devices_are_kept():
    sample = Sample("nvml", 0, [gpu(index) for index in range(8)])
    assert plausible_part(sample) is sample
    for readings in (EXPECTED, EXPECTED_GPM, full_readings(0)):
        assert part_of(readings).implausible == {}


def test_memory_in_use_is_within_its_total():
    found = part_of({"memory/total": 80e9, "memory/used": 90e9, "memory/free": 10e9, "bar1/used": 1e9})
    assert found.gpus[0].readings == {"memory/total": 80e9, "memory/free": 10e9, "bar1/used": 1e9}
    assert found.implausible == {"memory": 1}


def test_components_are_bounded_too():
    found = part_of({"power": 1.0}, {"temperature": 2e9, "link_up/3": 1.0})
    assert found.components[0].readings == {"link_up/3": 1.0} and found.implausible == {"temperature": 1}
    assert decode(encode(found)) == found


def test_nvml_garbage_is_absent_and_counted(driver, control):
    nvml = driver()
    sampled(nvml)
    control.set("0.nvmlDeviceGetPowerUsage", 3_700_000_000)
    control.set("0.nvmlDeviceGetUtilizationRates", "203 7")
    control.set("0.field.82.0", "2000000000 1")
    sample = sampled(nvml)
    first, second = (one.readings for one in sample.gpus)
    assert {"power", "temperature/memory", "activity/utilization"}.isdisjoint(first) and "power" in second
    assert sample.implausible == {"power": 1, "temperature": 1, "activity": 1}
    control.set("0.nvmlDeviceGetPowerUsage", 75_000)
    control.set("0.nvmlDeviceGetUtilizationRates", "20 7")
    control.set("0.field.82.0", "60 1")
    again = sampled(nvml)
    assert again.implausible == {} and again.gpus[0].readings["power"] == 75.0


def test_any_drivers_garbage_is_a_series_by_quantity(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    supervisor = DriverSupervisor(
        "amd", Options(interval_seconds=0.05), module="support.node.fake_drivers:Garbage"
    )
    supervisor.start()
    try:
        wait_until(lambda: supervisor.status().implausible["power"] >= 2, 60, "two samples")
        status = supervisor.status()
    finally:
        supervisor.stop(5.0)
    assert status.full is not None
    assert status.full.sample.gpus[0].readings == {"clock/memory": 2.6e9}
    families = Families("node")
    add_driver(families, status)
    (found,) = [one for one in families if one.name == "goodput_driver_implausible_readings"]
    assert {sample.labels["quantity"] for sample in found.samples} == {
        "power",
        "temperature",
        "clock",
        "energy",
    }
    assert {sample.labels["driver"] for sample in found.samples} == {"amd"}
