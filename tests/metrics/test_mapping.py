"""The tables of docs/node.md from other exporters' series to ours: complete, and of declared series only."""

import re
import shutil
import signal
import subprocess
import urllib.request
from fnmatch import fnmatchcase

import pytest
from support.paths import ROOT
from support.servers.servers import free_ports, wait_until

from goodput.metrics import CATALOGUE
from goodput_exporters.collectors.gpus.dcgm_page import COUNTERS, GAUGES
from goodput_exporters.gpu.nvidia.dcgm_field_table import XID
from goodput_exporters.gpu.nvidia.dcgm_fields import FIELDS

ORACLE = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")
PROMTOOL = shutil.which("promtool")
SECTION = (ROOT / "docs/node.md").read_text().partition("## Instead of dcgm-exporter and node_exporter\n")[2]
# Of its etc/default-counters.csv, besides those that --compat dcgm serves.
DCGM_DEFAULTS = {"DCGM_FI_DRIVER_VERSION"}
# Labels that Prometheus adds.
ADDED = {"instance"}


def rows() -> list[tuple[str, str]]:
    """(theirs, ours) of each row."""
    lines = [line.strip("| ").split(" | ") for line in SECTION.splitlines() if line.startswith("| ")]
    return [(theirs, ours) for theirs, ours in lines if ours != "here"]


def patterns() -> list[str]:
    """What the left sides name; of `node_x_total` and `*_packets_total` in one cell the latter stands for itself."""
    found = []
    for theirs, _ in rows():
        names = re.findall(r"`([\w*]+)`", theirs)
        found += [f"node_network_{name}" if name.startswith("*") else name for name in names]
    return found


def queries() -> list[str]:
    lines = [line[4:] for line in SECTION.splitlines() if line.startswith("    ")]
    return [line for line in lines if not line.startswith("#")]


def test_rows_name_declared_series_or_keep_the_other():
    assert len(rows()) > 50
    for theirs, ours in rows():
        assert "goodput_" in ours or ours.startswith("keep node_exporter ("), theirs


def test_series_labels_and_values_are_declared():
    texts = [ours for _, ours in rows()] + queries()
    found = [match for text in texts for match in re.findall(r"\b(goodput_\w+)(?:\{([^}]*)\})?", text)]
    assert len({name for name, _ in found}) > 60
    for name, selector in found:
        assert name in CATALOGUE, name
        for label, value in re.findall(r'(\w+)=~?"([^"]*)"', selector):
            assert label in {*CATALOGUE[name].labels, *ADDED}, (name, label)
            if label in ("kind", "unit", "sensor", "clock"):
                assert all(one in CATALOGUE[name].help for one in value.split("|")), (name, value)


def test_every_default_field_of_dcgm_exporter_has_a_row():
    served = {FIELDS[number].names[0] for number in (*COUNTERS, *GAUGES, XID)}
    assert sorted((served | DCGM_DEFAULTS) - set(patterns())) == []


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_queries_are_valid(tmp_path):
    rules = [
        f"  - record: q:{number}\n    expr: '{query}'\n"
        for number, query in enumerate(query.replace("$instance", "n") for query in queries())
    ]
    (tmp_path / "rules.yml").write_text("groups:\n- name: queries\n  rules:\n" + "".join(rules))
    done = subprocess.run(
        [PROMTOOL, "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True
    )
    assert done.returncode == 0 and f"{len(rules)} rules found" in done.stdout, done.stdout + done.stderr


@pytest.mark.skipif(ORACLE is None, reason="prometheus-node-exporter is not installed")
def test_every_series_of_node_exporter_has_a_row():
    """Those that it has on this machine by default, and a namespace of each collector that it has."""
    (port,) = free_ports(1)
    command = [ORACLE, f"--web.listen-address=127.0.0.1:{port}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            text = wait_until(
                lambda: process.poll() or _fetch(f"http://127.0.0.1:{port}/metrics"), 60, "its answer"
            )
        finally:
            process.send_signal(signal.SIGTERM)
    names = set(re.findall(r"^# TYPE (node_\w+)", text, re.MULTILINE))
    assert len(names) > 100
    assert sorted(name for name in names if not any(fnmatchcase(name, one) for one in patterns())) == []


def _fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return ""
