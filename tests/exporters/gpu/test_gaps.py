"""What GPU drivers have no readings of, and accelerators that no driver reads."""

from __future__ import annotations

import pytest
from support.node import amd_tree

from goodput_exporters.gpu.drivers import DRIVERS
from goodput_exporters.gpu.gaps import ALWAYS, SUBJECTS, WHY, Gap, gaps
from goodput_exporters.gpu.other_vendors import is_other, other_accelerators
from goodput_exporters.gpu.sample import FAMILIES, Gpu

EVERYTHING = {
    **dict.fromkeys(("activity/utilization", "activity/sm", "memory/used", "power", "energy"), 1.0),
    **dict.fromkeys(("temperature/core", "clock/sm", "throttled/power", "ecc/correctable/volatile"), 1.0),
    **dict.fromkeys(
        ("ecc_location/correctable/volatile/umc", "rows_remapped/pending", "pcie_lanes/max"), 1.0
    ),
    **dict.fromkeys(("link_rate/pcie/receive", "pcie_replays", "link_bytes/nvlink/receive"), 1.0),
    **dict.fromkeys(("activity/encoder", "power_setting/max", "remap_banks/max", "pcie_errors/fatal"), 1.0),
    **dict.fromkeys(("nvlink_up/0", "nvlink_errors/replay", "processes"), 1.0),
    **dict.fromkeys(("fabric/completed", "vgpu_license/supported", "recovery/none", "c2c_links/active"), 1.0),
    **dict.fromkeys(("activity/tensor_hmma", "performance_state", "fan", "bar1/used", "ecc_threshold"), 1.0),
    **dict.fromkeys(("clock_limit/sm/max", "throttle/hw_thermal", "pages_retired/pending"), 1.0),
}
# What NVML never has.
NOT_OF_NVML = [Gap(*gap) for gap in ALWAYS["nvml"]]


def test_every_driver_has_reasons():
    assert WHY.keys() == DRIVERS.keys()
    assert {name.split()[0] for name in ALWAYS} == DRIVERS.keys()


@pytest.mark.parametrize("driver", WHY)
def test_reasons_are_of_subjects_that_exist(driver):
    assert WHY[driver].keys() - {""} <= {subject for subject, _ in SUBJECTS}


def test_beginnings_are_of_families_that_exist():
    families = {begin.split("/")[0] for _, begins in SUBJECTS for begin in begins if not begin.endswith("_")}
    assert families <= FAMILIES.keys()


def test_driver_that_has_everything_has_no_gap():
    assert gaps("nvml", "", [Gpu("GPU-1", readings=EVERYTHING)]) == NOT_OF_NVML
    assert gaps("dcgm", "", [Gpu("GPU-1", readings=EVERYTHING)]) == []


@pytest.mark.parametrize("subject, begins", SUBJECTS)
def test_each_subject_is_missed(subject, begins):
    """The power limit is no power; a GPU that has the subject is enough."""
    left = {
        key: value
        for key, value in EVERYTHING.items()
        if key not in begins and not key.startswith(tuple(one for one in begins if one[-1] in "/_"))
    }
    left["power_limit"] = 700.0
    gap, *others = gaps("nvml", "", [Gpu("GPU-1", readings=left)])
    assert gap.subject == subject and gap.why and others == NOT_OF_NVML
    both = [Gpu("GPU-1", readings=left), Gpu("GPU-2", readings=EVERYTHING)]
    assert gaps("nvml", "", both) == NOT_OF_NVML


def test_amd_by_source():
    gpus = [Gpu("1", readings=EVERYTHING)]
    assert [gap.subject for gap in gaps("amd", "amdsmi 26.0", gpus)] == ["XIDs"]
    assert [gap.subject for gap in gaps("amd", "sysfs (x is not installed)", gpus)] == [
        "resets, hangs and memory faults"
    ]


def test_what_only_nvidias_gpus_have_is_no_gap_of_amds():
    subjects = {gap.subject for gap in gaps("amd", "amdsmi 26.0", [Gpu("1", readings={"power": 1.0})])}
    assert subjects.isdisjoint({"NVLink fabric", "vGPU licence", "recovery action", "BAR1"})
    assert {"energy", "video engines"} <= subjects


def test_lost_gpus_and_other_drivers_have_no_gaps():
    assert gaps("nvml", "", [Gpu("1", lost=True)]) == []
    assert gaps("mine", "", [Gpu("1")]) == []


def test_other_vendors_on_the_bus(tmp_path):
    devices = {
        "0000:01:00.0": ("0x120000", "0x1da3", "0x1020"),
        "0000:02:00.0": ("0x120000", "0x1da3", "0x1020"),
        "0000:03:00.0": ("0x038000", "0x8086", "0x0bd5"),
        "0000:00:02.0": ("0x030000", "0x8086", "0x46a6"),  # a processor's own graphics
        "0000:04:00.0": ("0x030200", "0x10de", "0x2330"),
        "0000:05:00.0": ("0x120000", "0x1002", "0x74a1"),
        "0000:06:00.0": ("0x088000", "0x1d0f", "0x7164"),
        "0000:07:00.0": ("0x020000", "0x1d0f", "0xefa1"),  # EFA
        "0000:08:00.0": ("0x120000", "0x9999", "0x0001"),
        "0000:09:00.0": ("0x120000", "", "0x0001"),
    }
    for address, (kind, vendor, device) in devices.items():
        files = {"class": kind, "vendor": vendor, "device": device}
        amd_tree.write(tmp_path / f"bus/pci/devices/{address}", files)
    assert other_accelerators(str(tmp_path)) == {
        "Intel Gaudi 1da3:1020": 2,
        "Intel GPU 8086:0bd5": 1,
        "Amazon Neuron 1d0f:7164": 1,
        "accelerator 9999:0001": 1,
    }
    assert other_accelerators(str(tmp_path / "nowhere")) == {}
    assert not is_other(0x060000, 0x8086, 0)
