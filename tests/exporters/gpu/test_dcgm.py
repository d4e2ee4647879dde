"""DCGM: every field's reading worked by hand, blank values, and the driver over a stand-in for NVIDIA's bindings."""

import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.node import dcgm_standin
from support.node.dcgm_standin import GPU, GPU_INSTANCE, Engine
from support.node.gpu_events import watch, with_events

from goodput_exporters.collector import CollectorError, NoData
from goodput_exporters.gpu import sample as gpu_sample
from goodput_exporters.gpu.dcgm import connection
from goodput_exporters.gpu.dcgm.driver import Dcgm
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.nvidia import dcgm_fields as fields
from goodput_exporters.gpu.nvidia.dcgm_fields import FIELDS, readings_of

UNIX_US = 1_700_000_000_000_000
UUID = "GPU-5d0c2e1f-1111-2222-3333-444455556666"

# Field: (raw value, reading, its value). Every field of the table is here.
BY_HAND = {
    100: (1980, "clock/sm", 1.98e9),
    101: (2619, "clock/memory", 2.619e9),
    140: (71, "temperature/memory", 71.0),
    150: (54, "temperature/core", 54.0),
    155: (412.734, "power", 412.734),
    156: (8_437_215_001, "energy", 8_437_215.001),
    164: (700.0, "power_limit", 700.0),
    202: (3, "pcie_replays", 3.0),
    203: (57, "activity/utilization", 0.57),
    204: (29, "activity/memory_controller", 0.29),
    235: (5, "pcie_generation/max", 5.0),
    236: (16, "pcie_lanes/max", 16.0),
    237: (4, "pcie_generation/current", 4.0),
    238: (8, "pcie_lanes/current", 8.0),
    240: (12_500_000_000, "throttle/power", 12.5),
    241: (1, "throttle/thermal", 1e-9),
    242: (2_000_000_000, "throttle/sync_boost", 2.0),
    243: (3_000_000_000, "throttle/board_limit", 3.0),
    244: (4_000_000_000, "throttle/low_utilization", 4.0),
    245: (5_000_000_000, "throttle/reliability", 5.0),
    246: (6_000_000_000, "throttle/app_clocks", 6.0),
    247: (7_000_000_000, "throttle/base_clocks", 7.0),
    250: (81_559, "memory/total", 85_520_809_984.0),
    251: (1, "memory/free", 1_048_576.0),
    252: (1024, "memory/used", 1_073_741_824.0),
    253: (551, "memory/reserved", 577_765_376.0),
    310: (1, "ecc/correctable/volatile", 1.0),
    311: (2, "ecc/uncorrectable/volatile", 2.0),
    312: (3, "ecc/correctable/aggregate", 3.0),
    313: (4, "ecc/uncorrectable/aggregate", 4.0),
    390: (5, "pages_retired/single_bit", 5.0),
    391: (6, "pages_retired/double_bit", 6.0),
    392: (2, "pages_retired/pending", 1.0),
    393: (7, "rows_remapped/uncorrectable", 7.0),
    394: (8, "rows_remapped/correctable", 8.0),
    395: (1, "rows_remapped/failure", 1.0),
    396: (1, "rows_remapped/pending", 1.0),
    409: (11, "nvlink_errors/crc_flit", 11.0),
    419: (12, "nvlink_errors/crc_data", 12.0),
    429: (13, "nvlink_errors/replay", 13.0),
    439: (14, "nvlink_errors/recovery", 14.0),
    449: (1000, "link_rate/nvlink/both", 1.024e9),
    497: (15, "nvlink_errors/crc", 15.0),
    498: (16, "nvlink_errors/recovery", 16.0),
    499: (17, "nvlink_errors/replay", 17.0),
    843: (1000, "link_rate/nvlink/transmit", 1.024e9),
    897: (500, "link_rate/nvlink/receive", 5.12e8),
    1001: (0.98, "activity/engine", 0.98),
    1002: (0.85, "activity/sm", 0.85),
    1003: (0.41, "activity/sm_occupancy", 0.41),
    1004: (0.62, "activity/tensor", 0.62),
    1005: (0.33, "activity/dram", 0.33),
    1006: (0.01, "activity/fp64", 0.01),
    1007: (0.02, "activity/fp32", 0.02),
    1008: (0.03, "activity/fp16", 0.03),
    1009: (1_000_000, "link_rate/pcie/transmit", 1e6),
    1010: (2_000_000, "link_rate/pcie/receive", 2e6),
    1011: (3_000_000, "link_rate/nvlink/transmit", 3e6),
    1012: (4_000_000, "link_rate/nvlink/receive", 4e6),
    1091: (2**47 + 1, "link_bytes/pcie/transmit", 140_737_488_355_329.0),
    1092: (6, "link_bytes/pcie/receive", 6.0),
    1201: (7, "link_bytes/nvlink/transmit", 7.0),
    1203: (8, "link_bytes/nvlink/receive", 8.0),
    1204: (9, "nvlink_errors/malformed_packets", 9.0),
    1205: (10, "nvlink_errors/buffer_overruns", 10.0),
    1206: (11, "nvlink_errors/receive", 11.0),
    1207: (12, "nvlink_errors/receive_remote", 12.0),
    1208: (13, "nvlink_errors/receive_general", 13.0),
    1209: (14, "nvlink_errors/local_link_integrity", 14.0),
    1210: (15, "nvlink_errors/transmit_discards", 15.0),
    1211: (16, "nvlink_errors/recovery_successful", 16.0),
    1212: (17, "nvlink_errors/recovery_failed", 17.0),
    1213: (18, "nvlink_errors/recovery_events", 18.0),
    1214: (19, "nvlink_errors/symbol", 19.0),
    1215: (0x50C, "nvlink_bit_errors/symbol", 5e-12),
    1216: (3e-12, "nvlink_bit_errors/symbol", 3e-12),
    1217: (0x10F, "nvlink_bit_errors/effective", 1e-15),
    1218: (1e-15, "nvlink_bit_errors/effective", 1e-15),
    1219: (20, "nvlink_errors/effective", 20.0),
    1220: (21, "nvlink_errors/ecc_data", 21.0),
    1523: (2, "recovery/node_reboot", 1.0),
    1603: (1_980_000_000, "clock/sm", 1.98e9),
    1604: (2_619_000_000, "clock/memory", 2.619e9),
    1611: (8_437_215, "energy", 8_437_215.0),
    1613: (0.57, "activity/utilization", 0.57),
    1614: (0.29, "activity/memory_controller", 0.29),
    1617: (12.5, "throttle/power", 12.5),
    1618: (1.5, "throttle/thermal", 1.5),
    1625: (85_520_809_984, "memory/total", 85_520_809_984.0),
    1626: (1_048_576, "memory/free", 1_048_576.0),
    1627: (1_073_741_824, "memory/used", 1_073_741_824.0),
    1628: (577_765_376, "memory/reserved", 577_765_376.0),
    1648: (1_024_000_000, "link_rate/nvlink/both", 1.024e9),
}
# Those without a reading of their own: bits, events, totals of cycles.
OTHERS = {112, 230, 1084, 1085}


