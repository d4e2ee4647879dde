"""Memory errors, temperatures, throttled processors and NVMe controllers, on a fixture tree."""

import ctypes
import os
import struct
import threading

import pytest
from support.node import hardware_tree
from support.node.node_tree import collect, of

from goodput_exporters.collector import NoData, ParseError, Settings
from goodput_exporters.collectors.hardware import nvme_health
from goodput_exporters.collectors.hardware.collector import READ_SECONDS, Hardware
from goodput_exporters.collectors.hardware.temperatures import parse_celsius


@pytest.fixture
def machine(tmp_path):
    hardware_tree.write_tree(tmp_path)
    return tmp_path


def hardware_of(machine, **given) -> Hardware:
    return Hardware(Settings(directory="", sysfs=str(machine / "sys"), **given))


def test_memory_errors(machine):
    found = collect(hardware_of(machine))
    assert of(found, "goodput_host_memory_errors_total") == {
        ("0", "correctable"): 12, ("0", "uncorrectable"): 1, ("1", "correctable"): 0, ("1", "uncorrectable"): 0,
    }  # fmt: skip
    slot = "CPU_SrcID#0_Ha#0_Chan#1_DIMM#0"
    assert of(found, "goodput_host_memory_module_errors_total") == {
        ("0", "correctable", "dimm3", slot): 10, ("0", "uncorrectable", "dimm3", slot): 1,
    }  # fmt: skip


def test_temperatures_of_whole_devices(machine):
    found = collect(hardware_of(machine))
    package, composite = ("coretemp", "coretemp.0", "Package id 0"), ("nvme", "nvme0", "Composite")
    board, zone = ("board", "hwmon2", "temp1"), ("thermal_zone", "thermal_zone0", "x86_pkg_temp")
    assert of(found, "goodput_host_temperature_celsius") == {
        package: 61.0, composite: 41.85, board: -5.5, zone: 60.0,
    }  # fmt: skip
    assert of(found, "goodput_host_temperature_alarm") == {package: 0, composite: 1}
    # -273.15 is how NVMe says that it has no such limit.
    limits = {
        labels[2:]: value for labels, value in of(found, "goodput_host_temperature_limit_celsius").items()
    }
    assert limits == {
        ("max", "Package id 0"): 88.0, ("crit", "Package id 0"): 98.0, ("max", "Composite"): 81.85,
    }  # fmt: skip


def test_two_sensors_with_one_label(machine):
    for name in ("temp3", "temp4"):
        (machine / f"sys/class/hwmon/hwmon2/{name}_label").write_text("PECI\n")
        (machine / f"sys/class/hwmon/hwmon2/{name}_input").write_text("1000\n")
    found = of(collect(hardware_of(machine)), "goodput_host_temperature_celsius")
    assert {sensor for chip, _, sensor in found if chip == "board"} == {"temp1", "PECI", "PECI hwmon2 temp4"}


def test_sensor_that_fails_to_read_is_absent(machine):
    path = machine / "sys/class/thermal/thermal_zone0/temp"
    path.unlink()
    path.mkdir()
    found = of(collect(hardware_of(machine)), "goodput_host_temperature_celsius")
    assert len(found) == 3


def test_throttles_count_each_core_once(machine):
    found = of(collect(hardware_of(machine)), "goodput_host_cpu_throttles_total")
    assert found == {("core", "0"): 1, ("package", "0"): 5, ("core", "1"): 21, ("package", "1"): 6}


def test_offline_processors_are_not_read(machine):
    for file in ("physical_package_id", "core_id"):
        (machine / f"sys/devices/system/cpu/cpu4/topology/{file}").unlink()
    found = of(collect(hardware_of(machine)), "goodput_host_cpu_throttles_total")
    # The other thread of its core answers for it.
    assert found[("core", "1")] == 21


def test_nvme(machine):
    found = collect(hardware_of(machine))
    assert of(found, "goodput_host_nvme_up") == {("nvme0",): 1, ("nvme1",): 0}
    assert of(found, "goodput_host_nvme_info") == {
        ("nvme0", "GDC5602Q", "SAMSUNG MZQL23T8HCLS-00A07", "live"): 1, ("nvme1", "1", "X", "dead"): 1,
    }  # fmt: skip


def health_log(**bytes_at) -> bytes:
    """A SMART log by hand: nothing warns, 100 % spare, 3 % worn, without errors."""
    log = bytearray(512)
    log[1:6] = 0x34, 0x01, 100, 10, 3
    for at, value in bytes_at.items():
        log[int(at.removeprefix("at"))] = value
    return bytes(log)


def asking(machine, clock, answer) -> Hardware:
    """A collector whose controller nvme0 is device 242:0; `answer` gets path and number."""
    (machine / "sys/class/nvme/nvme0/dev").write_text("242:0\n")
    hardware = hardware_of(machine, monotonic_ns=clock.monotonic_ns)
    hardware.nvme_health._read_log = answer
    return hardware


