"""amdgpu's gpu_metrics in sysfs: tables laid out by ctypes as kgd_pp_interface.h declares them, and broken ones."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.node import amd_tree
from support.node.amd_metrics import EXPECTED, TABLES, V1_7, table
from support.node.node_tree import Clock

from goodput_exporters.gpu.amd.driver import Amd
from goodput_exporters.gpu.amd.gpu_metrics import (
    AMDSMI,
    SYSFS,
    Throttling,
    fields_of,
    is_whole,
    parse,
    readings,
    size,
)
from goodput_exporters.gpu.amd.smi_library import SmiError
from goodput_exporters.gpu.drivers import Options


@pytest.mark.parametrize("revision, kind", TABLES.items())
def test_table_by_its_header(kind, revision):
    made = table(kind, revision)
    assert size(SYSFS[1, revision]) == len(bytes(made)) and is_whole(bytes(made))
    without = (
        {"activity/jpeg", "pcie_errors/naks_sent", "pcie_errors/naks_received"} if revision == 4 else set()
    )
    expected = {key: value for key, value in EXPECTED.items() if key not in without}
    assert readings(parse(bytes(made))) == pytest.approx(expected)
    assert ("accumulation_counter" in parse(bytes(made))) == (revision > 5)
    if revision > 6:
        for place, status in enumerate((1, 1, 0)):
            made.xgmi_link_status[place] = status
        expected |= {"xgmi_links/up": 2.0, "xgmi_links/down": 1.0}
        assert readings(parse(bytes(made))) == pytest.approx(expected)


def test_sizes_of_tables():
    """Worked out by hand from kgd_pp_interface.h ."""
    assert {number: size(layout) for (_, number), layout in SYSFS.items()} == {
        3: 120, 4: 288, 5: 360, 6: 1664, 7: 2208, 8: 3360,
    }  # fmt: skip


def test_1_3_has_bits_of_what_throttles():
    """An MI250X: edge sensor, average power, no accumulators."""
    made = bytearray(b"\xff" * 120)
    struct.pack_into("<HBB3H", made, 0, 120, 1, 3, 45, 61, 48)
    struct.pack_into("<HHHHQ", made, 16, 93, 31, 0, 301, 65536 * 7)
    struct.pack_into("<Q", made, 112, 1 << 36 | 1 << 0)
    fields = parse(bytes(made))
    found = readings(fields)
    assert (found["temperature/core"], found["temperature/junction"]) == (45.0, 61.0)
    assert (found["power"], found["energy"], found["activity/utilization"]) == (301.0, 7.0, 0.93)
    throttled = Throttling().update(fields, 0)
    assert {key for key, value in throttled.items() if value} == {"throttled/thermal", "throttled/power"}
    assert len(throttled) == 6


@pytest.mark.parametrize("revision", [(1, 0), (1, 2), (1, 9), (2, 4), (3, 0)])
def test_other_revisions_give_nothing(revision):
    made = table(V1_7, 7)
    made.format_revision, made.content_revision = revision
    assert parse(bytes(made)) == {}


def test_offsets_of_the_librarys_structure():
    """As the ctypes structure in AMD's own package of ROCm 6.3 to 7.0 has them."""
    at = {field.name: field.offset for field in fields_of(AMDSMI)}
    assert at["energy_accumulator"] == 24 and at["indep_throttle_status"] == 112
    assert at["current_socket_power"] == 120 and at["xgmi_read_data_acc"] == 184
    assert at["current_gfxclks"] == 312 and at["accumulation_counter"] == 424
    assert at["hbm_thm_residency_acc"] == 464 and size(AMDSMI) == 472


@given(st.binary(max_size=500), st.sampled_from([*SYSFS, (1, 9)]))
def test_any_bytes_give_plausible_readings(body, revision):
    found = readings(parse(bytes([0, 0, *revision]) + body))
    assert all(value >= 0 for value in found.values())
    assert all(value <= 1.05 for key, value in found.items() if key.startswith("activity/"))


