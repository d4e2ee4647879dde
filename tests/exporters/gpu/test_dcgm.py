"""The DCGM driver over a stand-in for NVIDIA's bindings."""

import contextlib
import socket
import socketserver
import sys
import threading

import pytest
from support.node.dcgm import standin
from support.node.dcgm.standin import GPU, GPU_INSTANCE, Engine
from support.node.gpu_events import watch, with_events
from support.paths import TESTS
from support.servers.servers import wait_until

from goodput_exporters.collector import CollectorError, NoData, Settings
from goodput_exporters.collectors.gpus.collector import Gpus
from goodput_exporters.gpu import sample as gpu_sample
from goodput_exporters.gpu.dcgm import connection
from goodput_exporters.gpu.dcgm.driver import Dcgm
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.nvidia import dcgm_field_table as table
from goodput_exporters.gpu.nvidia.dcgm_fields import FIELDS
from goodput_exporters.gpu.sample import Component
from goodput_exporters.gpu.supervisor import Limits

UNIX_US = 1_700_000_000_000_000
UUID = "GPU-5d0c2e1f-1111-2222-3333-444455556666"


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
    standin.write_bindings(tmp_path / "bindings")
    standin.start(made)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return made


@pytest.fixture
def driver(engine, tmp_path, clock):
    made = dcgm(clock, tmp_path)
    yield made
    made.close()


def dcgm(clock, tmp_path, options=None, **environ):
    environ = {"GOODPUT_DCGM_BINDINGS": str(tmp_path / "bindings"), **environ}
    return watch(Dcgm(options or Options(), environ, clock.monotonic_ns, clock.unix_ns), clock.unix_ns)


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
    assert (engine.watched[160], engine.watched[328], engine.watched[206]) == (
        60_000_000,
        60_000_000,
        5_000_000,
    )
    assert set(engine.watched) >= {number for number in FIELDS if number < 1600} - set(table.UNWATCHED)


def test_further_fields_are_read_as_they_are(engine, tmp_path, clock, monkeypatch):
    names = (
        "DCGM_FI_DEV_VIRTUAL_MODE",
        "DCGM_FI_DEV_FB_USED_PERCENT",
        "DCGM_FI_DEV_SERIAL",
        "DCGM_FI_NO_SUCH",
    )
    for number, name in zip((500, 254, 53), names, strict=False):
        monkeypatch.setitem(standin.CONTENTS["dcgm_fields"], name, number)
    engine.set(GPU, 0, UNIX_US + 500_000, {500: 2, 254: 0.75, 53: "1650"})
    made = dcgm(clock, tmp_path, options=Options(dcgm_fields=names))
    made.open()
    sample = read(made)
    assert sample.problems == ["DCGM has no field DCGM_FI_NO_SUCH"]
    found = {key: value for key, value in sample.gpus[0].readings.items() if key.startswith("dcgm_field/")}
    assert found == {"dcgm_field/DCGM_FI_DEV_VIRTUAL_MODE": 2, "dcgm_field/DCGM_FI_DEV_FB_USED_PERCENT": 0.75}
    made.close()


