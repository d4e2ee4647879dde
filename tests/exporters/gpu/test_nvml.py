"""The NVML driver on a stub of libnvidia-ml.so.1 that NVIDIA's own binding loads: readings, errors, older drivers."""

from __future__ import annotations

import sys

import pytest
from support.node.nvml_stub.control import uuid
from support.node.nvml_stub.fixtures import (
    EXPECTED,
    EXPECTED_GPM,
    FAST,
    by_uuid,
    clock,
    control,
    driver,
    library,
    load,
    pynvml,
    sampled,
)

from goodput_exporters.collector import CollectorError, NoData
from goodput_exporters.gpu import sample as records
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.nvml import driver as driver_module
from goodput_exporters.gpu.nvml.device import RETRY_SECONDS
from goodput_exporters.gpu.nvml.driver import LIBRARY, Nvml

FIXTURES = (clock, control, driver, library, load)

# Readings


def test_every_reading_of_a_full_sample_is_in_base_units(driver):
    sample = sampled(driver())
    assert (sample.driver, sample.full, sample.problems, sample.events) == ("nvml", True, [], [])
    for index, gpu in enumerate(sample.gpus):
        assert gpu.readings == pytest.approx(EXPECTED)
        assert (gpu.uuid, gpu.index, gpu.model) == (uuid(index), index, "NVIDIA H100 80GB HBM3")
        assert gpu.pci == f"0000:{0x3B + index:x}:00.0"
        assert (gpu.driver_version, gpu.parent, gpu.profile) == ("550.54.15", "", "")
        assert gpu.pids == [99, 4242, 4243]


def test_gpm_needs_two_samples(driver, clock):
    nvml = driver()
    assert not set(EXPECTED_GPM) & set(sampled(nvml).gpus[0].readings)
    clock.advance(0.25)
    sample = sampled(nvml)
    assert sample.monotonic_ns == clock.monotonic_ns()
    for gpu in sample.gpus:
        assert gpu.readings == pytest.approx(EXPECTED | EXPECTED_GPM)


def test_fast_sample_has_only_fast_readings(driver, clock):
    nvml = driver()
    sampled(nvml, full=False)
    sample = sampled(nvml, full=False, clock=clock)
    assert not sample.full
    for gpu in sample.gpus:
        assert gpu.readings == pytest.approx({key: (EXPECTED | EXPECTED_GPM)[key] for key in FAST})
        assert gpu.pids is None


def test_values_change_with_the_device(driver, control, clock):
    nvml = driver()
    sampled(nvml)
    control.set("1.nvmlDeviceGetPowerUsage", 99_001)
    control.set("1.gpm.2", 3.5)
    control.set("1.field.94.0", "6 1")
    control.set("1.field.230.0", "4 1")
    gpus = by_uuid(sampled(nvml, clock=clock))
    assert gpus[uuid(1)].readings["power"] == pytest.approx(99.001)
    assert gpus[uuid(1)].readings["activity/sm"] == pytest.approx(0.035)
    assert gpus[uuid(1)].readings["pcie_replays"] == 6
    assert {key for key in gpus[uuid(1)].readings if key.startswith("recovery/")} == {
        "recovery/drain_and_reset"
    }
    assert gpus[uuid(0)].readings == pytest.approx(EXPECTED | EXPECTED_GPM)


@pytest.mark.parametrize(
    "value, reading",
    [
        ("-3 5", -3.0),  # signed int
        ("272 6", 272.0 if hasattr(pynvml.c_nvmlValue_t, "usVal") else None),  # unsigned short
        ("71.5 0", 71.5),  # double
        ("-4 4", -4.0),  # signed long long
        ("4294967295 1", None),  # NVML_VALUE_NOT_AVAILABLE
        ("18446744073709551615 3", None),
        ("5 99", None),  # of no type that is known
    ],
)
def test_field_values_are_read_by_their_type(driver, control, value, reading):
    control.set("0.field.82.0", value)
    readings = sampled(driver()).gpus[0].readings
    assert readings.get("temperature/memory") == reading


