"""AMD GPUs through a stub of libamd_smi.so: readings and events, versions of the library, and sysfs beside it."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys

import pytest
from support.node import amd_metrics, amd_tree
from support.node.amd_tree import UNIQUE
from support.node.amdsmi_stub.control import (
    ENVIRONMENT,
    IO_ERROR,
    LIBRARY,
    NOT_SUPPORTED,
    PERMISSION_DENIED,
    Control,
    build,
)
from support.node.gpu_events import watch, with_events
from support.node.node_tree import Clock

from goodput_exporters.collectors.gpus.damage import DamageMonitor
from goodput_exporters.gpu import sample as records
from goodput_exporters.gpu.amd import smi
from goodput_exporters.gpu.amd.driver import Amd
from goodput_exporters.gpu.amd.smi import is_admin, open_smi
from goodput_exporters.gpu.amd.smi_library import KNOWN, NAME, SmiError, address, open_library
from goodput_exporters.gpu.drivers import Options

if shutil.which("gcc") is None:
    pytest.skip("no gcc here", allow_module_level=True)

BDF, OLDER_BDF = "0000:1b:00.0", "0000:c1:00.0"
# What control.MI300X means, in the units of sample.FAMILIES.
SMI_READINGS = {
    "activity/utilization": 0.93,
    "activity/memory_controller": 0.31,
    "activity/video": 0.30,
    "activity/jpeg": 0.85,
    "memory/used": 150e9,
    "memory/total": 206_141_652_992.0,
    "power": 640.0,
    "energy": 1000.0,  # 65 536 000 of 2^-16 J
    "temperature/core": 61.0,
    "temperature/junction": 61.0,
    "temperature/memory": 48.0,
    "clock/sm": 2.1e9,
    "clock/memory": 1.3e9,
    "pcie_generation/current": 5.0,
    "pcie_lanes/current": 16.0,
    "pcie_replays": 9.0,
    "pcie_errors/l0_to_recovery": 21.0,
    "pcie_errors/naks_sent": 22.0,
    "pcie_errors/naks_received": 23.0,
    "link_bytes/xgmi/receive": 28 * 1024.0,
    "link_bytes/xgmi/transmit": 280 * 1024.0,
    "xgmi_links/up": 6.0,
    "xgmi_links/down": 1.0,
    "ecc/correctable/volatile": 15.0,
    "ecc/uncorrectable/volatile": 1.0,
    "ecc/deferred/volatile": 2.0,
    "ecc_location/correctable/volatile/umc": 7.0,
    "ecc_location/uncorrectable/volatile/umc": 1.0,
    "ecc_location/deferred/volatile/umc": 2.0,
    **{f"ecc_location/{kind}/volatile/gfx": 0.0 for kind in ("uncorrectable", "deferred")},
    "ecc_location/correctable/volatile/gfx": 3.0,
    **{f"ecc_location/{kind}/volatile/xgmi_wafl": 0.0 for kind in ("uncorrectable", "deferred")},
    "ecc_location/correctable/volatile/xgmi_wafl": 5.0,
    "pages_retired/retired": 2.0,
    "pages_retired/pending": 1.0,
    "pages_retired/unreservable": 0.0,
}
REASONS = ("hw_slowdown", "power", "thermal", "regulator_thermal", "memory_thermal")
NO_THROTTLING = {f"throttle/{reason}": 0.0 for reason in REASONS}
# These only sysfs has.
SYSFS_READINGS = {
    "power_limit": 750.0,
    "power_setting/default": 740.0,
    "power_setting/min": 0.0,
    "power_setting/max": 760.0,
    "temperature_limit/slowdown": 100.0,
    "temperature_limit/shutdown": 105.0,
    "temperature_limit/memory_max": 95.0,
    "clock_limit/sm/max": 2.1e9,
    "clock_limit/memory/max": 1.3e9,
    "pcie_generation/max": 6.0,
    "pcie_lanes/max": 16.0,
    "processes": 2.0,
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("amdsmi"))


@pytest.fixture
def library(built, tmp_path, monkeypatch):
    """The path of a copy, which the dynamic loader loads anew, as ROCm would install it."""
    path = tmp_path / "rocm/lib" / LIBRARY
    path.parent.mkdir(parents=True)
    shutil.copy(built, path)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.setattr(smi, "is_admin", lambda: True)
    return path


@pytest.fixture
def control(tmp_path, monkeypatch):
    control = Control(tmp_path / "amdsmi.txt")
    control.gpu(0, BDF)
    control.write()
    monkeypatch.setenv(ENVIRONMENT, str(control.path))
    return control


class Ticks(Clock):
    def advance(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock():
    return Ticks()


@pytest.fixture
def root(tmp_path):
    amd_tree.write_tree(tmp_path)
    return tmp_path


@pytest.fixture
def driver(root, library, control, clock):
    options = Options(sysfs=str(root / "sys"), procfs=str(root / "proc"))
    driver = watch(Amd(options, monotonic_ns=clock.monotonic_ns, unix_ns=clock.unix_ns), clock.unix_ns)
    yield driver
    driver.close()


def read(driver, full=True):
    sample = driver.sample(full)
    assert records.decode(records.encode(sample)) == sample
    return with_events(driver, sample)


def test_every_reading_of_a_full_sample(driver):
    driver.open()
    sample = read(driver)
    assert (sample.problems, sample.events, sample.source) == ([], [], "amdsmi 26.0")
    first, second = sample.gpus
    assert first.readings == SMI_READINGS | SYSFS_READINGS | NO_THROTTLING
    assert (first.uuid, first.pids) == (UNIQUE, [4242, 4243])
    # The library does not know the second one.
    assert second.readings["power"] == 43.0 and second.model == "AMD 0x740f"


def test_library_names_a_model_that_sysfs_lacks(driver, control):
    control.gpu(1, OLDER_BDF)
    control.set("1.amdsmi_get_gpu_asic_info", "AMD Instinct MI250X")
    driver.open()
    assert [gpu.model for gpu in read(driver).gpus] == ["AMD Instinct MI300X OAM", "AMD Instinct MI250X"]


def test_fast_sample_has_fast_readings(driver):
    driver.open()
    first, _ = read(driver, full=False).gpus
    fast = (
        "activity/utilization",
        "activity/memory_controller",
        "activity/video",
        "activity/jpeg",
        "memory/used",
    )
    fast += "power", "energy"
    assert first.readings == {key: value for key, value in SMI_READINGS.items() if key in fast}


def test_engine_of_an_mi200(driver, control):
    """It has one number for all; a value that is no percent is none."""
    for name in ("vcn_activity", "jpeg_activity"):
        control.set(f"0.metrics.{name}", 65535)
    control.set("0.metrics.average_mm_activity", 44)
    driver.open()
    readings = read(driver).gpus[0].readings
    assert readings["activity/video"] == 0.44 and "activity/jpeg" not in readings
    control.set("0.metrics.average_mm_activity", 4400)
    assert "activity/video" not in read(driver).gpus[0].readings


def test_engines_of_partitions_are_read_in_sysfs(driver, control, root):
    """The library's structures of partitions differ by release."""
    for name in ("vcn_activity", "jpeg_activity"):
        control.set(f"0.metrics.{name}", 65535)
    (root / "sys/class/drm/card1/device/gpu_metrics").write_bytes(
        bytes(amd_metrics.table(amd_metrics.V1_8, 8))
    )
    control.set("0.metrics.average_gfx_activity", 92)
    driver.open()
    readings = read(driver).gpus[0].readings
    assert (readings["activity/video"], readings["activity/jpeg"]) == (0.30, 0.85)
    assert readings["activity/utilization"] == 0.92 and readings["throttle/power"] == 0.0


