"""GPUs as series: merging drivers, missing and silent GPUs, bounds of what is kept."""

import contextlib
import dataclasses
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from support.core_wait import within
from support.node.broken_files import exposition
from support.node.fake_drivers import full_readings, gpu
from support.paths import TESTS
from support.servers.servers import wait_until

import goodput_exporters.gpu as gpu_package
from goodput.metrics import Families
from goodput_exporters.collector import CollectorError, NoData, Settings
from goodput_exporters.collectors import discover
from goodput_exporters.collectors.gpus.collector import Gpus
from goodput_exporters.collectors.gpus.series import add_driver, add_gpu
from goodput_exporters.collectors.gpus.xid_counter import GPUS_MAX, NUMBERS_MAX, XidCounter
from goodput_exporters.gpu import drivers
from goodput_exporters.gpu.merge import MergedGpu, merge
from goodput_exporters.gpu.sample import Event, Gpu, Sample, SampleError, check, decode, encode
from goodput_exporters.gpu.supervisor import DriverStatus, DriverSupervisor, Limits, Received

LIMITS = Limits(stuck_seconds_min=1.0, open_seconds=20.0, backoff_seconds=0.05)
SECOND = 10**9


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


def report(name: str, *samples: Sample, received_ns: int = 0, up: bool = True, **fields) -> DriverStatus:
    """A driver that sent these samples, at `received_ns`."""
    received = {sample.full: Received(sample, received_ns or sample.monotonic_ns) for sample in samples}
    about = {
        "limit_seconds": 5.0, "absent": False, "settled": True, "up": up, "age_seconds": 0.5,
        "counts": {"samples": 1, "dropped": 2, "problems": 3}, "restarts": {"stuck": 1}, "cpu_seconds": 1.5,
        "memory_bytes": 10, "unkillable": 0, "problem": "",
    }  # fmt: skip
    return DriverStatus(name, full=received.get(True), fast=received.get(False), **{**about, **fields})


def sample(*gpus: Gpu, full: bool = True, at: int = 0, **fields) -> Sample:
    return Sample("x", at, list(gpus), full, **fields)


def one(*reports: DriverStatus, now: int = 0):
    merged = merge(reports, now)
    assert len(merged) == 1
    return merged[0]


def values(families: Families, name: str) -> dict[tuple[str, ...], float]:
    """Of a series, by label values in the order of their names."""
    return {
        tuple(value for _, value in sorted(found.labels.items())): found.value
        for family in families
        for found in family.samples
        if found.name == name
    }


# -- several drivers, one GPU


def test_readings_follow_driver_precedence():
    dcgm = report("dcgm", sample(Gpu("GPU-1", readings={"power": 1.0, "activity/sm": 0.1})))
    nvml = report("nvml", sample(Gpu("GPU-1", index=3, model="H100", readings={"power": 2.0, "energy": 9.0})))
    other = report("zzz", sample(Gpu("GPU-1", readings={"power": 3.0, "energy": 8.0, "processes": 1.0})))
    for order in ((dcgm, nvml, other), (other, nvml, dcgm)):
        merged = one(*order)
        assert merged.readings == {"power": 1.0, "activity/sm": 0.1, "energy": 9.0, "processes": 1.0}
        assert (merged.uuid, merged.model, merged.known_by) == ("GPU-1", "H100", ["dcgm", "nvml", "zzz"])


def test_gpu_with_two_uuids_is_merged_by_address():
    amd = report("amd", sample(Gpu("0xabc", pci="0000:83:00.0", readings={"power": 1.0})))
    other = report("zzz", sample(Gpu("0000:83:00.0", pci="00000000:83:00.0", readings={"energy": 2.0})))
    merged = one(amd, other)
    assert merged.uuid == "0xabc" and merged.names == {"0xabc", "0000:83:00.0"}
    assert merged.readings == {"power": 1.0, "energy": 2.0}


def test_gpus_without_address_are_not_merged():
    assert len(merge([report("nvml", sample(Gpu("GPU-1"), Gpu("GPU-2"), Gpu("GPU-3", pci="?")))], 0)) == 3