def test_cycles_that_start_again_are_no_throttling():
    throttling = Throttling()
    for seconds, cycles, ppt in ((0, 100, 10), (5, 200, 60), (10, 50, 50), (15, 150, 75)):
        found = throttling.update({"accumulation_counter": cycles, "ppt_residency_acc": ppt}, seconds * 10**9)
    # 50 of 100 cycles in 5 s, a reload of the driver, 25 of 100.
    assert found == {"throttle/power": 2.5 + 1.25, "throttled/power": 1.0}


def test_table_that_has_not_changed_keeps_its_readings():
    throttling = Throttling()
    for seconds, cycles, ppt in ((0, 100, 10), (5, 200, 60), (6, 200, 60), (15, 300, 60)):
        found = throttling.update({"accumulation_counter": cycles, "ppt_residency_acc": ppt}, seconds * 10**9)
        if seconds == 6:
            assert found == {"throttle/power": 2.5, "throttled/power": 1.0}
    assert found == {"throttle/power": 2.5, "throttled/power": 0.0}


def test_driver_reads_the_table_in_sysfs(tmp_path):
    """Files that name their unit come first; of the table is what they lack."""
    amd_tree.write_tree(tmp_path)
    path = tmp_path / "sys/class/drm/card1/device/gpu_metrics"
    clock = Clock()

    def not_installed():
        raise SmiError("libamd_smi.so is not installed")

    options = Options(sysfs=str(tmp_path / "sys"), procfs=str(tmp_path / "proc"))
    driver = Amd(options, not_installed, clock.monotonic_ns, clock.unix_ns)
    path.write_bytes(bytes(table(V1_7, 7)))
    driver.open()
    first = driver.sample(True).gpus[0].readings
    assert (first["power"], first["energy"]) == (412.734, 1000.0)
    assert first["link_bytes/xgmi/transmit"] == 7 * 1024.0
    clock.seconds += 5
    path.write_bytes(bytes(table(V1_7, 7, cycles=105_000, ppt=6_000)))
    found = driver.sample(True).gpus[0].readings
    assert (found["throttle/power"], found["throttled/power"]) == (1.0, 1.0)


@pytest.mark.parametrize("damage", ["cut", "short", "foreign", "unreadable"])
def test_malformed_table_in_sysfs_is_a_problem(tmp_path, damage):
    """Of a known revision and another length too, as a revision that was withdrawn had."""
    amd_tree.write_tree(tmp_path)
    path = tmp_path / "sys/class/drm/card1/device/gpu_metrics"
    made = bytes(table(V1_7, 7))
    texts = {"cut": made[:-1], "short": b"\x02", "foreign": bytes([0x60, 0x08]) + made[2:]}
    if damage in texts:
        path.write_bytes(texts[damage])
    else:
        path.symlink_to(path)

    def not_installed():
        raise SmiError("libamd_smi.so is not installed")

    driver = Amd(Options(sysfs=str(tmp_path / "sys"), procfs=str(tmp_path / "proc")), not_installed)
    driver.open()
    sample = driver.sample(True)
    assert sample.gpus[0].readings["power"] == 412.734 and "energy" not in sample.gpus[0].readings
    (problem,) = sample.problems
    assert "card1/device/gpu_metrics: " in problem
    for whole in (b"", bytes(table(V1_7, 9))):  # No table, and one that is not known.
        path.unlink()
        path.write_bytes(whole)
        assert driver.sample(True).problems == []


def test_bad_pages_in_sysfs(tmp_path):
    amd_tree.write_tree(tmp_path)
    ras = tmp_path / "sys/class/drm/card1/device/ras"
    amd_tree.write(ras, {"gpu_vram_bad_pages": "0x01 : 0x1000 : R\n0x02 : 0x1000 : R\n0x03 : 0x1000 : F\n"})
    options = Options(sysfs=str(tmp_path / "sys"), procfs=str(tmp_path / "proc"))

    def not_installed():
        raise SmiError("none")

    driver = Amd(options, not_installed)
    driver.open()
    sample = driver.sample(True)
    found = {key: value for key, value in sample.gpus[0].readings.items() if key.startswith("pages")}
    assert found == {"pages_retired/retired": 2, "pages_retired/pending": 0, "pages_retired/unreservable": 1}
    assert sample.problems == []