def test_throttling_is_the_share_of_cycles(driver, control, clock):
    """Of 8 000 cycles in 5 s the power limit held in 2 000 and the socket's temperature in 400."""
    driver.open()
    first = read(driver).gpus[0].readings
    assert {key: value for key, value in first.items() if key.startswith("throttle")} == NO_THROTTLING
    clock.advance(5)
    control.set("0.metrics.accumulation_counter", 108_000)
    control.set("0.metrics.ppt_residency_acc", 7_000)
    control.set("0.metrics.socket_thm_residency_acc", 500)
    sample = read(driver)
    found = {key: value for key, value in sample.gpus[0].readings.items() if key.startswith("throttle")}
    assert found == pytest.approx(
        {
            **{
                f"throttle/{reason}": 0.0 for reason in ("hw_slowdown", "regulator_thermal", "memory_thermal")
            },
            **{
                f"throttled/{reason}": 0.0
                for reason in ("hw_slowdown", "regulator_thermal", "memory_thermal")
            },
            "throttle/power": 1.25,
            "throttled/power": 1.0,
            "throttle/thermal": 0.25,
            "throttled/thermal": 1.0,
        }
    )
    clock.advance(5)
    control.set("0.metrics.accumulation_counter", 116_000)
    control.set("0.metrics.hbm_thm_residency_acc", 8_000)
    sample = read(driver)
    readings = sample.gpus[0].readings
    assert (readings["throttle/power"], readings["throttled/power"]) == (1.25, 0.0)
    assert (readings["throttle/memory_thermal"], readings["throttled/memory_thermal"]) == (5.0, 1.0)
    # Its first value was 0, so that this is where it begins.
    assert [(event.kind, event.device, event.name) for event in sample.events] == [
        ("throttle", UNIQUE, "memory_thermal")
    ]


