"""XIDs and damage that grows, as events and counts of the NVML driver."""

from __future__ import annotations

import pytest
from support.node.nvml_stub.control import uuid
from support.node.nvml_stub.fixtures import by_uuid, clock, control, driver, library, load, pynvml, sampled

from goodput_exporters.gpu.nvml.device import RETRY_SECONDS

FIXTURES = (clock, control, driver, library, load)


def test_xids_become_events_with_counts(driver, control, clock):
    nvml = driver()
    control.xid(0, 79)
    sample = sampled(nvml, full=False, clock=clock)
    (event,) = sample.events
    assert (event.kind, event.device, event.code, event.name) == ("xid", uuid(0), 79, "GPU fell off the bus")
    assert (event.severity, event.text, event.time_ns) == ("critical", "to do: reboot_node", clock.unix_ns())
    for _ in range(3):
        control.xid(1, 31)
    control.xid(1, 63)
    control.xid(1, 12345)
    sample = sampled(nvml, clock=clock)
    assert {(e.code, e.name, e.severity, e.text) for e in sample.events} == {
        (31, "page fault in GPU memory", "warning", "to do: restart_app, 3 times"),
        (63, "memory row remapped or page retired", "info", "to do: watch"),
        (12345, "not in NVIDIA's catalogue of October 2025", "warning", "to do: look_up"),
    }
    assert {event.code: event.count for event in sample.events} == {31: 3, 63: 1, 12345: 1}
    assert {event.device for event in sample.events} == {uuid(1)}


def test_xid_of_lost_gpu_is_reported(driver, control, clock):
    nvml = driver()
    control.xid(0, 79)
    assert [event.code for event in sampled(nvml, full=False, clock=clock).events] == [79]
    control.lose(0)
    assert sampled(nvml, full=False, clock=clock).gpus[0].readings == {}
    gpu = sampled(nvml, clock=clock).gpus[0]
    assert gpu.lost and gpu.readings == {}


def test_failed_event_registration_is_retried(driver, control, clock):
    control.set("0.nvmlDeviceRegisterEvents", "!999")
    nvml = driver()
    control.xid(1, 31)
    sample = sampled(nvml, clock=clock)
    assert [event.device for event in sample.events] == [uuid(1)]
    assert sample.problems == [f"{uuid(0)}: nvmlDeviceRegisterEvents: Unknown Error"]
    control.set("0.nvmlDeviceRegisterEvents", 0)
    assert sampled(nvml, clock=clock).problems == []
    control.xid(0, 31)
    assert [event.device for event in sampled(nvml, clock=clock).events] == [uuid(0)]


def test_xid_with_another_handle_finds_its_gpu(driver, control, clock):
    control.set("alias", 1)
    nvml = driver()
    control.xid(1, 31)
    assert [event.device for event in sampled(nvml, clock=clock).events] == [uuid(1)]
    control.xid(1, 31)
    control.set("1.nvmlDeviceGetUUID", "!999")  # No query is needed: the set is that GPU's.
    assert [event.device for event in sampled(nvml, clock=clock).events] == [uuid(1)]


def test_xid_is_of_the_gpu_that_it_names(driver, control, clock):
    """Not of the GPU of the set that it came in."""
    nvml = driver()
    control.set("named", 0)
    control.xid(1, 31)
    sample = sampled(nvml, clock=clock)
    assert [event.device for event in sample.events] == [uuid(0)]
    assert sample.problems == [f"{uuid(1)}: its event set has an XID of {uuid(0)}"]


def test_an_xid_of_a_mig_instance_names_it(driver, control, clock):
    nvml = driver()
    control.xid(0, 13, instance=5)
    (event,) = sampled(nvml, clock=clock).events
    assert (event.device, event.text) == (uuid(0), "to do: restart_app, GPU instance 5")


