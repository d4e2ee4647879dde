"""AMD GPUs: parsers on any text, the driver on trees like an MI300X's and on broken ones."""

import errno
import os
import shutil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.node import amd_tree
from support.node.amd_tree import UNIQUE
from support.node.broken_files import parse_or_raise
from support.node.gpu_events import watch, with_events

from goodput_exporters.collector import NoData
from goodput_exporters.gpu import sample as gpu_sample
from goodput_exporters.gpu.amd import sysfs
from goodput_exporters.gpu.amd.driver import Amd
from goodput_exporters.gpu.amd.smi_library import SmiError
from goodput_exporters.gpu.drivers import Options

PARSERS = (
    sysfs.parse_whole,
    sysfs.parse_percent,
    sysfs.parse_micro,
    sysfs.parse_milli,
    sysfs.parse_dpm,
    sysfs.parse_dpm_highest,
    sysfs.parse_pwm,
    sysfs.parse_generation,
    sysfs.parse_lanes,
)
MI300X_READINGS = {
    "activity/utilization": 0.87,
    "activity/memory_controller": 0.29,
    "memory/used": 103_070_826_496.0,
    "memory/total": 206_141_652_992.0,
    "power": 412.734,
    "power_limit": 750.0,
    "power_setting/default": 740.0,
    "power_setting/min": 0.0,
    "power_setting/max": 760.0,
    "temperature_limit/slowdown": 100.0,
    "temperature_limit/shutdown": 105.0,
    "temperature_limit/memory_max": 95.0,
    "clock_limit/sm/max": 2.1e9,
    "clock_limit/memory/max": 1.3e9,
    "temperature/core": 54.0,
    "temperature/junction": 54.0,
    "temperature/memory": 41.5,
    "clock/sm": 2.01e9,
    "clock/memory": 9e8,
    "pcie_replays": 4.0,
    "pcie_generation/current": 5.0,
    "pcie_generation/max": 6.0,
    "pcie_lanes/current": 16.0,
    "pcie_lanes/max": 16.0,
    "ecc/uncorrectable/volatile": 3.0,
    "ecc/correctable/volatile": 23.0,
    "ecc/deferred/volatile": 5.0,
    "ecc_location/uncorrectable/volatile/umc": 1.0,
    "ecc_location/correctable/volatile/umc": 20.0,
    "ecc_location/deferred/volatile/umc": 5.0,
    "ecc_location/uncorrectable/volatile/gfx": 2.0,
    "ecc_location/correctable/volatile/gfx": 3.0,
    "processes": 2.0,
}
OLDER_READINGS = {
    "activity/utilization": 0.0,
    "memory/used": 0.0,
    "memory/total": 68_702_699_520.0,
    "power": 43.0,
    "energy": 123.456789,
    "temperature/core": -1.5,
    "temperature/junction": 45.0,
    "clock/sm": 1.9e7,
    "clock_limit/sm/max": 1.7e9,
    "fan": 0.2,
    "pcie_generation/max": 4.0,
    "processes": 1.0,
}


class Clock:
    seconds = 0.0

    def monotonic_ns(self):
        return 5_000_000_000 + round(self.seconds * 1e9)

    def unix_ns(self):
        return 1_700_000_000_000_000_000 + round(self.seconds * 1e9)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def root(tmp_path):
    amd_tree.write_tree(tmp_path)
    return tmp_path


@pytest.fixture
def card(root):
    return root / "sys/class/drm/card1/device"


@pytest.fixture
def driver(root, clock):
    return amd(root, clock)


def not_installed():
    raise SmiError("libamd_smi.so is not installed")


def amd(root, clock):
    options = Options(sysfs=str(root / "sys"), procfs=str(root / "proc"))
    return watch(Amd(options, not_installed, clock.monotonic_ns, clock.unix_ns), clock.unix_ns)


def read(driver, full=True):
    sample = driver.sample(full)
    assert gpu_sample.decode(gpu_sample.encode(sample)) == sample
    return with_events(driver, sample)


