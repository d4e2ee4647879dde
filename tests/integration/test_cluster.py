"""A live simulated cluster, 32 ranks on 4 nodes: every expression of every panel, rule and alert has data in real servers.

Real node agents, aggregator, Prometheus, VictoriaMetrics and Alertmanager (simulated_cluster.py) watch one run
through its troubles: it is killed and resumes, saves, evaluates, has a straggler and a starved rank, GPUs and links
fail, a driver is stuck, it hangs. Then everything ends, and each expression is evaluated over the whole time in both
servers. What has no data here is listed with its reason; what VictoriaMetrics does otherwise is listed in
docs/victoriametrics.md.
"""

import math
import re
import subprocess
import time
from typing import NamedTuple

import pytest
import yaml
from support.installed import need
from support.integration.simulated_cluster import NODES, RANKS, RUN, Cluster
from support.servers import servers

pytestmark = pytest.mark.alone
INTERVAL, RANGE, STEP_SECONDS = "10s", "60s", 6
# Until hardware has failed; and of work after the hang, so that the time ends with data.
TROUBLE_SECONDS, AFTERWARDS_SECONDS = 13, 10
CULPRIT = {"rank": "5", "host": "n0", "phase": "forward"}

# Panels without data here, by the series that is the reason.
QUIET = {
    "goodput_aggregator_ledger_refused_rows_total": "the ledger takes every value",
    "goodput_driver_implausible_readings_total": "the drivers answer what a device can have",
    "goodput_network_hardware_drops_total": "it comes from an ioctl, which no simulated tree has",
    "goodput_network_hardware_errors_total": "the same",
    "goodput_network_ecn_marked_packets_total": "the same",
    "goodput_gpu_nvlink_bit_error_ratio": "the GPUs are older than NVLink 5",
    "goodput_gpu_fabric_problem": "the fabric has none",
    "goodput_gpu_nvlink_link_errors_total": "no single link has errors",
    "goodput_gpu_dcgm_field": "no field is named",
    "goodput_communication_bus_min_bytes_per_second": "no rank has NCCL's profiler plugin",
    **{
        f"goodput_nvswitch_{name}": "NVML knows no switches"
        for name in (
            *(
                "temperature_celsius",
                "temperature_limit_celsius",
                "power_watts",
                "last_sxid",
                "reset_required",
            ),
            "link_errors_total",
        )
    },
    **{
        f"goodput_cpu_{name}": "NVML knows no CPUs"
        for name in (
            *("activity_ratio", "temperature_celsius", "temperature_limit_celsius", "power_watts"),
            "power_limit_watts",
        )
    },
    "goodput_gpu_fan_speed_ratio": "the GPUs have no fans of their own",
    "goodput_gpu_c2c_links": "the GPUs are on PCIe",
    "goodput_gpu_c2c_errors_total": "the same",
    "goodput_gpu_xgmi_links": "no GPU is AMD's",
    "goodput_network_pause_frames_total": "the same",
    "goodput_network_allowance_exceeded_total": "the same",
    "goodput_node_ras_queries_total": "no agent asks NCCL's RAS",
    "goodput_node_stacks_total": "no stacks are requested, since the ranks' pids are simulated",
    "goodput_aggregator_clamped_total": "the clocks agree",
    "goodput_role_gpu_seconds": "the run has one role",
    "goodput_health_events_dropped_total": "few events wait",
    "goodput_node_rows_thinned_total": "the aggregator is there",
    "goodput_node_events_dropped_total": "the same",
    "goodput_node_reports_refused_total": "the same",
    "goodput_node_token_reload_errors_total": "the agents have no token file",
    "goodput_node_reload_failing": "the same",
    "goodput_aggregator_certificate_expiry_timestamp_seconds": "there is no TLS",
    "goodput_aggregator_memory_limit_bytes": "the aggregator has no bound of memory",
    "goodput_aggregator_token_refusals_total": "no push exceeds what its token may",
    "goodput_node_clock_offset_seconds": "the agents' token is for some runs, which may name any node",
    "goodput_node_otlp_exports_total": "nothing is exported over OTLP",
    "goodput_node_otlp_points_total": "the same",
    "goodput_node_otlp_accepted_age_seconds": "the same",
    "goodput_aggregator_otlp_exports_total": "the same",
    "goodput_aggregator_otlp_points_total": "the same",
    "goodput_aggregator_stream_connected": "the aggregator is the only one, without a stream",
    "goodput_aggregator_stream_messages_total": "the same",
    "goodput_aggregator_stream_read_total": "the same",
    "goodput_aggregator_stream_pending_messages": "the same",
    "goodput_aggregator_stream_delay_seconds": "the same",
    "goodput_aggregator_partitions": "the same",
    "goodput_aggregator_partitions_unserved": "the same",
    "goodput_aggregator_partition_takeovers_total": "the same",
    "goodput_host_clock_error_seconds": "the clock is read of a live machine alone, and the nodes are trees",
    "goodput_host_clock_correction_seconds": "the same",
    "goodput_host_nvme_wear_ratio": "a device is asked for its health, and the nodes are trees",
    "goodput_host_nvme_spare_ratio": "the same",
    "goodput_host_nvme_media_errors_total": "the same",
    "goodput_textfile_refused": "the agents read no text files",
    "goodput_textfile_modified_timestamp_seconds": "the same",
    "goodput_infiniband_saturated": "no narrow counter is at its maximum",
    "goodput_infiniband_saturated_counters": "the same",
    "goodput_probe_flops_per_second": "no node was probed",
    "goodput_probe_bytes_per_second": "the same",
    "goodput_probe_files_per_second": "the same",
    "goodput_probe_age_seconds": "the same",
    "goodput_deep_look_h2d_bytes_per_second": "the deep looks here have no copies",
    "goodput_deep_look_h2d_reached_ratio": "the same",
    "goodput_nccl_calls_total": "no rank uses NCCL",
    "goodput_nccl_bytes_total": "the same",
    "goodput_nccl_device_seconds_total": "the same",
    "goodput_nccl_network_bytes_total": "the same",
    "goodput_nccl_network_wait_seconds_total": "the same",
    "goodput_nccl_dropped_total": "the same",
    "goodput_hang_collective_seconds": "the simulated ranks report no calls",
    "goodput_hang_link_timestamp_seconds": "the same",
    "goodput_straggler_slow_issue_seconds": "no rank's calls are slow to return",
    "goodput_straggler_slow_link_bytes_per_second": "the simulated ranks have no sockets",
    "goodput_rank_missing_seconds": "every rank reports",
    "goodput_node_page_directory_problem": "no other user may write to the folders of pages",
}
# The same, by chance.
SOMETIMES = {
    "goodput_node_stack_bursts_total": "a rank is in no phase for long enough",
    "goodput_node_stack_bursts_cpu_seconds_total": "the same",
    "goodput_straggler_stage_slowness_ratio": "a stage is slow in few of the windows",
    "goodput_cause_gain_bound_ratio": "the run is replayed now and then, once it has made 20 steps",
    "goodput_run_event_timestamp_seconds": "the run's story is built every five minutes",
    "goodput_aggregator_health_dropped_total": "an event is of no run of the token's only between the attempts",
}
# Annotations that mark nothing here, and records that are of no run here.
UNMARKED = {
    "run:no_alert:bool": "each run is large and old enough for alerts",
    "run:no_page:bool": "the same",
    "goodput / Run: Slower": "its steps take equally long throughout",
    "goodput / Run: Faster": "the same",
}
# Selectors of alerts without series here.
ABSENT = {
    'goodput_gpu_info{parent!=""}': "no GPU is cut into MIG instances",
    'gpu:xid_errors:unresolved{class="link_fatal"}': "no NVLink error has a sub-code",
    "run:no_alert:bool": "each run is large and old enough for alerts",
    "run:no_page:bool": "the same",
    "goodput_network_allowance_exceeded_total": "as above",
    'goodput_network_pause_seconds_total{direction="receive"}': "as above",
    'goodput_filesystem_info{fstype=~"squashfs|erofs|iso9660|(fuse\\\\.)?cvmfs.*"}': "no image is mounted",
    "goodput_node_clock_offset_seconds": "as above",
    'goodput_run_info{status=~"failed|unobserved"}': "the run that dies is restarted at once",
    'goodput_run_info{status="failed"}': "the same",
    'up{job="goodput-node",cluster!=""}': "there is one cluster, without a name",
    'up{job="goodput-aggregator",cluster!=""}': "the same",
    "goodput_node_certificate_expiry_timestamp_seconds": "there is no TLS",
    "goodput_aggregator_certificate_expiry_timestamp_seconds": "the same",
    "goodput_aggregator_stream_connected": "the aggregator is the only one, without a stream",
    "goodput_aggregator_stream_delay_seconds": "the same",
    "goodput_aggregator_partitions_unserved": "the same",
    "goodput_host_clock_synchronised": "the clock is read of a live machine alone, and the nodes are trees",
    'goodput_host_clock_error_seconds{kind="maximum"}': "the same",
    'goodput_host_nvme_warning{warning!="temperature"}': "a device is asked for its health, and the nodes are trees",
}
# Where the two languages differ in values (docs/victoriametrics.md): growth of counters, and whom of equals topk takes.
OTHERWISE = re.compile(r"\b(rate|deriv|increase|changes|resets|topk|bottomk|timestamp)\b")
DOCUMENT = servers.REPOSITORY / "docs" / "victoriametrics.md"