def test_xid_storm_is_fully_counted(driver, control, clock):
    nvml = driver()
    for number in range(1, 2501):
        control.lines[f"xid.{number}"] = f"0 {number % 200} {0xFFFF_FFFF}"
    control.write()
    polls = [sampled(nvml, full=False, clock=clock) for _ in range(4)]
    assert [len(sample.events) for sample in polls] == [64, 64, 64, 0]
    assert sum(event.count for sample in polls for event in sample.events) == 2500


def test_lost_gpu_does_not_block_other_xids(driver, control, clock):
    nvml = driver()
    sampled(nvml)
    control.lose(0)
    sampled(nvml, clock=clock)
    control.xid(1, 94)
    assert [(event.kind, event.code) for event in sampled(nvml, full=False, clock=clock).events] == [
        ("xid", 94)
    ]
    # What came while the other one was on its way back is not lost with the old set.
    control.find(0)
    control.xid(1, 74)
    assert {(event.kind, event.code) for event in sampled(nvml, clock=clock).events} == {
        ("xid", 74),
        ("back", 0),
    }
    control.xid(0, 31)
    assert [(event.device, event.code) for event in sampled(nvml, clock=clock).events] == [(uuid(0), 31)]


@pytest.mark.parametrize("full", [True, False])
def test_xid_and_loss_are_both_reported(driver, control, clock, full):
    nvml = driver()
    sampled(nvml, clock=clock)
    control.lines["xid.1"], control.lines["xid.2"] = f"0 79 {0xFFFF_FFFF}", f"1 31 {0xFFFF_FFFF}"
    control.lose(0)
    reported = [(event.kind, event.device, event.code) for event in sampled(nvml, full, clock).events]
    assert sorted(reported) == [("lost", uuid(0), 0), ("xid", uuid(0), 79), ("xid", uuid(1), 31)]
    assert reported.index(("xid", uuid(0), 79)) < reported.index(("lost", uuid(0), 0))
    lost = by_uuid(sampled(nvml, clock=clock))[uuid(0)]
    assert lost.lost and lost.readings == {}


def test_held_back_xid_is_reported_after_return(driver, control, clock):
    nvml = driver()
    sampled(nvml, clock=clock)
    control.lines["lost_first"] = 1
    control.lines["xid.1"], control.lines["xid.2"] = f"0 79 {0xFFFF_FFFF}", f"1 31 {0xFFFF_FFFF}"
    control.lose(0)
    first = sampled(nvml, clock=clock)
    assert {(e.kind, e.code) for e in first.events} == {("lost", 0), ("xid", 31)} and first.problems == []
    assert sampled(nvml, clock=clock).problems == []
    control.find(0)
    reported = [(event.kind, event.device, event.code) for event in sampled(nvml, clock=clock).events]
    assert sorted(reported) == [("back", uuid(0), 0), ("xid", uuid(0), 79)]
    assert sampled(nvml, clock=clock).events == []


def test_returned_gpu_is_registered_again(driver, control, clock, monkeypatch):
    nvml = driver()
    control.lose(0)
    sampled(nvml, clock=clock)
    control.find(0)
    register, registered = pynvml.nvmlDeviceRegisterEvents, []

    def noted(handle, types, events):
        registered.append(pynvml.nvmlDeviceGetUUID(handle))
        return register(handle, types, events)

    monkeypatch.setattr(pynvml, "nvmlDeviceRegisterEvents", noted)
    sampled(nvml, clock=clock)
    assert registered == [uuid(0)]


def test_failed_event_set_is_replaced(driver, control, clock):
    nvml = driver()
    control.set("*.nvmlEventSetWait", "!999")
    assert sampled(nvml, full=False, clock=clock).problems == [
        f"{uuid(at)}: nvmlEventSetWait_v2: Unknown Error" for at in (0, 1)
    ]
    assert sampled(nvml, full=False, clock=clock).problems == []
    control.drop("*.nvmlEventSetWait")
    sampled(nvml, clock=clock)
    control.xid(1, 31)
    assert [event.code for event in sampled(nvml, clock=clock).events] == [31]


