"""Names that text files and the agent both have: whatever a file holds, Prometheus takes the whole page in each format."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from support.node.agents import agent_on
from support.servers.servers import Prometheus, require, wait_until

from goodput.metrics.openmetrics import OpenMetricsWriter
from goodput_exporters.collectors.gpus.dcgm_page import COUNTERS, GAUGES
from goodput_exporters.gpu.merge import MergedGpu
from goodput_exporters.gpu.nvidia.dcgm_fields import FIELDS
from goodput_exporters.server.server import Server

READINGS = {FIELDS[number].key: 1.0 for number in {**COUNTERS, **GAUGES}}
# Files in their order: what each has, and how many of its series are served beside --compat dcgm.
FILES = {
    "a_dcgm": (
        "# HELP DCGM_FI_DEV_GPU_TEMP of a script\n# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 40\n# TYPE DCGM_FI_DEV_XID_ERRORS counter\nDCGM_FI_DEV_XID_ERRORS 1\n'
        "DCGM_FI_DEV_NOT_SERVED 3\nDCGM_FI_DEV_FAN_SPEED 43\n",
        2,
    ),
    "b_ours": (
        "goodput_host_cpus 9\ngoodput_node_info 1\ngoodput_gpu_energy_joules 5\ngoodput_of_a_script 6\n"
        "up 0\nscrape_samples_scraped 1\n",
        1,
    ),
    "c_node": (
        "# TYPE node_md_state gauge\nnode_md_state{device=\"md0\"} 1\nnode_md_state{device=\"md1\"} 1\n"
        "# TYPE node_events_total counter\nnode_events_total 5\n",
        3,
    ),
    "d_node": (
        "# TYPE node_md_state gauge\nnode_md_state{device=\"md0\"} 2\nnode_md_state{device=\"md2\"} 1\n"
        "# TYPE node_events_total gauge\nnode_events_total{kind=\"b\"} 5\n",
        1,
    ),
    # Of one of Python's client libraries, and what in OpenMetrics is a name of the counter's family.
    "e_counters": (
        "# TYPE work_total counter\nwork_total 7\n# TYPE work_created gauge\nwork_created 1.7e9\n"
        "# TYPE jobs gauge\njobs 1\n# TYPE jobs_total counter\njobs_total 8\n"
        "# TYPE h_sum_total counter\nh_sum_total 9\n# TYPE plain counter\nplain 4\n",
        6,
    ),
    "f_histogram": (
        "# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n"
        "# TYPE s summary\ns{quantile=\"0.5\"} 1\ns_sum 3\ns_count 2\n",
        7,
    ),
    "f_times": (
        "# TYPE took histogram\n"
        + "".join(
            f'took_bucket{{le="+Inf",way="{way}"}} {n}\ntook_sum{{way="{way}"}} {n}\ntook_count{{way="{way}"}} {n}\n'
            for way, n in (("a", 1), ("b", 2))
        )
        + '# TYPE took_created gauge\ntook_created{way="b"} 6\ntook_created{way="a"} 5\nlone_created 1\n',
        9,
    ),
    "g_shadows": ("h_count 5\n# TYPE s histogram\ns_bucket{le=\"+Inf\"} 1\ns_sum 1\ns_count 1\nnot_shadowed 1\n", 1),
    "h_words": ('x:y{a="größer\\n\\"位\\" \\\\"} NaN\n# HELP x:y \\\\ a\\nb\nz +Inf\nz{le="x",quantile="y"} -0\n', 3),
    "i_malformed": ("fine 1\nnot fine\n", 0),
    "j_timestamp": ("late 1 1700000000000\n", 0),
}  # fmt: skip
SERVED = sum(count for _, count in FILES.values())
REFUSED = {
    ("a_dcgm", "clash"), ("b_ours", "clash"), ("d_node", "clash"), ("d_node", "duplicate"), ("g_shadows", "clash"),
    ("i_malformed", "malformed"), ("j_timestamp", "timestamp"),
}  # fmt: skip


@pytest.fixture
def agent(tree, clock, monkeypatch):
    """One of a node with a GPU of NVIDIA's that has every field, and the files."""
    (tree / "texts").mkdir()
    for name, (text, _) in FILES.items():
        (tree / f"texts/{name}.prom").write_text(text)
    agent = agent_on(tree, clock, textfile_directories=(str(tree / "texts"),), drivers=(), compat="dcgm")
    gpu = MergedGpu("GPU-1", model="NVIDIA H100", known_by=["nvml"], readings=READINGS)
    monkeypatch.setattr(agent.gpus, "current", lambda: [gpu])
    yield agent
    agent.gpus.close()


