"""A dcgm-exporter's page: both eras of names and labels, hostile pages, servers that misbehave."""

import socket
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.node.gpu_events import watch, with_events
from support.node.node_tree import wait_until
from support.paths import PYTHONPATH
from support.servers import http_server

from goodput_exporters.collector import CollectorError, NoData
from goodput_exporters.gpu import sample as gpu_sample
from goodput_exporters.gpu.dcgm_endpoint import driver as endpoint_module
from goodput_exporters.gpu.dcgm_endpoint.driver import DcgmEndpoint, fetch
from goodput_exporters.gpu.dcgm_endpoint.page import LABEL_SETS_MAX, labels_of, parse_page
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.nvidia import dcgm_fields as fields
from goodput_exporters.gpu.nvidia import status_codes
from goodput_exporters.gpu.supervisor import DriverSupervisor
from goodput_exporters.gpu.worker import FAILURES_MAX

A, B = "GPU-aaaaaaaa-0000-1111-2222-333333333333", "GPU-bbbbbbbb-0000-1111-2222-333333333333"

# As dcgm-exporter 3 writes it.
OLD = f"""\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{{gpu="0",UUID="{A}",device="nvidia0",modelName="NVIDIA A100-SXM4-80GB",Hostname="n0"}} 1410
DCGM_FI_DEV_SM_CLOCK{{gpu="1",UUID="{B}",device="nvidia1",modelName="NVIDIA A100-SXM4-80GB",Hostname="n0"}} 210
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="{A}",device="nvidia0",modelName="NVIDIA A100-SXM4-80GB",Hostname="n0"}} 100
DCGM_FI_DEV_GPU_UTIL{{gpu="1",UUID="{B}",device="nvidia1",modelName="NVIDIA A100-SXM4-80GB",Hostname="n0"}} 0
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="0",UUID="{A}",device="nvidia0",Hostname="n0"}} 8437215001
DCGM_FI_DEV_POWER_USAGE{{gpu="0",UUID="{A}",device="nvidia0",Hostname="n0"}} 402.125000
DCGM_FI_DEV_FB_USED{{gpu="0",UUID="{A}",device="nvidia0",Hostname="n0"}} 4845
DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="{A}",device="nvidia0",Hostname="n0",err_code="0",err_msg="No Error"}} 0
DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{{gpu="0",UUID="{A}",device="nvidia0",Hostname="n0"}} 1000
DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{{gpu="0",UUID="{A}",device="nvidia0",Hostname="n0"}} 2
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="0",UUID="{A}",device="nvidia0",Hostname="n0"}} 0.000000
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{gpu="0",UUID="{A}",device="nvidia0",Hostname="n0"}} 0.620000
DCGM_FI_PROF_PCIE_TX_BYTES{{gpu="0",UUID="{A}",device="nvidia0",Hostname="n0"}} 123456789
DCGM_FI_DEV_VGPU_LICENSE_STATUS{{gpu="0",UUID="{A}",device="nvidia0",Hostname="n0"}} 0
DCGM_EXP_XID_ERRORS_COUNT{{gpu="0",UUID="{A}",device="nvidia0",Hostname="n0",xid="31"}} 1
"""
OLD_A = {
    "clock/sm": 1.41e9,
    "activity/utilization": 1.0,
    "energy": 8_437_215.001,
    "power": 402.125,
    "memory/used": 4845 * 2**20,
    "link_rate/nvlink/both": 1.024e9,
    "rows_remapped/uncorrectable": 2.0,
    "activity/engine": 0.0,
    "activity/tensor": 0.62,
    "link_rate/pcie/transmit": 123_456_789.0,
    "vgpu_license/licensed": 0.0,
}
LABELS = (
    f'gpu="0",gpu_uuid="{A}",pci_bus_id="00000000:1B:00.0",device="nvidia0",model_name="NVIDIA H100 80GB HBM3",'
    'hostname="n0",DCGM_FI_DRIVER_VERSION="580.105.08",container="main",namespace="train",pod="p-0"'
)
# The names of 4.6 and the other spelling of labels.
NEW = f"""\
DCGM_FI_DEV_GPU_UTIL_RATIO{{{LABELS}}} 57
DCGM_FI_DEV_BOARD_POWER_WATTS{{{LABELS}}} 402.125000
DCGM_FI_DEV_GPU_TEMP_CELSIUS{{{LABELS}}} 54
DCGM_FI_DEV_MEMORY_TEMP_CELSIUS{{{LABELS}}} 71
DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS{{{LABELS}}} 700.000000
DCGM_FI_DEV_PCIE_REPLAY_TOTAL{{{LABELS}}} 3
DCGM_FI_DEV_XID_ERROR{{{LABELS}}} 0
DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL{{{LABELS}}} 2
DCGM_FI_DEV_ROW_REMAP_FAILED{{{LABELS}}} 0
DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL{{{LABELS}}} 1000
DCGM_FI_DEV_CLOCKS_EVENT_REASONS{{{LABELS}}} 4
DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO{{{LABELS}}} 0.980000
DCGM_FI_PROF_SM_UTIL_RATIO{{{LABELS}}} 0.850000
DCGM_FI_PROF_TENSOR_UTIL_RATIO{{{LABELS}}} 0.620000
DCGM_FI_PROF_PCIE_TX_BYTES_TOTAL{{{LABELS}}} 123456789
"""
NEW_A = {
    "activity/utilization": 0.57,
    "power": 402.125,
    "temperature/core": 54.0,
    "temperature/memory": 71.0,
    "power_limit": 700.0,
    "pcie_replays": 3.0,
    "rows_remapped/uncorrectable": 2.0,
    "rows_remapped/failure": 0.0,
    "link_rate/nvlink/both": 1.024e9,
    "activity/engine": 0.98,
    "activity/sm": 0.85,
    "activity/tensor": 0.62,
    "link_bytes/pcie/transmit": 123_456_789.0,
}


