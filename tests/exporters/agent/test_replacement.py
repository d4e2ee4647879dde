"""What an operator queries, in a real Prometheus that scrapes an agent instead of dcgm-exporter and node_exporter.

The node has two GPUs that answer everything (of the second NVML has no row remapping, as before Ampere), a rank on the
first, links, disks, mounts and sensors.
"""

from __future__ import annotations

import re

import pytest
import yaml
from support.node import hardware_tree, host_tree, network_tree
from support.node.agents import agent_on
from support.node.node_rank import Rank
from support.node.node_tree import Clock, write_tree
from support.node.nvml_stub.fixtures import EXPECTED, EXPECTED_GPM
from support.paths import ROOT
from support.servers.servers import Prometheus, require

from goodput_exporters.gpu.sample import Gpu, Sample
from goodput_exporters.gpu.supervisor import DriverStatus, Received
from goodput_exporters.server.server import Server

DOCUMENT = (ROOT / "docs/node.md").read_text()
MS = 10**6
OLDER = {"pages_retired/single_bit": 3.0, "pages_retired/double_bit": 2.0, "pages_retired/pending": 0.0}
LICENSED = {"vgpu_license/supported": 1.0, "vgpu_license/licensed": 1.0, "throttle/reliability": 0.0}
# As boards and alerts of dcgm-exporter ask, by the variables of its own board (Grafana 12239), of 3.x and 4.x.
HOST = 'Hostname=~".+",gpu=~"0|1"'
BOARDS = (
    f"max(DCGM_FI_DEV_GPU_TEMP{{{HOST}}}) by (Hostname, gpu, uuid)",
    f"avg(DCGM_FI_DEV_GPU_TEMP{{{HOST}}})",
    f"max(DCGM_FI_DEV_MEMORY_TEMP{{{HOST}}}) by (Hostname, gpu)",
    f"max(DCGM_FI_DEV_POWER_USAGE{{{HOST}}}) by (Hostname, gpu, uuid)",
    f"sum(max(DCGM_FI_DEV_POWER_USAGE{{{HOST}}}) by (gpu))",
    f"max(DCGM_FI_DEV_SM_CLOCK{{{HOST}}} * 1000000) by (Hostname, UUID, gpu)",
    f"max(DCGM_FI_DEV_MEM_CLOCK{{{HOST}}} * 1000000) by (Hostname, UUID, gpu)",
    f"max(DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{HOST}}}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)",
    f"max(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{HOST}}}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)",
    f"max(DCGM_FI_DEV_FB_USED{{{HOST}}}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)",
    "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)",
    "DCGM_FI_DEV_FB_USED / DCGM_FI_DEV_FB_TOTAL * 100",
    'DCGM_FI_DEV_GPU_UTIL{gpu="0",modelName=~".*H100.*"}',
    "avg by (Hostname) (DCGM_FI_DEV_MEM_COPY_UTIL)",
    "DCGM_FI_DEV_ENC_UTIL + DCGM_FI_DEV_DEC_UTIL",
    "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[1m]) / 1000",
    "rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[1m])",
    "DCGM_FI_DEV_PCIE_TX_THROUGHPUT + DCGM_FI_DEV_PCIE_RX_THROUGHPUT",
    "rate(DCGM_FI_DEV_PCIE_TX_THROUGHPUT[1m])",
    "DCGM_FI_PROF_PCIE_TX_BYTES / 1e9",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "rate(DCGM_FI_DEV_POWER_VIOLATION[1m]) / 1e9",
    "rate(DCGM_FI_DEV_THERMAL_VIOLATION[1m])",
    "DCGM_FI_PROF_SM_ACTIVE * on (UUID) DCGM_FI_PROF_SM_OCCUPANCY",
    "DCGM_FI_PROF_DRAM_ACTIVE > 0.1 and on (Hostname, gpu) DCGM_FI_DEV_POWER_USAGE > 100",
    "avg_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE[1m])",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS",
    # Alerts, with what makes them fire turned round where nothing is wrong here.
    "increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[1m]) == 0",
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL > 1",
    "rate(DCGM_FI_DEV_ECC_SBE_VOL_TOTAL[1m]) == 0",
    "(DCGM_FI_DEV_RETIRED_SBE + DCGM_FI_DEV_RETIRED_DBE) > 4",
    "DCGM_FI_DEV_RETIRED_PENDING == 0",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE == 0",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS > 0",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS > 3",
    "increase(DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL[1m]) == 0",
    "DCGM_FI_DEV_XID_ERRORS == 0",
    "changes(DCGM_FI_DEV_XID_ERRORS[1m]) == 0",
    'count by (gpu) (DCGM_FI_DEV_XID_ERRORS{err_code="0",err_msg!=""})',
    'count by (DCGM_FI_DRIVER_VERSION) (DCGM_FI_DEV_GPU_TEMP{DCGM_FI_DRIVER_VERSION!=""})',
    # The answers themselves, worked out from the readings.
    'DCGM_FI_DEV_SM_CLOCK{gpu="0"} == 1980',
    'DCGM_FI_DEV_FB_USED{gpu="0"} == 61440',
    'DCGM_FI_DEV_PCIE_TX_THROUGHPUT{gpu="0"} == 10486',
    'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0"} == 123456789',
    'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0"} == 0.6125',
)  # fmt: skip