def test_xid_during_set_replacement_is_reported(driver, control, clock, monkeypatch):
    nvml = driver()
    control.lose(0)
    sampled(nvml, clock=clock)
    control.find(0)
    read = pynvml.nvmlDeviceGetPowerUsage

    def read_in_a_bad_moment(handle):
        monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", read)
        control.xid(1, 74)
        return read(handle)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", read_in_a_bad_moment)
    assert {(event.kind, event.code) for event in sampled(nvml, clock=clock).events} == {
        ("xid", 74),
        ("back", 0),
    }


def test_a_gpu_without_events_is_left_out_quietly(driver, control, clock):
    control.drop("0.nvmlDeviceRegisterEvents")
    nvml = driver()
    assert sampled(nvml).problems == []
    control.xid(0, 31)
    control.xid(1, 31)
    assert [event.device for event in sampled(nvml, clock=clock).events] == [uuid(1)]


def test_growing_error_counter_is_one_event(driver, control, clock):
    nvml = driver()
    assert sampled(nvml).events == []
    control.set("0.field.6.0", "5 3")
    control.set("0.field.4.0", "4 3")
    control.set("0.field.143.0", "2 1")
    control.set("0.field.144.0", "1 1")
    control.set("1.field.30.0", "1 1")
    events = sampled(nvml, clock=clock).events
    assert sorted((event.kind, event.device, event.severity, event.text) for event in events) == [
        ("ecc", uuid(0), "critical", "3 uncorrectable memory errors, 5 in all"),
        ("row_remap", uuid(0), "warning", "1 row remap that waits for a reset, 1 in all"),
        ("row_remap", uuid(0), "warning", "1 rows remapped after uncorrectable errors, 2 in all"),
    ]
    assert sampled(nvml, full=False, clock=clock).events == []
    assert sampled(nvml, clock=clock).events == []
    # A counter that starts again is no damage, nor is one that is seen for the first time.
    control.set("0.field.6.0", "0 3")
    assert sampled(nvml, clock=clock).events == []
    control.set("0.field.6.0", "1 3")
    assert [event.text for event in sampled(nvml, clock=clock).events] == [
        "1 uncorrectable memory errors, 1 in all"
    ]


def test_error_in_two_counters_is_one_event(driver, control, clock):
    nvml = driver()
    sampled(nvml)
    control.drop("0.field.6.0")
    control.set("0.field.4.0", "2 3")
    assert sampled(nvml, clock=clock).events == []
    control.set("0.field.6.0", "3 3")
    clock.advance(RETRY_SECONDS)
    assert [event.text for event in sampled(nvml).events] == ["1 uncorrectable memory errors, 3 in all"]
    control.set("1.field.6.0", "!3")
    fresh = driver()
    sampled(fresh)
    # Without the aggregate count the volatile one does.
    control.set("1.field.4.0", "2 3")
    assert [event.device for event in sampled(fresh, clock=clock).events] == [uuid(1)]


def test_retired_pages_of_older_gpus(driver, control, clock):
    control.set("0.field.29.0", "2 3")
    control.set("0.field.30.0", "1 3")
    control.set("0.field.31.0", "0 1")
    nvml = driver()
    readings = sampled(nvml).gpus[0].readings
    retired = {key: value for key, value in readings.items() if key.startswith("pages")}
    assert retired == {
        "pages_retired/single_bit": 2,
        "pages_retired/double_bit": 1,
        "pages_retired/pending": 0,
    }
    control.set("0.field.30.0", "2 3")
    (event,) = sampled(nvml, clock=clock).events
    assert (event.kind, event.text) == ("page_retired", "1 pages retired after double-bit errors, 2 in all")


def test_throttle_events_are_rate_limited(driver, control, clock):
    nvml = driver()
    sampled(nvml)
    kinds = []
    for second in range(130):
        control.set("0.nvmlDeviceGetCurrentClocksEventReasons", 0x40 if second % 2 else 0x4)
        kinds += [(second, event.name) for event in sampled(nvml, clock=clock).events]
    assert kinds == [(1, "hw_thermal"), (61, "hw_thermal"), (121, "hw_thermal")]
