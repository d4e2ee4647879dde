"""The NVML driver as a process: hangs, leaks, cost, and the real library beside nvidia-smi."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.node.nvml_stub.fixtures import clock, control, driver, library, load
from support.paths import PYTHONPATH

from goodput_exporters.gpu import sample as records
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.nvml.driver import Nvml

FIXTURES = (clock, control, driver, library, load)

ONE_SAMPLE = """
import sys
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.nvml.driver import Nvml
nvml = Nvml(Options())
nvml.open()
print("open", flush=True)
print(len(nvml.sample(True).gpus), *HEAVY & sys.modules.keys(), flush=True)
nvml.close()
"""
# 3 MiB of the driver's process: what dataclasses and ctypes.util import.
HEAVY = {"bz2", "ctypes.util", "inspect", "lzma", "shutil", "subprocess", "tempfile"}


def child(library: Path) -> subprocess.Popen:
    """A process that finds the library as any other does, opens it, takes a sample, and names its heavy modules."""
    paths = os.pathsep.join([PYTHONPATH, *sys.path])
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "PYTHONPATH": paths}
    return subprocess.Popen(
        [sys.executable, "-c", f"HEAVY = {HEAVY}\n{ONE_SAMPLE}"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_binding_finds_the_library_by_its_name(control, library):
    with child(library()) as process:
        assert process.stdout.read() == "open\n2\n"
    assert process.returncode == 0


def test_hanging_call_can_be_killed(control, library):
    control.set("1.nvmlDeviceGetEnforcedPowerLimit", "block")
    with child(library()) as process:
        assert process.stdout.readline() == "open\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.kill()
        assert process.stdout.read() == ""
    assert process.returncode == -9


def test_flapping_devices_leak_nothing(driver, control, load, clock):
    stub = load()
    nvml = driver()
    control.instance(1, 0, 1)
    control.write()

    def flap(times: int) -> None:
        for number in range(times):
            if number % 8 == 1:
                control.lose(0)
            elif number % 8 == 5:
                control.find(0)
            elif number % 16 == 3:
                control.set("count", 1 + (number // 16) % 2)
            elif number % 32 == 6:
                control.lines.pop("1m0.gi", None) or control.lines.update({"1m0.gi": 1})
                control.write()
            clock.advance(1)
            nvml.sample(number % 2 == 0)

    flap(400)
    gc.collect()
    before = (len(os.listdir("/proc/self/fd")), stub.stub_live_sets(), resident_bytes())
    flap(2000)
    gc.collect()
    after = (len(os.listdir("/proc/self/fd")), stub.stub_live_sets(), resident_bytes())
    # A file of an earlier test may have been closed meanwhile.
    assert after[0] <= before[0] and after[1] == before[1] <= 2
    assert stub.stub_live_samples() <= 6
    assert after[2] - before[2] < 2 << 20
    nvml.close()
    assert (stub.stub_live_samples(), stub.stub_live_sets()) == (0, 0)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_what_a_sample_of_eight_gpus_costs(driver, control, load, capsys):
    """Printed, not held: the stub answers in a microsecond, so this is what the binding and the driver cost."""
    for index in range(8):
        control.gpu(index)
    control.write()
    stub, nvml = load(), driver()
    nvml.sample(True)
    for full in (False, True):
        calls, cpu, times = stub.stub_calls(), time.process_time(), 50
        for _ in range(times):
            nvml.sample(full)
        spent, called = time.process_time() - cpu, stub.stub_calls() - calls
        with capsys.disabled():
            kind = "full" if full else "fast"
            print(
                f"\nNVML, 8 GPUs: a {kind} sample is {called // times} calls, {1e3 * spent / times:.2f} ms of CPU"
            )
    assert len(nvml.sample(True).gpus) == 8


# The real thing


@pytest.mark.gpu
def test_real_driver_matches_nvidia_smi():
    if not os.path.exists("/dev/nvidiactl") or shutil.which("nvidia-smi") is None:
        pytest.skip("no NVIDIA GPU here")
    columns = "uuid,pci.bus_id,name,driver_version,memory.total,power.limit,clocks.mem,pcie.link.width.max"
    columns += ",temperature.gpu,power.draw.instant,memory.used"
    nvml = Nvml(Options())
    nvml.open()
    try:
        nvml.sample(True)
        time.sleep(0.5)
        sample = records.decode(records.encode(nvml.sample(True)))
    finally:
        nvml.close()
    requested = ["nvidia-smi", f"--query-gpu={columns}", "--format=csv,noheader,nounits"]
    rows = subprocess.run(
        requested, check=True, capture_output=True, text=True, timeout=300
    ).stdout.splitlines()
    gpus = {gpu.uuid: gpu for gpu in sample.gpus if not gpu.parent}
    assert len(gpus) == len(rows)
    for row in rows:
        name, bus, model, version, total, limit, clock, width, celsius, watts, used = row.split(", ")
        gpu = gpus[name]
        readings = gpu.readings
        assert (gpu.model, gpu.driver_version) == (model, version)
        assert int(bus.partition(":")[0], 16) == int(gpu.pci.partition(":")[0], 16)
        assert bus.partition(":")[2].lower() == gpu.pci.partition(":")[2]
        assert readings["memory/total"] / (1 << 20) == pytest.approx(float(total), abs=1)
        assert readings["memory/used"] / (1 << 20) == pytest.approx(float(used), abs=64)
        assert readings["power_limit"] == pytest.approx(float(limit), abs=0.01)
        assert readings["clock/memory"] == pytest.approx(float(clock) * 1e6)
        assert readings["pcie_lanes/max"] == float(width)
        assert readings["temperature/core"] == pytest.approx(float(celsius), abs=5)
        assert readings["power"] == pytest.approx(float(watts), rel=0.5, abs=30)
        assert readings["energy"] > 0 and 0 <= readings["activity/utilization"] <= 1
        if "H100" in model or "H200" in model or "B200" in model:
            assert 0 <= readings["activity/sm"] <= 1
