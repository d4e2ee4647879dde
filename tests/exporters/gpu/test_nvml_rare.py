"""What the NVML driver reads once a minute: limits, errors by place, spare rows, fabric, licence, links one by one."""

from __future__ import annotations

import pytest
from support.node.nvml_stub.control import uuid
from support.node.nvml_stub.fixtures import by_uuid, clock, control, driver, library, load, sampled

from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.nvml.device import RARE_SECONDS, RETRY_SECONDS
from goodput_exporters.gpu.nvml.driver import Nvml

FIXTURES = (clock, control, driver, library, load)


def of_first(sample, *families):
    readings = sample.gpus[0].readings
    return {key: value for key, value in readings.items() if key.partition("/")[0] in families}


def test_rare_readings_are_kept_for_a_minute(driver, control, clock):
    nvml = driver()
    sampled(nvml)
    control.set("0.nvmlDeviceGetPowerManagementLimit", 300_000)
    control.set("0.nvmlDeviceGetNvLinkState.0", 0)
    clock.advance(RARE_SECONDS - 2)
    kept = sampled(nvml, clock=clock).gpus[0].readings
    assert (kept["power_setting/requested"], kept["nvlink_up/0"]) == (650.0, 1.0)
    read = sampled(nvml, clock=clock).gpus[0].readings
    assert (read["power_setting/requested"], read["nvlink_up/0"]) == (300.0, 0.0)
    # What is no longer answered is not kept.
    control.drop("0.nvmlDeviceGetPowerManagementLimit")
    clock.advance(RARE_SECONDS)
    assert "power_setting/requested" not in sampled(nvml).gpus[0].readings


def test_lost_gpu_forgets_rare_readings(driver, control, clock):
    nvml = driver()
    sampled(nvml)
    control.lose(0)
    assert by_uuid(sampled(nvml, clock=clock))[uuid(0)].lost
    control.set("0.nvmlDeviceGetPowerManagementLimit", 300_000)
    control.find(0)
    assert by_uuid(sampled(nvml, clock=clock))[uuid(0)].readings["power_setting/requested"] == 300.0


def test_nothing_of_what_is_not_supported_is_zero(driver, control):
    """A card without fans, NVLink, MIG, ECC and licence has no readings of them."""
    for key in [key for key in control.lines if key.startswith(("0.nvmlDeviceGet", "0.field"))]:
        control.lines.pop(key)
    control.set("0.nvmlDeviceGetUtilizationRates", "1 2")
    sample = sampled(driver())
    assert sample.problems == []
    assert sample.gpus[0].readings == {"activity/utilization": 0.01, "activity/memory_controller": 0.02}


def test_unknown_performance_state_is_absent(driver, control):
    control.set("0.nvmlDeviceGetPerformanceState", 32)
    control.set("0.nvmlDeviceGetFanSpeed", 104)
    readings = sampled(driver()).gpus[0].readings
    assert "performance_state" not in readings
    assert readings["fan"] == pytest.approx(1.04)  # The requested speed may exceed the maximum.


@pytest.mark.parametrize(
    "answer, found",
    [
        ("0 0 0", {"fabric/not_supported": 1}),
        ("1 0 0", {"fabric/not_started": 1}),
        ("2 0 0", {"fabric/in_progress": 1}),
        # Access timeout and route unhealthy are true, degraded bandwidth is false, the rest is not known.
        ("3 0 82", {"fabric/completed": 1, "fabric_problem/degraded_bandwidth": 0, "fabric_problem/route_unhealthy": 1, "fabric_problem/access_timeout": 1}),
        ("3 999 0", {"fabric/failed": 1}),
        ("3 0 256", {"fabric/completed": 1, "fabric_problem/misconfigured": 0}),
        ("3 0 1024", {"fabric/completed": 1, "fabric_problem/misconfigured": 1}),
        ("9 0 0", {"fabric/unknown": 1}),
        ("!3", {}),
    ],
)  # fmt: skip
def test_fabric_states_and_problems(driver, control, answer, found):
    control.set("0.nvmlDeviceGetGpuFabricInfoV", answer)
    assert of_first(sampled(driver()), "fabric", "fabric_problem") == found