def test_percentages_become_ratios(driver, control, clock):
    nvml = driver()
    sampled(nvml)
    control.set("0.gpm.2", 100.02)  # A little more than all is all.
    control.set("0.gpm.5", 140.0)
    control.set("0.gpm.10", "nan")
    control.set("0.gpm.20", "-1")
    control.set("0.gpm.21", "inf")
    control.set("0.nvmlDeviceGetUtilizationRates", "203 7")
    sample = sampled(nvml, clock=clock)
    readings = sample.gpus[0].readings
    assert readings["activity/sm"] == 1.0
    assert readings["activity/memory_controller"] == pytest.approx(0.07)
    absent = {"activity/tensor", "activity/dram", "activity/utilization"}
    absent |= {"link_rate/pcie/transmit", "link_rate/pcie/receive"}
    assert set(EXPECTED | EXPECTED_GPM) - set(readings) == absent
    assert sorted(text.split()[1] for text in sample.problems) == sorted(absent)


def test_many_processes_are_bounded_and_counted(driver, control):
    control.set("0.nvmlDeviceGetComputeRunningProcesses", " ".join(map(str, range(1, 601))))
    gpu = sampled(driver()).gpus[0]
    assert len(gpu.pids) == records.PROCESSES_MAX and gpu.readings["processes"] == 600
    assert sampled(driver()).gpus[1].readings["processes"] == 2


def test_no_process_is_an_empty_list(driver, control):
    control.set("0.nvmlDeviceGetComputeRunningProcesses", "")
    control.set("0.nvmlDeviceGetGraphicsRunningProcesses", "")
    control.drop("1.nvmlDeviceGetComputeRunningProcesses")
    first, second = sampled(driver()).gpus
    assert (first.pids, first.readings["processes"]) == ([], 0)
    assert second.pids is None and "processes" not in second.readings


# Errors


def test_unsupported_query_is_retried_rarely(driver, control, clock):
    control.drop("0.nvmlDeviceGetPowerUsage", "0.field.82.0", "0.nvmlDeviceGetViolationStatus.0", "1.gpm.5")
    # A field number that is newer than the driver, and a GPU from before GPM.
    control.set("0.field.94.0", "!2")
    control.set("0.nvmlGpmQueryDeviceSupport", 0)
    nvml = driver()
    sampled(nvml)
    sample = sampled(nvml, clock=clock)
    missing = {"power", "temperature/memory", "throttle/power", "pcie_replays"}
    everything = EXPECTED | EXPECTED_GPM
    assert sample.problems == []
    assert sample.gpus[0].readings == pytest.approx({k: v for k, v in EXPECTED.items() if k not in missing})
    assert set(everything) - set(sample.gpus[1].readings) == {"activity/tensor"}
    # It is there now, and nobody asks for an hour.
    control.gpu(0)
    control.write()
    sample = sampled(nvml, clock=clock)
    assert set(everything) - set(sample.gpus[0].readings) == {*missing, *EXPECTED_GPM}
    clock.advance(RETRY_SECONDS)
    sampled(nvml)
    assert sampled(nvml, clock=clock).gpus[0].readings == pytest.approx(everything)


def test_other_errors_cost_one_reading(driver, control, clock):
    nvml = driver()
    sampled(nvml)
    control.set("0.nvmlDeviceGetPowerUsage", "!999")
    control.set("0.nvmlDeviceGetMemoryInfo", "!999")
    control.set("0.field.94.0", "!999")
    control.set("1.nvmlGpmSampleGet", "!999")
    sample = sampled(nvml, clock=clock)
    lost = {"power", "memory/total", "memory/used", "memory/free", "memory/reserved", "pcie_replays"}
    assert set(EXPECTED | EXPECTED_GPM) - set(sample.gpus[0].readings) == lost
    assert set(EXPECTED | EXPECTED_GPM) - set(sample.gpus[1].readings) == set(EXPECTED_GPM)
    assert len(sample.problems) == 4 and all("Unknown Error" in text for text in sample.problems)
    assert sum(uuid(0) in text for text in sample.problems) == 3
    control.gpu(0)
    control.gpu(1)
    control.drop("1.nvmlGpmSampleGet")
    sample = sampled(nvml, clock=clock)
    assert sample.problems == []
    assert sample.gpus[0].readings == pytest.approx(EXPECTED | EXPECTED_GPM)
    # GPM's window is that of all devices: the sample before was missed, so this one has none.
    assert sample.gpus[1].readings == pytest.approx(EXPECTED)
    assert sampled(nvml, clock=clock).gpus[1].readings == pytest.approx(EXPECTED | EXPECTED_GPM)