def test_a_full_sample(driver):
    driver.open()
    sample = read(driver)
    first, second = sample.gpus
    assert (sample.driver, sample.full, sample.problems) == ("amd", True, [])
    assert sample.source == "sysfs (libamd_smi.so is not installed)"
    assert sample.monotonic_ns == 5_000_000_000
    assert (first.uuid, first.index, first.model) == (UNIQUE, 0, "AMD Instinct MI300X OAM")
    assert (first.pci, first.driver_version, first.pids) == ("0000:1b:00.0", "6.8.5", [4242, 4243])
    assert first.readings == MI300X_READINGS
    assert (second.uuid, second.index, second.model) == ("0000:c1:00.0", 1, "AMD 0x740f")
    assert (second.readings, second.pids) == (OLDER_READINGS, [4243])


def test_fast_sample_has_fast_readings(driver):
    driver.open()
    sample = read(driver, full=False)
    first, second = sample.gpus
    fast = ("activity/utilization", "activity/memory_controller", "memory/used", "power", "energy")
    assert first.readings == {key: value for key, value in MI300X_READINGS.items() if key in fast}
    assert second.readings == {key: value for key, value in OLDER_READINGS.items() if key in fast}
    assert not sample.full and first.pids is None


def test_no_amd_gpu_is_no_data(tmp_path, clock):
    with pytest.raises(NoData, match="class/drm"):
        amd(tmp_path, clock).open()
    amd_tree.write(tmp_path / "sys/class/drm/card0/device", {"vendor": "0x10de\n"})
    with pytest.raises(NoData):
        amd(tmp_path, clock).open()


@pytest.mark.parametrize(
    "name, text, key",
    [
        ("gpu_busy_percent", "busy\n", "activity/utilization"),
        ("gpu_busy_percent", "-1\n", "activity/utilization"),
        ("mem_info_vram_used", "\n", "memory/used"),
        ("hwmon/hwmon5/power1_input", "1.5\n", "power"),
        ("hwmon/hwmon5/temp2_input", "--5\n", "temperature/memory"),
        ("hwmon/hwmon5/power1_cap_max", "much\n", "power_setting/max"),
        ("hwmon/hwmon5/temp1_crit", "hot\n", "temperature_limit/slowdown"),
        ("current_link_speed", "quick\n", "pcie_generation/current"),
        ("max_link_width", "x16\n", "pcie_lanes/max"),
        ("pcie_replay_count", "²\n", "pcie_replays"),
    ],
)
def test_malformed_file_costs_only_its_reading(driver, card, name, text, key):
    (card / name).write_text(text)
    driver.open()
    sample = read(driver)
    assert sample.gpus[0].readings == {
        other: value for other, value in MI300X_READINGS.items() if other != key
    }
    assert len(sample.problems) == 1 and name in sample.problems[0]
    assert sample.gpus[1].readings == OLDER_READINGS


def test_malformed_clocks_cost_both_of_their_readings(driver, card):
    (card / "pp_dpm_mclk").write_text("fast\n")
    driver.open()
    sample = read(driver)
    lost = {"clock/memory", "clock_limit/memory/max"}
    kept = {key: value for key, value in MI300X_READINGS.items() if key not in lost}
    assert sample.gpus[0].readings == kept
    assert len(sample.problems) == 1 and "pp_dpm_mclk" in sample.problems[0]