def test_nvme_health(machine, clock):
    calls = []

    def answer(path, number):
        calls.append((path, number))
        # Few spare blocks, and errors of the media.
        return health_log(at0=0b0101, at3=9, at5=112, at160=44, at161=1)

    hardware = asking(machine, clock, answer)
    found = collect(hardware)
    warnings = of(found, "goodput_host_nvme_warning")
    assert {labels for labels, value in warnings.items() if value} == {
        ("nvme0", "spare"), ("nvme0", "reliability")
    }  # fmt: skip
    assert len(warnings) == 6
    assert of(found, "goodput_host_nvme_spare_ratio") == {("nvme0",): 0.09}
    assert of(found, "goodput_host_nvme_wear_ratio") == {("nvme0",): 1.12}
    assert of(found, "goodput_host_nvme_media_errors_total") == {("nvme0",): 300}
    clock.seconds = nvme_health.READ_SECONDS - READ_SECONDS
    assert of(collect(hardware), "goodput_host_nvme_wear_ratio") == {("nvme0",): 1.12}
    clock.seconds = nvme_health.READ_SECONDS
    collect(hardware)
    assert calls == [("/dev/nvme0", "242:0")] * 2, "not nvme1, which is dead"


def test_controller_that_hangs_delays_nothing(machine, clock, monkeypatch):
    monkeypatch.setattr(nvme_health, "ANSWER_SECONDS_MAX", 0.01)
    answered, calls = threading.Event(), []

    def answer(path, number):
        calls.append(path)
        answered.wait(30)
        return health_log()

    hardware = asking(machine, clock, answer)
    before = collect(hardware)
    assert ("goodput_host_nvme_up", ("nvme0",)) in before and "nvme_wear" not in str(before)
    clock.seconds = nvme_health.READ_SECONDS
    collect(hardware)
    assert len(calls) == 1, "one thread at a time"
    answered.set()
    hardware.nvme_health._thread.join(10)
    clock.seconds += READ_SECONDS
    assert of(collect(hardware), "goodput_host_nvme_wear_ratio") == {("nvme0",): 0.03}


@pytest.mark.parametrize("log", [b"", b"\0" * 512, health_log()[:-1], OSError("no")])
def test_no_log_is_no_series(machine, clock, log):
    def answer(path, number):
        if isinstance(log, OSError):
            raise log
        return log

    found = collect(asking(machine, clock, answer))
    assert {name for name, _ in found if "nvme" in name} == {"goodput_host_nvme_up", "goodput_host_nvme_info"}


def test_health_is_read_from_the_controllers_device_alone(tmp_path, monkeypatch):
    """The command as the kernel gets it, worked out from struct nvme_passthru_cmd."""
    status = os.stat("/dev/null")
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    with pytest.raises(OSError, match="not device 242:0"):
        nvme_health.read_health_log("/dev/null", "242:0")
    (tmp_path / "nvme0").write_bytes(b"")
    with pytest.raises(OSError, match="not device"):
        nvme_health.read_health_log(str(tmp_path / "nvme0"), "0:0")
    with pytest.raises(OSError, match="Inappropriate ioctl"):
        nvme_health.read_health_log("/dev/null", number)

    def ioctl(descriptor, request, command):
        assert request == 0xC048_4E41 and len(command) == 72
        opcode, namespace, address, length, word_10 = struct.unpack_from("=B3xI16xQ4xII", command)
        assert (opcode, namespace, length, word_10) == (2, 0xFFFF_FFFF, 512, 127 << 16 | 2)
        ctypes.memmove(address, health_log(at5=7), length)
        return 0

    monkeypatch.setattr(nvme_health.fcntl, "ioctl", ioctl)
    assert nvme_health.read_health_log("/dev/null", number) == health_log(at5=7)


@pytest.mark.parametrize(
    "name",
    [
        "sys/devices/system/edac/mc/mc0/ce_count",
        "sys/class/hwmon/hwmon0/temp1_input",
        "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count",
    ],
)
def test_malformed_file_costs_only_its_series(machine, name):
    whole = collect(hardware_of(machine))
    (machine / name).write_bytes(b"\xff\x00 nonsense")
    found = collect(hardware_of(machine), problem=name.rpartition("/")[2])
    assert len(set(whole) - set(found)) == 1 and set(found) < set(whole)


def test_readings_are_kept_for_a_while(machine, clock):
    hardware = hardware_of(machine, monotonic_ns=clock.monotonic_ns)
    zone = "thermal_zone", "thermal_zone0", "x86_pkg_temp"
    seen = []
    for seconds in (0, READ_SECONDS - 1, READ_SECONDS):
        clock.seconds = seconds
        seen.append(of(collect(hardware), "goodput_host_temperature_celsius")[zone])
        (machine / "sys/class/thermal/thermal_zone0/temp").write_text("70000\n")
    assert seen == [60.0, 60.0, 70.0]


def test_machine_without_any_is_no_data(tmp_path):
    with pytest.raises(NoData):
        hardware_of(tmp_path).collect(None)


@pytest.mark.parametrize(
    "text, celsius", [("1\n", 0.001), ("-40000\n", -40.0), ("250001\n", None), ("-273150", None)]
)
def test_celsius(text, celsius):
    assert parse_celsius(text) == celsius


@pytest.mark.parametrize("text", ["", "--5", "nan", "1.5", "9" * 30])
def test_malformed_celsius(text):
    with pytest.raises(ParseError):
        parse_celsius(text)