def test_no_data_yet_is_no_problem(driver, control, clock):
    control.set("0.nvmlDeviceGetPowerUsage", "!21")
    nvml = driver()
    sample = sampled(nvml)
    assert sample.problems == [] and "power" not in sample.gpus[0].readings
    control.set("0.nvmlDeviceGetPowerUsage", 1000)
    assert sampled(nvml, clock=clock).gpus[0].readings["power"] == 1


def test_binding_failure_costs_one_reading(driver, monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda handle: int("no number"))
    sample = sampled(driver())
    assert set(EXPECTED) - set(sample.gpus[0].readings) == {"power"}
    assert len(sample.problems) == 2 and "no number" in sample.problems[0]


def test_missing_permission_is_reported_once(driver, control, clock):
    control.set("0.nvmlDeviceGetComputeRunningProcesses", "!4")
    nvml = driver()
    assert [text.partition(": ")[2] for text in sampled(nvml).problems] == [
        "nvmlDeviceGetComputeRunningProcesses_v3: Insufficient Permissions"
    ]
    sample = sampled(nvml, clock=clock)
    assert sample.problems == [] and sample.gpus[0].pids is None


def test_problems_are_bounded(driver, control):
    for index in range(2):
        for function in [key for key in control.lines if key.startswith(f"{index}.nvmlDeviceGet")]:
            control.lines[function] = "!999"
    control.set("0.nvmlDeviceGetUUID", 0)
    control.drop("0.nvmlDeviceGetMigMode", "1.nvmlDeviceGetMigMode")
    problems = sampled(driver()).problems
    assert len(problems) == records.PROBLEMS_MAX
    assert problems[-1].startswith("and ") and problems[-1].endswith(" more")


@pytest.mark.parametrize(
    "instead, without",
    [
        ("nvmlDeviceGetCurrentClocksThrottleReasons", ("nvmlDeviceGetCurrentClocksEventReasons",)),
        ("nvmlDeviceGetTemperatureV", ("nvmlDeviceGetTemperature",)),
        ("nvmlDeviceGetMemoryInfo", ("nvmlDeviceGetMemoryInfo_v2",)),
        (
            "nvmlDeviceGetComputeRunningProcesses_v2",
            ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
        ),
    ],
)
def test_fallback_query_replaces_missing_one(driver, control, instead, without):
    if not hasattr(pynvml, instead):
        pytest.skip(f"this binding has no {instead}")
    control.lines["*.nvmlDeviceGetCurrentClocksThrottleReasons"] = 0x84
    control.lines["*.nvmlDeviceGetTemperatureV"] = 61
    control.write()
    sample = sampled(driver(*without))
    expected = dict(EXPECTED)
    if without == ("nvmlDeviceGetMemoryInfo_v2",):
        # The first version counts what is reserved as used.
        expected["memory/used"] += expected.pop("memory/reserved")
    assert sample.problems == []
    assert sample.gpus[0].readings == pytest.approx(expected)
    assert sample.gpus[0].pids == [99, 4242, 4243]


