"""Drivers with certainly nothing to sample are found from files, without starting a process."""

from __future__ import annotations

import importlib
import os
import shutil
import time

import pytest
from support.node import amd_tree
from support.servers.servers import wait_until

from goodput_exporters.collector import Settings
from goodput_exporters.collectors.gpus.collector import Gpus
from goodput_exporters.gpu import drivers
from goodput_exporters.gpu.drivers import DRIVERS, Options, absence
from goodput_exporters.gpu.nvml import driver as nvml_driver
from goodput_exporters.gpu.nvml.driver import is_library_missing
from goodput_exporters.gpu.supervisor import DriverSupervisor, Limits

LIBRARY = "libnvidia-ml.so.1"
AMD = DRIVERS["amd"]


def nvml():
    """The driver's module as it is loaded now: another test may have put one of its own in its place for a while."""
    return importlib.import_module("goodput_exporters.gpu.nvml.driver")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(nvml_driver, "LIBRARY_FOLDERS", (str(tmp_path / "lib"),))
    path = tmp_path / "ld.so.cache"
    path.write_bytes(b"glibc-ld.so.cache1.1\0libm.so.6\0/lib/libm.so.6\0")
    return path


def test_library_in_no_folder_is_missing(cache, tmp_path):
    def is_absent(**environ: str) -> bool:
        return is_library_missing(LIBRARY, environ, str(cache))

    assert is_absent() and is_absent(LD_LIBRARY_PATH="") and is_absent(LD_LIBRARY_PATH=f"{tmp_path}:/nowhere")
    assert not is_absent(LD_PRELOAD=f"/opt/{LIBRARY}")
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / LIBRARY).touch()
    assert not is_absent(LD_LIBRARY_PATH=f":/nowhere:{tmp_path}/given") and is_absent()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / LIBRARY).touch()
    assert not is_absent()


def test_library_in_loader_cache_is_not_missing(cache):
    cache.write_bytes(b"x\0libnvidia-ml.so.15\0")
    assert is_library_missing(LIBRARY, {}, str(cache)), "another library, whose name begins alike"
    cache.write_bytes(b"x\0libnvidia-ml.so.1\0/usr/lib/libnvidia-ml.so.1\0")
    assert not is_library_missing(LIBRARY, {}, str(cache))


def test_missing_library_unknown_without_loader_cache(cache, monkeypatch):
    assert not is_library_missing(LIBRARY, {}, f"{cache}.none")
    monkeypatch.setattr(nvml_driver, "LOADER_CACHE_BYTES_MAX", 8)
    assert not is_library_missing(LIBRARY, {}, str(cache))


@pytest.mark.skipif(not os.path.exists(nvml_driver.LOADER_CACHE), reason="no cache of the loader here")
def test_c_library_of_this_machine_is_found():
    assert not is_library_missing("libc.so.6", {}) and is_library_missing("libnobody.so.1", {})


def test_each_driver_explains_absence(tmp_path, monkeypatch):
    monkeypatch.setattr(nvml(), "is_library_missing", lambda name, environ: name == LIBRARY)
    monkeypatch.setenv("GOODPUT_DCGM_BINDINGS", str(tmp_path))
    options = Options(sysfs=str(tmp_path / "sys"))
    why = {name: absence(path, options) for name, path in DRIVERS.items()}
    assert "libnvidia-ml.so.1" in why["nvml"]
    assert why["dcgm"] == f"no pydcgm.py in {tmp_path}"
    assert why["amd"] == f"{tmp_path}/sys/class/drm: no GPU of vendor 0x1002"
    assert why["dcgm_endpoint"] == absence("nobody", options) == ""
    monkeypatch.setattr(nvml(), "is_library_missing", lambda *_: False)
    (tmp_path / "pydcgm.py").touch()
    assert absence(DRIVERS["nvml"], options) == absence(DRIVERS["dcgm"], options) == ""


def test_unreadable_amd_card_starts_the_process(tmp_path, monkeypatch):
    options = Options(sysfs=str(tmp_path / "sys"))
    amd_tree.write_tree(tmp_path)
    assert absence(AMD, options) == ""
    device = tmp_path / "sys/class/drm/card0/device"
    for name in ("card1", "card2"):
        shutil.rmtree(device.parent.parent / name)
    # What is left is of another vendor, or no card.
    assert absence(AMD, options) != ""
    os.unlink(device / "vendor")
    (device / "vendor").mkdir()  # Cannot be read.
    assert absence(AMD, options) == ""
    monkeypatch.setattr(drivers, "load", lambda name: 1 / 0)
    assert absence(AMD, options) == ""


def test_no_process_while_absent(tmp_path, monkeypatch):
    monkeypatch.setattr("goodput_exporters.gpu.supervisor.TRIGGER_SECONDS", 0.05)
    started, why = tmp_path / "started", ["no such library"]
    command = ["/bin/sh", "-c", f"touch {started}; sleep 60"]
    child = DriverSupervisor(
        "fake", Options(), command=command, absence=lambda: why[0], limits=Limits(absent_seconds=0.05)
    )
    child.start()
    try:
        wait_until(lambda: child.status().settled, 60, "its answer")
        wait_until(lambda: child._absences > 2, 60, "another attempt")
        report = child.status()
        assert report.absent and report.empty and report.problem == "nothing to sample: no such library"
        assert not started.exists() and report.cpu_seconds == 0
        child._limits = Limits(absent_seconds=3600)
        time.sleep(0.1)
        why[0] = ""
        wait_until(started.exists, 60, "the process, long before an hour is over")
    finally:
        child.stop(5)


def test_node_without_gpus_runs_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(nvml(), "is_library_missing", lambda *_: True)
    monkeypatch.setenv("GOODPUT_DCGM_BINDINGS", str(tmp_path))
    monkeypatch.setattr("goodput_exporters.gpu.supervisor.WorkerProcess", lambda *_: pytest.fail("a process"))
    gpus = Gpus(Settings(str(tmp_path), sysfs=str(tmp_path), procfs=str(tmp_path)))
    gpus.start()
    try:
        assert gpus.settle(5)
        reported = {report.name: report for report in gpus.statuses()}
        assert set(reported) == {"nvml", "dcgm", "amd"} and all(report.absent for report in reported.values())
        assert all(report.problem.startswith("nothing to sample: ") for report in reported.values())
        assert not any(sum(report.restarts.values()) for report in reported.values())
    finally:
        gpus.close()
