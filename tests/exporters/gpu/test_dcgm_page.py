"""dcgm-exporter's names and labels: its own lists of counters, read back by our reader of its pages, and promtool."""

import re
import shutil
import subprocess

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from goodput.metrics.foreign import parse_families
from goodput.metrics.negotiation import negotiated
from goodput.metrics.openmetrics import OpenMetricsWriter
from goodput.metrics.protobuf_format import ProtobufWriter
from goodput.metrics.text_format import TextWriter
from goodput_exporters.agent import Agent
from goodput_exporters.collectors.gpus.dcgm_page import COUNTERS, GAUGES, families
from goodput_exporters.gpu.dcgm_endpoint.driver import DcgmEndpoint
from goodput_exporters.gpu.dcgm_endpoint.page import parse_page
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.merge import MergedGpu
from goodput_exporters.gpu.nvidia.counters_file import parse_counters
from goodput_exporters.gpu.nvidia.dcgm_field_table import XID
from goodput_exporters.gpu.nvidia.dcgm_fields import FIELDS

# The lines of etc/default-counters.csv (4.x) and etc/dcp-metrics-included.csv that are not comments, and their types.
DEFAULT = {
    "DEV_SM_CLOCK": "gauge", "DEV_MEM_CLOCK": "gauge", "DEV_MEMORY_TEMP": "gauge", "DEV_GPU_TEMP": "gauge",
    "DEV_POWER_USAGE": "gauge", "DEV_TOTAL_ENERGY_CONSUMPTION": "counter", "DEV_PCIE_REPLAY_COUNTER": "counter",
    "DEV_GPU_UTIL": "gauge", "DEV_MEM_COPY_UTIL": "gauge", "DEV_ENC_UTIL": "gauge", "DEV_DEC_UTIL": "gauge",
    "DEV_XID_ERRORS": "gauge", "DEV_FB_FREE": "gauge", "DEV_FB_USED": "gauge", "DEV_FB_RESERVED": "gauge",
    "DEV_NVLINK_BANDWIDTH_TOTAL": "gauge", "DEV_VGPU_LICENSE_STATUS": "gauge",
    "DEV_UNCORRECTABLE_REMAPPED_ROWS": "counter", "DEV_CORRECTABLE_REMAPPED_ROWS": "counter",
    "DEV_ROW_REMAP_FAILURE": "gauge", "DEV_RETIRED_SBE": "counter", "DEV_RETIRED_DBE": "counter",
    "PROF_GR_ENGINE_ACTIVE": "gauge", "PROF_PIPE_TENSOR_ACTIVE": "gauge", "PROF_DRAM_ACTIVE": "gauge",
    "PROF_PCIE_TX_BYTES": "gauge", "PROF_PCIE_RX_BYTES": "gauge",
    # Those of 3.x, whose counters they are, though they are rates.
    "DEV_PCIE_TX_THROUGHPUT": "gauge", "DEV_PCIE_RX_THROUGHPUT": "gauge",
}  # fmt: skip
READINGS = {FIELDS[number].key: 1.0 for number in {**COUNTERS, **GAUGES}} | {
    "energy": 8_437_215.001, "clock/sm": 1.98e9, "clock/memory": 2.619e9, "power": 412.734, "throttle/power": 12.5,
    "memory/total": 85_520_809_984.0, "memory/used": 1_073_741_824.0, "memory/free": 2.0**30, "memory/reserved": 2.0**20,
    "activity/utilization": 0.57, "activity/memory_controller": 0.29, "activity/tensor": 0.625,
    "temperature/core": 54.0, "link_rate/nvlink/both": 1.024e9, "link_rate/pcie/transmit": 1e6,
    "throttled/power": 1.0, "processes": 3.0,
}  # fmt: skip


def gpu(name="GPU-1", **fields):
    base = {
        "index": 3,
        "model": "NVIDIA H100",
        "pci": "0000:3b:00.0",
        "driver_version": "580.1",
        "known_by": ["nvml"],
    }
    return MergedGpu(name, **{**base, **fields})


def page(*arguments):
    return b"".join(map(TextWriter().foreign, families(*arguments))).decode()


