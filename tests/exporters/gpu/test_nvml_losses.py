"""GPUs that are lost, come back, come and go, and MIG instances, as the NVML driver reports them."""

from __future__ import annotations

import pytest
from support.node.nvml_stub.control import GPU_IS_LOST, uuid
from support.node.nvml_stub.fixtures import (
    EXPECTED,
    EXPECTED_GPM,
    FAST,
    SECOND_NS,
    by_uuid,
    clock,
    control,
    driver,
    library,
    load,
    pynvml,
    sampled,
)

from goodput_exporters.gpu.nvml.driver import REOPEN_SECONDS
from goodput_exporters.gpu.nvml.inventory import profile_of

FIXTURES = (clock, control, driver, library, load)

# Losses


@pytest.mark.parametrize("code", ["!15", "!16"])
@pytest.mark.parametrize("full", [True, False])
def test_lost_gpu_has_no_readings(driver, control, load, clock, code, full):
    stub, nvml = load(), driver()
    sampled(nvml)
    assert stub.stub_live_samples() == 4
    control.set("0.*", code)
    sample = sampled(nvml, full, clock)
    gpus = by_uuid(sample)
    assert gpus[uuid(0)].lost and gpus[uuid(0)].readings == {} and gpus[uuid(0)].pids is None
    assert gpus[uuid(0)].pci == "0000:3b:00.0"
    expected = EXPECTED | EXPECTED_GPM if full else {key: (EXPECTED | EXPECTED_GPM)[key] for key in FAST}
    assert not gpus[uuid(1)].lost and gpus[uuid(1)].readings == pytest.approx(expected)
    assert [(event.kind, event.device, event.severity) for event in sample.events] == [
        ("lost", uuid(0), "critical")
    ]
    assert sampled(nvml, full, clock).events == []
    assert stub.stub_live_samples() == 2


def test_a_gpu_lost_in_one_call_only_is_lost(driver, control, clock):
    nvml = driver()
    control.set("1.nvmlDeviceGetMaxPcieLinkWidth", GPU_IS_LOST)
    first = sampled(nvml, clock=clock)
    # Fast samples do not make that call, and do not call it back.
    second = sampled(nvml, full=False, clock=clock)
    third = sampled(nvml, clock=clock)
    assert [by_uuid(sample)[uuid(1)].lost for sample in (first, second, third)] == [True] * 3
    assert [[event.kind for event in sample.events] for sample in (first, second, third)] == [
        ["lost"],
        [],
        [],
    ]


def test_returned_gpu_is_reported_once(driver, control, clock):
    nvml = driver()
    control.lose(0)
    sampled(nvml, clock=clock)
    control.find(0)
    assert by_uuid(sampled(nvml, full=False, clock=clock))[uuid(0)].lost
    sample = sampled(nvml, clock=clock)
    assert [(event.kind, event.device, event.severity) for event in sample.events] == [
        ("back", uuid(0), "info")
    ]
    assert sample.gpus[0].readings == pytest.approx(EXPECTED)
    sample = sampled(nvml, clock=clock)
    assert sample.events == [] and sample.gpus[0].readings == pytest.approx(EXPECTED | EXPECTED_GPM)


def test_changed_gpu_count_is_noticed(driver, control, clock):
    nvml = driver()
    control.gpu(2)
    control.write()
    assert set(by_uuid(sampled(nvml, clock=clock))) == {uuid(0), uuid(1), uuid(2)}
    control.set("count", 1)
    sample = sampled(nvml, clock=clock)
    gpus = by_uuid(sample)
    assert {name for name, gpu in gpus.items() if gpu.lost} == {uuid(1), uuid(2)}
    assert {event.device for event in sample.events if event.kind == "lost"} == {uuid(1), uuid(2)}
    assert gpus[uuid(0)].readings == pytest.approx(EXPECTED)
    assert sampled(nvml, clock=clock).events == []
    control.set("count", 3)
    sample = sampled(nvml, clock=clock)
    assert {event.device for event in sample.events if event.kind == "back"} == {uuid(1), uuid(2)}
    assert not any(gpu.lost for gpu in sample.gpus) and len(sample.gpus) == 3


def test_gpu_without_handle_found_after_reopen(driver, control, clock):
    control.set("1.nvmlDeviceGetHandleByIndex", GPU_IS_LOST)
    nvml = driver()
    sample = sampled(nvml)
    assert set(by_uuid(sample)) == {uuid(0)}
    assert sample.problems == ["GPU 1: GPU is lost"]
    control.drop("1.nvmlDeviceGetHandleByIndex")
    assert set(by_uuid(sampled(nvml, clock=clock))) == {uuid(0)}
    clock.advance(REOPEN_SECONDS)
    assert set(by_uuid(sampled(nvml, clock=clock))) == {uuid(0), uuid(1)}
    assert sampled(nvml, clock=clock).problems == []