def test_every_field_by_hand():
    assert set(BY_HAND) | OTHERS == set(FIELDS)


@pytest.mark.parametrize("number", BY_HAND)
def test_a_field_in_base_units(number):
    raw, key, value = BY_HAND[number]
    assert readings_of({number: raw}) == {key: value}
    gpu_sample.series_of(key)


@pytest.mark.parametrize("number", BY_HAND)
def test_zero_is_a_value_and_missing_is_none(number):
    zero = readings_of({number: 0.0 if FIELDS[number].double else 0})
    # Where the memory has no sensor, its temperature is 0.
    assert list(zero.values()) == ([1.0] if number == 1523 else [] if number == 140 else [0.0])
    blanks = [
        None,
        "<<<NULL>>>",
        "<<<NOT_SUPPORTED>>>",
        "55",
        True,
        float("nan"),
        float("inf"),
        -float("inf"),
    ]
    if FIELDS[number].double:
        blanks += [fields.FP64_BLANK + code for code in (0, 1, 2, 3, 15)]
    else:
        blanks += [base + code for base in (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0) for code in (0, 1, 2, 3, 15)]
    for blank in blanks:
        assert readings_of({number: blank}) == {}, blank


def test_only_temperatures_may_be_negative():
    negative = {
        key for number in FIELDS for key in readings_of({number: -1.0 if FIELDS[number].double else -1})
    }
    assert negative == {"temperature/core", "temperature/memory"}