def documented(instance: str) -> list[str]:
    """The queries in docs/node.md; a line that begins with a blank goes on with the one before."""
    found: list[str] = []
    for block in re.findall(r"(?:^    .*\n)+", DOCUMENT, re.MULTILINE):
        lines = [line[4:] for line in block.splitlines() if not line.startswith("    #")]
        if not any("goodput_" in line for line in lines) or "goodput node" in block:
            continue
        for line in lines:
            if line.startswith(" "):
                found[-1] += line
            else:
                found.append(line.replace("$instance", instance))
    return found


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    require("prometheus")
    root = tmp_path_factory.mktemp("node")
    write_tree(root)
    network_tree.write(root, network_tree.devices())
    for name, text in {**host_tree.FILES, **hardware_tree.FILES}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "pages").mkdir()
    clock, rank = Clock(), Rank(root / "pages")
    agent = agent_on(root, clock, drivers=(), compat="dcgm")
    agent.gpus._monotonic_ns = clock.monotonic_ns
    server = Server(agent.exposition, agent.health)
    server.start()
    target = {"job_name": "dcgm-exporter", "static_configs": [{"targets": ["{}:{}".format(*server.address)]}]}
    config = {"global": {"scrape_interval": "500ms"}, "scrape_configs": [target]}
    (root / "prometheus.yml").write_text(yaml.safe_dump(config))

    def second() -> None:
        """A second passes on the node, of which the rank spends half in each of two phases."""
        rank.step({"loader": 500 * MS, "backward": 500 * MS})
        clock.seconds += 1
        agent.poll()
        sample = Sample("nvml", clock.monotonic_ns(), gpus())
        status = Received(sample, clock.monotonic_ns())
        agent.gpus.statuses = lambda: [
            DriverStatus("nvml", 5.0, status, settled=True, up=True, age_seconds=0.0)
        ]
        agent.gpus._handle_sample(sample)

    try:
        second()
        with Prometheus(root, root / "prometheus.yml") as prometheus:
            for _ in range(3):
                second()
                scraped = f'goodput_gpu_phase_seconds_total{{gpu="GPU-1",phase="backward"}} > {clock.seconds / 2 - 0.9}'
                prometheus.wait_for(scraped, seconds=60)
            yield prometheus
    finally:
        server.stop()
        agent.stop()


def gpus() -> list[Gpu]:
    about = {"model": "NVIDIA H100 80GB HBM3", "driver_version": "580.95.05"}
    readings = EXPECTED | EXPECTED_GPM | LICENSED
    older = {key: value for key, value in readings.items() if not key.startswith(("rows_", "remap_"))}
    return [
        Gpu("GPU-1", 0, pci="0000:3b:00.0", readings=readings, pids=[4242], **about),
        Gpu("GPU-2", 1, pci="0000:3c:00.0", readings=older | OLDER, pids=[], **about),
    ]


def test_boards_and_alerts_of_dcgm_exporter_have_answers(prometheus):
    assert [query for query in BOARDS if not prometheus.query(query)] == []


def test_documented_queries_have_answers(prometheus):
    (target,) = prometheus.targets()
    queries = documented(target["labels"]["instance"])
    assert len(queries) > 20
    assert [query for query in queries if not prometheus.query(query)] == []