class Exporter:
    """A server whose answers a test sets; it counts requests and keeps their headers."""

    def __init__(self):
        self.page, self.status, self.headers, self.requests = OLD, 200, {}, []
        exporter = self

        class Handler(http_server.Handler):
            def do_GET(self):
                exporter.requests.append((self.path, dict(self.headers)))
                body = exporter.page.encode() if isinstance(exporter.page, str) else exporter.page
                self.answer(exporter.status, body, **exporter.headers)

        server = http_server.HttpServer(Handler)
        self.url, self.stop = f"{server.url}/metrics", server.close


@pytest.fixture
def exporter():
    made = Exporter()
    yield made
    made.stop()


class Clock:
    seconds = 0.0

    def monotonic_ns(self):
        return 5_000_000_000 + round(self.seconds * 1e9)

    def unix_ns(self):
        return 1_700_000_000_000_000_000 + round(self.seconds * 1e9)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def driver(exporter, clock):
    made = watch(DcgmEndpoint(Options(dcgm_endpoint=exporter.url), clock.monotonic_ns), clock.unix_ns)
    made.open()
    return made


def read(driver):
    sample = driver.sample(True)
    assert gpu_sample.decode(gpu_sample.encode(sample)) == sample
    return with_events(driver, sample)


def gpus_of(page):
    made = DcgmEndpoint(Options(dcgm_endpoint="http://x/"))
    parsed = parse_page(page)
    gpu_sample.check(gpu_sample.Sample("dcgm_endpoint", 0, [], components=parsed.component_records()))
    return [made._gpu(device) for device in parsed.devices.values()], parsed.problems


def test_the_old_names_and_labels(driver):
    sample = read(driver)
    first, second = sample.gpus
    assert (sample.driver, sample.full, sample.problems) == ("dcgm_endpoint", True, [])
    assert (first.uuid, first.index, first.model, first.pids) == (A, 0, "NVIDIA A100-SXM4-80GB", None)
    assert first.readings == OLD_A
    assert (second.uuid, second.index, second.readings) == (
        B,
        1,
        {"clock/sm": 2.1e8, "activity/utilization": 0.0},
    )


