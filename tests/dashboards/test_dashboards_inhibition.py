"""Inhibition in a real Alertmanager with the shipped configuration: the wider alert inhibits the narrower, never its cause.

The receivers are empty as they are shipped; only the waits are shorter.
"""

import json
import re
import subprocess
import tempfile
import time

import pytest
import yaml
from support.dashboards.rules_pruned import alert_key, rule_files
from support.servers.servers import RULES, Alertmanager, require, wait_until

# By alert and problem; of several rules the labels of the first, the most severe.
LABELS: dict[str, dict] = {}
for _name in rule_files():
    for _group in yaml.safe_load((RULES / _name).read_text())["groups"]:
        for _rule in _group["rules"]:
            if "alert" in _rule:
                LABELS.setdefault(alert_key(_rule["labels"], _rule["alert"]), _rule["labels"])
N0 = {"instance": "n0:9470", "host": "n0"}
N1 = {"instance": "n1:9470", "host": "n1"}
# By scenario: what fires, with the labels beside severity and level, and whether it is silenced.
SCENARIOS = {
    "a run that hangs": [
        ("RunStalled", {"run": "r1"}, False),
        ("UtilisationDrop", {"run": "r1"}, True),
        ("ObjectiveBurn#fast", {"run": "r1"}, True),
        ("LoaderStarved", {"run": "r1"}, True),
        ("CheckpointLate#old", {"run": "r1"}, True),
        ("StragglerRank", {"run": "r1", "rank": "3", "host": "n0"}, True),
        # Alerts on nodes, each of which may be the cause, and what is of another run.
        ("AgentDown", {"instance": "n2:9470", "job": "goodput-node", "host": "n2"}, False),
        ("GpuLost#lost", {**N0, "gpu": "G0"}, False),
        ("GpuThrottled", {**N0, "gpu": "G1"}, False),
        ("UtilisationDrop", {"run": "r2"}, False),
        ("NetworkCongestion#retransmits", N0, False),
        ("GpuXid#other", {**N1, "gpu": "G9"}, False),
    ],
    "a run that burns its budget": [
        ("ObjectiveBurn#fast", {"run": "r1"}, False),
        ("ObjectiveBurn#slow", {"run": "r1"}, True),
        ("UtilisationDrop", {"run": "r1"}, True),
        ("MfuDrop", {"run": "r1"}, True),
        # They say why.
        ("LoaderStarved", {"run": "r1"}, False),
        ("StragglerRank", {"run": "r1", "rank": "3", "host": "n0"}, False),
        ("RestartLoop", {"run": "r1"}, False),
        ("UtilisationDrop", {"run": "r2"}, False),
        ("MfuDrop", {"run": "r2"}, True),
    ],
    "several runs at once": [
        ("ObjectiveBurn#cluster", {}, False),
        # Runs of other owners may be among them, who would not be told.
        ("ObjectiveBurn#fast", {"run": "r1"}, False),
        ("ObjectiveBurn#fast", {"run": "r2"}, False),
        ("UtilisationDrop", {"run": "r3"}, False),
        ("RunStalled", {"run": "r4"}, False),
        ("GpuLost#lost", {**N0, "gpu": "G0"}, False),
    ],
    "no aggregator": [
        ("AggregatorDown", {"instance": "a:9471", "job": "goodput-aggregator"}, False),
        ("TelemetryMissing#ranks", {"run": "r1", "missing": "reports"}, True),
        ("RunStalled", {"run": "r1"}, True),
        ("ObjectiveBurn#cluster", {}, True),
        ("PushFailing#failing", N0, True),
        ("PushFailing#dropping", N0, True),
        ("AgentDown", {"instance": "n1:9470", "job": "goodput-node"}, False),
        ("GpuXid#critical", {**N0, "gpu": "G0"}, False),
    ],
    "one of two aggregators, and another cluster's only one": [
        ("AggregatorDown", {"cluster": "a", "instance": "a1:9471", "severity": "warning"}, False),
        ("RunStalled", {"cluster": "a", "run": "r1"}, False),
        ("PushFailing#failing", {"cluster": "a", **N0}, False),
        ("AggregatorDown", {"cluster": "b", "instance": "b0:9471"}, False),
        ("RunStalled", {"cluster": "b", "run": "r1"}, True),
        ("PushFailing#failing", {"cluster": "b", **N0}, True),
        ("ObjectiveBurn#cluster", {"cluster": "c"}, False),
        ("ObjectiveBurn#fast", {"cluster": "d", "run": "r1"}, False),
        ("RunStalled", {"cluster": "e", "run": "r1"}, False),
        ("LoaderStarved", {"cluster": "e", "run": "r1"}, True),
        ("LoaderStarved", {"cluster": "f", "run": "r1"}, False),
        ("AgentDown", {"cluster": "g", **N0}, False),
        ("HostDegraded#disk", {"cluster": "g", **N0}, True),
        ("HostDegraded#disk", {"cluster": "h", **N0}, False),
    ],
    "no agent and no report at all": [
        ("AgentDown", {"severity": "critical", "level": "cluster", "agents": "all"}, False),
        ("AgentDown", N0, True),
        ("AgentDown", {"cluster": "b", **N0}, False),
        ("TelemetryMissing#all", {}, False),
        ("TelemetryMissing#ranks", {"run": "r1", "missing": "reports"}, True),
        ("PushFailing#failing", N0, True),
        ("RunStalled", {"run": "r2"}, False),
    ],
    "a node without an agent": [
        ("AgentDown", {**N0, "job": "goodput-node"}, False),
        ("GpuThrottled", {**N0, "gpu": "G0"}, True),
        ("HostDegraded#disk", N0, True),
        ("HostDegraded#disk", N1, False),
        ("StragglerRank", {"run": "r1", "rank": "3", "host": "n0"}, False),
        ("PushFailing#failing", N1, False),
        ("PushFailing#dropping", N1, True),
    ],
}


