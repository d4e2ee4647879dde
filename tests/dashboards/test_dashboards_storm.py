"""How many notifications a real Alertmanager with the shipped configuration sends when many nodes have one fault.

Receivers are webhooks of the test, one path for each; only the waits are shorter than shipped.
"""

import re
import time
from collections import Counter

import pytest
import yaml
from support.dashboards.rules_pruned import alert_key, rule_files
from support.servers.servers import RULES, Alertmanager, Webhook, require, wait_until

# By alert, problem and severity.
LABELS = {
    (alert_key(rule["labels"], rule["alert"]), rule["labels"]["severity"]): rule["labels"]
    for name in rule_files()
    for group in yaml.safe_load((RULES / name).read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}


class Storm(Alertmanager):
    """The shipped configuration; its receivers are webhooks, and a group is sent two seconds after its first alert."""

    def __init__(self, directory, webhook: Webhook):
        super().__init__(directory, webhook.url)
        text = (RULES / "alertmanager.yml").read_text()
        config = yaml.safe_load(re.sub(r"group_wait: \d+s", "group_wait: 2s", text))
        for receiver in config["receivers"]:
            receiver["webhook_configs"] = [{"url": f"{webhook.url}{receiver['name']}"}]
        config["templates"] = [str(RULES / "messages.tmpl")]
        self._config = directory / "storm.yml"
        self._config.write_text(yaml.safe_dump(config, sort_keys=False))


def alert(key: str, severity: str, **labels: str) -> dict:
    name = f"Goodput{key}"
    return {"labels": {"alertname": name.partition("#")[0], **LABELS[name, severity], **labels}}


def notifications(tmp_path, alerts: list[dict]) -> Counter:
    """What is sent of these alerts, by receiver, alert and problem: how many messages. Each alert is sent in one."""
    with Webhook() as webhook, Storm(tmp_path, webhook) as alertmanager:
        for start in range(0, len(alerts), 1000):
            body = alerts[start : start + 1000]
            assert alertmanager.http.post("/api/v2/alerts", json=body).status_code == 200
        wait_until(lambda: len(webhook.alerts) >= len(alerts), 60, "every alert to be sent")
        time.sleep(1)  # No more follow.
        assert len(webhook.alerts) == len(alerts)
        found = Counter()
        for message in webhook.messages:
            group = message["commonLabels"]
            found[message["receiver"], alert_key(group, group["alertname"])] += 1
        return found


@pytest.mark.parametrize("nodes", [1, 40, 625])
def test_fault_of_many_nodes_is_one_notification(nodes, tmp_path):
    """As many for 625 nodes as for one: what a person acts on, not how many nodes have it."""
    require("prometheus-alertmanager")
    alerts = []
    for number in range(nodes):
        node = {"instance": f"n{number}:9470", "host": f"n{number}"}
        alerts += [
            *(alert("GpuXid#critical", "critical", **node, gpu=f"G{gpu}", xid="79") for gpu in range(8)),
            alert("HostDegraded#memory", "critical", **node, controller="0"),
            alert("ClocksContradict#unsynchronised", "warning", **node),
            alert("FilesystemNearlyFull", "warning", **node, mount="/", what="space"),
            alert("PushFailing#dropping", "warning", **node, what="thins its rows"),
        ]
    assert notifications(tmp_path, alerts) == {
        ("page", "GoodputGpuXid#critical"): 1,
        ("page", "GoodputHostDegraded#memory"): 1,
        ("ticket", "GoodputClocksContradict#unsynchronised"): 1,
        ("ticket", "GoodputFilesystemNearlyFull"): 1,
        ("ticket", "GoodputPushFailing#dropping"): 1,
    }


def test_what_is_acted_on_apart_is_sent_apart(tmp_path):
    """Two clusters, two mounts, a switch and links without one, two runs; many ranks of one run are one message."""
    require("prometheus-alertmanager")

    def node(number: int, **labels: str) -> dict:
        return {"cluster": "a", "instance": f"n{number}:9470", "host": f"n{number}", **labels}

    alerts = [alert("FilesystemNotAnswering", "critical", **node(n, mount="/lustre")) for n in range(600)]
    alerts += [alert("FilesystemNotAnswering", "critical", **node(n, mount="/home")) for n in range(2)]
    alerts += [alert("FilesystemNotAnswering", "critical", **node(0, mount="/lustre", cluster="b"))]
    for number in range(32):
        switch = {"switch": "leaf-1"} if number < 8 else {}
        alerts.append(alert("LinkDown#infiniband", "critical", **node(number, device="mlx5_0", **switch)))
    alerts += [alert("LinkDown#network", "warning", **node(n, device="eth0")) for n in (40, 41)]
    alerts += [alert("AgentDown", "warning", **node(n, job="goodput-node")) for n in range(700, 740)]
    alerts += [alert("RunStalled", "critical", cluster="a", run=run) for run in ("r1", "r2")]
    for rank in range(20):
        place = {"cluster": "a", "run": "r3", "rank": str(rank), "host": f"n{rank}"}
        alerts.append(alert("StragglerRank", "warning", **place))
    assert notifications(tmp_path, alerts) == {
        ("page", "GoodputFilesystemNotAnswering"): 3,
        ("page", "GoodputLinkDown#infiniband"): 2,
        ("page", "GoodputRunStalled"): 2,
        ("ticket", "GoodputLinkDown#network"): 1,
        ("ticket", "GoodputAgentDown"): 1,
        ("ticket", "GoodputStragglerRank"): 1,
    }