def types(text):
    lines = (line.split() for line in text.splitlines() if line.startswith("# TYPE DCGM_FI_"))
    return {name.removeprefix("DCGM_FI_"): kind for _, _, name, kind in lines}


def test_default_counters_are_there_with_their_types():
    found = types(page([gpu(readings=READINGS)], {}, "n0"))
    assert found.items() >= DEFAULT.items()


def test_licence_of_a_gpu_that_needs_none_is_zero():
    """As the exporter has it; what no driver knows is left out."""
    name = "DCGM_FI_DEV_VGPU_LICENSE_STATUS"
    for readings, value in (
        ({"vgpu_license/supported": 0.0}, "0.0"),
        ({"vgpu_license/supported": 1.0, "vgpu_license/licensed": 0.0}, "0.0"),
        ({"vgpu_license/supported": 1.0, "vgpu_license/licensed": 1.0}, "1.0"),
        ({}, None),
    ):
        lines = [
            line
            for line in page([gpu(readings=readings)], {}, "n0").splitlines()
            if line.startswith(name + "{")
        ]
        assert [line.rpartition(" ")[2] for line in lines] == ([] if value is None else [value])


OPTIONAL = """
DCGM_FI_DEV_PSTATE, gauge, P-state
DCGM_FI_DEV_FAN_SPEED, gauge, fan
DCGM_FI_DEV_BAR1_USED, gauge, BAR1
DCGM_FI_DEV_MAX_SM_CLOCK, gauge, clock
DCGM_FI_DEV_BOARD_POWER_LIMIT_MIN_WATTS, gauge, a name of 4.6
DCGM_FI_DEV_GPU_TEMP_LIMIT, gauge, margin
DCGM_FI_DEV_CLOCKS_EVENT_REASONS, gauge, bits
DCGM_FI_DEV_FABRIC_MANAGER_STATUS, gauge, fabric
DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION, gauge, what to do
DCGM_FI_DEV_ECC_DBE_VOL_SRM, counter, SRAM
DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L17, counter, of one link
DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE, gauge, halves
DCGM_FI_DEV_XID_ERRORS, gauge, XID
DCGM_FI_DEV_VIRTUAL_MODE, gauge, "a field \\ that nothing here knows"
DCGM_FI_DEV_FB_TOTAL, gauge, nobody has it
DCGM_FI_DRIVER_VERSION, label, version
"""


def test_list_of_counters_says_what_is_served():
    readings = {
        "performance_state": 2.0, "fan": 0.43, "bar1/used": 2.0**21, "clock_limit/sm/max": 1.98e9, "power_setting/min": 200.0,
        "temperature_margin": -3.0, "throttled/power": 1.0, "throttled/thermal": 1.0, "throttled/idle": 0.0,
        "fabric/failed": 1.0, "recovery/drain_p2p": 1.0, "ecc_location/uncorrectable/volatile/sram": 5.0,
        "nvlink_link_errors/17/replay": 7.0, "activity/tensor_hmma": 0.58, "dcgm_field/DCGM_FI_DEV_VIRTUAL_MODE": 2.0,
        "temperature/core": 54.0,
    }  # fmt: skip
    text = page([gpu(readings=readings)], {"GPU-1": 31}, "n0", parse_counters(OPTIONAL))
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = {
        line.partition("{")[0].removeprefix("DCGM_FI_"): float(line.rpartition(" ")[2]) for line in lines
    }
    assert found == {
        "DEV_PSTATE": 2, "DEV_FAN_SPEED": 43, "DEV_BAR1_USED": 2, "DEV_MAX_SM_CLOCK": 1980,
        "DEV_BOARD_POWER_LIMIT_MIN_WATTS": 200, "DEV_GPU_TEMP_LIMIT": -3, "DEV_CLOCKS_EVENT_REASONS": 36,
        "DEV_FABRIC_MANAGER_STATUS": 4, "DEV_GET_GPU_RECOVERY_ACTION": 3, "DEV_ECC_DBE_VOL_SRM": 5,
        "DEV_NVLINK_REPLAY_ERROR_COUNT_L17": 7, "PROF_PIPE_TENSOR_HMMA_ACTIVE": 0.58, "DEV_XID_ERRORS": 31,
        "DEV_VIRTUAL_MODE": 2,
    }  # fmt: skip
    assert types(text)["DEV_ECC_DBE_VOL_SRM"] == "counter"
    assert "# HELP DCGM_FI_DEV_VIRTUAL_MODE a field \\\\ that nothing here knows\n" in text
    # What it serves reads back as the same.
    (device,) = parse_page(text, frozenset({"DCGM_FI_DEV_VIRTUAL_MODE"})).devices.values()
    again = DcgmEndpoint(Options(dcgm_endpoint="http://x/"))._gpu(device).readings
    del (
        readings["temperature/core"],
        readings["throttled/power"],
        readings["throttled/thermal"],
        readings["throttled/idle"],
    )
    assert {key: again[key] for key in readings} == pytest.approx(readings)
    assert {key for key in again if key.startswith("throttled/") and again[key]} == {
        "throttled/power",
        "throttled/thermal",
    }


