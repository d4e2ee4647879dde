"""Each source of GPUs through the whole agent, its driver in a process: every reading is a series of its value.

docs/node.md's table of what is read by whom is compared with what each source's agent serves.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.node import amd_metrics, amd_tree, attribution_tree
from support.node.amdsmi_stub import control as amdsmi
from support.node.dcgm import full_engine, standin
from support.node.dcgm.by_hand import BY_HAND
from support.node.node_tree import wait_until, write_tree
from support.node.nvml_stub import control as nvml
from support.node.nvml_stub.fixtures import EXPECTED, EXPECTED_GPM
from support.paths import PYTHONPATH, ROOT
from support.servers import http_server

from goodput.metrics import gpu as catalogue
from goodput_exporters.agent import Agent
from goodput_exporters.gpu.nvidia import dcgm_components
from goodput_exporters.gpu.nvidia.dcgm_field_table import UTILIZATION_RATIO, XID
from goodput_exporters.gpu.nvidia.dcgm_fields import FIELDS
from goodput_exporters.gpu.sample import component_series_of, series_of

if shutil.which("gcc") is None:
    pytest.skip("no gcc here", allow_module_level=True)

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
ALL_LINKS = 0xFFFF_FFFF
POD = f"0::/kubepods/pod{attribution_tree.UID}/{attribution_tree.CONTAINER}\n"


class Source:
    """A node with one source. `served` is what its agent serves once a series is there."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, driver: str, **given):
        self.root, self.monkeypatch = root, monkeypatch
        write_tree(root)
        (root / "pages").mkdir()
        self.setenv(PYTHONPATH=PYTHONPATH)
        self._given = {"drivers": (driver,), "gpu_interval_seconds": 0.1, **given}

    def setenv(self, **environment: object) -> None:
        for name, value in environment.items():
            self.monkeypatch.setenv(name, str(value))

    def served(
        self, is_ready: Callable[[Series], object], change: Callable[[], None] = lambda: None
    ) -> Series:
        """Once all GPUs are there, `change` is called."""
        trees = {"sysfs": str(self.root / "sys"), "procfs": str(self.root / "proc")}
        with Agent(str(self.root / "pages"), **trees, **self._given) as agent:
            wait_until(lambda: named(scrape(agent), "goodput_gpu_up"))
            change()
            found = wait_until(lambda: is_ready(found := scrape(agent)) and found)
            check_with_promtool(agent.exposition())
            return found