def test_counter_may_exceed_32_bit_blank():
    # 2.15e9 mJ are 2.15 MJ: 51 minutes at 700 W.
    assert readings_of({156: 0x7FFFFFEF}) == {"energy": 2_147_483.631}
    assert readings_of({156: 0x80000000}) == {"energy": 2_147_483.648}


def test_ratio_above_one_is_dropped():
    assert readings_of({1002: 1.04, 203: 106, 1004: 1.06}) == {"activity/sm": 1.04}


def test_impossible_zero_is_passed_on():
    assert readings_of({203: 100, 1001: 0.0}) == {"activity/utilization": 1.0, "activity/engine": 0.0}


def test_event_reasons_are_bits():
    found = readings_of({112: 0x84})
    assert {key for key, value in found.items() if value} == {"throttled/power", "throttled/hw_power_brake"}
    assert len(found) == 9 and set(found.values()) == {0.0, 1.0}


def test_unknown_recovery_action():
    assert readings_of({1523: 99}) == {"recovery/unknown": 1.0}


def test_the_finer_of_two_fields_wins():
    assert readings_of({156: 1999, 1611: 1}) == {"energy": 1.999}
    assert readings_of({252: 1, 1627: 1_100_000}) == {"memory/used": 1_100_000.0}
    both = readings_of({449: 9, 1011: 1, 1012: 2, 843: 7, 897: 8})
    assert both == {"link_rate/nvlink/transmit": 1.0, "link_rate/nvlink/receive": 2.0}


def test_instance_reports_only_its_own_fields():
    values = {number: raw for number, (raw, _, _) in BY_HAND.items()}
    keys = set(readings_of(values, instance=True))
    assert {key.split("/")[0] for key in keys} == {"activity", "memory"}
    assert "activity/utilization" not in keys and "activity/tensor" in keys


def test_sm_activity_from_totals_of_cycles():
    cycles = fields.SmCycles()

    def ratio(device: str, values: dict) -> float | None:
        readings = {}
        cycles.add_activity(device, values, readings)
        return readings.get("activity/sm")

    assert ratio("a", {1084: 1000, 1085: 100}) is None
    assert ratio("a", {1084: 3000, 1085: 600}) == 0.25
    assert ratio("a", {1084: 3000, 1085: 600}) is None  # The same measurement again.
    assert ratio("a", {1084: 10, 1085: 5}) is None  # Reset.
    assert ratio("a", {1084: 20, 1085: 5}) == 0.0
    assert ratio("a", {1084: 30}) is None
    assert ratio("a", {1084: 40, 1085: 6}) is None
    assert ratio("a", {1084: 50, 1085: 60}) is None  # More active than elapsed.
    cycles.keep({"b"})
    assert ratio("a", {1084: 60, 1085: 60}) is None


@given(
    st.dictionaries(
        st.sampled_from(sorted(FIELDS)), st.one_of(st.none(), st.text(), st.integers(), st.floats())
    )
)
@example({1523: -1})
@example({112: 2**80})
def test_any_value_gives_valid_readings(values):
    found = readings_of(values)
    gpu_sample.check(gpu_sample.Sample("dcgm", 0, [gpu_sample.Gpu("GPU-1", readings=found)]))


class Clock:
    seconds = 0.0

    def monotonic_ns(self):
        return 5_000_000_000 + round(self.seconds * 1e9)

    def unix_ns(self):
        return UNIX_US * 1000 + round(self.seconds * 1e9)

    def now_us(self):
        return self.unix_ns() // 1000


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """A host engine with one H100, and bindings where DCGM 4 has them."""
    made = Engine()
    made.add_gpu(0, UUID)
    made.set(GPU, 0, UNIX_US + 500_000, {155: 412.5, 203: 57, 1002: 0.85, 1004: 0.62, 100: 1980, 52: 3})
    dcgm_standin.write_bindings(tmp_path / "bindings")
    dcgm_standin.start(made)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return made


@pytest.fixture
def driver(engine, tmp_path, clock):
    made = dcgm(clock, tmp_path)
    yield made
    made.close()


def dcgm(clock, tmp_path, **environ):
    environ = {"GOODPUT_DCGM_BINDINGS": str(tmp_path / "bindings"), **environ}
    return watch(Dcgm(Options(), environ, clock.monotonic_ns, clock.unix_ns), clock.unix_ns)


def read(driver, full=True):
    sample = driver.sample(full)
    assert gpu_sample.decode(gpu_sample.encode(sample)) == sample
    return with_events(driver, sample)


