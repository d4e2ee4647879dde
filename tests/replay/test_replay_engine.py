"""bench/alert_replay against `promtool test rules`: the same series, the shipped rules, every firing to the moment.

A short world at one scrape a minute, with a hang, a lost GPU, an XID, a link and an agent that are gone, and a gap.
promtool loads the rules into Prometheus's own rule groups; what ALERTS was there must be what the replay says.
"""

import re
import subprocess
from collections import defaultdict

import numpy as np
import pytest
import yaml
from bench.alert_replay import rules as shipped
from bench.alert_replay.evaluate import Evaluation
from bench.alert_replay.scrape import ScrapedScenario, Scraper
from bench.alert_replay.server import Server
from bench.alert_replay.ticks import ticks
from bench.alert_replay.wire import is_stale
from support.dashboards.rules_pruned import alert_key
from support.servers.servers import require

from goodput.simulate.scenario import (
    EPOCH_SECONDS,
    AttemptPlan,
    HardwareChange,
    RunFault,
    RunPlan,
    Workload,
    gpu_uuid,
)

MINUTES = 75
GPU = gpu_uuid("n0", 1)


def scenario() -> ScrapedScenario:
    """A run that hangs and one whose hardware breaks."""
    workload = Workload(step=8, checkpoint_every=600, checkpoint=15, hiccup_every=0)
    hang = RunFault("hang", 1500, 2700, rank=0, phase="loader")
    one = RunPlan("hangs", [AttemptPlan(0, 1e6, [("n0", 0), ("n0", 1)])], workload, 1, faults=[hang])
    two = RunPlan("goes", [AttemptPlan(0, 1e6, [("n1", 0), ("n1", 1)])], workload, 2)
    xid = (("class", "bus"), ("gpu", GPU), ("xid", "79"))
    port = (("device", "mlx5_0"), ("port", "1"))
    changes = [
        HardwareChange("n0", "goodput_gpu_up", (("gpu", GPU),), 900, 1500, "set", 0),
        HardwareChange("n0", "goodput_gpu_xid_errors_total", xid, 600, 0, "born", 1),
        HardwareChange("n1", "goodput_infiniband_up", port, 1200, 1500, "set", 0),
        HardwareChange(
            "n1",
            "goodput_host_pressure_seconds_total",
            (("kind", "full"), ("resource", "io")),
            600,
            3000,
            "rate",
            0.6,
        ),
    ]
    outages = {"n1": [(3300.0, 3600.0)]}
    moments = ticks(MINUTES * 60, 60, 60)
    return ScrapedScenario({"n0": 2, "n1": 2}, [one, two], changes, outages, ticks=moments)


def notation(times: np.ndarray, values: np.ndarray) -> str:
    """Values in promtool's notation: `_` where there is none, `stale` for a staleness mark."""
    found = dict(zip((times - EPOCH_SECONDS).astype(int) // 60, values, strict=True))
    words = []
    for minute in range(MINUTES + 1):
        value = found.get(minute)
        stale = value is not None and is_stale(np.array([value]))[0]
        words.append("_" if value is None else "stale" if stale else repr(float(value)))
    return " ".join(words)


def by_promtool(directory, series) -> dict[str, list[int]]:
    """By alert and labels, written as a string: how many moments it fired at, the first of them in s."""
    groups = list(dict.fromkeys(rule.group for rule in shipped.load() if not rule.alert))
    groups += list(dict.fromkeys(rule.group for rule in shipped.load() if rule.alert))
    files = [str(path) for path in sorted(shipped.FOLDER.glob("*.yml")) if "groups:" in path.read_text()]
    input_series = []
    for labels, times, values in series:
        labels_text = ",".join(
            f"{name}={yaml.safe_dump(value, default_style=chr(34)).strip()}"
            for name, value in labels.items()
            if name != "__name__"
        )
        input_series.append(
            {"series": f"{labels['__name__']}{{{labels_text}}}", "values": notation(times, values)}
        )
    firing, all_of_it = 'ALERTS{alertstate="firing"}', f"{MINUTES}m"
    queries = [
        {"expr": expr, "eval_time": all_of_it, "exp_samples": [{"labels": "nothing", "value": 0}]}
        for expr in (
            f"count_over_time({firing}[{MINUTES}m])",
            f"min_over_time(timestamp({firing})[{MINUTES}m:1m])",
        )
    ]
    test = {"interval": "1m", "input_series": input_series, "promql_expr_test": queries}
    path = directory / "test.yml"
    path.write_text(
        yaml.safe_dump(
            {"rule_files": files, "evaluation_interval": "1m", "group_eval_order": groups, "tests": [test]}
        )
    )
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, timeout=300)
    # The expected samples never exist, so promtool's error lists those that do.
    got = re.findall(r"^\s*got:(.*?)$", done.stdout + done.stderr, re.MULTILINE)
    assert len(got) == 2, done.stdout + done.stderr
    found = defaultdict(list)
    for line in got:
        for labels, value in re.findall(r"\{(.*?)\} (\S+?)(?:,|$)", line):
            found[labels].append(round(float(value)))
    return dict(found)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    require("prometheus")
    directory = tmp_path_factory.mktemp("replay")
    rules = shipped.ordered(shipped.load())
    small = scenario()
    scraper = Scraper(small, shipped.raw(rules))
    series = list(scraper.series())
    with Server(directory) as server:
        server.write(series)
        fired = Evaluation(server, small.ticks, scraper.evaluated).run(rules)
    ours = defaultdict(list)
    for one in fired:
        labels = {"alertname": one.alert.partition("#")[0], "alertstate": "firing", **one.labels}
        text = ", ".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
        end = min(one.resolved, MINUTES * 60 + 60)
        ours[text].append((round((end - one.at) / 60), round(one.at)))
    theirs = by_promtool(directory, series)
    return {text: [sum(n for n, _ in spans), spans[0][1]] for text, spans in ours.items()}, theirs


def test_promtool_fires_the_same_alerts_at_the_same_moments(both):
    ours, theirs = both
    assert ours == theirs


def test_scenario_fires_alerts_of_every_kind(both):
    found = (dict(re.findall(r'(\w+)="([^"]*)"', text)) for text in both[0])
    names = {alert_key(labels, labels["alertname"]) for labels in found}
    wanted = {
        "GoodputRunStalled",
        "GoodputGpuLost#lost",
        "GoodputGpuXid#critical",
        "GoodputLinkDown#infiniband",
    }
    assert wanted | {"GoodputAgentDown", "GoodputHostDegraded#pressure"} <= names
