"""The node board and the alerts on hardware, in a real Prometheus that scrapes a real agent on a fixture tree."""

import json
import math
import re
import time

import pytest
from support.dashboards.rules_pruned import alert_key
from support.paths import TESTS
from support.servers.servers import HARDWARE, Prometheus, expressions, render, require, shorten, wait_until

from goodput_exporters.agent import Agent
from goodput_exporters.server.server import Server

WINDOWS = {"5m": "6s", "15m": "60s", "30m": "6s", "1h": "6s", "1d": "6s"}
# Panels and their queries without a value here.
QUIET = {
    "Activity by phase B": "the rank is in no phase of compute",
    "Health events of the last hour A": "none comes within the last moments, which an hour is here",
    "Health events of the last hour B": "the same",
}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    require("prometheus")
    # Their names are unique among the tests, so appending hides nothing.
    from support.node import hardware_tree, network_tree, node_rank
    from support.node.node_tree import write_tree

    folder = tmp_path_factory.mktemp("hardware")
    write_tree(folder)
    hardware_tree.write_tree(folder)
    network_tree.write(folder, network_tree.devices())
    (folder / "proc/self").mkdir()
    (folder / "proc/self/mountinfo").write_text("27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n")
    (folder / "pages").mkdir()
    figures = [
        {"name": name, "value": 1e9, "unit": unit, "device": "H100"}
        for name, unit in (("gemm_bf16", "FLOP/s"), ("h2d_pinned", "B/s"), ("small_files", "1/s"))
    ]
    probe = folder / "probe.json"
    probe.write_text(json.dumps({"host": "n0", "time": time.time(), "figures": figures}))
    rank = node_rank.Rank(
        folder / "pages", device_uuid="GPU-0", start_unix_ns=time.time_ns(), start_mono_ns=time.monotonic_ns()
    )
    rank.step({"forward": 1_000_000})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))
        agent = Agent(
            str(folder / "pages"),
            sysfs=str(folder / "sys"), procfs=str(folder / "proc"), node="n0", paths=("/",), gpus_expected=2, probe=str(probe),
            gpu_interval_seconds=0.5
        )  # fmt: skip
        agent.gpus._modules = {"two": "support.dashboards.hardware_driver:Two"}
        server = Server(agent.exposition, agent.health)
        with agent:
            server.start()
            try:
                targets = {"goodput-node": [f"127.0.0.1:{server.address[1]}"]}
                config = render(folder, targets, windows=WINDOWS, hold="0s")
                with Prometheus(folder, config) as running:
                    yield running
            finally:
                server.stop()


def test_every_panel_and_record_of_hardware_has_a_value(prometheus):
    wanted = [one for one in expressions(interval="4s") if one.kind != "alert" and one.group in HARDWARE]
    wanted = [one for one in wanted if not one.name.endswith(tuple(QUIET))]
    assert len(wanted) > 50

    def nothing():
        found = {one.name: prometheus.query(shorten(one.text, WINDOWS)) for one in wanted}
        return [name for name, samples in found.items() if not any(math.isfinite(s.value) for s in samples)]

    last = []
    try:
        wait_until(lambda: not last.__setitem__(slice(None), nothing()) and not last, 60, "every expression")
    except AssertionError:
        assert sorted(last) == []
    assert {rule["health"] for rule in prometheus.rules()} == {"ok"}


def test_gpu_alerts_tell_run_and_rank(prometheus):
    names = ("GoodputGpuMemory#no_spare_rows", "GoodputGpuPcieDegraded", "GoodputGpuXid#critical")

    def firing():
        alerts = [one for one in prometheus.alerts() if one["state"] == "firing"]
        found = {alert_key(one["labels"], one["labels"]["alertname"]): one for one in alerts}
        return found if set(names) <= set(found) else None

    found = wait_until(firing, 60, "the three alerts")
    for name in names:
        labels = found[name]["labels"]
        assert [labels.get(key) for key in ("host", "gpu", "run", "rank")] == ["n0", "GPU-0", None, None], (
            name
        )
        assert re.search(
            r"GPU GPU-0( \(index .*, slot .*\))? of node n0", found[name]["annotations"]["summary"]
        )
        assert "(run r1, rank 0)" in found[name]["annotations"]["summary"]
    for one in prometheus.alerts():
        assert one["labels"].get("gpu") != "GPU-1", "a sound GPU"
        assert "<error" not in str(one["annotations"])