def test_forbidden_gpu_is_reported_once(driver, control, clock):
    control.set("1.nvmlDeviceGetHandleByIndex", "!4")
    nvml = driver()
    sample = sampled(nvml)
    assert set(by_uuid(sample)) == {uuid(0)} and sample.problems == ["GPU 1: Insufficient Permissions"]
    assert sampled(nvml, clock=clock).problems == []


def test_library_reopens_back_off(driver, control, clock, monkeypatch):
    nvml = driver()
    opened = []
    original = pynvml.nvmlInit
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: (opened.append(clock.monotonic_ns()), original()))
    control.set("1.nvmlDeviceGetPowerUsage", GPU_IS_LOST)
    began_ns = clock.monotonic_ns()
    for _ in range(500):
        sampled(nvml, clock=clock)
    waited = [(at_ns - began_ns) // SECOND_NS for at_ns in opened]
    # Lost in the first sample, so due from the second on: 60 s after it, then 120 s, 240 s.
    assert waited == [62, 182, 422]


# MIG


def test_mig_instances_have_profile_memory_and_gpm(driver, control, clock):
    control.instance(0, 0, 1)
    control.instance(0, 2, 5, nvmlDeviceGetComputeRunningProcesses="8 9")
    control.lines.update({"0g1.gpm.2": 20.0, "0g5.gpm.2": 80.0, "0g5.gpm.10": 10.0})
    control.write()
    nvml = driver()
    sampled(nvml)
    gpus = by_uuid(sampled(nvml, clock=clock))
    assert set(gpus) == {uuid(0), "MIG-00", "MIG-02", uuid(1)}
    first, second = gpus["MIG-00"], gpus["MIG-02"]
    assert (first.parent, first.profile, first.pids, first.index) == (uuid(0), "3g.40gb", [77], 0)
    assert (first.instance, second.instance, gpus[uuid(0)].instance) == ("1", "5", "")
    memory = {
        "memory/total": 42412802048,
        "memory/used": 1e9,
        "memory/free": 41400000000,
        "memory/reserved": 12802048,
    }
    assert first.readings == pytest.approx({**memory, "activity/sm": 0.2, "processes": 1})
    assert second.readings == pytest.approx(
        {**memory, "activity/sm": 0.8, "activity/dram": 0.1, "processes": 2}
    )
    assert gpus[uuid(1)].readings == pytest.approx(EXPECTED | EXPECTED_GPM)


def test_mig_instances_come_and_go_without_being_lost(driver, control, load, clock):
    stub = load()
    nvml = driver()
    sampled(nvml)
    control.instance(0, 0, 1)
    control.instance(0, 1, 2)
    control.write()
    assert {"MIG-00", "MIG-01"} <= set(by_uuid(sampled(nvml, clock=clock)))
    sampled(nvml, clock=clock)
    control.drop("0m0.gi")
    control.set("0m1.uuid", "MIG-new")
    sample = sampled(nvml, clock=clock)
    assert set(by_uuid(sample)) == {uuid(0), "MIG-new", uuid(1)} and sample.events == []
    control.set("0.nvmlDeviceGetMigMode", 0)
    sampled(nvml, clock=clock)
    sample = sampled(nvml, clock=clock)
    assert set(by_uuid(sample)) == {uuid(0), uuid(1)} and sample.events == []
    assert sample.gpus[0].readings == pytest.approx(EXPECTED | EXPECTED_GPM)
    assert stub.stub_live_samples() == 4


def test_mig_mode_change_retries_all_queries(driver, control, clock):
    control.instance(0, 0, 1)
    del control.lines["0.nvmlDeviceGetUtilizationRates"]
    control.write()
    nvml = driver()
    assert "activity/utilization" not in sampled(nvml).gpus[0].readings
    control.gpu(0)
    control.set("0.nvmlDeviceGetMigMode", 0)
    assert sampled(nvml, clock=clock).gpus[0].readings["activity/utilization"] == pytest.approx(0.97)


@pytest.mark.parametrize(
    "name, slices, profile",
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", (1, 1, 4864), "1g.5gb"),
        ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", (3, 1, 20096), "1c.3g.20gb"),
        ("NVIDIA A100-SXM4-40GB", (1, 1, 4864), "1g.5gb"),
        ("NVIDIA H100 80GB HBM3", (7, 7, 81079), "7g.80gb"),
        ("NVIDIA H100 80GB HBM3", (3, 1, 40448), "1c.3g.40gb"),
        ("", None, ""),
    ],
)
def test_profiles(name, slices, profile):
    attributes = slices and pynvml.c_nvmlDeviceAttributes(
        gpuInstanceSliceCount=slices[0], computeInstanceSliceCount=slices[1], memorySizeMB=slices[2]
    )
    assert profile_of(name, attributes) == profile
