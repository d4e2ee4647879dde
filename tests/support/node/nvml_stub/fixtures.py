"""Fixtures of the NVML driver's tests, and what a GPU of the stub reads as, worked out by hand from control.py.

A test module imports the fixtures by name: `control` (two H100), `driver(without...)` (an open driver on a stub without
some functions), `load(without...)` (the stub itself), `clock`.
"""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest
from support.node.gpu_events import watch, with_events
from support.node.node_tree import Clock
from support.node.nvml_stub.control import ENVIRONMENT, Control, build

from goodput_exporters.gpu import sample as records
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.nvml.driver import Nvml

pynvml = pytest.importorskip("pynvml")
if shutil.which("gcc") is None:
    pytest.skip("no gcc here", allow_module_level=True)

SECOND_NS = 1_000_000_000
# What a GPU of the stub says, worked out by hand from nvml_stub/control.py.
EXPECTED = {
    "activity/utilization": 0.97,
    "activity/memory_controller": 0.41,
    "power": 312.5,
    "energy": 123_456.789,
    "power_limit": 700.0,
    "clock/sm": 1.98e9,
    "clock/memory": 2.619e9,
    "clock/video": 1.545e9,
    "clock_limit/sm/max": 1.98e9,
    "clock_limit/memory/max": 2.619e9,
    "clock_limit/video/max": 1.545e9,
    "clock_limit/sm/application": 1.755e9,
    "clock_limit/memory/application": 2.619e9,
    "activity/encoder": 0.03,
    "activity/decoder": 0.07,
    "activity/jpeg": 0.11,
    "activity/ofa": 0.0,
    "performance_state": 0.0,
    "bar1/total": 137_438_953_472.0,
    "bar1/free": 137_437_118_464.0,
    "bar1/used": 1_835_008.0,
    "power_instant": 401.25,
    "power_setting/requested": 650.0,
    "power_setting/default": 700.0,
    "power_setting/min": 200.0,
    "power_setting/max": 700.0,
    "temperature_limit/shutdown": 92.0,
    "temperature_limit/slowdown": 89.0,
    "temperature_limit/memory_max": 95.0,
    "temperature_limit/core_max": 87.0,
    "temperature_limit_margin/shutdown": -8.0,
    "temperature_limit_margin/slowdown": -2.0,
    "temperature_margin": 26.0,
    "temperature/core": 61.0,
    "temperature/memory": 74.0,
    "memory/total": 85_520_809_984.0,
    "memory/used": 64_424_509_440.0,
    "memory/free": 20_424_163_328.0,
    "memory/reserved": 672_137_216.0,
    "throttled/idle": 0.0,
    "throttled/app_clocks": 0.0,
    "throttled/power": 1.0,
    "throttled/hw_slowdown": 0.0,
    "throttled/sync_boost": 0.0,
    "throttled/thermal": 0.0,
    "throttled/hw_thermal": 0.0,
    "throttled/hw_power_brake": 1.0,
    "throttled/display_clocks": 0.0,
    "throttle/power": 1.5,
    "throttle/thermal": 0.25,
    "throttle/sync_boost": 0.0,
    "throttle/board_limit": 1e-9,
    "throttle/low_utilization": 2.0,
    "throttle/app_clocks": 3.0,
    "throttle/base_clocks": 4.0,
    "ecc/correctable/volatile": 11.0,
    "ecc/uncorrectable/volatile": 1.0,
    "ecc/correctable/aggregate": 120.0,
    "ecc/uncorrectable/aggregate": 2.0,
    "ecc_mode/current": 1.0,
    "ecc_mode/pending": 0.0,
    "ecc_threshold": 0.0,
    "ecc_location/uncorrectable/volatile/l1": 1.0,
    "ecc_location/correctable/volatile/device": 10.0,
    "ecc_location/uncorrectable/volatile/device": 1.0,
    "ecc_location/correctable/aggregate/device": 119.0,
    "ecc_location/uncorrectable/aggregate/device": 2.0,
    "ecc_location/correctable/volatile/sram": 3.0,
    "ecc_location/correctable/aggregate/sram": 4.0,
    "ecc_location/uncorrectable/volatile/sram": 0.0,
    "ecc_location/uncorrectable/aggregate/sram": 5.0,
    "remap_banks/max": 632.0,
    "remap_banks/high": 4.0,
    "remap_banks/partial": 2.0,
    "remap_banks/low": 1.0,
    "remap_banks/none": 0.0,
    "rows_remapped/correctable": 4.0,
    "rows_remapped/uncorrectable": 1.0,
    "rows_remapped/pending": 0.0,
    "rows_remapped/failure": 0.0,
    "recovery/none": 1.0,
    "pcie_replays": 5.0,
    "pcie_errors/l0_to_recovery": 13.0,
    "pcie_errors/correctable": 14.0,
    "pcie_errors/bad_tlp": 15.0,
    "pcie_errors/fatal": 0.0,
    "fabric/completed": 1.0,
    "fabric_problem/degraded_bandwidth": 0.0,
    "fabric_problem/route_recovery": 0.0,
    "fabric_problem/route_unhealthy": 0.0,
    "fabric_problem/access_timeout": 0.0,
    "vgpu_license/supported": 0.0,
    "pcie_generation/current": 4.0,
    "pcie_generation/max": 5.0,
    "pcie_lanes/current": 8.0,
    "pcie_lanes/max": 16.0,
    "nvlink_errors/crc_flit": 7.0,
    "nvlink_errors/crc_data": 8.0,
    "nvlink_errors/replay": 9.0,
    "nvlink_errors/recovery": 10.0,
    "link_bytes/nvlink/transmit": 1_024_000_000.0,
    "link_bytes/nvlink/receive": 2_048_000_000.0,
    "nvlink_up/0": 1.0,
    "nvlink_up/1": 1.0,
    "nvlink_up/2": 0.0,
    "nvlink_link_errors/0/replay": 161.0,
    "nvlink_link_errors/1/replay": 162.0,
    "nvlink_link_errors/2/replay": 163.0,
    "nvlink_link_errors/0/recovery": 162.0,
    "nvlink_link_errors/1/recovery": 163.0,
    "nvlink_link_errors/2/recovery": 164.0,
    "nvlink_link_errors/0/crc": 163.0,
    "nvlink_link_errors/1/crc": 164.0,
    "nvlink_link_errors/2/crc": 165.0,
    "nvlink_link_bytes/0/transmit": 141_312.0,
    "nvlink_link_bytes/1/transmit": 142_336.0,
    "nvlink_link_bytes/2/transmit": 143_360.0,
    "nvlink_link_bytes/0/receive": 142_336.0,
    "nvlink_link_bytes/1/receive": 143_360.0,
    "nvlink_link_bytes/2/receive": 144_384.0,
    "processes": 2.0,
}
EXPECTED_GPM = {
    "activity/engine": 0.95,
    "activity/sm": 0.905,
    "activity/sm_occupancy": 0.42,
    "activity/tensor": 0.6125,
    "activity/dram": 0.33,
    "activity/fp64": 0.0,
    "activity/fp32": 0.125,
    "activity/fp16": 0.01,
    "activity/integer": 0.21,
    "activity/tensor_dfma": 0.02,
    "activity/tensor_hmma": 0.58,
    "activity/tensor_imma": 0.0125,
    "link_rate/pcie/transmit": 10_485_760.0,
    "link_rate/pcie/receive": 20_971_520.0,
    "link_rate/nvlink/receive": 314_572_800.0,
    "link_rate/nvlink/transmit": 419_954_688.0,
}
FAST = {"activity/utilization", "activity/memory_controller", "power", "energy", *EXPECTED_GPM}
FAST |= {f"memory/{kind}" for kind in ("total", "used", "free", "reserved")}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """library(without=...) is the path of a stub; each kind is compiled once."""
    built: dict[tuple[str, ...], Path] = {}

    def get(*without: str) -> Path:
        if without not in built:
            built[without] = build(tmp_path_factory.mktemp("nvml"), without)
        return built[without]

    return get