def test_growing_errors_are_events(driver, control, clock):
    driver.open()
    read(driver)
    control.set("0.amdsmi_get_gpu_ecc_count.1", "9 4 3")
    control.set("0.amdsmi_get_gpu_xgmi_link_status", "8 1 1 1 1 1 0 0 2")
    control.set("0.amdsmi_get_gpu_bad_page_info", "0 0 0 2")
    clock.advance(31)
    events = {(event.kind, event.severity, event.text) for event in read(driver).events}
    assert events == {
        ("ecc", "info", "2 correctable memory errors, 17 in all"),
        ("ecc", "critical", "3 uncorrectable memory errors, 4 in all"),
        ("ecc", "warning", "1 uncorrectable memory errors found before the data was used, 3 in all"),
        ("link_down", "critical", "1 XGMI links down, 2 in all"),
        ("page_retired", "warning", "1 memory pages retired, 3 in all"),
        ("page_retired", "critical", "1 bad memory pages that stay in use, 1 in all"),
    }
    assert read(driver).events == []


def test_notifications_become_events(driver, control, clock):
    driver.open()
    read(driver)
    for number in (1, 3, 1, 4, 2):
        control.event(0, number)
    events = read(driver, full=False).events
    assert [(event.kind, event.severity, event.count, event.device) for event in events] == [
        ("page_fault", "warning", 2, UNIQUE),
        ("gpu_reset", "critical", 1, UNIQUE),
    ]
    assert events[0].time_ns == clock.unix_ns()
    assert read(driver, full=False).events == []


def possible(driver) -> frozenset[tuple[str, str]]:
    sample = driver.sample(True)
    with_events(driver, sample)
    declared = DamageMonitor().possible(sample)[UNIQUE]
    return declared & {("page_fault", "warning"), ("gpu_reset", "critical"), ("gpu_hang", "critical")}


@pytest.mark.parametrize(
    "version, refused, kinds",
    [
        ("26 0 2", "", {("page_fault", "warning"), ("gpu_reset", "critical")}),
        ("25 25 5 1", "", {("page_fault", "warning"), ("gpu_reset", "critical"), ("gpu_hang", "critical")}),
        ("26 0 2", "amdsmi_init_gpu_event_notification", set()),
        ("26 0 2", "amdsmi_set_gpu_event_notification_mask", set()),
    ],
)
def test_events_that_the_library_sends_are_declared(driver, control, version, refused, kinds):
    """So that their series begin at 0, and only those: a zero that cannot rise says that all is well."""
    control.set("version", version)
    if refused:
        control.set(f"0.{refused}", PERMISSION_DENIED)
    driver.open()
    assert possible(driver) == kinds