def test_newer_binding_structure_is_rejected(driver, monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlMemory_v2", 0x03000028)
    readings = sampled(driver()).gpus[0].readings
    assert "memory/reserved" not in readings
    assert readings["memory/used"] == EXPECTED["memory/used"] + EXPECTED["memory/reserved"]


@pytest.mark.parametrize(
    "version, first",
    [
        ("570.195.03", None),  # 251 is the state of power smoothing
        ("575.51.03", 251),
        ("580.65.06", 251),
        ("580.76.05", None),  # of no binding
        ("580.82.07", 269),
        ("595.45.04", 269),
        ("", None),
        ("of no number", None),
    ],
)
def test_throttle_times_by_cause_have_numbers_by_driver(driver, control, version, first):
    """The numbers of nvidia-ml-py of these drivers; those that a driver gave to something else are not taken."""
    control.set("driver", version)
    for number in (*range(251, 254), *range(269, 272)):
        control.set(f"0.field.{number}.0", f"{number * 10**9} 3")
    readings = sampled(driver()).gpus[0].readings
    found = {key: value for key, value in readings.items() if "sw_thermal" in key or "throttle/hw" in key}
    found = {key: value for key, value in found.items() if key.startswith("throttle/")}
    causes = ("sw_thermal", "hw_thermal", "hw_power_brake")
    assert found == pytest.approx(
        {f"throttle/{cause}": float(first + at) for at, cause in enumerate(causes)} if first else {}
    )


def test_throttle_times_fall_back_to_fields(driver, control):
    for number, nanoseconds in ((74, 1_500_000_000), (75, 250_000_000), (81, 4_000_000_000)):
        control.lines[f"0.field.{number}.0"] = f"{nanoseconds} 3"
    control.write()
    readings = sampled(driver("nvmlDeviceGetViolationStatus")).gpus[0].readings
    throttle = {key: value for key, value in readings.items() if key.startswith("throttle/")}
    assert throttle == pytest.approx(
        {"throttle/power": 1.5, "throttle/thermal": 0.25, "throttle/base_clocks": 4.0}
    )


def test_memory_without_sensor_has_no_temperature(driver, control):
    control.set("0.field.82.0", "0 1")
    assert "temperature/memory" not in sampled(driver()).gpus[0].readings


OLD_NVLINK = tuple(f"0.field.{number}.0" for number in (38, 45, 52, 59))
ALL_LINKS = 0xFFFF_FFFF


def nvlink_errors(sample):
    readings = sample.gpus[0].readings
    return {
        key.partition("/")[2]: value for key, value in readings.items() if key.startswith("nvlink_errors/")
    }


@pytest.mark.parametrize("by_link", [False, True])
def test_nvlink_4_errors_are_read_where_older_ones_are_not(driver, control, clock, by_link):
    """A driver answers the new fields for all links together, or for each link."""
    control.drop(*OLD_NVLINK)
    for number, value in ((161, 100), (162, 200), (163, 300)):
        scopes = {link: value + link for link in range(3)} if by_link else {ALL_LINKS: value}
        for scope, count in scopes.items():
            control.set(f"0.field.{number}.{scope}", f"{count} 3")
    nvml = driver()
    samples = [sampled(nvml, clock=clock) for _ in range(4)]
    found = {"replay": 100.0, "recovery": 200.0, "crc": 300.0}
    if by_link:
        found = {kind: 3 * value + 3 for kind, value in found.items()}
    assert nvlink_errors(samples[0]) == {} and nvlink_errors(samples[-1]) == found
    assert [sample.problems for sample in samples] == [[]] * 4
    # The other GPU has the older fields, and no other is queried.
    assert samples[-1].gpus[1].readings["nvlink_errors/replay"] == EXPECTED["nvlink_errors/replay"]


def test_nvlink_5_errors(driver, control, clock):
    control.drop(*OLD_NVLINK, *(f"0.field.{number}.{ALL_LINKS}" for number in (138, 139)))
    kinds = (
        *("malformed_packets", "buffer_overruns", "receive", "receive_remote", "receive_general"),
        *("local_link_integrity", "transmit_discards", "recovery_successful", "recovery_failed"),
        "recovery_events",
    )
    numbers = dict(zip(range(206, 216), kinds, strict=True)) | {219: "effective", 221: "symbol"}
    for number in numbers:
        control.lines[f"0.field.{number}.{ALL_LINKS}"] = f"{number * 2} 3"
    # 4 bits of mantissa, 8 of exponent.
    control.lines[f"0.field.220.{ALL_LINKS}"] = f"{0x10F} 3"
    control.lines[f"0.field.222.{ALL_LINKS}"] = f"{0x50C} 3"
    control.lines[f"0.field.202.{ALL_LINKS}"] = "5000 3"
    control.lines[f"0.field.204.{ALL_LINKS}"] = "6000 3"
    control.write()
    nvml = driver()
    sampled(nvml)
    sample = sampled(nvml, clock=clock)
    assert nvlink_errors(sample) == {kind: number * 2.0 for number, kind in numbers.items()}
    readings = sample.gpus[0].readings
    assert readings["nvlink_bit_errors/effective"] == pytest.approx(1e-15)
    assert readings["nvlink_bit_errors/symbol"] == pytest.approx(5e-12)
    assert readings["link_bytes/nvlink/transmit"] == 5000 and readings["link_bytes/nvlink/receive"] == 6000


def test_old_driver_gives_available_readings(driver, clock):
    nvml = driver(
        *("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmSampleGet"),
        *("nvmlGpmMigSampleGet", "nvmlGpmMetricsGet", "nvmlEventSetCreate", "nvmlDeviceGetMigMode"),
        *("nvmlDeviceGetFieldValues", "nvmlDeviceGetTotalEnergyConsumption"),
    )
    sampled(nvml)
    sample = sampled(nvml, clock=clock)
    fields = (
        *(
            "ecc/",
            "ecc_mode",
            "pages",
            "nvlink_errors",
            "nvlink_link",
            "link_",
            "rows_",
            "recovery/",
            "energy",
        ),
        *("temperature/memory", "temperature_limit_margin", "pcie_replays", "pcie_errors", "power_instant"),
        *(key for key in EXPECTED if key.startswith("ecc_location/") and not key.endswith("/sram")),
    )
    expected = {key: value for key, value in EXPECTED.items() if not key.startswith(fields)}
    assert sample.problems == []
    assert sample.gpus[0].readings == pytest.approx(expected)


# Absence


def test_without_the_library_there_is_no_data(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", lambda name: (_ for _ in ()).throw(OSError(f"{name}: no such file")))
    with pytest.raises(NoData, match="Library Not Found"):
        Nvml(Options()).open()


def test_empty_library_is_an_error(monkeypatch, tmp_path):
    """As in an image made of a container that had the driver's files mounted."""
    (tmp_path / LIBRARY).write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert Nvml.absence(Options()) == ""
    monkeypatch.setattr(driver_module, "is_library_missing", lambda *_: True)
    assert Nvml.absence(Options()) == ""

    def not_found():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", not_found)
    with pytest.raises(CollectorError, match=rf"{LIBRARY}: file too short"):
        Nvml(Options()).open()


def test_without_the_binding_there_is_no_data(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NoData, match="nvidia-ml-py"):
        Nvml(Options()).open()


@pytest.mark.parametrize(
    "lines, error, text",
    [
        ({"init": "!9"}, NoData, "Driver Not Loaded"),
        ({"count": 0}, NoData, "no GPU"),
        ({"init": "!18"}, CollectorError, "mismatch"),
        ({"count": "!999"}, CollectorError, "nvmlDeviceGetCount"),
    ],
)
def test_open_errors(control, load, lines, error, text):
    control.lines.update(lines)
    control.write()
    stub = load()
    nvml = Nvml(Options())
    with pytest.raises(error, match=text):
        nvml.open()
    nvml.close()
    assert (stub.stub_live_samples(), stub.stub_live_sets()) == (0, 0)


def test_unloaded_driver_fails_the_sample(driver, control):
    nvml = driver()
    control.set("0.nvmlDeviceGetPowerUsage", "!9")
    with pytest.raises(CollectorError, match="Driver Not Loaded"):
        nvml.sample(False)
    control.set("0.nvmlDeviceGetPowerUsage", 1)
    control.set("count", "!999")
    sample = sampled(nvml)
    assert sample.problems == ["nvmlDeviceGetCount: Unknown Error"] and len(sample.gpus) == 2
    control.set("count", "!9")
    with pytest.raises(CollectorError, match="Driver Not Loaded"):
        nvml.sample(True)