@pytest.mark.parametrize(
    "answer, found",
    [("0", {"supported": 0}), ("1 0 0", {"supported": 1, "licensed": 0}), ("1 0 1", {"supported": 1, "licensed": 1})],
)  # fmt: skip
def test_vgpu_licence(driver, control, answer, found):
    control.set("0.nvmlDeviceGetGridLicensableFeatures", answer)
    readings = of_first(sampled(driver()), "vgpu_license")
    assert readings == {f"vgpu_license/{kind}": value for kind, value in found.items()}


def test_limits_as_margins_only(driver, control):
    """As on Ada and later, where NVML has no limits as temperatures."""
    control.drop(*(f"0.nvmlDeviceGetTemperatureThreshold.{at}" for at in range(4)))
    assert of_first(sampled(driver()), "temperature_limit", "temperature_limit_margin") == {
        "temperature_limit_margin/shutdown": -8.0,
        "temperature_limit_margin/slowdown": -2.0,
    }


def test_sram_threshold(driver, control):
    control.set("0.nvmlDeviceGetSramEccErrorStatus", 1)
    assert of_first(sampled(driver()), "ecc_threshold") == {"ecc_threshold": 1.0}


# Links


LINK_FAMILIES = ("nvlink_up", "nvlink_link_errors", "nvlink_link_bytes")


def test_links_of_nvlink_5(driver, control):
    for number in (208, 212, 214, 215, 221, 202, 204):
        for link in range(3):
            control.lines[f"0.field.{number}.{link}"] = f"{1000 * link + number} 3"
    control.write()
    errors = {
        "receive": 208,
        "transmit_discards": 212,
        "recovery_failed": 214,
        "recovery_events": 215,
        "symbol": 221,
    }
    expected = {f"nvlink_up/{link}": float(link < 2) for link in range(3)}
    for link in range(3):
        expected |= {
            f"nvlink_link_errors/{link}/{kind}": 1000.0 * link + number for kind, number in errors.items()
        }
        expected |= {f"nvlink_link_bytes/{link}/transmit": 1000.0 * link + 202}
        expected |= {f"nvlink_link_bytes/{link}/receive": 1000.0 * link + 204}
    assert of_first(sampled(driver()), *LINK_FAMILIES) == expected


def test_links_before_nvlink_4_have_fields_of_their_own(driver, control):
    """Twelve links, as on an A100: L0 to L5 and L6 to L11 are in different ranges of numbers."""
    control.drop(*(f"0.field.{number}.{link}" for number in (161, 162, 163, 138, 139) for link in range(3)))
    for link in range(12):
        control.lines[f"0.nvmlDeviceGetNvLinkState.{link}"] = 1
    numbers = {0: (32, 39, 46, 53), 5: (37, 44, 51, 58), 6: (96, 102, 108, 114), 11: (101, 107, 113, 119)}
    for fields in numbers.values():
        for number in fields:
            control.lines[f"0.field.{number}.0"] = f"{number} 3"
    control.write()
    kinds = ("crc_flit", "crc_data", "replay", "recovery")
    assert of_first(sampled(driver()), *LINK_FAMILIES) == {
        **{f"nvlink_up/{link}": 1.0 for link in range(12)},
        **{
            f"nvlink_link_errors/{link}/{kind}": float(number)
            for link, fields in numbers.items()
            for kind, number in zip(kinds, fields, strict=True)
        },
    }


def test_states_of_links_need_no_fields(driver):
    found = of_first(sampled(driver("nvmlDeviceGetFieldValues")), *LINK_FAMILIES)
    assert found == {"nvlink_up/0": 1.0, "nvlink_up/1": 1.0, "nvlink_up/2": 0.0}


def test_error_of_one_link_is_a_problem(driver, control):
    control.set("0.nvmlDeviceGetNvLinkState.1", "!999")
    sample = sampled(driver())
    assert of_first(sample, *LINK_FAMILIES) == {}
    assert [text.partition(": ")[2] for text in sample.problems] == [
        "nvmlDeviceGetNvLinkState: Unknown Error"
    ]