def foreign(families) -> list[tuple]:
    """(name, labels) of the series that are neither the agent's nor dcgm-exporter's."""
    samples = [one for family in families for one in family.samples]
    own = re.compile(r"goodput_(?!of_a_script|gpu_energy_joules$)|DCGM_FI_(?!DEV_NOT_SERVED|DEV_FAN_SPEED)")
    return [(one.name, tuple(sorted(one.labels.items()))) for one in samples if not own.match(one.name)]


def test_files_keep_what_is_theirs(agent, caplog):
    """Two families of one name would make the page invalid; the file that has the second one is named."""
    text = agent.exposition(20.0).decode()
    found = foreign(text_string_to_metric_families(text))
    assert len(found) == len(set(found)) == SERVED
    lines = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(lines) == len(set(lines)) and text.count("# TYPE DCGM_FI_DEV_GPU_TEMP ") == 1
    refused = re.findall(r'goodput_textfile_refused\{file=".*/(\w+)\.prom",reason="(\w+)"\} 1', text)
    assert set(refused) == REFUSED and len(refused) == len(REFUSED)
    message = caplog.text
    assert "a_dcgm.prom: DCGM_FI_DEV_GPU_TEMP is served for --compat dcgm" in message
    assert "b_ours.prom: goodput_host_cpus is the agent's or an aggregator's own name" in message
    assert 'goodput_node_collector_up{collector="textfile"} 0.0' in text


def test_openmetrics_has_no_two_families_of_one_name(agent):
    """By a parser that refuses a page whose families share a name, suffixes included."""
    text = agent.exposition(20.0, OpenMetricsWriter).decode()
    found = foreign(openmetrics_families(text))
    assert len(found) == len(set(found)) == SERVED
    # A counter is one where nothing else has a name of its family.
    assert "# TYPE node_events counter\n" in text and "# TYPE jobs_total unknown\n" in text
    assert "# TYPE h_sum_total unknown\n" in text
    # Times of creation are a family of their own in the text format, and part of the other here.
    assert "# TYPE work counter\nwork_total 7.0\nwork_created 1.7e+09\n# HELP" in text
    assert text.count("# TYPE took ") == 1 and "# TYPE took_created" not in text
    assert 'took_count{way="a"} 1.0\ntook_created{way="a"} 5.0\ntook_bucket{le="+Inf",way="b"} 2.0\n' in text
    assert "# TYPE lone_created unknown\nlone_created 1.0\n" in text


def test_promtool_has_nothing_against_the_page(agent):
    require("promtool")
    text = agent.exposition(20.0).decode()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    # It objects to others' names, which are not ours to change.
    assert "error while linting" not in done.stderr and "parse" not in done.stderr
    assert not [
        line for line in done.stderr.splitlines() if line.startswith("goodput_") and "of_a_script" not in line
    ]


class NativePrometheus(Prometheus):
    """Which asks for protobuf."""

    name = "native"

    def command(self) -> list[str]:
        return [*super().command(), "--enable-feature=native-histograms"]


@pytest.mark.parametrize("kind", [Prometheus, NativePrometheus])
def test_prometheus_takes_every_series(agent, tmp_path, kind):
    require("prometheus")
    server = Server(agent.exposition, agent.health)
    server.start()
    target = {"job_name": "node", "static_configs": [{"targets": ["{}:{}".format(*server.address)]}]}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [target]}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    try:
        with kind(tmp_path, tmp_path / "prometheus.yml") as prometheus:
            prometheus.wait_for("up == 1", seconds=60)
            lines = [line for line in agent.exposition(20.0).decode().splitlines() if line[:1] not in "#"]
            scraped = wait_until(
                lambda: prometheus.value("scrape_samples_post_metric_relabeling == scrape_samples_scraped"),
                60, "all samples",
            )  # fmt: skip
            assert scraped == pytest.approx(
                len(lines), abs=20
            )  # Some of the agent's own come with its second scrape.
            assert prometheus.value("up") == 1
            assert prometheus.value('node_md_state{device="md0"}') == 1
            assert prometheus.value("DCGM_FI_DEV_GPU_TEMP") == 1
            assert len(prometheus.query('{__name__=~"x:y|z|s|h_.*|jobs.*|work.*|not_shadowed"}')) > 10
            log = prometheus.log.read_text()
            assert "err=" not in log and "duplicate" not in log, log
    finally:
        server.stop()