def test_a_full_sample(driver, clock):
    driver.open()
    clock.seconds = 0.75
    sample = read(driver)
    (found,) = sample.gpus
    assert (sample.driver, sample.full, sample.problems) == ("dcgm", True, [])
    assert (found.uuid, found.index, found.model) == (UUID, 3, "NVIDIA H100 80GB HBM3")
    assert (found.pci, found.driver_version, found.lost, found.pids) == (
        "0000:1b:00.0",
        "550.54.15",
        False,
        None,
    )
    assert found.readings == {
        "power": 412.5,
        "activity/utilization": 0.57,
        "activity/sm": 0.85,
        "activity/tensor": 0.62,
        "clock/sm": 1.98e9,
    }


def test_activity_window_ends_at_dcgm_timestamp(driver, clock):
    driver.open()
    clock.seconds = 0.75  # The values are of 0.5 s.
    first, again = read(driver, full=False), read(driver, full=False)
    assert first.monotonic_ns == 5_500_000_000
    clock.seconds = 0.95
    assert read(driver, full=False).monotonic_ns == again.monotonic_ns == first.monotonic_ns


def test_a_fast_sample_has_no_slow_fields(driver):
    driver.open()
    read(driver)
    sample = read(driver, full=False)
    assert not sample.full and "clock/sm" not in sample.gpus[0].readings
    assert sample.gpus[0].readings["power"] == 412.5


def test_watches_are_at_the_sample_interval(driver, engine):
    driver.open()
    assert engine.watched[1004] == engine.watched[155] == engine.watched[230] == 1_000_000
    assert engine.watched[393] == 5_000_000
    assert set(engine.watched) >= {number for number in FIELDS if number < 1600}


def test_refused_profiling_is_retried(driver, engine, clock):
    engine.refused = set(range(1001, 1013))
    driver.open()
    sample = read(driver)
    assert any("profiling fields refused" in problem for problem in sample.problems)
    assert sample.gpus[0].readings["power"] == 412.5 and "activity/sm" not in sample.gpus[0].readings
    assert read(driver).problems == []
    engine.refused = set()
    clock.seconds = 59.0
    assert "activity/sm" not in read(driver).gpus[0].readings
    clock.seconds = 61.0
    assert read(driver).gpus[0].readings["activity/sm"] == 0.85


def test_refused_profiling_is_reported_once_a_minute(driver, engine, clock):
    engine.refused = {1001}
    driver.open()
    output = []
    for second in range(180):
        clock.seconds = float(second)
        output += read(driver).problems
    assert len(output) == 3


def test_unknown_fields_of_old_dcgm_are_skipped(driver, engine):
    engine.unknown = {253, 1523, *fields.TOTALS}
    driver.open()
    assert read(driver).problems == []
    assert 253 not in engine.watched and 252 in engine.watched


def test_blank_newest_value_is_absent(driver, engine, clock):
    driver.open()
    before = read(driver, full=False)
    engine.set(GPU, 0, UNIX_US + 600_000, {1002: 140737488355328.0, 203: 0x7FFFFFFFFFFFFFF2})
    clock.seconds = 0.9
    sample = read(driver, full=False)
    assert set(sample.gpus[0].readings) == {"power", "activity/tensor"}
    assert sample.monotonic_ns == 5_500_000_000 and before.monotonic_ns == 5_000_000_000


def test_cycle_totals_replace_sm_activity(driver, engine, clock):
    engine.unknown = set(fields.PROFILING)
    driver.open()
    engine.set(GPU, 0, UNIX_US + 600_000, {1084: 1000, 1085: 100})
    assert "activity/sm" not in read(driver, full=False).gpus[0].readings
    engine.set(GPU, 0, UNIX_US + 1_600_000, {1084: 2000, 1085: 700})
    clock.seconds = 2.0
    sample = read(driver, full=False)
    assert sample.gpus[0].readings["activity/sm"] == 0.6


def test_host_engine_restart(driver, engine):
    driver.open()
    read(driver)
    engine.up = False
    for _ in range(3):
        with pytest.raises(CollectorError, match="DCGM"):
            driver.sample(True)
    assert engine.handles == 0
    engine.up = True
    sample = read(driver)
    assert sample.gpus[0].readings["activity/tensor"] == 0.62 and len(engine.connections) == 2


