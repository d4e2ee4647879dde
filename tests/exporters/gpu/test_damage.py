"""Events made of the records of GPUs, whichever driver wrote them."""

import pytest

from goodput_exporters.collectors.gpus.damage import (
    CLAIM_NS,
    COUNTERS,
    DEVICES_MAX,
    QUIET_NS,
    XID_NS,
    DamageMonitor,
)
from goodput_exporters.gpu.drivers import DRIVERS
from goodput_exporters.gpu.sample import EVENTS_MAX, Event, Gpu, Sample

SECOND = 1_000_000_000
UE, VOLATILE = "ecc/uncorrectable/aggregate", "ecc/uncorrectable/volatile"


class Monitored:
    """A monitor fed with samples of drivers; `at` is in seconds."""

    def __init__(self):
        self.monitor = DamageMonitor(lambda: 7)

    def events(self, driver, *gpus, at=0.0, events=()):
        sample = Sample(driver, round(at * SECOND), list(gpus), events=list(events))
        return self.monitor.with_events(sample).events[len(events) :]

    def kinds(self, *arguments, **options):
        return [(event.kind, event.device) for event in self.events(*arguments, **options)]


@pytest.fixture
def monitored():
    return Monitored()


def gpu(name="GPU-1", **fields):
    return Gpu(name, **fields)


@pytest.mark.parametrize("driver", DRIVERS)
def test_growth_of_each_counter_is_an_event(driver):
    for keys, kind, severity, text in COUNTERS:
        for key in keys:
            monitored = Monitored()
            assert monitored.events(driver, gpu(readings={key: 2.0})) == []
            (event,) = monitored.events(driver, gpu(readings={key: 5.0}))
            assert event == Event(kind, "GPU-1", 7, 0, text, severity, f"3 {text}, 5 in all")
            assert monitored.events(driver, gpu(readings={key: 5.0})) == []


def test_reset_counter_is_no_damage(monitored):
    values = [(3, 0), (5, 2), (0, 0), (0, 0), (1, 1), (None, 0), (4, 3), (2, 0), (4, 2)]
    for value, grown in values:
        readings = {} if value is None else {UE: float(value)}
        events = monitored.events("nvml", gpu(readings=readings))
        assert [event.text.split()[0] for event in events] == ([str(grown)] if grown else []), value


def test_first_value_on_a_known_gpu_is_no_damage(monitored):
    """As of a query that begins to work, or a field that DCGM has not read yet."""
    assert monitored.events("dcgm", gpu()) == []
    assert monitored.events("dcgm", gpu(readings={UE: 5.0, "throttled/thermal": 1.0})) == []


def test_damage_while_a_gpu_was_lost_is_an_event(monitored):
    monitored.events("nvml", gpu(readings={UE: 1.0}))
    assert monitored.kinds("nvml", gpu(lost=True)) == [("lost", "GPU-1")]
    assert monitored.kinds("nvml", gpu(readings={UE: 2.0})) == [("back", "GPU-1"), ("ecc", "GPU-1")]


def test_damage_seen_by_two_drivers_is_one_event(monitored):
    for driver in ("dcgm_endpoint", "nvml"):
        monitored.events(driver, gpu(readings={UE: 1.0}))
    assert len(monitored.events("nvml", gpu(readings={UE: 3.0}))) == 1
    assert monitored.events("dcgm_endpoint", gpu(readings={UE: 1.0})) == []
    assert monitored.events("dcgm_endpoint", gpu(readings={UE: 3.0})) == []
    # The one that goes on is heard, whichever it is.
    (event,) = monitored.events("dcgm_endpoint", gpu(readings={UE: 4.0}))
    assert event.text.startswith("1 uncorrectable")
    assert monitored.events("nvml", gpu(readings={UE: 4.0})) == []


def test_throttling_is_reported_once_a_minute_by_all_drivers(monitored):
    def throttled(driver, value, at):
        readings = {"throttled/hw_thermal": value, "throttled/power": value}
        return [event.name for event in monitored.events(driver, gpu(readings=readings), at=at)]

    quiet = QUIET_NS / SECOND
    assert throttled("nvml", 0.0, 0) == throttled("dcgm", 0.0, 0) == []
    assert throttled("nvml", 1.0, 1) == ["hw_thermal"]
    assert throttled("dcgm", 1.0, 2) == throttled("nvml", 0.0, 3) == throttled("nvml", 1.0, 4) == []
    assert throttled("nvml", 0.0, quiet) == []
    assert throttled("nvml", 1.0, quiet + 1) == ["hw_thermal"]