def test_labels_and_units_by_hand():
    pods = [("p-0", "train", "main")]
    lines = page([gpu(readings=READINGS, pods=pods)], {"GPU-1": 79}, "n0").splitlines()
    labels = (
        'DCGM_FI_DRIVER_VERSION="580.1",Hostname="n0",UUID="GPU-1",container="main",device="nvidia3",gpu="3",'
        'modelName="NVIDIA H100",namespace="train",pci_bus_id="00000000:3B:00.0",pod="p-0"'
    )
    for name, value in (
        ("DEV_SM_CLOCK", "1980.0"), ("DEV_TOTAL_ENERGY_CONSUMPTION", "8.437215001e+09"), ("DEV_POWER_USAGE", "412.734"),
        ("DEV_GPU_UTIL", "57.0"), ("DEV_FB_USED", "1024.0"), ("DEV_POWER_VIOLATION", "1.25e+10"),
        ("DEV_PCIE_TX_THROUGHPUT", "1000.0"), ("PROF_PIPE_TENSOR_ACTIVE", "0.625"), ("DEV_NVLINK_BANDWIDTH_TOTAL", "1000.0"),
    ):  # fmt: skip
        assert f"DCGM_FI_{name}{{{labels}}} {value}" in lines
    words = 'err_code="79",err_msg="GPU fell off the bus"'
    of_xid = labels.replace('gpu="3"', f'{words},gpu="3"')
    assert f"DCGM_FI_DEV_XID_ERRORS{{{of_xid}}} 79.0" in lines


def test_what_is_not_finite_is_left_out():
    readings = {"clock/sm": float("inf"), "power": float("nan"), "temperature/core": 54.0}
    assert types(page([gpu(readings=readings)], {}, "n0")).keys() == {"DEV_GPU_TEMP", "DEV_XID_ERRORS"}


def test_our_reader_of_the_page_reads_the_same_back():
    own = gpu(readings=READINGS)
    part = gpu(
        f"MIG-{own.uuid}/5",
        instance="5",
        parent=own.uuid,
        profile="1g.10gb",
        readings={"activity/tensor": 0.25, "power": 9.0},
    )
    parsed = parse_page(page([own, part], {own.uuid: 31}, "n0"))
    driver = DcgmEndpoint(Options(dcgm_endpoint="http://x/"))
    first, second = (driver._gpu(device) for device in parsed.devices.values())
    known = {FIELDS[number].key for number in {**COUNTERS, **GAUGES}}
    assert parsed.problems == [] and first.last_xid == 31
    assert first.readings == pytest.approx({key: READINGS[key] for key in known})
    assert (first.uuid, first.index, first.pci, first.model) == (own.uuid, 3, own.pci, own.model)
    assert (second.uuid, second.parent, second.profile) == (part.uuid, own.uuid, "1g.10gb")
    assert second.readings == {"activity/tensor": 0.25}  # Power is its GPU's.