# What the readings lack, or have instead, without a file. The others have no effect on readings.
JUNCTION = (
    *("temperature/core", "temperature/junction", "temperature_limit/slowdown", "temperature_limit/shutdown"),
)
WITHOUT = {
    "gpu_busy_percent": {"activity/utilization": None},
    "mem_busy_percent": {"activity/memory_controller": None},
    "mem_info_vram_total": {"memory/total": None},
    "mem_info_vram_used": {"memory/used": None},
    "pp_dpm_sclk": {"clock_limit/sm/max": None},
    "pp_dpm_mclk": {"clock/memory": None, "clock_limit/memory/max": None},
    "pcie_replay_count": {"pcie_replays": None},
    "current_link_speed": {"pcie_generation/current": None},
    "current_link_width": {"pcie_lanes/current": None},
    "max_link_speed": {"pcie_generation/max": None},
    "max_link_width": {"pcie_lanes/max": None},
    "hwmon/hwmon5/power1_input": {"power": None},
    "hwmon/hwmon5/power1_cap": {"power_limit": None},
    **{
        f"hwmon/hwmon5/power1_cap_{kind}": {f"power_setting/{kind}": None}
        for kind in ("default", "min", "max")
    },
    "hwmon/hwmon5/temp1_input": dict.fromkeys(JUNCTION),
    "hwmon/hwmon5/temp1_label": dict.fromkeys(JUNCTION),
    "hwmon/hwmon5/temp1_crit": {"temperature_limit/slowdown": None},
    "hwmon/hwmon5/temp1_emergency": {"temperature_limit/shutdown": None},
    "hwmon/hwmon5/temp2_input": {"temperature/memory": None, "temperature_limit/memory_max": None},
    "hwmon/hwmon5/temp2_label": {"temperature/memory": None, "temperature_limit/memory_max": None},
    "hwmon/hwmon5/temp2_crit": {"temperature_limit/memory_max": None},
    "hwmon/hwmon5/freq1_input": {"clock/sm": 2.009e9},
    "hwmon/hwmon5/freq1_label": {"clock/sm": 2.009e9},
    "ras/umc_err_count": {
        "ecc/uncorrectable/volatile": 2.0,
        "ecc/correctable/volatile": 3.0,
        "ecc/deferred/volatile": None,
        **dict.fromkeys(
            f"ecc_location/{kind}/volatile/umc" for kind in ("uncorrectable", "correctable", "deferred")
        ),
    },
    "ras/gfx_err_count": {
        "ecc/uncorrectable/volatile": 1.0,
        "ecc/correctable/volatile": 20.0,
        **dict.fromkeys(f"ecc_location/{kind}/volatile/gfx" for kind in ("uncorrectable", "correctable")),
    },
    # Without an address it is not known which processes are the GPU's.
    "uevent": {"processes": None},
}


@pytest.mark.parametrize("name", [name for name in amd_tree.MI300X if name != "vendor"])
def test_an_absent_file_is_no_problem(driver, card, name):
    (card / name).unlink()
    driver.open()
    sample = read(driver)
    assert sample.problems == []
    expected = {**MI300X_READINGS, **WITHOUT.get(name, {})}
    assert sample.gpus[0].readings == {key: value for key, value in expected.items() if value is not None}


def test_65535_percent_is_not_supported(driver, card):
    (card / "gpu_busy_percent").write_text("65535\n")
    driver.open()
    sample = read(driver)
    assert "activity/utilization" not in sample.gpus[0].readings and sample.problems == []


def test_unreadable_file_is_a_problem(driver, card, monkeypatch):
    driver.open()
    real = os.read

    def fail(fd, size):
        if os.readlink(f"/proc/self/fd/{fd}").endswith("card1/device/gpu_busy_percent"):
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, size)

    monkeypatch.setattr(os, "read", fail)
    sample = read(driver, full=False)
    assert "activity/utilization" not in sample.gpus[0].readings and "power" in sample.gpus[0].readings
    assert "gpu_busy_percent: Input/output error" in sample.problems[0] and len(sample.problems) == 1


def test_malformed_error_count_costs_its_block(driver, card):
    (card / "ras/gfx_err_count").write_text("query failed\n")
    driver.open()
    sample = read(driver)
    assert sample.gpus[0].readings["ecc/correctable/volatile"] == 20.0
    assert "gfx_err_count" in sample.problems[0]


def test_error_counts_are_read_every_30_seconds(driver, card, clock):
    driver.open()

    def correctable():
        return read(driver).gpus[0].readings["ecc/correctable/volatile"]

    assert correctable() == 23.0
    (card / "ras/umc_err_count").write_text("ue: 1\nce: 21\n")
    clock.seconds = 29.0
    assert correctable() == 23.0
    clock.seconds = 31.0
    assert correctable() == 24.0
    assert "ecc/correctable/volatile" not in read(driver, full=False).gpus[0].readings