def test_gpu_that_is_no_longer_listed_is_lost(monitored):
    assert monitored.kinds("dcgm_endpoint", gpu("A"), gpu("B"), gpu("M", parent="B")) == []
    (event,) = monitored.events("dcgm_endpoint", gpu("A"))
    assert (event.kind, event.device, event.severity) == ("lost", "B", "critical")
    assert event.text == "no longer listed by dcgm_endpoint"
    assert monitored.kinds("dcgm_endpoint", gpu("A")) == []
    assert monitored.kinds("dcgm_endpoint", gpu("A"), gpu("B")) == [("back", "B")]
    # None at all is a driver that begins, and another driver's GPUs are not missing here.
    assert monitored.kinds("dcgm_endpoint") == monitored.kinds("amd", gpu("C")) == []


def test_loss_seen_by_two_drivers_is_one_event(monitored):
    for driver in ("nvml", "dcgm_endpoint"):
        monitored.events(driver, gpu("A"), gpu("B"))
    assert monitored.kinds("nvml", gpu("A"), gpu("B", lost=True)) == [("lost", "B")]
    assert monitored.kinds("dcgm_endpoint", gpu("A"), at=30) == []
    assert monitored.kinds("nvml", gpu("A"), gpu("B"), at=60) == []
    assert monitored.kinds("dcgm_endpoint", gpu("A"), gpu("B"), at=90) == [("back", "B")]


def test_silent_driver_does_not_hide_a_loss(monitored):
    for driver in ("nvml", "dcgm_endpoint"):
        monitored.events(driver, gpu("A"), gpu("B"))
    assert monitored.kinds("dcgm_endpoint", gpu("A")) == [("lost", "B")]
    late = CLAIM_NS / SECOND + 1
    assert monitored.kinds("nvml", gpu("A"), gpu("B", lost=True), at=late) == [("lost", "B")]


def test_last_xid_that_appears_or_changes_is_an_event(monitored):
    seen = [(None, 0), (13, 13), (13, 0), (None, 0), (13, 0), (0, 0), (13, 13), (79, 79)]
    for number, expected in seen:
        events = monitored.events("dcgm_endpoint", gpu(last_xid=number))
        assert [event.code for event in events] == ([expected] if expected else []), (number, expected)
    # Of a GPU that is seen for the first time it may be of last week.
    assert monitored.events("dcgm_endpoint", gpu(last_xid=79), gpu("GPU-2", last_xid=79)) == []


def test_xid_that_another_driver_reported_is_not_repeated(monitored):
    for driver in ("nvml", "dcgm_endpoint"):
        monitored.events(driver, gpu(last_xid=0 if driver == "dcgm_endpoint" else None))
    monitored.events("nvml", gpu(), events=[Event("xid", "GPU-1", 7, 79)])
    assert monitored.events("dcgm_endpoint", gpu(last_xid=79), at=40) == []
    late = 41 + XID_NS / SECOND
    monitored.events("dcgm_endpoint", gpu(last_xid=31), at=late)
    (event,) = monitored.events("dcgm_endpoint", gpu(last_xid=79), at=late)
    assert event.code == 79


def test_possible_events_are_those_that_readings_can_show(monitored):
    monitored.events("amd", gpu("A", readings={VOLATILE: 0.0}))
    monitored.events("nvml", gpu("N", readings={"rows_remapped/failure": 0.0, "throttled/thermal": 0.0}))
    monitored.events("nvml", gpu("N"))

    def possible(driver, *gpus):
        return monitored.monitor.possible(Sample(driver, 0, list(gpus)))

    assert possible("amd", gpu("A"), gpu("M", parent="A")) == {
        "A": {("lost", "critical"), ("ecc", "critical")}
    }
    assert possible("nvml", gpu("N")) == {
        "N": {
            *(("lost", "critical"), ("xid", "warning"), ("xid", "critical")),
            *(("row_remap", "critical"), ("throttle", "warning")),
        }
    }


def test_devices_and_events_are_bounded(monitored):
    for number in range(DEVICES_MAX + 10):
        monitored.events(f"d{number % 3}", gpu(f"GPU-{number}"))
    assert len(monitored.monitor._devices) <= DEVICES_MAX
    many = [Event("xid", "GPU-1", 7, 1)] * EVENTS_MAX
    monitored.monitor.with_events(Sample("nvml", 0, [gpu(readings={UE: 1.0})]))
    sample = monitored.monitor.with_events(Sample("nvml", 0, [gpu(readings={UE: 2.0})], events=many))
    assert len(sample.events) == EVENTS_MAX and sample.events[-1].kind == "ecc"