def test_fields_that_take_long_are_watched_where_they_are_listed(engine, tmp_path, clock):
    """They are readings of the table; where the host engine refuses those of links, the others are read."""
    engine.refused = {1040}
    engine.set(GPU, 0, UNIX_US + 500_000, {200: 250, 1040: 7, 1009: 0x7FFFFFFFFFFFFFF0})
    names = ("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "DCGM_FI_PROF_NVLINK_L0_TX_BYTES")
    made = dcgm(clock, tmp_path, options=Options(dcgm_fields=names))
    made.open()
    sample = read(made)
    assert sample.problems == ["DCGM: further profiling fields refused: DCGM error -36"]
    assert sample.gpus[0].readings["link_rate/pcie/transmit"] == 250_000.0
    assert not any(key.startswith("dcgm_field/") for key in sample.gpus[0].readings)
    assert 200 in engine.watched and 201 not in engine.watched
    made.close()


def test_nvswitches_and_cpus(driver, engine):
    engine.others = {standin.SWITCH: [0, 2], standin.CPU: [1]}
    engine.set(standin.SWITCH, 0, UNIX_US, {858: 44, 705: 20, 856: 0, 859: 0x7FFFFFFFFFFFFFF0})
    engine.set(standin.SWITCH, 2, UNIX_US, {858: 45, 864: 1})
    engine.set(standin.CPU, 1, UNIX_US, {1100: 0.25, 1130: 81.5, 1131: 140737488355328.0})
    driver.open()
    sample = read(driver)
    assert sample.problems == []
    assert sample.components == [
        Component("nvswitch", "nvswitch0", {"temperature": 44.0, "power/vdd": 20.0, "sxid/fatal": 0.0}),
        Component("nvswitch", "nvswitch2", {"temperature": 45.0, "reset_required": 1.0}),
        Component("cpu", "1", {"activity/total": 0.25, "power/cpu": 81.5}),
    ]
    assert read(driver, full=False).components == []


def test_refused_switches_cost_only_themselves(driver, engine):
    engine.others = {standin.SWITCH: [0]}
    engine.refused = {858}
    driver.open()
    sample = read(driver)
    assert len(sample.problems) == 1 and "nvswitch fields refused" in sample.problems[0]
    assert sample.components == [] and sample.gpus[0].readings["power"] == 412.5


def test_pipes_may_be_refused_without_a_problem(driver, engine):
    engine.refused = set(table.PIPES)
    driver.open()
    sample = read(driver)
    assert sample.problems == [] and sample.gpus[0].readings["activity/tensor"] == 0.62


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
    engine.unknown = {253, 1523, *table.TOTALS}
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
    engine.unknown = set(table.PROFILING)
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
    assert (first.instance, second.instance) == ("1", "2")
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


# -- a host engine that goes and comes back


@contextlib.contextmanager
def listening(port=0):
    """A listener on loopback, which accepts and closes; yields its port."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", port), socketserver.BaseRequestHandler, False)
    server.allow_reuse_address = server.daemon_threads = True
    server.server_bind()
    server.server_activate()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_restarted_host_engine_is_read_within_seconds(tmp_path, monkeypatch):
    """Not after the wait between two processes, which has grown to two minutes here and in an hour's outage to five."""
    standin.write_bindings(tmp_path / "bindings", "support.node.dcgm.full_engine:listening_engine")
    monkeypatch.setenv("GOODPUT_DCGM_BINDINGS", str(tmp_path / "bindings"))
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setattr("goodput_exporters.gpu.supervisor.TRIGGER_SECONDS", 0.1)
    limits = Limits(open_seconds=60.0, backoff_seconds=120.0)
    settings = Settings(str(tmp_path), sysfs=str(tmp_path), drivers=("dcgm",), gpu_interval_seconds=0.1)
    gpus = Gpus(settings, limits=limits)

    probed, probe = [], connection.is_listening

    def is_listening(environ):
        probed.append(probe(environ))
        return probed[-1]

    def ended():
        return gpus.statuses()[0].restarts["died"] == 1 and not probed[-1]

    monkeypatch.setattr(connection, "is_listening", is_listening)
    try:
        with listening() as port:
            monkeypatch.setenv("GOODPUT_DCGM_HOSTENGINE", f"127.0.0.1:{port}")
            gpus.start()
            wait_until(lambda: gpus.statuses()[0].up, 60, "the host engine")
        wait_until(ended, 60, "the end of its process, and a probe")
        with listening(port):
            samples = gpus.statuses()[0].counts["samples"]
            wait_until(lambda: gpus.statuses()[0].counts["samples"] > samples, 60, "another sample")
    finally:
        gpus.close()


def test_host_engine_is_probed_where_it_would_be(tmp_path):
    with listening() as port:
        assert connection.is_listening({"GOODPUT_DCGM_HOSTENGINE": f"127.0.0.1:{port}"})
        assert connection.is_listening({"GOODPUT_DCGM_HOSTENGINE": f"localhost:{port}"})
    assert not connection.is_listening({"GOODPUT_DCGM_HOSTENGINE": f"127.0.0.1:{port}"})
    path = str(tmp_path / "socket")
    assert not connection.is_listening({"GOODPUT_DCGM_HOSTENGINE": path})
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        assert connection.is_listening({"GOODPUT_DCGM_HOSTENGINE": f"unix://{path}"})
    assert connection.is_listening({"GOODPUT_DCGM_EMBEDDED": "1"})
    for malformed in ("127.0.0.1:port", "127.0.0.1:99999", "[::1", "\0", "/" + "x" * 200):
        assert not connection.is_listening({"GOODPUT_DCGM_HOSTENGINE": malformed})