def test_memory_faults_of_other_users_need_cap_sys_admin(driver, control, monkeypatch):
    monkeypatch.setattr(smi, "is_admin", lambda: False)
    driver.open()
    assert possible(driver) == {("gpu_reset", "critical")}
    assert driver.sample(True).source == (
        "amdsmi 26.0; refused to this user: events of memory faults (need CAP_SYS_ADMIN)"
    )
    for number in (1, 3):
        control.event(0, number)
    assert [event.kind for event in read(driver).events] == ["gpu_reset"]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Name:\tpython\nCapPrm:\t000001ffffffffff\nCapEff:\t000001ffffffffff\n", True),
        ("CapEff:\t0000000000200000\n", True),
        ("CapEff:\t00000000a80425fb\n", False),  # a container's usual ones
        ("CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n", False),
        ("CapEff:\tnone\n", False),
        (None, False),
    ],
)
def test_capability_is_that_of_the_process(tmp_path, text, expected):
    path = tmp_path / "status"
    if text is not None:
        path.write_text(text)
    assert is_admin(str(path)) is expected


@pytest.mark.parametrize("version, kinds", [("25 25 5 1", ["gpu_hang"]), ("26 0 2", [])])
def test_notification_five_is_a_hang_until_26(driver, control, version, kinds):
    control.set("version", version)
    driver.open()
    control.event(0, 5)
    assert [event.kind for event in read(driver).events] == kinds


# As the releases write amdsmi_version_t: with a year before 26.0; ROCm 6.3.3 calls itself 25.1.
@pytest.mark.parametrize(
    "written, version",
    [
        ("24 6 3 0", (24, 6)),
        ("24 7 1 0", (24, 7)),
        ("25 1 0 0", (25, 1)),
        ("25 25 3 0", (25, 3)),
        ("25 25 5 1", (25, 5)),
        ("26 0 0", (26, 0)),
        ("26 2 0", (26, 2)),
    ],
)
def test_known_versions(library, control, written, version):
    control.set("version", written)
    assert open_library(os.environ).version == version and version in KNOWN


def test_24_6_has_no_throttling_counters(driver, control, clock):
    """What lies there in memory is not of the structure."""
    control.set("version", "24 6 2 0")
    driver.open()
    read(driver)
    clock.advance(5)
    control.set("0.metrics.accumulation_counter", 108_000)
    control.set("0.metrics.ppt_residency_acc", 7_000)
    readings = read(driver).gpus[0].readings
    assert readings["power"] == 640.0 and not [key for key in readings if key.startswith("throttle")]


@pytest.mark.parametrize("written", ["27 0 0", "26 3 0", "23 4 0 0", "24 5 1 0", "0 0 0 0"])
def test_library_of_unknown_version_is_not_used(driver, control, written, library):
    control.set("version", written)
    driver.open()
    sample = read(driver)
    assert sample.gpus[0].readings["power"] == 412.734 and sample.problems == []
    assert "known are 24.6 to 26.2" in sample.source and str(library) in sample.source
    assert sample.source.startswith("sysfs (")
    assert ctypes.CDLL(str(library)).stub_initialized() == 0


def test_library_that_fails_to_start_leaves_sysfs(driver, control):
    control.set("init", "!34")
    driver.open()
    sample = read(driver)
    assert sample.gpus[0].readings["power"] == 412.734
    assert sample.source == "sysfs (amdsmi_init: driver not loaded)"


def test_file_that_is_no_library_is_reported(tmp_path, monkeypatch):
    path = tmp_path / "lib" / NAME
    path.parent.mkdir()
    path.write_bytes(b"")
    with pytest.raises(SmiError, match=r"lib/libamd_smi\.so: file too short"):
        open_library({"ROCM_PATH": str(tmp_path)})


def test_unsupported_calls_leave_sysfs(driver, control):
    for key in list(control.lines):
        if key.startswith("0.amdsmi_"):
            control.lines[key] = NOT_SUPPORTED
    control.set("0.amdsmi_get_gpu_metrics_info", NOT_SUPPORTED)
    driver.open()
    sample = read(driver)
    assert sample.problems == []
    readings = sample.gpus[0].readings
    assert (readings["power"], readings["ecc/correctable/volatile"]) == (412.734, 23.0)
    assert readings["memory/used"] == 103_070_826_496.0