class Seen(NamedTuple):
    """The cluster at its end: all samples lie between the two times."""

    cluster: Cluster
    start: int
    end: int
    groups: list[dict]  # of Alertmanager, while the run hung
    rules: list[dict]
    targets: list[dict]

    def ask(self, server: servers.Prometheus, expr: str) -> dict:
        return server.over(expr, self.start, self.end, STEP_SECONDS)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    servers.require("prometheus", "prometheus-alertmanager", "victoria-metrics", "gcc")
    need("pynvml")
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        prometheus = cluster.prometheus
        cluster.train()
        prometheus.wait_for("goodput_checkpoint_age_seconds > 1", 60)
        cluster.die()
        cluster.train()
        prometheus.wait_for('goodput_restarts == 1 and on (run) goodput_ranks{kind="alive"} == 32', 60)
        misbehave(cluster, TROUBLE_SECONDS)
        cluster.hang()
        prometheus.wait_for("goodput_hang_culprit_seconds", 60)
        known = time.monotonic()
        cluster.webhook.wait_for("GoodputRunStalled", 60)
        groups = servers.wait_until(lambda: settled(cluster.alertmanager.groups()), 60, "routed alerts")
        rules, targets = prometheus.rules(), prometheus.targets()
        # A question each STEP_SECONDS has to meet it.
        time.sleep(max(0.0, known + STEP_SECONDS + 1 - time.monotonic()))
        cluster.go_on()
        prometheus.wait_for("max(goodput_progress_age_seconds) < 1", 30)
        cluster.spoil_tokens()
        misbehave(cluster, AFTERWARDS_SECONDS)
        prometheus.wait_for("goodput_checkpoint_interval_seconds", 30)
        yield Seen(cluster, int(cluster.began), cluster.still(), groups, rules, targets)