def test_mig_instance_is_not_merged_with_parent():
    parent = Gpu("GPU-1", pci="0000:3b:00.0", readings={"power": 300.0})
    parts = [Gpu(f"MIG-{at}", pci="0000:3b:00.0", parent="GPU-1", profile="1g.10gb") for at in (1, 2)]
    merged = merge([report("nvml", sample(*parts, parent)), report("dcgm", sample(parent))], 0)
    assert [(found.uuid, found.parent, found.profile) for found in merged] == [
        ("GPU-1", "", ""),
        ("MIG-1", "GPU-1", "1g.10gb"),
        ("MIG-2", "GPU-1", "1g.10gb"),
    ]


def test_fast_readings_override_full_sample():
    full = sample(Gpu("GPU-1", index=2, model="H100", readings={"power": 1.0, "energy": 5.0}), at=SECOND)
    fast = sample(Gpu("GPU-1", readings={"power": 2.0}), full=False, at=2 * SECOND)
    merged = one(report("nvml", full, fast), now=2 * SECOND)
    assert merged.readings == {"power": 2.0, "energy": 5.0} and (merged.index, merged.model) == (2, "H100")
    assert merged.received_ns == 2 * SECOND
    newer = sample(Gpu("GPU-1", readings={"power": 3.0}), at=3 * SECOND)
    assert one(report("nvml", newer, fast), now=3 * SECOND).readings["power"] == 3.0


def test_readings_that_are_too_old_are_left_out():
    """A fast one after `limit_seconds`, a full one as much later as full samples are apart."""
    full = sample(Gpu("GPU-1", readings={"energy": 5.0}), at=0)
    fast = sample(Gpu("GPU-1", readings={"power": 2.0}), full=False, at=10 * SECOND)
    assert one(report("nvml", full, fast), now=10 * SECOND).readings == {"power": 2.0, "energy": 5.0}
    assert one(report("nvml", full, fast), now=int(10.1 * SECOND)).readings == {"power": 2.0}
    assert merge([report("nvml", full, fast)], int(15.1 * SECOND)) == []
    assert merge([report("nvml", full, fast, up=False)], 10 * SECOND) == []


def test_lost_gpu_has_no_readings_of_other_drivers():
    merged = one(
        report("dcgm", sample(Gpu("GPU-1", readings={"power": 70.0}))),
        report("nvml", sample(Gpu("GPU-1", lost=True))),
    )
    assert merged.lost and merged.readings == {}


ENGINE, UTILIZATION = "activity/engine", "activity/utilization"
FALSE_ZEROS = {ENGINE: 0.0, "activity/sm": 0.0, "activity/tensor": 0.0, "activity/dram": 0.2}


def test_false_zero_is_flagged_and_hidden():
    merged = one(report("dcgm", sample(Gpu("GPU-1", readings={**FALSE_ZEROS, UTILIZATION: 1.0}))))
    assert merged.false_zero is True
    assert merged.readings == {UTILIZATION: 1.0, "activity/dram": 0.2}


def test_false_zero_yields_to_another_driver():
    dcgm = report("dcgm", sample(Gpu("GPU-1", readings=FALSE_ZEROS)))
    nvml = report("nvml", sample(Gpu("GPU-1", readings={UTILIZATION: 1.0})))
    merged = one(dcgm, nvml)
    assert merged.false_zero is True and ENGINE not in merged.readings
    own = report("dcgm", sample(Gpu("GPU-1", readings={**FALSE_ZEROS, UTILIZATION: 1.0})))
    gpm = report("nvml", sample(Gpu("GPU-1", readings={UTILIZATION: 1.0, ENGINE: 0.9, "activity/sm": 0.8})))
    merged = one(own, gpm)
    assert (
        merged.false_zero is True and merged.readings[ENGINE] == 0.9 and merged.readings["activity/sm"] == 0.8
    )


@pytest.mark.parametrize(
    "readings, flag",
    [
        ({ENGINE: 0.0, UTILIZATION: 0.0}, False),
        ({ENGINE: 0.0, UTILIZATION: 0.99}, False),
        ({ENGINE: 0.01, UTILIZATION: 1.0}, False),
        ({ENGINE: 0.0}, None),
        ({UTILIZATION: 1.0}, None),
        ({}, None),
    ],
)
def test_plausible_zero_is_shown(readings, flag):
    merged = one(report("dcgm", sample(Gpu("GPU-1", readings=readings))))
    assert merged.false_zero is flag and merged.readings == readings


# -- XIDs