@pytest.fixture
def control(tmp_path, monkeypatch):
    control = Control(tmp_path / "nvml.txt")
    control.gpu(0)
    control.gpu(1)
    control.write()
    monkeypatch.setenv(ENVIRONMENT, str(control.path))
    return control


@pytest.fixture
def load(monkeypatch, library):
    """load(without...) puts a stub in the place where the binding keeps the library it found."""

    def put(*without: str) -> ctypes.CDLL:
        found = ctypes.CDLL(str(library(*without)))
        monkeypatch.setattr(pynvml, "nvmlLib", found)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return found

    return put


class Ticks(Clock):
    def advance(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock():
    return Ticks()


@pytest.fixture
def driver(control, load, clock):
    """driver(without...) is an open driver on a stub."""
    opened = []

    def make(*without: str) -> Nvml:
        load(*without)
        opened.append(watch(Nvml(Options(), clock.monotonic_ns, clock.unix_ns), clock.unix_ns))
        opened[-1].open()
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def sampled(driver: Nvml, full: bool = True, clock: Ticks | None = None) -> records.Sample:
    """A sample, a second later, that has been through its encoding and its checks, with the agent's events."""
    if clock is not None:
        clock.advance(1)
    sample = records.decode(records.encode(driver.sample(full)))
    records.check(sample)
    return with_events(driver, sample)


def by_uuid(sample: records.Sample) -> dict[str, records.Gpu]:
    assert len({gpu.uuid for gpu in sample.gpus}) == len(sample.gpus)
    return {gpu.uuid: gpu for gpu in sample.gpus}