def misbehave(cluster: Cluster, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        cluster.misbehave()
        time.sleep(1)


def settled(groups: list[dict]) -> list[dict] | None:
    """The groups, once the run's hang is in one of them and every alert has been routed."""
    alerts = [alert for group in groups for alert in group["alerts"]]
    is_routed = all(one["status"]["state"] != "unprocessed" for one in alerts)
    stalled = any(one["labels"]["alertname"] == "GoodputRunStalled" for one in alerts)
    return groups if stalled and is_routed else None


def expressions() -> list[servers.Expression]:
    found = servers.expressions(run=RUN, interval=INTERVAL, span=RANGE)
    unknown = {one.name for one in found if re.search(r"\$[a-z_{]", one.text)}
    assert not unknown, "variables without a value"
    return found


def has_data(answer: dict) -> bool:
    return any(math.isfinite(value) for values in answer.values() for value in values.values())


# -- Prometheus


def test_cluster_has_its_declared_size(seen):
    def most(expr: str) -> float:
        (values,) = seen.ask(seen.cluster.prometheus, expr).values()
        return max(values.values())

    assert most("count(goodput_rank_alive{run!='stranger'} == 1)") == RANKS == 32
    assert most("count(goodput_node_info)") == NODES == 4
    assert most("count(count by (host) (goodput_node_info))") == NODES
    assert most("count(goodput_gpu_up == 1)") == RANKS
    assert most("count(group by (gpu, rank) (goodput_gpu_rank_info))") >= RANKS


def test_every_panel_and_every_recording_rule_has_data(seen):
    empty = {
        one.name: one.text
        for one in expressions()
        if one.kind != "alert" and not has_data(seen.ask(seen.cluster.prometheus, one.text))
    }
    unexplained = {
        name: text for name, text in empty.items() if not servers.series_of(text) & (QUIET | SOMETIMES).keys()
    }
    assert unexplained.keys() <= UNMARKED.keys()
    explained = set().union(*(servers.series_of(text) for text in empty.values()))
    assert QUIET.keys() <= explained, "there is data by now: strike it from the list"


def test_every_alert_evaluates_on_existing_series(seen):
    prometheus, empty = seen.cluster.prometheus, set()
    alerts = [one for one in expressions() if one.kind == "alert"]
    assert len(alerts) > 40
    for one in alerts:
        seen.ask(prometheus, one.text)
        for selector in selectors(one.text):
            requested = {"match[]": selector, "start": seen.start, "end": seen.end}
            if not prometheus.http.get("/api/v1/series", params=requested).json()["data"]:
                empty.add(selector)
    assert empty == ABSENT.keys()


def selectors(expr: str) -> set[str]:
    """The vector selectors of an expression, without ranges."""
    names = servers.series_of(expr)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", expr)
    found = re.finditer(r"(?<![\w.:\"])([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?", bare)
    return {one[1] + " ".join((one[2] or "").split()) for one in found if one[1] in names}


def test_all_rules_are_healthy_and_all_servers_answer(seen):
    assert [(rule["name"], rule["lastError"]) for rule in seen.rules if rule["health"] != "ok"] == []
    assert len(seen.targets) == NODES + 1
    # Four agents that begin beside each other may be late once.
    assert [target["lastError"] for target in seen.targets if target["health"] == "down"] == []


# -- Alertmanager


def test_hang_is_one_message_with_culprit(seen):
    (group,) = groups_of(seen, "GoodputRunStalled")
    assert group["labels"] == {"alertname": "GoodputRunStalled", "run": RUN}
    assert group["receiver"]["name"] == "page"
    (alert,) = group["alerts"]
    assert alert["status"]["inhibitedBy"] == []
    sent = seen.cluster.webhook.wait_for("GoodputRunStalled", 1)
    reported = "rank {rank} on {host} is in {phase}".format(**CULPRIT)
    assert reported in sent["annotations"]["summary"]


def test_hang_inhibits_minor_alerts_but_no_cause(seen):
    alerts = [alert for group in seen.groups for alert in group["alerts"]]
    of_run = [one for one in alerts if one["labels"].get("run") == RUN]
    for one in of_run:
        is_slight = one["labels"]["severity"] != "critical"
        if one["labels"]["alertname"] != "GoodputObjectiveBurn":
            assert is_silenced(one) == is_slight, one["labels"]
    assert "GoodputRunStalled" in {one["labels"]["alertname"] for one in of_run if not is_silenced(one)}
    # Alerts on hardware have no run; any of them may be the cause.
    stalled = {one["fingerprint"] for one in of_run if one["labels"]["alertname"] == "GoodputRunStalled"}
    of_nodes = [one for one in alerts if "run" not in one["labels"]]
    assert {"GoodputGpuXid", "GoodputLinkDown", "GoodputGpuThrottled", "GoodputLinkDegraded"} <= {
        one["labels"]["alertname"] for one in of_nodes
    }
    assert not any(stalled & set(one["status"]["inhibitedBy"]) for one in of_nodes)


def test_messages_are_grouped_by_cause(seen):
    """One message for each alert and problem, whichever nodes have it."""
    (group,) = (one for one in groups_of(seen, "GoodputGpuXid") if one["receiver"]["name"] == "page")
    assert group["labels"] == {"alertname": "GoodputGpuXid", "problem": "critical"}
    assert {alert["labels"]["host"] for alert in group["alerts"]} == {"n1"}
    assert not any({"run", "rank"} & alert["labels"].keys() for alert in group["alerts"])
    sent = {
        one["annotations"]["summary"].partition("(run ")[2]
        for one in seen.cluster.webhook.alerts
        if one["labels"]["alertname"] == "GoodputGpuXid" and one["labels"]["severity"] == "critical"
    }
    assert {f"{RUN}, rank {rank})" for rank in (10, 13)} <= sent
    (link,) = groups_of(seen, "GoodputLinkDown")
    assert link["labels"] == {"alertname": "GoodputLinkDown", "problem": "infiniband"}
    assert link["alerts"][0]["labels"]["instance"] == seen.cluster.agents[3].removeprefix("http://")


def groups_of(seen: Seen, alert: str) -> list[dict]:
    return [group for group in seen.groups if group["labels"]["alertname"] == alert]


def is_silenced(alert: dict) -> bool:
    return bool(alert["status"]["inhibitedBy"])


# -- VictoriaMetrics


def test_victoriametrics_differs_only_where_documented(seen):
    listed = set(re.findall(r"^\| `(Goodput\w+)`", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE))
    other = {}
    for one in expressions():
        here = seen.ask(seen.cluster.prometheus, one.text)
        there = seen.ask(seen.cluster.victoria, one.text)
        if has_data(here) != has_data(there):
            other[one.name] = f"data: {has_data(here)}, there {has_data(there)}"
        elif one.kind == "alert" and here.keys() != there.keys():
            other[one.name] = f"fires for {len(here)}, there for {len(there)}"
        elif not OTHERWISE.search(one.text) and not are_same(here, there):
            other[one.name] = "values"
    assert {name: what for name, what in other.items() if name not in listed} == {}
    assert listed <= other.keys(), "no difference any more: strike it from docs/victoriametrics.md"


def are_same(here: dict, there: dict) -> bool:
    """In the digits that VictoriaMetrics keeps, and but for names of series, which `or` of equals gives otherwise."""
    here, there = unnamed(here), unnamed(there)
    return here.keys() == there.keys() and all(
        math.isclose(value, there[at], rel_tol=1e-8, abs_tol=1e-8) for at, value in here.items()
    )


def unnamed(answer: dict) -> dict[tuple, float]:
    return {
        (frozenset(pair for pair in labels if pair[0] != "__name__"), at): value
        for labels, values in answer.items()
        for at, value in values.items()
        if not math.isnan(value)
    }


def test_vmalert_loads_the_rules():
    servers.require("vmalert")
    names = yaml.safe_load((servers.RULES / "prometheus.yml").read_text())["rule_files"]
    command = ["vmalert", "-dryRun", *(f"-rule={servers.RULES / name}" for name in names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