def test_growing_error_count_is_an_event(driver, card, clock):
    driver.open()
    assert read(driver).events == []
    (card / "ras/umc_err_count").write_text("ue: 9\nce: 20\n")
    clock.seconds = 31.0
    (event,) = read(driver).events
    assert (event.kind, event.device, event.severity) == ("ecc", UNIQUE, "critical")
    assert event.text == "8 uncorrectable memory errors, 11 in all"
    assert read(driver).events == []


def test_block_that_cannot_be_read_for_a_while_is_no_damage(driver, card, clock):
    driver.open()
    before = read(driver).gpus[0].readings
    path = card / "ras/umc_err_count"
    text = path.read_text()
    for seconds, now in ((31.0, "query failed\n"), (62.0, text)):
        path.write_text(now)
        clock.seconds = seconds
        sample = read(driver)
        assert sample.events == []
        assert sample.gpus[0].readings["ecc/uncorrectable/volatile"] == before["ecc/uncorrectable/volatile"]


def test_gpu_leaves_and_returns(driver, root, clock):
    driver.open()
    read(driver)
    device = root / "sys/class/drm/card1"
    shutil.move(device, root / "gone")
    clock.seconds = 3.0
    sample = read(driver)
    assert [(found.uuid, found.lost, found.readings == {}) for found in sample.gpus] == [
        ("0000:c1:00.0", False, False),
        (UNIQUE, True, True),
    ]
    (event,) = sample.events
    assert (event.kind, event.device, event.severity, event.time_ns) == (
        "lost",
        UNIQUE,
        "critical",
        clock.unix_ns(),
    )
    assert read(driver).events == []
    shutil.move(root / "gone", device)
    sample = read(driver)
    assert [(event.kind, event.device) for event in sample.events] == [("back", UNIQUE)]
    assert [found.lost for found in sample.gpus] == [False, False]


def test_no_two_gpus_have_one_index(driver, root):
    """Of a GPU that was away when the driver began, and of the others once it is back."""
    device, aside = root / "sys/class/drm/card1", root / "gone"

    def indices():
        return {found.uuid: found.index for found in read(driver).gpus if not found.lost}

    device.rename(aside)
    driver.open()
    assert indices() == {"0000:c1:00.0": 0}
    aside.rename(device)
    assert indices() == {UNIQUE: 0, "0000:c1:00.0": 1}
    device.rename(aside)
    assert indices() == {"0000:c1:00.0": 1}
    aside.rename(device)
    assert indices() == {UNIQUE: 0, "0000:c1:00.0": 1}


def test_without_kfd_processes_are_unknown(driver, root):
    shutil.rmtree(root / "sys/class/kfd")
    driver.open()
    (first, _) = read(driver).gpus
    assert first.pids is None and "processes" not in first.readings


@pytest.mark.parametrize("text", ["\0", "../777", "x" * 300])
def test_malformed_number_of_kfd_costs_the_processes_of_its_gpu(driver, root, text):
    """It is part of the names of files."""
    (root / "sys/class/kfd/kfd/topology/nodes/1/gpu_id").write_text(text)
    driver.open()
    sample = read(driver)
    assert [gpu.pids for gpu in sample.gpus] == [None, [amd_tree.PIDS[1]]]
    assert "power" in sample.gpus[0].readings
    assert any("nodes/1/gpu_id" in problem and "is not a count" in problem for problem in sample.problems)


def test_gpu_of_kfd_without_an_address_is_a_problem(driver, root):
    properties = root / "sys/class/kfd/kfd/topology/nodes/1/properties"
    properties.write_bytes(b"\xff\xfe\n")
    driver.open()
    sample = read(driver)
    assert [gpu.pids for gpu in sample.gpus] == [None, [amd_tree.PIDS[1]]]
    (problem,) = sample.problems
    assert "nodes/1/properties: no location_id" in problem