def test_unknown_numbers_are_absent(driver, control):
    """All ones is unknown; a temperature, an energy counter or a clock of 0 is no measurement."""
    for name in ("average_gfx_activity", "current_socket_power", "xgmi_read_data_acc"):
        control.drop(f"0.metrics.{name}")
    for name in ("temperature_mem", "energy_accumulator", "current_uclk"):
        control.set(f"0.metrics.{name}", 0)
    control.set("0.metrics.average_umc_activity", 255)
    driver.open()
    readings = read(driver).gpus[0].readings
    assert readings["activity/utilization"] == 0.87 and readings["power"] == 412.734  # sysfs's
    assert readings["activity/memory_controller"] == 0.29 and readings["temperature/memory"] == 41.5
    assert "energy" not in readings and "link_bytes/xgmi/receive" not in readings


def test_refused_calls_are_made_once_and_reported(driver, control):
    control.set("0.amdsmi_get_gpu_bad_page_info", PERMISSION_DENIED)
    control.set("0.amdsmi_init_gpu_event_notification", PERMISSION_DENIED)
    driver.open()
    sample = read(driver)
    assert sample.problems == []
    assert not [key for key in sample.gpus[0].readings if key.startswith("pages_retired")]
    assert sample.source == (
        "amdsmi 26.0; refused to this user: amdsmi_get_gpu_bad_page_info: permission denied, "
        "events (amdsmi_init_gpu_event_notification: permission denied)"
    )


def test_failing_call_is_a_problem_and_sysfs_is_read(driver, control):
    driver.open()
    control.set("0.amdsmi_get_gpu_metrics_info", IO_ERROR)
    sample = read(driver)
    assert sample.problems == [f"{BDF}: amdsmi_get_gpu_metrics_info: I/O error"]
    assert sample.gpus[0].readings["power"] == 412.734
    control.drop("0.amdsmi_get_gpu_metrics_info")
    assert read(driver).gpus[0].readings["power"] == 640.0


def test_gpu_leaves_and_returns(driver, root, control, library, clock):
    stub = ctypes.CDLL(str(library))
    driver.open()
    read(driver)
    device = root / "sys/class/drm/card1"
    shutil.move(device, root / "gone")
    control.set("count", 0)
    sample = read(driver)
    assert [(gpu.uuid, gpu.lost) for gpu in sample.gpus] == [(OLDER_BDF, False), (UNIQUE, True)]
    assert [event.kind for event in sample.events] == ["lost"]
    shutil.move(root / "gone", device)
    control.set("count", 1)
    clock.advance(31)
    sample = read(driver)
    assert [event.kind for event in sample.events] == ["back"]
    assert sample.gpus[0].readings == SMI_READINGS | SYSFS_READINGS | NO_THROTTLING
    assert (stub.stub_initialized(), stub.stub_watched()) == (1, 1)
    driver.close()
    assert (stub.stub_initialized(), stub.stub_watched()) == (0, 0)


def test_address_of_a_bdf():
    assert address(0x1B << 8) == BDF
    assert address(0x1_0002 << 16 | 0xC1 << 8 | 0x1F << 3 | 7) == "10002:c1:1f.7"


def test_worker_process_reads_the_library(root, library, control):
    """As the agent starts it: a full sample arrives, with the library's power."""
    options = json.dumps({"sysfs": str(root / "sys"), "procfs": str(root / "proc"), "interval_seconds": 0.1})
    command = [sys.executable, "-m", "goodput_exporters.gpu.worker", "goodput_exporters.gpu.amd.driver:Amd"]
    process = subprocess.Popen(
        [*command, options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        body = b""
        while b"amdsmi 26.0" not in body:
            part = os.read(process.stdout.fileno(), 65536)
            assert part, process.stderr.read()
            body += part
        assert b"link_bytes/xgmi/receive" in body
    finally:
        process.kill()
        process.communicate()


def test_open_smi_shuts_down_after_a_failed_listing(library, control):
    control.set("0.bdf", IO_ERROR)
    with pytest.raises(SmiError, match="amdsmi_get_gpu_device_bdf: I/O error"):
        open_smi(os.environ)
    assert ctypes.CDLL(str(library)).stub_initialized() == 0