def test_chip_to_chip_links(driver, control):
    control.lines |= {"0.field.170.0": "2 1", "0.field.171.0": "1 1", "0.field.171.1": "0 1"}
    control.lines |= {
        f"0.field.{number}.{link}": f"{number + link} 3" for number in (231, 232) for link in (0, 1)
    }
    control.lines |= {"0.gpm.100": 2.0, "0.gpm.101": 1.0, "1.field.170.0": "0 1"}
    control.write()
    nvml = driver()
    sampled(nvml)
    sample = sampled(nvml)
    assert of_first(sample, "c2c_links", "c2c_errors") == {
        "c2c_links/present": 2.0, "c2c_links/active": 1.0, "c2c_errors/crc": 463.0, "c2c_errors/replay": 465.0,
    }  # fmt: skip
    assert sample.gpus[0].readings["link_rate/c2c/transmit"] == 2 << 20
    assert not [key for key in sample.gpus[1].readings if key.startswith("c2c")] and sample.problems == []


NAMES = ("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "DCGM_FI_DEV_PCIE_RX_THROUGHPUT")
RATES = {"link_rate/pcie/transmit", "link_rate/pcie/receive"}


@pytest.fixture
def measuring(control, load, clock):
    """An open driver on two GPUs without GPM, of which PCIe throughput is wanted."""
    for gpu in (0, 1):
        control.drop(f"{gpu}.nvmlGpmQueryDeviceSupport")
        control.set(f"{gpu}.nvmlDeviceGetPcieThroughput.0", 2500 + gpu)
        control.set(f"{gpu}.nvmlDeviceGetPcieThroughput.1", 1500)
    load()
    nvml = Nvml(Options(dcgm_fields=NAMES), clock.monotonic_ns, clock.unix_ns)
    nvml.open()
    yield nvml
    nvml.close()


def rates(sample):
    return [
        {key: value for key, value in gpu.readings.items() if key in RATES}
        for gpu in sorted(sample.gpus, key=lambda gpu: gpu.uuid)
    ]


def test_pcie_throughput_of_one_gpu_after_the_other(measuring, control):
    """After its turn a GPU keeps its rates until the next one; a sample that is not full measures nothing."""
    first = {"link_rate/pcie/transmit": 2_500_000.0, "link_rate/pcie/receive": 1_500_000.0}
    second = first | {"link_rate/pcie/transmit": 2_501_000.0}
    assert rates(measuring.sample(True)) == [{}, {}]
    assert rates(measuring.sample(False)) == [{}, {}]
    assert rates(measuring.sample(True)) == [first, {}]
    assert rates(measuring.sample(True)) == [first, second]
    control.set("0.nvmlDeviceGetPcieThroughput.0", "!3")
    for _ in range(2):
        measuring.sample(True)
    assert rates(measuring.sample(True))[0] == {"link_rate/pcie/receive": 1_500_000.0}


def test_pcie_throughput_is_not_measured_where_gpm_has_it(measuring, control, clock):
    control.set("0.nvmlGpmQueryDeviceSupport", 1)
    for _ in range(4):
        clock.advance(RETRY_SECONDS)
        found = rates(measuring.sample(True))
    assert found[0] == {"link_rate/pcie/transmit": 10_485_760.0, "link_rate/pcie/receive": 20_971_520.0}
    assert found[1] == {"link_rate/pcie/transmit": 2_501_000.0, "link_rate/pcie/receive": 1_500_000.0}


def test_pcie_throughput_is_measured_where_it_is_wanted_alone(driver, control, clock):
    for gpu in (0, 1):
        control.drop(f"{gpu}.nvmlGpmQueryDeviceSupport")
        control.set(f"{gpu}.nvmlDeviceGetPcieThroughput.0", 2500)
    nvml = driver()
    for _ in range(4):
        assert rates(sampled(nvml, clock=clock)) == [{}, {}]