def test_missing_host_engine_error_gives_advice(driver, engine):
    engine.up = False
    with pytest.raises(
        CollectorError, match=r"127\.0\.0\.1:5555.*start nv-hostengine, or set GOODPUT_DCGM_EMBEDDED=1"
    ):
        driver.open()


def test_no_library_and_no_gpu_are_no_data(driver, engine):
    engine.gpus.clear()
    with pytest.raises(NoData, match="no GPU"):
        driver.open()
    assert engine.handles == 0
    engine.library = False
    with pytest.raises(NoData):
        driver.open()


def test_no_bindings_are_no_data(clock, tmp_path, monkeypatch):
    with pytest.raises(NoData, match=r"no pydcgm\.py in .*/nowhere"):
        dcgm(clock, tmp_path, GOODPUT_DCGM_BINDINGS=str(tmp_path / "nowhere")).open()
    monkeypatch.setattr(connection, "BINDINGS", (str(tmp_path / "a"), str(tmp_path / "b")))
    with pytest.raises(NoData, match=r"/a, .*/b"):
        dcgm(clock, tmp_path, GOODPUT_DCGM_BINDINGS="").open()


def test_bindings_are_found_where_dcgm_installs_them(engine, clock, tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "BINDINGS", (str(tmp_path / "absent"), str(tmp_path / "bindings")))
    made = dcgm(clock, tmp_path, GOODPUT_DCGM_BINDINGS="")
    made.open()
    assert sys.path[-1] == str(tmp_path / "bindings")
    made.close()


@pytest.mark.parametrize("text", ["import nothing_such\n", "raise SystemExit(1)\n"])
def test_unimportable_bindings_are_an_error(engine, driver, tmp_path, text):
    (tmp_path / "bindings/pydcgm.py").write_text(text)
    with pytest.raises(CollectorError, match="bindings"):
        driver.open()


@pytest.mark.parametrize(
    "environ, ip, unix",
    [
        ({}, "127.0.0.1:5555", None),
        ({"GOODPUT_DCGM_HOSTENGINE": "10.0.0.7:5556"}, "10.0.0.7:5556", None),
        ({"GOODPUT_DCGM_HOSTENGINE": "unix:///run/dcgm.sock"}, None, "/run/dcgm.sock"),
        ({"GOODPUT_DCGM_HOSTENGINE": "/run/dcgm.sock"}, None, "/run/dcgm.sock"),
        ({"GOODPUT_DCGM_EMBEDDED": "1"}, None, None),
        ({"GOODPUT_DCGM_EMBEDDED": "0"}, "127.0.0.1:5555", None),
    ],
)
def test_where_the_host_engine_is(engine, clock, tmp_path, environ, ip, unix):
    made = dcgm(clock, tmp_path, **environ)
    made.open()
    made.close()
    assert engine.connections == [{"ip": ip, "unix": unix, "timeout": 2000}]


def test_xids_are_events_when_they_are_new(driver, engine, clock):
    engine.set(GPU, 0, UNIX_US - 9_000_000, {230: 13})  # Before the driver was opened.
    driver.open()
    assert read(driver).events == read(driver).events == []
    engine.set(GPU, 0, UNIX_US + 1_000_000, {230: 79})
    engine.set(GPU, 0, UNIX_US + 1_000_001, {230: 154})
    engine.set(GPU, 0, UNIX_US + 1_000_002, {230: 0})
    clock.seconds = 2.0
    events = read(driver).events
    assert [(event.kind, event.device, event.code, event.time_ns) for event in events] == [
        ("xid", UUID, 79, (UNIX_US + 1_000_000) * 1000),
        ("xid", UUID, 154, (UNIX_US + 1_000_001) * 1000),
    ]
    assert (events[0].severity, events[0].name) == ("critical", "GPU fell off the bus")
    assert read(driver).events == []
    assert driver._connection._history.values == {}  # It would grow for ever.
    engine.set(GPU, 0, UNIX_US + 3_000_000, {230: 154})
    assert [event.code for event in read(driver, full=False).events] == [154]


def test_xid_is_reported_once_across_reconnects(driver, engine):
    driver.open()
    engine.set(GPU, 0, UNIX_US + 1_000_000, {230: 79})
    assert len(read(driver).events) == 1
    engine.up = False
    with pytest.raises(CollectorError):
        driver.sample(True)
    engine.up = True
    assert read(driver).events == []