def test_the_new_names_and_labels():
    (found,), problems = gpus_of(NEW)
    assert problems == []
    assert (found.uuid, found.model, found.pci) == (A, "NVIDIA H100 80GB HBM3", "0000:1b:00.0")
    assert found.driver_version == "580.105.08"
    throttled = {f"throttled/{name}": float(bit == 4) for bit, name in status_codes.THROTTLE_REASONS.items()}
    assert found.readings == {**NEW_A, **throttled}


def test_every_name_of_every_field_is_read():
    for field in fields.FIELDS.values():
        for name in field.names:
            (device,) = parse_page(f'{name}{{UUID="{A}"}} 1\n').devices.values()
            assert device.values == {field.number: 1}


def test_field_name_reused_in_4_7():
    # Field 203, a whole number of percent, until 4.6; field 1613, a ratio with a decimal point, from 4.7 on.
    def ratio(text):
        ((found,), _) = gpus_of(f'DCGM_FI_DEV_GPU_UTIL_RATIO{{UUID="{A}"}} {text}\n')
        return found.readings["activity/utilization"]

    assert [ratio(text) for text in ("1", "100", "1.000000", "0.570000", "0")] == [0.01, 1.0, 1.0, 0.57, 0.0]


def test_instances_share_gpu_values():
    page = "".join(
        f'{name}{{gpu="0",UUID="{A}",modelName="m",GPU_I_PROFILE="1g.10gb",GPU_I_ID="{instance}"}} {value}\n'
        for instance, power, tensor in ((3, 50.5, 0.5), (5, 50.75, 0.25))
        for name, value in (("DCGM_FI_DEV_POWER_USAGE", power), ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", tensor))
    )
    gpus, problems = gpus_of(page)
    assert problems == []
    assert sorted(found.instance for found in gpus) == ["", "3", "5"]
    assert {found.uuid: (found.parent, found.profile, found.readings) for found in gpus} == {
        A: ("", "", {"power": 50.5}),
        f"MIG-{A}/3": (A, "1g.10gb", {"activity/tensor": 0.5}),
        f"MIG-{A}/5": (A, "1g.10gb", {"activity/tensor": 0.25}),
    }


def test_instance_without_gpu_lines_has_a_gpu():
    gpus, _ = gpus_of(f'DCGM_FI_PROF_SM_ACTIVE{{UUID="{A}",modelName="m",GPU_I_ID="3"}} 0.5\n')
    assert {(found.uuid, found.parent, found.model) for found in gpus} == {
        (A, "", "m"),
        (f"MIG-{A}/3", A, "m"),
    }


def test_gpu_combines_labels_of_all_lines():
    page = (
        f'DCGM_FI_DEV_GPU_TEMP{{UUID="{A}"}} 1\nDCGM_FI_DEV_SM_CLOCK{{gpu="2",UUID="{A}",modelName="m"}} 1\n'
    )
    (found,), problems = gpus_of(page)
    assert (found.model, found.index, len(found.readings), problems) == ("m", 2, 2, [])


LINE = f'DCGM_FI_DEV_GPU_TEMP{{UUID="{A}"}} 54\n'


@pytest.mark.parametrize(
    "line, why",
    [
        (f'DCGM_FI_DEV_SM_CLOCK{{UUID="{A}"}} NaN', "nan"),
        (f'DCGM_FI_DEV_SM_CLOCK{{UUID="{A}"}} +Inf', "inf"),
        (f'DCGM_FI_DEV_SM_CLOCK{{UUID="{A}"}} 1_0', "not a number"),
        (f'DCGM_FI_DEV_SM_CLOCK{{UUID="{A}"}} many', "not a number"),
        (f'DCGM_FI_DEV_MEMORY_TEMP{{UUID="{A}"}} -{"9" * 400}', "more than 64 bits"),
        (f'DCGM_FI_DEV_SM_CLOCK{{UUID="{A}"}} ²', "not a number"),
        (f'DCGM_FI_DEV_SM_CLOCK{{UUID="{A}"}}', "no value"),
        (f'DCGM_FI_DEV_SM_CLOCK{{UUID="{A}"}} 1 2 3', "no value, or more"),
        (f'DCGM_FI_DEV_SM_CLOCK{{UUID="{A}"', "no labels"),
        (f'DCGM_FI_DEV_SM_CLOCK{{UUID="{A}}} 1', "malformed"),
        (f'DCGM_FI_DEV_SM_CLOCK{{UUID="{A}",UUID="{B}"}} 1', "malformed"),
        ('DCGM_FI_DEV_SM_CLOCK{gpu="0"} 1', "GPU's UUID"),
        ("DCGM_FI_DEV_SM_CLOCK{} 1", "GPU's UUID"),
        ("DCGM_FI_DEV_SM_CLOCK 1", "no labels"),
        (f'DCGM_FI_DEV_SM_CLOCK{{UUID="{A}", ="x"}} 1', "malformed: IndexError"),
        (f'DCGM_FI_DEV_GPU_TEMP{{UUID="{A}",pod="x"}} 55', "second value"),
        (f'DCGM_FI_DEV_SM_CLOCK{{UUID="{A}",x="{"y" * 5000}"}} 1', "characters"),
    ],
)
def test_bad_line_costs_only_itself(line, why):
    (found,), problems = gpus_of(f"{LINE}{line}\n{LINE.replace('GPU_TEMP', 'MEMORY_TEMP')}")
    assert found.readings == {"temperature/core": 54.0, "temperature/memory": 54.0}
    assert len(problems) == 1 and problems[0].startswith("line 2: ") and why in problems[0]


def test_the_same_value_twice_is_no_problem():
    # A GPU shared by two pods has a line for each.
    (found,), problems = gpus_of(LINE + LINE.replace('"} ', '",pod="b"} '))
    assert found.readings == {"temperature/core": 54.0} and problems == []


def test_a_timestamp_and_blank_values():
    (found,), problems = gpus_of(
        f'{LINE.strip()} 1700000000000\nDCGM_FI_DEV_SM_CLOCK{{UUID="{A}"}} 2147483632\n'
    )
    assert found.readings == {"temperature/core": 54.0} and problems == []


def test_problems_gpus_and_label_sets_are_bounded():
    many = "".join(f'DCGM_FI_DEV_GPU_TEMP{{UUID="G{number}"}} 54\n' for number in range(400))
    gpus, problems = gpus_of(many + "DCGM_FI_DEV_GPU_TEMP 1\n" * 100)
    assert len(gpus) == gpu_sample.GPUS_MAX and len(problems) == gpu_sample.PROBLEMS_MAX
    labels_of.cache_clear()
    pods = "".join(f'DCGM_FI_DEV_GPU_TEMP{{UUID="{A}",pod="{at}"}} 54\n' for at in range(LABEL_SETS_MAX + 10))
    # Those that are parsed again do not get the page's later lines parsed.
    for _ in range(2):
        page = parse_page(f'DCGM_FI_DEV_POWER_USAGE{{UUID="{A}"}} 1\n{pods}')
        assert page.devices[A, ""].values == {150: 54, 155: 1}
        assert len(page.problems) == 11 and f"more than {LABEL_SETS_MAX} sets of labels" in page.problems[0]
        assert labels_of.cache_info().currsize == LABEL_SETS_MAX
    labels_of.cache_clear()


def test_labels_are_parsed_once_for_all_names():
    labels_of.cache_clear()
    names = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_SM_CLOCK")
    page = parse_page("".join(f'{name}{{UUID="{gpu}"}} 1\n' for name in names for gpu in (A, B)))
    assert len(page.devices) == 2 and page.problems == [] and labels_of.cache_info().misses == 2


_NAMES = st.sampled_from(
    [
        *("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_XID_ERRORS", "up"),
        *(
            "DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS",
            "DCGM_FI_DEV_NVSWITCH_LINK_STATUS",
            "DCGM_FI_DEV_CPU_UTIL_TOTAL",
        ),
    ]
)
_LINES = st.builds(
    lambda name, labels, tail: f"{name}{labels}{tail}",
    _NAMES,
    st.one_of(
        st.sampled_from(
            [f'{{UUID="{A}"}}', f'{{nvlink="3",gpu_uuid="{A}"}}', '{nvlink="٣",nvswitch="0"}', '{cpu="0"}']
        ),
        st.text(max_size=30),
        st.text('{}="\\,aU \n', max_size=20),
    ),
    st.one_of(
        st.text(max_size=12),
        st.floats().map(lambda value: f" {value}"),
        st.integers().map(lambda value: f" {value}"),
    ),
)


@given(st.lists(st.one_of(_LINES, st.text(max_size=40)), max_size=6))
@example(["DCGM_FI_DEV_GPU_TEMP{,} 1", "DCGM_FI_DEV_GPU_TEMP{=} 1", 'DCGM_FI_DEV_GPU_TEMP{UUID="a} 1'])
@example([f'DCGM_FI_DEV_GPU_TEMP{{UUID="{A}"}} {"9" * 5000}'])
@example([f'DCGM_FI_DEV_GPU_TEMP{{UUID="{A}",gpu="٣"}} 1'])
@example([f'DCGM_FI_DEV_GPU_TEMP{{UUID="{A}"}} {"9" * 400}'])
def test_any_page_gives_a_valid_sample(lines):
    page = "\n".join(["", *lines, LINE.replace("GPU_TEMP", "MEMORY_TEMP")])
    gpus, problems = gpus_of(page)
    gpu_sample.check(gpu_sample.Sample("dcgm_endpoint", 0, gpus, problems=problems))
    assert any(found.uuid == A and found.readings["temperature/memory"] == 54 for found in gpus)


def test_unchanged_page_is_the_same_measurement(driver, exporter, clock):
    first = read(driver)
    clock.seconds = 12.0
    again = read(driver)
    assert again.monotonic_ns == first.monotonic_ns == 5_000_000_000 and again.gpus == first.gpus
    exporter.page = OLD.replace("402.125", "403.5")
    changed = read(driver)
    assert changed.monotonic_ns == 17_000_000_000 and changed.gpus[0].readings["power"] == 403.5


def xid_page(*xids):
    lines = (
        f'DCGM_FI_DEV_XID_ERRORS{{UUID="{uuid}"}} {xid}\n' for uuid, xid in zip((A, B), xids, strict=True)
    )
    return LINE + LINE.replace(A, B) + "".join(line for line in lines if "None" not in line)


def test_an_xid_is_an_event_when_it_changes(driver, exporter, clock):
    def codes(*xids):
        exporter.page = xid_page(*xids)
        clock.seconds += 1
        return [(event.device, event.code) for event in read(driver).events]

    assert codes(13, 0) == []  # What was there before we looked.
    assert codes(13, 79) == [(B, 79)]
    assert codes(13, 79) == []
    assert codes(31, None) == [(A, 31)]
    assert codes(31, 79) == []
    assert codes(0, 79) == []
    assert codes(31, 79) == [(A, 31)]
    assert codes(31, None) == []
    exporter.page = xid_page(31, 48)
    (event,) = read(driver).events
    assert (event.kind, event.time_ns, event.severity) == ("xid", clock.unix_ns(), "critical")


def test_first_xid_is_an_event_when_its_line_appears(driver, exporter):
    """From 4.4 to 4.8 the exporter leaves the line out until there was an XID."""
    exporter.page = xid_page(None, None)
    assert read(driver).events == []
    exporter.page = xid_page(None, 79)
    (event,) = read(driver).events
    assert (event.kind, event.device, event.code) == ("xid", B, 79)
    assert (event.severity, event.text) == ("critical", "to do: reboot_node")
    assert read(driver).events == []


def test_xid_during_an_outage_of_the_exporter_is_an_event(driver, exporter, clock):
    """The process that reads the page is replaced meanwhile; a GPU seen for the first time has no event."""
    exporter.page = LINE
    assert read(driver).events == []
    exporter.page = xid_page(79, 31)
    process = DcgmEndpoint(Options(dcgm_endpoint=exporter.url), clock.monotonic_ns)
    events = with_events(driver, process.sample(True)).events
    assert [(event.device, event.code) for event in events] == [(A, 79)]


def test_gpu_that_leaves_the_page_is_lost(driver, exporter):
    def events(page):
        exporter.page = page
        return [(event.kind, event.device, event.severity) for event in read(driver).events]

    both = LINE + LINE.replace(A, B)
    assert events(both) == []
    assert events(LINE) == [("lost", B, "critical")]
    assert events(LINE.replace("54", "55")) == []
    # An exporter that starts has no GPU on its page yet.
    assert events("up 1\n") == []
    assert events(both) == [("back", B, "info")]


def test_pods_of_gpus_and_instances():
    """The exporter names the pods that the kubelet gave a GPU to, whatever runs in them."""

    def line(uuid, field, pod, more="", value=54):
        labels = f'UUID="{uuid}",pod="{pod}",namespace="train",container="main"{more}'
        return f"{field}{{{labels}}} {value}\n"

    temperature, active = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_PROF_SM_ACTIVE"
    page = line(A, temperature, "a") + line(A, temperature, "b") + line(A, "DCGM_FI_DEV_SM_CLOCK", "a")
    page += line(B, active, "c", ',GPU_I_ID="3"', 0.5) + line(B, temperature, "c", ',GPU_I_ID="3"')
    gpus, problems = gpus_of(page)
    assert problems == []
    assert {found.uuid: found.pods for found in gpus} == {
        A: [("a", "train", "main"), ("b", "train", "main")],
        B: [],
        f"MIG-{B}/3": [("c", "train", "main")],
    }
    many = "".join(line(A, temperature, f"p{number}") for number in range(100))
    ((found,), _) = gpus_of(many)
    assert len(found.pods) == gpu_sample.PODS_MAX


def test_an_xid_of_an_instance_is_its_gpus(driver, exporter):
    line = f'DCGM_FI_DEV_XID_ERRORS{{UUID="{A}",GPU_I_ID="%s"}} %s\n'
    exporter.page = line % (1, 0) + line % (2, 0)
    read(driver)
    exporter.page = line % (1, 79) + line % (2, 79)
    assert [event.device for event in read(driver).events] == [A]


def test_no_endpoint_is_no_data():
    with pytest.raises(NoData):
        DcgmEndpoint(Options()).open()


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://x/", "http://", "http://x:99999/", "http://[x/", "x:9400", "http://a b/"],
)
def test_malformed_url_is_an_error(url):
    with pytest.raises(CollectorError, match="endpoint"):
        DcgmEndpoint(Options(dcgm_endpoint=url)).open()