class Shipped(Alertmanager):
    """An Alertmanager with the shipped configuration, except for a shorter group_wait."""

    def __init__(self, directory):
        super().__init__(directory, "http://127.0.0.1:1/")
        text = (RULES / "alertmanager.yml").read_text()
        self._config = directory / "shipped.yml"
        self._config.write_text(re.sub(r"group_wait: \d+s", "group_wait: 1s", text))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_wider_alert_inhibits_narrower_but_no_cause(scenario, tmp_path):
    require("prometheus-alertmanager")
    expected = {}
    for name, labels, silenced in SCENARIOS[scenario]:
        full = {"alertname": f"Goodput{name.partition('#')[0]}", **LABELS[f"Goodput{name}"], **labels}
        expected[tuple(sorted(full.items()))] = silenced
    with Shipped(tmp_path) as alertmanager:
        body = [{"labels": dict(labels)} for labels in expected]
        assert alertmanager.http.post("/api/v2/alerts", json=body).status_code == 200

        def inhibited():
            found = {tuple(sorted(one["labels"].items())): one["status"] for one in alertmanager.alerts()}
            if set(found) != set(expected) or any(
                status["state"] == "unprocessed" for status in found.values()
            ):
                return None
            return {labels: bool(status["inhibitedBy"]) for labels, status in found.items()}

        # A request may be answered before the inhibitor has read the last alert.
        routed = wait_until(inhibited, 60, "every alert to be routed")
        deadline = time.monotonic() + 10
        while routed != expected and time.monotonic() < deadline:
            time.sleep(0.05)
            routed = inhibited()
        assert routed == expected


def message_of(alerts: list[dict], status: str = "firing") -> tuple[str, str]:
    """Title and text, as Alertmanager renders them for a receiver."""
    require("amtool")
    first = alerts[0]["labels"]
    common = {
        name: text for name, text in first.items() if all(one["labels"].get(name) == text for one in alerts)
    }
    data = {"status": status, "alerts": [{"status": status, **one} for one in alerts], "commonLabels": common}
    command = ["amtool", "template", "render", f"--template.glob={RULES / 'messages.tmpl'}"]
    command += ["--template.text", '{{ template "goodput.title" . }}|{{ template "goodput.text" . }}']
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(data, file)
        file.flush()
        command += [f"--template.data={file.name}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    title, _, text = done.stdout.strip().partition("|")
    return title, text


def test_message_has_count_examples_and_links():
    labels = {"alertname": "GoodputFilesystemNotAnswering", "mount": "/lustre", "cluster": "a"}
    alerts = [
        {
            "labels": {**labels, "host": f"n{n}"},
            "annotations": {
                "summary": f"Node n{n}",
                "description": "It hangs.",
                "dashboard_url": "/d/x",
                "runbook_url": "https://r",
            },
        }
        for n in range(600)
    ]
    title, text = message_of(alerts)
    assert title == "GoodputFilesystemNotAnswering, /lustre, cluster a: 600 firing"
    examples = [f"- Node n{n}" for n in range(5)]
    assert text.splitlines() == ["5 of 600:", *examples, "It hangs.", "Board: /d/x", "Runbook: https://r"]
    one = {
        **alerts[0],
        "labels": {"alertname": "GoodputGpuXid", "problem": "critical", "run": "r1", "host": "n0"},
    }
    title, text = message_of([one], "resolved")
    assert title == "Resolved: GoodputGpuXid (critical), run r1, node n0"
    assert text.splitlines() == ["- Node n0", "It hangs.", "Board: /d/x", "Runbook: https://r"]
    # Those that a run uses come first, and the text and the links are of the first.
    for number in (7, 300):
        alerts[number]["annotations"] = {
            "summary": f"Node n{number} (run r{number})",
            "description": "It hangs in a run.",
            "dashboard_url": f"/d/{number}",
            "runbook_url": "https://r",
        }
    _, text = message_of(alerts)
    examples = ["- Node n7 (run r7)", "- Node n300 (run r300)", "- Node n0", "- Node n1", "- Node n2"]
    lines = ["5 of 600, those that a run uses first:", *examples, "It hangs in a run."]
    assert text.splitlines() == [*lines, "Board: /d/7", "Runbook: https://r"]
    labels = {"alertname": "GoodputLinkDown", "problem": "infiniband", "device": "mlx5_3", "port": "1"}
    rail = [
        {**one, "labels": {**labels, "switch": "leaf-3", "host": one["labels"]["host"]}}
        for one in alerts[:32]
    ]
    title, _ = message_of(rail)
    assert title == "GoodputLinkDown (infiniband), mlx5_3 port 1, switch leaf-3: 32 firing"


def test_names_are_no_markup_in_messages():
    """The name of a run comes from any client that may push it; in Slack it must not notify a channel or be a link."""
    run = "<!channel> <https://evil.example>"
    annotations = {"summary": f"Run {run} < 5 % <= 6 %", "description": f"{run} is down."}
    labels = {"alertname": "GoodputRunFailed", "run": run, "cluster": "<@U1>"}
    plain = "< !channel> < https://evil.example>"
    title, text = message_of([{"labels": labels, "annotations": annotations}])
    assert title == f"GoodputRunFailed, run {plain}, cluster < @U1>"
    assert text.splitlines()[:2] == [f"- Run {plain} < 5 % <= 6 %", f"{plain} is down."]