@pytest.mark.parametrize("status, lost", [(1, False), (3, True), (4, True), (2, False)])
def test_a_gpu_that_was_lost(driver, engine, status, lost):
    driver.open()
    engine.status[0] = status
    assert read(driver).gpus[0].lost is lost


def test_growing_damage_is_an_event(driver, engine, clock):
    engine.set(GPU, 0, UNIX_US + 500_000, {313: 2, 393: 1, 395: 0, 112: 0x4})
    driver.open()
    assert read(driver).events == []
    engine.set(GPU, 0, UNIX_US + 1_500_000, {313: 5, 393: 2, 395: 1, 112: 0x44})
    clock.seconds = 2.0
    assert [(event.kind, event.severity, event.text) for event in read(driver).events] == [
        ("ecc", "critical", "3 uncorrectable memory errors, 5 in all"),
        ("row_remap", "warning", "1 rows remapped after uncorrectable errors, 2 in all"),
        ("row_remap", "critical", "1 row remap that failed, 1 in all"),
        ("throttle", "warning", "clocks held down: hw_thermal"),
    ]
    assert read(driver).events == []


def test_lost_gpu_is_an_event(driver, engine):
    engine.add_gpu(1, "GPU-2")
    driver.open()

    def events():
        return [(event.kind, event.device, event.severity) for event in read(driver).events]

    assert events() == []
    engine.status[0] = 4
    assert events() == [("lost", UUID, "critical")]
    engine.status[0] = 1
    assert events() == [("back", UUID, "info")]
    del engine.gpus[1]
    assert events() == [("lost", "GPU-2", "critical")]
    engine.add_gpu(1, "GPU-2")
    assert events() == [("back", "GPU-2", "info")]


def test_gpu_instances(driver, engine):
    engine.instances = {7: (0, 1), 8: (0, 2)}
    engine.set(GPU_INSTANCE, 7, UNIX_US + 500_000, {1004: 0.5, 155: 412.5, 252: 10, 230: 79, 50: "1g.10gb"})
    driver.open()
    sample = read(driver)
    whole, first, second = sample.gpus
    assert sample.events == []  # The XID is the GPU's, which has none.
    assert (first.uuid, first.parent, first.profile) == (f"MIG-{UUID}/1", UUID, "1g.10gb")
    assert first.readings == {"activity/tensor": 0.5, "memory/used": 10 * 2**20}
    assert (first.pci, first.index) == (whole.pci, 0)
    assert (second.uuid, second.profile, second.readings) == (f"MIG-{UUID}/2", "", {})
    assert whole.parent == "" and whole.readings["power"] == 412.5
    assert read(driver, full=False).gpus[1].profile == "1g.10gb"
    engine.set(GPU_INSTANCE, 7, UNIX_US + 600_000, {50: "<<<NOT_FOUND>>>"})
    assert read(driver).gpus[1].profile == "1g.10gb"


def test_full_sample_finds_new_devices(driver, engine):
    driver.open()
    engine.instances = {7: (0, 1)}
    engine.add_gpu(1, "GPU-2", pci="00000000:C1:00.0")
    assert len(read(driver, full=False).gpus) == 1
    assert [found.uuid for found in read(driver).gpus] == [UUID, "GPU-2", f"MIG-{UUID}/1"]
    engine.instances = {}
    assert [found.uuid for found in read(driver).gpus] == [UUID, "GPU-2"]
    assert engine.handles == 1


def test_a_driver_without_mig(driver, engine):
    engine.status["no_mig"] = 1
    driver.open()
    assert len(read(driver).gpus) == 1


def test_blank_identities(driver, engine):
    engine.gpus.clear()
    engine.add_gpu(5, "<<<NULL>>>", name="<<<NOT_SUPPORTED>>>", pci="<<<NULL>>>", driver="<<<NULL>>>")
    driver.open()
    (found,) = read(driver).gpus
    assert (found.uuid, found.index, found.model, found.pci, found.driver_version) == (
        "DCGM-5",
        5,
        "",
        "",
        "",
    )


def test_closed_twice_and_never_opened(engine, clock, tmp_path):
    made = dcgm(clock, tmp_path)
    made.close()
    with pytest.raises(CollectorError):
        made.sample(True)
    made.open()
    made.close()
    made.close()
    assert engine.handles == 0