def check_with_promtool(text: bytes) -> None:
    if shutil.which("promtool"):
        call = ["promtool", "check", "metrics"]
        checked = subprocess.run(call, input=text, capture_output=True, timeout=300)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def scrape(agent: Agent) -> Series:
    families = text_string_to_metric_families(agent.exposition().decode())
    return {
        (one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples
    }


def named(series: Series, name: str, **labels: str) -> list[float]:
    return [value for (own, pairs), value in series.items() if own == name and labels.items() <= pairs]


def of_gpu(gpu: str, readings: dict[str, float]) -> Series:
    pairs = {key: series_of(key) for key in readings}
    return {
        (name, frozenset({**labels, "gpu": gpu}.items())): readings[key]
        for key, (name, labels) in pairs.items()
    }


def of_component(kind: str, name: str, readings: dict[str, float]) -> Series:
    pairs = {key: component_series_of(kind, key) for key in readings}
    return {
        (one, frozenset({**labels, kind: name}.items())): readings[key]
        for key, (one, labels) in pairs.items()
    }


def differing(found: Series, expected: Series) -> dict:
    """(value found or None, value expected) where these are not the same."""
    return {
        key: (found.get(key), value)
        for key, value in expected.items()
        if found.get(key) != pytest.approx(value)
    }


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


# NVML: an H100 with chip-to-chip links, a card of before Ampere, one with NVLink 5, one with MIG

CAUSES = {"throttle/sw_thermal": 1.5, "throttle/hw_thermal": 2.5, "throttle/hw_power_brake": 3.5}
GRACE_HOPPER = {
    "c2c_links/present": 1.0, "c2c_links/active": 1.0, "c2c_errors/crc": 7.0, "c2c_errors/replay": 8.0, "fan": 0.43,
    "c2c_errors/replay_back_to_back": 9.0, "link_rate/c2c/transmit": 2.0 * 2**20, "vgpu_license/supported": 1.0,
    "vgpu_license/licensed": 1.0, **CAUSES,
}  # fmt: skip
OLDER = {"pages_retired/single_bit": 3.0, "pages_retired/double_bit": 2.0, "pages_retired/pending": 1.0}
NVLINK_5 = {
    "nvlink_errors/malformed_packets": 206.0, "nvlink_errors/recovery_failed": 214.0, "nvlink_errors/symbol": 221.0,
    "nvlink_bit_errors/effective": 1e-15, "nvlink_bit_errors/symbol": 5e-12, "nvlink_link_errors/0/receive": 208.0,
    "nvlink_link_bytes/0/transmit": 202.0,
}  # fmt: skip
INSTANCE = {
    "memory/total": 42_412_802_048.0, "memory/used": 1e9, "activity/sm": 0.2, "activity/tensor": 0.1, "processes": 1.0,
}  # fmt: skip


def nvml_node(source: Source) -> nvml.Control:
    control = nvml.Control(source.root / "nvml.txt")
    control.lines["driver"] = "580.95.05"
    causes = {
        f"field.{269 + at}.0": f"{ns} 3"
        for at, ns in enumerate((1_500_000_000, 2_500_000_000, 3_500_000_000))
    }
    c2c = {"field.170.0": "1 1", "field.171.0": "1 1", "gpm.100": 2.0, "gpm.101": 1.0}
    c2c |= {f"field.{231 + at}.0": f"{7 + at} 3" for at in range(3)}
    control.gpu(0, nvmlDeviceGetFanSpeed=43, nvmlDeviceGetGridLicensableFeatures="1 0 1", **causes, **c2c)
    control.gpu(1, **{f"field.{29 + at}.0": f"{count} 3" for at, count in enumerate((3, 2, 1))})
    for number in (142, 143, 144, 145):
        del control.lines[f"1.field.{number}.0"]
    fifth = {f"field.{number}.{ALL_LINKS}": f"{number} 3" for number in (*range(206, 216), 219, 221)}
    fifth |= {f"field.220.{ALL_LINKS}": f"{0x10F} 3", f"field.222.{ALL_LINKS}": f"{0x50C} 3"}
    fifth |= {"field.208.0": "208 3", "field.202.0": "202 3"}
    control.gpu(2, **fifth)
    control.gpu(3)
    control.instance(3, 0, 1)
    control.instance(3, 1, 2, nvmlDeviceGetComputeRunningProcesses="78 79")
    control.lines |= {"3g1.gpm.2": 20.0, "3g1.gpm.5": 10.0}
    control.write()
    for pid in (77, 78):
        attribution_tree.add_process(source.root, pid, 1, cgroup=POD, environ={"POD_NAME": "train-0"})
    source.setenv(
        **{nvml.ENVIRONMENT: control.path, "LD_LIBRARY_PATH": nvml.build(source.root / "lib").parent}
    )
    return control


@pytest.fixture(scope="module")
def nvml_series(tmp_path_factory, monkeypatch_module) -> Series:
    source = Source(tmp_path_factory.mktemp("nvml"), monkeypatch_module, "nvml")
    control = nvml_node(source)

    def is_ready(found: Series) -> bool:
        instance = named(found, "goodput_gpu_activity_ratio", gpu="MIG-30", unit="sm")
        return bool(instance and named(found, "goodput_gpu_xid_errors_total"))

    return source.served(is_ready, lambda: control.xid(0, 79))


def test_nvml(nvml_series):
    gpus = {nvml.uuid(0): EXPECTED | EXPECTED_GPM | GRACE_HOPPER, nvml.uuid(1): OLDER, nvml.uuid(2): NVLINK_5}
    for gpu, readings in {**gpus, "MIG-30": INSTANCE}.items():
        assert differing(nvml_series, of_gpu(gpu, readings)) == {}
    assert named(nvml_series, "goodput_gpu_rows_remapped", gpu=nvml.uuid(1)) == []


def test_instances_of_nvml_have_their_processes(nvml_series):
    """Of two processes the one that is not in this procfs is another namespace's."""
    about = {"pid": "77", "pod": "train-0", "pod_uid": attribution_tree.UID}
    assert named(nvml_series, "goodput_gpu_process_info", gpu="MIG-30", **about) == [1.0]
    assert named(nvml_series, "goodput_gpu_process_info", gpu="MIG-31") == [1.0]
    assert named(nvml_series, "goodput_gpu_processes", gpu="MIG-31") == [2.0]
    assert named(nvml_series, "goodput_gpu_info", gpu="MIG-30", parent=nvml.uuid(3), profile="3g.40gb") == [
        1.0
    ]


# DCGM: everything that is watched


def dcgm_readings(numbers: Iterable[int]) -> dict[str, float]:
    """By the table worked out by hand; of two fields of one reading the later one."""
    found = {BY_HAND[number][1]: BY_HAND[number][2] for number in sorted(numbers) if number in BY_HAND}
    others = {FIELDS[number].key: number for number in numbers if number in FIELDS and number not in BY_HAND}
    found |= {
        key: float(number)
        for key, number in others.items()
        if key.startswith(("ecc_location/", "nvlink_link_errors/"))
    }
    found.pop("link_rate/nvlink/both", None)  # There are both directions.
    return found


@pytest.fixture(scope="module")
def dcgm_series(tmp_path_factory, monkeypatch_module) -> Series:
    source = Source(tmp_path_factory.mktemp("dcgm"), monkeypatch_module, "dcgm")
    standin.write_bindings(source.root / "bindings", "support.node.dcgm.full_engine:engine")
    source.setenv(GOODPUT_DCGM_BINDINGS=source.root / "bindings")
    return source.served(lambda found: named(found, "goodput_gpu_xid_errors_total"))


def test_dcgm(dcgm_series):
    readings = dcgm_readings(full_engine.VALUES)
    readings |= {"throttled/power": 1.0, "throttled/hw_power_brake": 1.0, "throttled/hw_thermal": 0.0}
    readings |= {"fabric_problem/degraded_bandwidth": 0.0}
    assert differing(dcgm_series, of_gpu(full_engine.UUID, readings)) == {}
    for number in (3, 5):
        instance = f"MIG-{full_engine.UUID}/{number}"
        expected = {"memory/total": 40_448 * 2.0**20, "activity/engine": 0.5, "activity/tensor": 0.25}
        assert differing(dcgm_series, of_gpu(instance, expected)) == {}
        assert named(dcgm_series, "goodput_gpu_info", gpu=instance, profile="3g.40gb") == [1.0]
    switch = {
        "temperature": 58,
        "temperature_limit/slowdown": 90,
        "temperature_limit/shutdown": 95,
        "power/vdd": 705,
    }
    switch |= {
        "power/dvdd": 706,
        "power/hvdd": 707,
        "sxid/fatal": 856,
        "sxid/non_fatal": 857,
        "reset_required": 1,
    }
    assert differing(dcgm_series, of_component("nvswitch", "nvswitch0", switch)) == {}
    cpu = {
        "activity/total": 0.5,
        "activity/user": 0.5,
        "activity/irq": 0.5,
        "temperature": 61,
        "power/cpu": 1130,
    }
    cpu |= {"temperature_limit/warning": 95, "temperature_limit/critical": 105, "power_limit": 1131}
    cpu |= {"power/sysio": 1132, "power/module": 1133}
    assert differing(dcgm_series, of_component("cpu", "0", cpu)) == {}


# A dcgm-exporter: every field, under its oldest and its newest name

GPU = 'gpu="0",{0}="GPU-e",pci_bus_id="00000000:1B:00.0",{1}="NVIDIA H100",pod="p-0",namespace="train",container="main"'
LABELS = {"oldest": GPU.format("UUID", "modelName"), "newest": GPU.format("gpu_uuid", "model_name")}
# The name of 203 in 4.6 is that of 1613 in 4.7.
NUMBERS = {
    "oldest": {number for number in FIELDS if number < 1600},
    "newest": set(FIELDS) - {UTILIZATION_RATIO},
}


def exporter_page(era: str) -> str:
    """All fields of a GPU, a line of one of its NVLinks, and all of a switch, of one of its links and of a CPU."""
    at, lines = {"oldest": 0, "newest": -1}[era], []
    for number in sorted(NUMBERS[era]):
        raw = BY_HAND[number][0] if number in BY_HAND else full_engine.VALUES.get(number, number)
        value = float(raw) if FIELDS[number].double else int(raw)
        lines.append(f"{FIELDS[number].names[at]}{{{LABELS[era]}}} {value}")
    if era == "newest":
        lines.append(f'DCGM_FI_DEV_NVLINK_RX_ERROR_TOTAL{{nvlink="3",{LABELS[era]}}} 77')
    for field in dcgm_components.TABLE:
        of_link = 'nvlink="2",' if "{link}" in field.key else ""
        component = f'{field.kind}="0"' if not of_link else 'nvswitch="nvswitch0"'
        value = 0.5 if field.double else 1 if field.key == "reset_required" else 2
        lines.append(f"{field.names[at]}{{{of_link}{component}}} {value}")
    return "".join(f"{line}\n" for line in lines)


@pytest.fixture(scope="module", params=["oldest", "newest"])
def exporter(request, tmp_path_factory, monkeypatch_module):
    """(era, series)"""
    pages = [exporter_page(request.param)]

    class Handler(http_server.Handler):
        def do_GET(self):
            self.answer(200, pages[-1].encode())

    def fail() -> None:
        at = {"oldest": 0, "newest": -1}[request.param]
        name = f"{FIELDS[XID].names[at]}{{{LABELS[request.param]}}} "
        pages.append(pages[0].replace(f"{name}0\n", f"{name}79\n"))

    server = http_server.HttpServer(Handler)
    root, url = tmp_path_factory.mktemp("exporter"), f"{server.url}/metrics"
    source = Source(root, monkeypatch_module, "dcgm_endpoint", dcgm_endpoint=url)
    yield request.param, source.served(lambda found: named(found, "goodput_gpu_xid_errors_total"), fail)
    server.close()


def test_dcgm_exporter(exporter):
    era, series = exporter
    readings = dcgm_readings(NUMBERS[era])
    # Of both units of the energy the finer one counts.
    readings |= {"energy": BY_HAND[156][2], "throttled/power": 1.0, "throttled/hw_power_brake": 1.0}
    assert differing(series, of_gpu("GPU-e", readings)) == {}
    link = (
        {"nvlink_link_errors/3/receive": 77.0} if era == "newest" else {"nvlink_link_rate/17/receive": 1075.0}
    )
    assert differing(series, of_gpu("GPU-e", link)) == {}
    switch = {
        "temperature": 2,
        "sxid/fatal": 2,
        "link_up/2": 1,
        "link_errors/2/crc": 2,
        "link_errors/2/fatal": 2,
    }
    assert differing(series, of_component("nvswitch", "nvswitch0", switch)) == {}
    assert differing(series, of_component("cpu", "0", {"activity/total": 0.5, "power/module": 0.5})) == {}
    pod = {"pod": "p-0", "namespace": "train", "container": "main"}
    assert named(series, "goodput_gpu_pod_info", gpu="GPU-e", **pod) == [1.0]


# AMD, by amdsmi and by sysfs alone

MI300X = {
    "activity/utilization": 0.93, "activity/memory_controller": 0.31, "memory/used": 150e9, "power": 640.0,
    "ecc/correctable/volatile": 15.0, "ecc/uncorrectable/volatile": 1.0, "ecc/deferred/volatile": 2.0,
    "ecc_location/correctable/volatile/umc": 7.0, "ecc_location/correctable/volatile/gfx": 3.0,
    "ecc_location/correctable/volatile/xgmi_wafl": 5.0, "link_bytes/xgmi/receive": 28 * 1024.0, "xgmi_links/up": 6.0,
    "link_bytes/xgmi/transmit": 280 * 1024.0, "xgmi_links/down": 1.0, "pages_retired/retired": 2.0, "energy": 1000.0,
    "pages_retired/pending": 1.0, "power_limit": 750.0, "temperature_limit/slowdown": 100.0, "clock_limit/sm/max": 2.1e9,
    "throttled/power": 1.0, "throttled/thermal": 0.0, "processes": 2.0, "pcie_errors/naks_sent": 22.0, "power_setting/max": 760.0,
}  # fmt: skip
BDF = "0000:1b:00.0"


@pytest.fixture(scope="module")
def amdsmi_series(tmp_path_factory, monkeypatch_module) -> Series:
    """After the firmware has counted cycles in which the power limit held, and a reset of the GPU."""
    source = Source(tmp_path_factory.mktemp("amdsmi"), monkeypatch_module, "amd")
    amd_tree.write_tree(source.root)
    for pid in amd_tree.PIDS:
        attribution_tree.add_process(source.root, pid, 1, cgroup=POD)
    control = amdsmi.Control(source.root / "amdsmi.txt")
    control.gpu(0, BDF)
    control.write()
    amdsmi.build(source.root / "rocm/lib")
    source.setenv(**{amdsmi.ENVIRONMENT: control.path, "ROCM_PATH": source.root / "rocm"})

    def work() -> None:
        control.set("0.metrics.ppt_residency_acc", 7_000)
        control.set("0.metrics.accumulation_counter", 108_000)
        control.event(0, 3)

    def is_ready(found: Series) -> bool:
        throttled = named(found, "goodput_gpu_throttled", reason="power") == [1.0]
        return throttled and named(found, "goodput_health_events_total", kind="gpu_reset") == [1.0]

    return source.served(is_ready, work)


def test_amdsmi(amdsmi_series):
    assert differing(amdsmi_series, of_gpu(amd_tree.UNIQUE, MI300X)) == {}
    (seconds,) = named(
        amdsmi_series, "goodput_gpu_throttle_seconds_total", gpu=amd_tree.UNIQUE, reason="power"
    )
    assert seconds > 0
    assert (
        len(
            named(
                amdsmi_series, "goodput_gpu_process_info", gpu=amd_tree.UNIQUE, pod_uid=attribution_tree.UID
            )
        )
        == 2
    )
    assert named(amdsmi_series, "goodput_gpu_xid_errors_total") == []
    # What its library sends is declared from the start, what no AMD GPU has is not.
    of_card = {"device": amd_tree.UNIQUE}
    assert named(amdsmi_series, "goodput_health_events_total", kind="page_fault", **of_card) == [0.0]
    assert named(amdsmi_series, "goodput_health_events_total", kind="xid", **of_card) == []


@pytest.fixture(scope="module")
def amd_series(tmp_path_factory, monkeypatch_module) -> Series:
    source = Source(tmp_path_factory.mktemp("amd"), monkeypatch_module, "amd")
    amd_tree.write_tree(source.root)
    card = source.root / "sys/class/drm/card1/device"
    pages = "0x01 : 0x1000 : R\n0x02 : 0x1000 : P\n"
    amd_tree.write(card / "ras", {"gpu_vram_bad_pages": pages, "xgmi_wafl_err_count": "ue: 1\nce: 6\n"})

    def write(cycles: int, ppt: int) -> None:
        made = amd_metrics.table(amd_metrics.V1_7, 7, cycles, ppt)
        for link, state in enumerate((1, 1, 0)):
            made.xgmi_link_status[link] = state
        (card / "gpu_metrics").write_bytes(bytes(made))

    write(100_000, 5_000)
    # No ROCm, wherever this machine has one.
    source.setenv(ROCM_PATH=source.root / "nowhere")
    is_ready = lambda found: named(found, "goodput_gpu_throttled", reason="power") == [1.0]  # noqa: E731
    return source.served(is_ready, lambda: write(108_000, 7_000))


def test_amd_by_sysfs(amd_series):
    readings = {
        "activity/utilization": 0.87, "activity/memory_controller": 0.29, "power": 412.734, "energy": 1000.0,
        "ecc_location/correctable/volatile/umc": 20.0, "ecc_location/uncorrectable/volatile/gfx": 2.0,
        "ecc_location/correctable/volatile/xgmi_wafl": 6.0, "ecc_location/uncorrectable/volatile/xgmi_wafl": 1.0,
        "link_bytes/xgmi/receive": 3 * 1024.0, "link_bytes/xgmi/transmit": 7 * 1024.0, "xgmi_links/up": 2.0,
        "xgmi_links/down": 1.0, "pages_retired/retired": 1.0, "pages_retired/pending": 1.0, "throttled/power": 1.0,
    }  # fmt: skip
    assert differing(amd_series, of_gpu(amd_tree.UNIQUE, readings)) == {}
    older = {"power": 43.0, "fan": 0.2, "energy": 123.456789, "temperature/core": -1.5}
    assert differing(amd_series, of_gpu("0000:c1:00.0", older)) == {}


# docs/node.md

NAME = re.compile(r"(?:goodput|…)_[a-z0-9_]+(?:\{([^}]*)\})?")


def documented() -> list[tuple[str, list[str]]]:
    """(cell of series, marks of NVML, DCGM and the exporter) of each row of the table of what is read by whom."""
    rows = []
    for line in (
        (ROOT / "docs/node.md")
        .read_text()
        .partition("### What is read of a GPU")[2]
        .partition("###")[0]
        .splitlines()
    ):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 5 and "goodput_" in cells[1]:
            rows.append((cells[1], cells[2:]))
    return rows


def series_in(cell: str) -> list[tuple[str, dict[str, str]]]:
    """Each series in a cell, with one of the labels' values for each that is named; `…_x` goes on with the prefix before."""
    found, prefix = [], ""
    for match in NAME.finditer(cell):
        name = match[0].partition("{")[0]
        name = prefix + name[1:] if name[0] == "…" else name
        prefix = prefix or "_".join(name.split("_")[:2])
        values = dict(re.findall(r'(\w+)="([^}]*)"', match[1] or ""))
        (label, alternatives) = next(iter(values.items())) if values else ("", "")
        found += [(name, {label: one} if label else {}) for one in re.split(r'"\\\|"', alternatives)]
    return found


def test_documented_drivers_serve_what_the_table_says(nvml_series, dcgm_series, exporter):
    rows, wrong = documented(), []
    assert len(rows) > 40
    for cell, marks in rows:
        enough = any if re.search(r"\b(or|else|instead)\b", cell) else all
        for driver, mark, found in zip("NDE", marks, (nvml_series, dcgm_series, exporter[1]), strict=True):
            has = [bool(named(found, name, **labels)) for name, labels in series_in(cell)]
            if (mark == "✓" and not enough(has)) or (not mark and any(has)):
                wrong.append((driver, mark, cell, has))
    assert not wrong, "\n".join(map(str, wrong))


def test_every_series_of_gpus_has_a_source(nvml_series, dcgm_series, exporter, amdsmi_series, amd_series):
    """Those by phase need a rank, `--dcgm-fields` a list, and implausible readings a driver that answers such."""
    served = {
        name
        for found in (nvml_series, dcgm_series, exporter[1], amdsmi_series, amd_series)
        for name, _ in found
    }
    names = set(re.findall(r"^(goodput_\w+)\{", catalogue.SERIES, re.MULTILINE))
    rest = {
        name
        for name in names - served
        if not re.search("phase|activity_seconds|false_zero|dcgm_field|implausible", name)
    }
    assert rest == set()