def xid_sample(code: int, count: int = 1, driver: str = "nvml", uuid: str = "GPU-1") -> Sample:
    return Sample(driver, 1, [], events=[Event("xid", uuid, 1, code=code, count=count)])


def test_xids_are_counted_from_events():
    xids = XidCounter()
    for code, count in ((79, 1), (79, 2), (31, 1)):
        xids.add_sample(xid_sample(code, count))
    xids.add_sample(sample(Gpu("GPU-1"), events=[Event("ecc", "GPU-1", 1)]))
    assert xids.counts({"GPU-1"}) == {("79", "bus"): 3, ("31", "application"): 1}
    assert xids.counts({"GPU-2"}) == {}
    xids.forget({"GPU-1"})
    assert xids.counts({"GPU-1"}) == {}


def test_xids_of_two_drivers_are_not_summed():
    xids = XidCounter()
    xids.add_sample(xid_sample(79, 2, "dcgm"))
    xids.add_sample(xid_sample(79, 1, "nvml"))
    assert xids.counts({"GPU-1"}) == {("79", "bus"): 2}


def test_xids_are_bounded():
    xids = XidCounter()
    for at in range(GPUS_MAX + 10):
        xids.add_sample(xid_sample(1, uuid=f"GPU-{at}"))
    assert xids.counts({f"GPU-{GPUS_MAX}"}) == {}
    xids = XidCounter()
    for code in range(NUMBERS_MAX + 10):
        xids.add_sample(xid_sample(1000 + code))
    counts = xids.counts({"GPU-1"})
    assert len(counts) == NUMBERS_MAX + 1 and counts["other", "unknown"] == 10


# -- series


def test_every_reading_becomes_its_series():
    families = Families("node")
    merged = one(report("nvml", sample(gpu(3, pids=[1, 2]))))
    add_gpu(families, merged, True, 0.5, "1", Counter())
    assert values(families, "goodput_gpu_up") == {("GPU-3",): 1}
    assert values(families, "goodput_gpu_info") == {
        ("1.0", "GPU-3", "3", "Fake H100", "1", "", "0000:03:00.0", ""): 1
    }
    assert values(families, "goodput_gpu_activity_ratio")["GPU-3", "sm"] == 0.53
    assert values(families, "goodput_gpu_link_bytes_total")["transmit", "GPU-3", "nvlink"] == 1e12
    assert values(families, "goodput_gpu_ecc_errors_total")["GPU-3", "correctable", "aggregate"] == 3
    assert values(families, "goodput_gpu_processes") == {("GPU-3",): 2}
    assert values(families, "goodput_gpu_false_zero") == {("GPU-3",): 0}
    written = sum(len(family.samples) for family in families)
    # Besides the readings: info, up, age, false zero and processes.
    assert written == len(full_readings(3)) + 5


def test_pods_of_a_gpu_are_series():
    families, pods = Families("node"), [("p-0", "train", "main")]
    for up in (True, False):
        add_gpu(families, MergedGpu("GPU-1", pods=pods), up, 0.0, "", Counter())
    assert values(families, "goodput_gpu_pod_info") == {("main", "GPU-1", "train", "p-0"): 1}


def test_negative_counter_is_dropped():
    families = Families("node")
    add_gpu(
        families,
        one(report("x", sample(Gpu("GPU-1", readings={"energy": -1.0, "power": -2.0})))),
        True,
        0,
        "",
        Counter(),
    )
    assert values(families, "goodput_gpu_energy_joules_total") == {}
    assert values(families, "goodput_gpu_power_watts") == {("GPU-1",): -2.0}


def test_absent_driver_has_no_series():
    families = Families("node")
    add_driver(families, report("amd", absent=True))
    add_driver(families, report("dcgm", settled=False))
    assert list(families) == []
    add_driver(families, report("nvml", up=False))
    assert values(families, "goodput_driver_up") == {("nvml",): 0}
    assert values(families, "goodput_driver_restarts_total") == {("nvml", "stuck"): 1}
    assert values(families, "goodput_driver_samples_dropped_total") == {("nvml",): 2}


def test_texts_of_a_sample_are_bounded():
    with pytest.raises(SampleError, match="255 characters"):
        check(sample(Gpu("GPU-1", model="x" * 256)))
    assert decode(encode(sample(Gpu("GPU-1", model="x" * 255)))).gpus[0].model == "x" * 255


# -- finding drivers