def test_fifo_in_place_of_the_table_is_not_waited_for(driver, card):
    os.mkfifo(card / "gpu_metrics")
    driver.open()
    assert read(driver).gpus[0].readings["power"] == 412.734


def test_no_process_is_an_empty_list(driver, root):
    shutil.rmtree(root / "sys/class/kfd/kfd/proc")
    (root / "sys/class/kfd/kfd/proc").mkdir()
    driver.open()
    (first, _) = read(driver).gpus
    assert first.pids == [] and first.readings["processes"] == 0.0


@pytest.mark.parametrize(
    "unique, uuid",
    [
        ("0\n", "0000:1b:00.0"),
        ("0000000000000000\n", "0000:1b:00.0"),
        ("no id\n", "0000:1b:00.0"),
        ("0x8D6F\n", "8d6f"),
    ],
)
def test_the_unique_id(driver, card, unique, uuid):
    (card / "unique_id").write_text(unique)
    driver.open()
    assert read(driver).gpus[0].uuid == uuid


def test_the_pci_address_without_uevent(driver, root):
    real = root / "sys/devices/pci0000:00/0000:1b:00.0"
    real.parent.mkdir(parents=True)
    device = root / "sys/class/drm/card1/device"
    shutil.move(device, real)
    device.symlink_to(real)
    (real / "uevent").unlink()
    driver.open()
    assert read(driver).gpus[0].pci == "0000:1b:00.0"


@pytest.mark.parametrize("parse", PARSERS)
def test_any_text_parses_or_raises(parse):
    @given(st.one_of(st.text(), st.integers().map(str), st.from_regex(r"\A[0-9S]: [0-9]{1,12}Mhz \*?\Z")))
    @example("²")
    @example("9" * 5000)
    @example("9" * 20 + ".9 GT/s PCIe")
    @example("-")
    def run(text):
        parse_or_raise(parse, text.strip(), lambda value: value is None or abs(value) < 1e21)

    run()


@given(st.one_of(st.text(), st.from_regex(r"(ue|ce|de): [0-9]{1,25}\n")))
def test_any_text_of_error_counts(text):
    parse_or_raise(sysfs.parse_errors, text, lambda counts: counts and min(counts.values()) >= 0)


@given(
    st.one_of(
        st.text(), st.from_regex(r"\A(location_id|domain) [0-9]{1,12}\n(location_id|domain) [0-9]{1,12}\n\Z")
    )
)
def test_any_text_of_properties(text):
    sysfs.parse_location(text)


@pytest.mark.parametrize(
    "parse, text, value",
    [
        (sysfs.parse_dpm, "0: 500Mhz\n1: 2100Mhz *", 2.1e9),
        (sysfs.parse_dpm, "S: 19MHz *\n1: 2100MHz", 1.9e7),
        (sysfs.parse_dpm, "0: 500Mhz\n1: 2100Mhz", None),
        (sysfs.parse_dpm, "", None),
        (sysfs.parse_dpm_highest, "0: 500Mhz *\n1: 2100Mhz\n2: 900Mhz", 2.1e9),
        (sysfs.parse_dpm_highest, "S: 19Mhz *", 1.9e7),
        (sysfs.parse_dpm_highest, "0: 500Mhz\nquick", None),
        (sysfs.parse_pwm, "255", 1.0),
        (sysfs.parse_pwm, "300", 1.0),
        (sysfs.parse_generation, "2.5 GT/s PCIe", 1.0),
        (sysfs.parse_generation, "5 GT/s", 2.0),
        (sysfs.parse_generation, "8.0 GT/s PCIe", 3.0),
        (sysfs.parse_generation, "16.0 GT/s PCIe", 4.0),
        (sysfs.parse_generation, "Unknown speed", None),
        (sysfs.parse_generation, "7.0 GT/s PCIe", None),
        (sysfs.parse_percent, "105", 1.05),
        (sysfs.parse_percent, "106", None),
        (sysfs.parse_milli, "-1", -0.001),
    ],
)
def test_texts_worked_by_hand(parse, text, value):
    assert parse(text) == value