def test_instances_are_named_by_their_gpu_instance():
    """As the exporter does, whatever driver knows them. One that two drivers know, and two compute instances of one GPU
    instance, are one there: of each field the first that has a value."""
    own = gpu("GPU-1")
    parts = [
        gpu("MIG-GPU-1/3", parent="GPU-1", profile="3g.40gb", instance="3", readings={"activity/tensor": 0.25}),
        gpu("MIG-a", parent="GPU-1", profile="1c.3g.40gb", instance="3", readings={"activity/tensor": 0.5, "memory/used": 2.0**20}),
        gpu("MIG-b", parent="GPU-1", profile="1c.3g.40gb", instance="3", readings={"memory/used": 2.0**21}),
        gpu("MIG-c", parent="GPU-1", profile="1g.10gb", instance="7", readings={"memory/used": 2.0**22}),
    ]  # fmt: skip
    found = page([own, *parts], {}, "n0")
    lines = [
        re.search(r'FI_(\w+)\{.*GPU_I_ID="(\w+)".* (\S+)$', line).groups()
        for line in found.splitlines()
        if "GPU_I_ID" in line
    ]
    assert lines == [
        ("DEV_FB_USED", "3", "1.0"),
        ("DEV_FB_USED", "7", "4.0"),
        ("PROF_PIPE_TENSOR_ACTIVE", "3", "0.25"),
    ]


def test_lost_and_other_gpus_have_no_lines():
    assert page([gpu(lost=True), gpu("amd", known_by=["amd"], readings=READINGS)], {}, "n0") == ""
    assert types(page([gpu()], {}, "n0")) == {"DEV_XID_ERRORS": "gauge"}
    assert FIELDS[XID].names[0] == "DCGM_FI_DEV_XID_ERRORS"


def test_nvlink_bandwidth_is_the_sum_of_both_ways():
    readings = {"link_rate/nvlink/transmit": 1.024e9, "link_rate/nvlink/receive": 2.048e9}
    assert "NVLINK_BANDWIDTH_TOTAL" in page([gpu(readings=readings)], {}, "n0")
    assert " 3000.0\n" in page([gpu(readings=readings)], {}, "n0")


def test_promtool_parses_the_page():
    if not shutil.which("promtool"):
        pytest.skip("promtool is not on PATH (Debian package prometheus)")
    hostile = gpu(model='a"b\\c\nd', readings=READINGS)
    text = page([hostile, gpu("GPU-2", readings=READINGS)], {}, "n0")
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    # It objects to the exporter's names, which are not ours to change, and to nothing else.
    assert "error while linting" not in done.stderr and "parse" not in done.stderr


# What Prometheus sends: until 2.48, since 2.49, and with native histograms.
PROMETHEUS = {
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1": OpenMetricsWriter,
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2": OpenMetricsWriter,
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.5,"
    "application/openmetrics-text;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.2": ProtobufWriter,
    "": TextWriter,
}


@pytest.mark.parametrize("accept", PROMETHEUS, ids=lambda accept: PROMETHEUS[accept].__name__)
def test_agent_serves_the_names_in_every_format(accept, tree, monkeypatch):
    """Beside ours, or instead of ours."""
    format = negotiated(accept, has_openmetrics=True)
    assert format is PROMETHEUS[accept]

    def body(compat):
        agent = Agent(
            str(tree / "pages"), sysfs=str(tree / "sys"), procfs=str(tree / "proc"), drivers=(), compat=compat
        )
        monkeypatch.setattr(agent.gpus, "current", lambda: [gpu(readings=READINGS)])
        return agent.exposition(20.0, format)

    assert b"DCGM_FI" not in body("") and b"goodput_node_info" in body("")
    both, theirs = body("dcgm"), body("dcgm-only")
    assert b"goodput_node_info" in both and b"goodput" not in theirs
    for one in both, theirs:
        assert all(f"DCGM_FI_{name}".encode() in one for name in DEFAULT)
    if format is OpenMetricsWriter:
        (found,) = (one for one in openmetrics(both.decode()) if one.name == "DCGM_FI_DEV_SM_CLOCK")
        assert [sample.value for sample in found.samples] == [1980.0]
    if format is TextWriter:
        assert len(parse_families(theirs.decode())) == theirs.count(b"# TYPE ")