@pytest.mark.parametrize("status", [301, 302, 307, 404, 500])
def test_http_errors_and_redirects_are_errors(driver, exporter, status):
    exporter.status, exporter.headers = status, {"Location": exporter.url}
    with pytest.raises(CollectorError, match=f"status {status}"):
        driver.sample(True)
    assert len(exporter.requests) == 1
    exporter.status = 200
    assert len(read(driver).gpus) == 2


def test_compressed_page_is_an_error(driver, exporter):
    exporter.headers = {"Content-Encoding": "gzip"}
    with pytest.raises(CollectorError, match=r"compressed \(gzip\)"):
        driver.sample(True)


def test_proxy_is_not_used(driver, exporter, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert len(read(driver).gpus) == 2
    assert exporter.requests[0][0] == "/metrics"


def test_exporter_restart(clock):
    first = Exporter()
    driver = watch(DcgmEndpoint(Options(dcgm_endpoint=first.url), clock.monotonic_ns), clock.unix_ns)
    driver.open()
    before = read(driver)
    first.stop()
    with pytest.raises(CollectorError, match=r"127\.0\.0\.1"):
        driver.sample(True)
    with pytest.raises(CollectorError):
        driver.sample(True)
    assert before.gpus == driver._gpus


def test_exporter_that_was_away_for_long_is_read_at_once(exporter, monkeypatch):
    """Longer than after which the process of another driver is replaced, with a wait that doubles."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    exporter.status = 503
    options = Options(dcgm_endpoint=exporter.url, interval_seconds=0.1)
    supervisor = DriverSupervisor("dcgm_endpoint", options)
    supervisor.start()
    try:
        wait_until(lambda: len(exporter.requests) > 3 * FAILURES_MAX)
        away = supervisor.status()
        assert not away.up and away.counts["problems"] >= FAILURES_MAX and "status 503" in away.problem
        exporter.status = 200
        wait_until(lambda: supervisor.status().up)
        assert sum(supervisor.status().restarts.values()) == 0
    finally:
        supervisor.stop(10.0)


def test_too_large_page_is_an_error(driver, exporter, monkeypatch):
    monkeypatch.setattr(endpoint_module, "PAGE_BYTES_MAX", 10_000)
    exporter.page = LINE * 1000
    with pytest.raises(CollectorError, match="more than 10000 bytes"):
        driver.sample(True)


def test_a_page_cut_short(driver, exporter):
    exporter.headers = {"Content-Length": str(len(OLD) + 100)}
    with pytest.raises(CollectorError, match="IncompleteRead"):
        driver.sample(True)


def test_page_that_fails_is_not_taken_for_the_one_before(driver, exporter, monkeypatch):
    exporter.page = LINE
    read(driver)
    exporter.page = LINE.replace("54", "55")

    def fail(values, is_instance):
        raise OverflowError("too large")

    with monkeypatch.context() as patched:
        patched.setattr(endpoint_module.fields, "readings_of", fail)
        for _ in range(2):
            with pytest.raises(OverflowError):
                driver.sample(True)
    assert read(driver).gpus[0].readings == {"temperature/core": 55.0}


def test_bytes_that_are_no_text(driver, exporter):
    exporter.page = b"\xff\xfe\x00" + LINE.encode() + b"\n" + LINE.encode()
    assert read(driver).gpus[0].readings == {"temperature/core": 54.0}


def test_a_page_without_gpus_is_a_problem(driver, exporter):
    exporter.page = "up 1\n"
    sample = read(driver)
    assert sample.gpus == [] and "no GPU values" in sample.problems[0]


@pytest.mark.parametrize(
    "answer", [b"", b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n"]
)
def test_non_http_response_is_an_error(answer):
    with _server(lambda connection: connection.sendall(answer)) as url, pytest.raises(CollectorError):
        fetch(url)


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_dripping_server_times_out(start):
    stop = threading.Event()

    def drip(connection):
        connection.sendall(start)
        while not stop.wait(0.02):
            connection.sendall(b"x")

    with _server(drip, stop) as url, pytest.raises(CollectorError, match=r"within 0\.2 s"):
        fetch(url, 0.2)


class _server:
    """One connection, answered by a function."""

    def __init__(self, answer, stop=None):
        self._answer, self._stop = answer, stop
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    def _serve(self):
        connection, _ = self._listener.accept()
        with connection:
            try:
                connection.recv(4096)
                self._answer(connection)
            except OSError:
                pass

    def __enter__(self):
        self._thread.start()
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/metrics"

    def __exit__(self, *_):
        if self._stop:
            self._stop.set()
        self._thread.join()
        self._listener.close()