def test_every_driver_folder_is_listed():
    """A driver's class has the name it is listed under; a package without `driver.py` is none."""
    folders = {path.parent.name for path in Path(gpu_package.__path__[0]).glob("*/driver.py")}
    assert set(drivers.DRIVERS) == folders and "nvidia" not in folders
    assert {name: drivers.load(path).name for name, path in drivers.DRIVERS.items()} == {
        name: name for name in folders
    }
    assert sorted(["zulu", "nvml", "dcgm"], key=drivers.precedence) == ["dcgm", "nvml", "zulu"]


# -- the collector, with real processes


def settings(tmp_path, gpus_on_bus: int | None = 0, **fields) -> Settings:
    if gpus_on_bus is not None:
        (tmp_path / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
        for at in range(gpus_on_bus):
            device = tmp_path / f"sys/bus/pci/devices/0000:{at:02x}:00.0"
            device.mkdir(exist_ok=True)
            for name, text in (("class", "0x030200"), ("vendor", "0x10de"), ("numa_node", str(at % 2))):
                (device / name).write_text(f"{text}\n")
    fields = {"gpu_interval_seconds": 0.1, **fields}
    return Settings(directory=str(tmp_path), sysfs=str(tmp_path / "sys"), **fields)


@contextlib.contextmanager
def running(tmp_path, modules: dict[str, str], gpus_on_bus: int = 0, limits: Limits = LIMITS, **arguments):
    modules = {name: f"support.node.fake_drivers:{kind}" for name, kind in modules.items()}
    gpus = Gpus(settings(tmp_path, gpus_on_bus), modules=modules, limits=limits, **arguments)
    gpus.start()
    try:
        yield gpus
    finally:
        gpus.close()


def scrape(gpus: Gpus) -> Families:
    families = Families("node")
    with contextlib.suppress(NoData):
        gpus.collect(families)
    return families


def scrape_seconds(gpus: Gpus, times: int = 9) -> float:
    """How long a scrape takes: the median, since the machine may be busy with other tests."""
    seconds = []
    for _ in range(times):
        start = time.monotonic()
        scrape(gpus)
        seconds.append(time.monotonic() - start)
    return sorted(seconds)[times // 2]


def wait_scrape(gpus: Gpus, is_met, what: str) -> Families:
    def seen():
        families = scrape(gpus)
        return families if is_met(families) else None

    return wait_until(seen, 20, what, every_seconds=0.05)


def up(families: Families) -> dict[str, float]:
    return {uuid: value for (uuid,), value in values(families, "goodput_gpu_up").items()}


def kinds(families: Families) -> dict[str, float]:
    return {kind: value for (kind,), value in values(families, "goodput_gpus").items()}


def test_collector_does_nothing_before_start(tmp_path):
    assert Gpus in discover()
    families = Families("node")
    gpus = Gpus(settings(tmp_path, 2))
    gpus.collect(families)
    assert kinds(families) == {"expected": 2} and gpus.statuses() == [] and gpus.current() == []
    gpus.close()
    with pytest.raises(NoData):
        Gpus(settings(tmp_path / "none", None)).collect(Families("node"))


def test_device_of_unknown_class_is_an_error(tmp_path):
    """It may be a GPU that is not among those expected."""
    broken = tmp_path / "sys/bus/pci/devices/0000:7f:00.0"
    one = Gpus(settings(tmp_path, 2))
    broken.mkdir()
    (broken / "class").write_text("display\n")
    families = Families("node")
    with pytest.raises(CollectorError, match=r"7f:00\.0/class: 'display' is not a hexadecimal number"):
        one.collect(families)
    assert kinds(families) == {"expected": 2}


def test_gpus_expected_may_be_set(tmp_path):
    families = Families("node")
    Gpus(settings(tmp_path, 2, gpus_expected=8)).collect(families)
    assert kinds(families) == {"expected": 8}


def test_only_selected_drivers_are_started(tmp_path):
    def names(**fields) -> list[str]:
        return list(Gpus(settings(tmp_path, **fields))._drivers())

    assert names() == ["dcgm", "nvml", "amd"]
    assert names(dcgm_endpoint="http://127.0.0.1:9400/metrics") == ["dcgm", "nvml", "amd", "dcgm_endpoint"]
    assert names(drivers=("nvml", "other")) == ["nvml"]
    gpus = Gpus(settings(tmp_path, drivers=()))
    gpus.start()
    assert gpus.statuses() == [] and gpus.settle(0)


def test_a_node_of_eight_gpus(tmp_path):
    received = []
    with running(tmp_path, {"nvml": "Normal", "amd": "Absent"}, gpus_on_bus=8) as gpus:
        gpus.on_sample = received.append
        assert gpus.settle(20.0)
        families = scrape(gpus)
        wait_until(lambda: received, 60, "a sample to the listener")
    assert up(families) == {f"GPU-{at}": 1 for at in range(8)}
    assert kinds(families) == {"expected": 8, "seen": 8, "lost": 0, "unknown": 0}
    assert {labels[4] for labels in values(families, "goodput_gpu_info")} == {"0", "1"}
    assert values(families, "goodput_driver_up") == {("nvml",): 1}
    assert len(values(families, "goodput_gpu_activity_ratio")) == 80
    assert received[0].driver == "nvml" and len(received[0].gpus) == 8


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_gpu_series(tmp_path):
    with running(tmp_path, {"nvml": "Normal"}, gpus_on_bus=8) as gpus:
        assert gpus.settle(20.0)
        families = scrape(gpus)
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=exposition(families), capture_output=True, timeout=300
    )
    assert checked.returncode == 0, checked.stderr.decode()


def test_hanging_driver_does_not_delay_scrapes(tmp_path):
    limits = Limits(stuck_seconds_min=4.0, open_seconds=60.0, backoff_seconds=60.0)
    with running(tmp_path, {"nvml": "Hanging"}, gpus_on_bus=8, limits=limits) as gpus:
        families = wait_scrape(gpus, lambda families: up(families), "the GPUs")
        assert len(values(families, "goodput_gpu_power_watts")) == 8
        hung = gpus._supervisors[0]
        wait_until(lambda: hung.status().age_seconds > 0.5, 60, "the hang", every_seconds=0.01)
        assert hung.status().restarts["stuck"] == 0 and scrape_seconds(gpus) < 1
        families = wait_scrape(gpus, lambda families: not any(up(families).values()), "that they are down")
        assert len(up(families)) == 8, "down, and not gone"
        for name in (
            "goodput_gpu_power_watts",
            "goodput_gpu_activity_ratio",
            "goodput_gpu_energy_joules_total",
        ):
            assert values(families, name) == {}, "missing is never 0, nor what it was"
        ages = values(families, "goodput_gpu_sample_age_seconds")
        assert min(ages.values()) >= 1.0
        assert kinds(families) == {"expected": 8, "seen": 0, "lost": 0, "unknown": 8}
        assert values(families, "goodput_driver_up") == {("nvml",): 0}
        later = scrape(gpus)
        assert min(values(later, "goodput_gpu_sample_age_seconds").values()) > min(ages.values())
        wait_scrape(
            gpus,
            lambda families: values(families, "goodput_driver_restarts_total")["nvml", "stuck"] == 1,
            "its end",
        )


def test_hanging_driver_does_not_affect_others(tmp_path):
    with running(tmp_path, {"dcgm": "HangsInOpen", "nvml": "Normal"}, gpus_on_bus=8) as gpus:
        families = wait_scrape(
            gpus,
            lambda families: values(families, "goodput_driver_up").get(("dcgm",)) == 0,
            "that dcgm is down",
        )
        assert values(families, "goodput_driver_up")["nvml",] == 1 and scrape_seconds(gpus) < 1
        assert sum(up(families).values()) == 8 and kinds(families)["seen"] == 8


def test_gpu_is_lost_and_returns(tmp_path, monkeypatch):
    script = tmp_path / "script"
    monkeypatch.setenv("GOODPUT_FAKE", str(script))

    def write(text: str) -> None:
        (tmp_path / "draft").write_text(text)
        (tmp_path / "draft").replace(script)

    write("1 2 3")
    with running(tmp_path, {"nvml": "Scripted"}, gpus_on_bus=3) as gpus:
        wait_scrape(gpus, lambda families: up(families) == {"GPU-1": 1, "GPU-2": 1, "GPU-3": 1}, "three GPUs")
        write("-1 2 3")
        families = wait_scrape(gpus, lambda families: up(families)["GPU-1"] == 0, "that one is lost")
        assert kinds(families) == {"expected": 3, "seen": 2, "lost": 1, "unknown": 0}
        assert ("GPU-1",) not in values(families, "goodput_gpu_power_watts")
        write("1 2 3")
        families = wait_scrape(gpus, lambda families: up(families)["GPU-1"] == 1, "that it is back")
        assert kinds(families) == {"expected": 3, "seen": 3, "lost": 0, "unknown": 0}
        assert ("GPU-1",) in values(families, "goodput_gpu_power_watts")


def test_xid_of_lost_gpu_stays_visible(tmp_path, monkeypatch):
    script = tmp_path / "script"
    monkeypatch.setenv("GOODPUT_FAKE", str(script))
    script.write_text("1 xid")
    with running(tmp_path, {"nvml": "Scripted"}) as gpus:
        wait_scrape(
            gpus, lambda families: values(families, "goodput_gpu_xid_errors_total"), "the XID"
        )  # fmt: skip
        script.write_text("-1")
        families = wait_scrape(gpus, lambda families: up(families) == {"GPU-1": 0}, "that it is lost")
        (labels,) = values(families, "goodput_gpu_xid_errors_total")
        assert labels == ("bus", "GPU-1", "79")


class Replayed(Gpus):
    """Driver statuses and the time as set by the test."""

    def __init__(self, tmp_path):
        self.now_ns = 0
        super().__init__(settings(tmp_path, 0), monotonic_ns=lambda: self.now_ns)
        self.reported: list[DriverStatus] = []

    def statuses(self) -> list[DriverStatus]:
        return self.reported


def test_missing_gpu_is_lost_or_unknown(tmp_path):
    gpus = Replayed(tmp_path)

    def count(*statuses: DriverStatus, seconds: float) -> dict[str, float]:
        gpus.now_ns, gpus.reported = int(seconds * SECOND), list(statuses)
        return {kind: number for kind, number in kinds(scrape(gpus)).items() if kind != "expected"}

    def nvml(*names: int, at: int, lost: tuple[int, ...] = (), **fields) -> DriverStatus:
        return report(
            "nvml", sample(*(gpu(name, lost=name in lost) for name in names), at=at * SECOND), **fields
        )

    hung = nvml(1, 2, 3, at=0, lost=(3,), up=False, age_seconds=9.0)
    other = report("amd", sample(gpu(9), at=20 * SECOND))
    assert count(nvml(1, 2, 3, at=0), seconds=0) == {"seen": 3, "lost": 0, "unknown": 0}
    assert count(nvml(1, 2, 3, at=0, lost=(3,)), seconds=0) == {"seen": 2, "lost": 1, "unknown": 0}
    # What was lost before the driver hung stays so; the others may well be at work.
    assert count(hung, seconds=20) == {"seen": 0, "lost": 1, "unknown": 2}
    assert count(hung, other, seconds=20) == {"seen": 1, "lost": 1, "unknown": 2}
    assert up(scrape(gpus)) == {"GPU-1": 0, "GPU-2": 0, "GPU-3": 0, "GPU-9": 1}
    # Samples that are just too old, of a driver that counts as up still, say nothing either.
    assert count(nvml(1, 2, 3, at=0, lost=(3,)), seconds=20) == {"seen": 0, "lost": 1, "unknown": 3}
    # The next process answers, and has two of them.
    assert count(nvml(1, 3, at=30), seconds=30) == {"seen": 2, "lost": 1, "unknown": 1}
    assert count(hung, seconds=60)["unknown"] == 3
    # A driver that says that there is nothing to sample has answered.
    gone = report("nvml", up=False, age_seconds=30.0, empty=True)
    assert count(gone, seconds=61)["lost"] == 3


def test_gone_gpu_is_forgotten_after_an_hour(tmp_path):
    gpus = Replayed(tmp_path)
    gpus.reported = [report("nvml", sample(gpu(1), gpu(2), at=0))]
    gpus._xids.add_sample(xid_sample(79))
    assert up(scrape(gpus)) == {"GPU-1": 1, "GPU-2": 1}
    gpus.now_ns = 3599 * SECOND
    gpus.reported = [report("nvml", sample(gpu(2), at=gpus.now_ns))]
    families = scrape(gpus)
    assert up(families) == {"GPU-1": 0, "GPU-2": 1}
    assert values(families, "goodput_gpu_sample_age_seconds")["GPU-1",] == 3599
    assert len(values(families, "goodput_gpu_xid_errors_total")) == 1
    gpus.now_ns = 3601 * SECOND
    gpus.reported = [report("nvml", sample(gpu(2), at=gpus.now_ns))]
    assert up(scrape(gpus)) == {"GPU-2": 1} and gpus._xids.counts({"GPU-1"}) == {}


def test_gone_gpus_are_bounded(tmp_path, monkeypatch):
    """MIG instances are made anew with each job, each with a uuid of its own."""
    monkeypatch.setattr("goodput_exporters.collectors.gpus.collector.GONE_MAX", 16)
    gpus = Replayed(tmp_path)
    for at in range(60):
        gpus.now_ns = at * SECOND
        gpus.reported = [report("nvml", sample(Gpu(f"MIG-{at}", parent="GPU-1"), at=gpus.now_ns))]
        shown = up(scrape(gpus))
        assert sum(shown.values()) == 1 and len(shown) <= 17
    assert len(shown) == 17 and "MIG-43" in shown and "MIG-42" not in shown
    assert kinds(scrape(gpus)) == {"expected": 0, "seen": 1, "lost": 0, "unknown": 0}


def test_gpu_renamed_by_another_driver_is_not_lost(tmp_path):
    gpus = Replayed(tmp_path)
    old = report("zzz", sample(Gpu("0000:01:00.0", pci="0000:01:00.0")))
    gpus.reported = [old]
    assert up(scrape(gpus)) == {"0000:01:00.0": 1}
    gpus.reported = [report("amd", sample(Gpu("0xabc", pci="0000:01:00.0"))), old]
    assert up(scrape(gpus)) == {"0xabc": 1}
    gpus.reported = [old]
    assert up(scrape(gpus)) == {"0000:01:00.0": 1}


def test_mig_instances_are_parts_of_one_gpu(tmp_path):
    gpus = Replayed(tmp_path)
    parts = [Gpu(f"MIG-{at}", parent="GPU-1", pci="0000:01:00.0") for at in range(3)]
    gpus.reported = [report("nvml", sample(Gpu("GPU-1", pci="0000:01:00.0"), *parts))]
    assert kinds(scrape(gpus)) == {"expected": 0, "seen": 1, "lost": 0, "unknown": 0}
    gpus.reported = [report("nvml", sample(Gpu("GPU-1", pci="0000:01:00.0"), *parts[:1]))]
    families = scrape(gpus)
    assert (
        kinds(families) == {"expected": 0, "seen": 1, "lost": 0, "unknown": 0} and up(families)["MIG-2"] == 0
    )


def test_seen_gpus_unknown_before_first_answer(tmp_path):
    gpus = Replayed(tmp_path)
    gpus.reported = [report("nvml", settled=False, age_seconds=None)]
    assert kinds(scrape(gpus)) == {"expected": 0}
    gpus.reported = [report("nvml", absent=True)]
    assert kinds(scrape(gpus)) == {"expected": 0, "seen": 0, "lost": 0, "unknown": 0}


def test_closing_ends_all_drivers_within_a_second(tmp_path):
    modules = {"dcgm": "HangsInOpen", "nvml": "Normal", "amd": "HangsInOpen", "other": "HangsInOpen"}
    with running(tmp_path, modules) as gpus:
        wait_scrape(gpus, lambda families: values(families, "goodput_driver_up").get(("nvml",)) == 1, "nvml")
        children = list(gpus._supervisors)
        # Each that hangs takes 0.4 s to end: all have to be ended side by side.
        wait_until(lambda: all(child.status().settled for child in children), 60, "that the others hang")
        with within(1.0):
            gpus.close()
        assert not any(child._thread.is_alive() for child in children)
        assert up(scrape(gpus)) and not any(up(scrape(gpus)).values())


def test_driver_restart_event_is_reported_once(settings, monkeypatch):
    gpus = Gpus(settings, modules={})
    report = DriverSupervisor("nvml", drivers.Options()).status()
    fields = {"restarts": dict(report.restarts), "problem": "stuck, silent for 5 s"}
    monkeypatch.setattr(gpus, "statuses", lambda: [dataclasses.replace(report, **fields)])
    assert gpus.restart_events() == []
    fields["restarts"] = {**report.restarts, "stuck": 2}
    (event,) = gpus.restart_events()
    assert (event.kind, event.device) == ("driver", "nvml") and "silent for 5 s" in event.text
    assert gpus.restart_events() == []
