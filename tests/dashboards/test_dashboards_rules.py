"""Recording rules, alerts and their runbooks: valid by promtool, tested by promtool, and complete."""

import json
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from dashboards import alert_links, fleet
from dashboards.panels import RED
from dashboards.states import HANGING, STATUS_MEANINGS
from support.dashboards.rules_pruned import (
    alert_key,
    alerts_in,
    each_pruned,
    keys_in_case,
    pruned,
    read,
    rule_files,
)
from support.servers.servers import REPOSITORY, RULES, require, series_of

from goodput.metrics import CATALOGUE
from goodput_exporters.events.event_log import REMEDIES
from goodput_exporters.gpu.nvidia.xid import XIDS

FILES = {name: yaml.safe_load((RULES / name).read_text()) for name in rule_files()}
# Every rule of an alert, and by name and problem the first: an alert may have one for each severity.
EVERY = [
    {**rule, "file": name}
    for name, file in FILES.items()
    for group in file["groups"]
    for rule in group["rules"]
    if "alert" in rule
]
for _rule in EVERY:
    _rule["key"] = alert_key(_rule["labels"], _rule["alert"])
ALERTS = {rule["key"]: rule for rule in reversed(EVERY)}
NAMES = {rule["alert"] for rule in EVERY}
every_rule = pytest.mark.parametrize(
    "rule", [pytest.param(rule, id=f"{rule['key']}-{rule['labels']['severity']}") for rule in EVERY]
)
RECORDED = {
    rule["record"]: rule
    for file in FILES.values()
    for group in file["groups"]
    for rule in group["rules"]
    if "record" in rule
}
RECORDS = list(RECORDED)
RULE_TESTS = sorted((RULES / "tests").glob("*.yml"))
RUNBOOKS = REPOSITORY / "deploy" / "runbooks"
RUNBOOK_URL = "https://github.com/goodput-telemetry/goodput/blob/main/deploy/runbooks/"
# Clauses of the alerts and of the records that they build on, each with the alert that shows it: each keeps one innocent
# case silent or one guilty case loud.
CLAUSES = {
    "utilisation_drop_test.yml": {
        "and run:steady_goodput:ratio_2m < 0.7 * run:steady_goodput:ratio_baseline": "GoodputUtilisationDrop",
        "and on (cluster, run) run:expected_to_work:bool": "GoodputUtilisationDrop",
        "and on (cluster, run) run:coverage:ratio_5m >= 0.95": "GoodputUtilisationDrop",
        "unless on (cluster, run) goodput_rank_last_report_age_seconds > 60": "GoodputUtilisationDrop",
    },
    "utilisation_drop_hours_test.yml": {
        "and on (cluster, run) max by (cluster, run) (changes(goodput_restarts[1h])) >= 2": "GoodputUtilisationDrop"
    },
    "run_stalled_test.yml": {
        "and on (cluster, run) (goodput_rank_last_report_age_seconds <= 60 or goodput_rank_alive == 1)": "GoodputRunStalled",
        "or goodput_rank_alive == 1": "GoodputRunStalled",
        "unless on (cluster, run) rank:steps:rate_1m > 0": "GoodputRunStalled",
        "unless on (cluster, run) run:planned_pause:bool == 1": "GoodputRunStalled",
    },
    "objective_burn_test.yml": {
        "and on (cluster, run) run:goodput_burn:ratio_5m > on (cluster, run) clamp_max(0.6 / (1 - run:goodput:objective), 6)\n"
        "and on (cluster, run) run:goodput_burn:ratio_2m > on (cluster, run) clamp_max(0.6 / (1 - run:goodput:objective), 6)\n": (
            "GoodputObjectiveBurn#fast"
        ),
        "and on (cluster, run) run:steady_gpu_seconds:delta_1h >= on (cluster, run) 1800 * max by (cluster, run) (goodput_run_gpus)": (
            "GoodputObjectiveBurn#fast"
        ),
        "unless on (cluster, run) run:no_page:bool": "GoodputObjectiveBurn#fast",
        "and on (cluster, run) run:coverage:ratio_5m >= 0.95": "GoodputObjectiveBurn#fast",
        "unless on (cluster, run) goodput_rank_last_report_age_seconds > 60": "GoodputObjectiveBurn#fast",
        ">= 2": "GoodputObjectiveBurn#cluster",
    },
    "objective_burn_hours_test.yml": {
        "and on (cluster, run) run:goodput_burn:ratio_30m > on (cluster, run) clamp_max(0.6 / (1 - run:goodput:objective), 3)": (
            "GoodputObjectiveBurn#slow"
        ),
        "and on (cluster, run) run:steady_gpu_seconds:delta_6h >= on (cluster, run) 10800 * max by (cluster, run) (goodput_run_gpus)": (
            "GoodputObjectiveBurn#slow"
        ),
        "and on (cluster, run) run:coverage:ratio_5m >= 0.95": "GoodputObjectiveBurn#slow",
        "unless on (cluster, run) goodput_rank_last_report_age_seconds > 60": "GoodputObjectiveBurn#slow",
    },
    "run_causes_test.yml": {
        'and on (cluster, run) goodput_run_info{status="running"} == 1': "GoodputLoaderStarved",
        "and on (cluster, run) run:coverage:ratio_5m >= 0.95": "GoodputLoaderStarved",
        "unless on (cluster, run) goodput_rank_last_report_age_seconds > 60": "GoodputLoaderStarved",
        'and on (cluster, run) run:idle:share_5m{state="straggler"} > 0.05': "GoodputStragglerRank",
        "and on (cluster, run, rank) goodput_straggler_culprit_slowness_ratio": "GoodputStragglerRank",
        'unless on (cluster, run) (\n  goodput_rank_phase_age_seconds{phase=~"restore|compile|checkpoint|evaluation|rollout"} '
        "> 120 < 1800\n)": "GoodputStragglerRank",
        "and run:steady_mfu:ratio_5m < 0.8 * run:steady_mfu:ratio_baseline": "GoodputMfuDrop",
        '>= 5 * max by (cluster, run) (goodput_ranks{kind="alive"})': "GoodputMfuDrop",
        "sum by (cluster, run, rank) (rate(goodput_deep_look_cost_seconds_total[15m]))\n  or ": "GoodputOverBudget#sdk",
    },
    "telemetry_missing_test.yml": {
        "or label_replace(\n  count by (cluster) (goodput_aggregator_stream_connected) unless on (cluster) "
        'goodput_aggregator_partitions_unserved,\n  "served", "none", "", ""\n)': (
            "GoodputTelemetryMissing#unserved"
        ),
        "unless on (cluster) goodput_aggregator_partitions_unserved": "GoodputTelemetryMissing#unserved",
        'or label_replace(\n  max by (cluster, instance) (goodput_aggregator_stream_connected) == 0, "why", "stream", "", ""\n)': (
            "GoodputTelemetryMissing#late"
        ),
    },
    "run_ended_test.yml": {
        "unless on (cluster, run) goodput_rank_alive == 1": "GoodputRunFailed",
        "unless on (cluster, run) run:no_page:bool": "GoodputRunFailed",
        'or max by (cluster, run) (goodput_ranks{kind="expected"} or goodput_run_reported_gpus)': "GoodputRunFailed",
    },
    "run_sizes_test.yml": {
        "unless on (cluster, run) run:no_page:bool": "GoodputRunStalled",
        "unless on (cluster, run) run:no_alert:bool": "GoodputRunStalled",
        '{state!~"queue|down|unobserved"}': "GoodputRunStalled",
    },
    "run_checkpoint_test.yml": {
        "and on (cluster, run) run:expected_to_work:bool": "GoodputRestartLoop",
        "and on (cluster, run, attempt) time() - goodput_restart_timestamp_seconds < 3600": "GoodputLostWork",
        "and max by (cluster, run) (goodput_checkpoint_last_save_seconds) > 60": "GoodputCheckpointLate#slow",
        " > 600": "GoodputCheckpointLate#slow",
        'and on (cluster, run) goodput_run_info{status="running"} == 1': "GoodputCheckpointLate#old",
        "or max by (cluster, run) (goodput_checkpoint_best_interval_seconds)": "GoodputCheckpointLate#old",
        "unless on (cluster, run) goodput_rank_last_report_age_seconds > 60": "GoodputCheckpointLate#old",
        "unless on (cluster, run) run:planned_pause:bool == 1": "GoodputCheckpointLate#old",
    },
    "stack_test.yml": {
        'or absent(up{job="goodput-aggregator"})': "GoodputAggregatorDown",
        'or on (cluster, instance) up{job="goodput-node"} == 0': "GoodputAgentDown",
        "or node_host:seen:timestamp > time() - 2592000": "GoodputAgentDown",
        'unless on (cluster, instance) sum by (cluster, instance) (rate(goodput_node_pushes_total{outcome="accepted"}[5m])) > 0': (
            "GoodputPushFailing#failing"
        ),
        "- goodput_aggregator_clamped_total offset 1h": "GoodputClocksContradict#contradict",
        "or label_replace(\n  max by (cluster, instance) (abs(goodput_aggregator_clock_step_seconds)) > 5,\n"
        '  "what", "seconds is how far the aggregator\'s own was set", "", ""\n)': "GoodputClocksContradict#skew",
        **{
            f"or label_replace(\n    max by (cluster, instance) (increase({series}[15m])) > 0,\n"
            f'    "what", "{what}", "", ""\n  )': "GoodputPushFailing#dropping"
            for series, what in {
                "goodput_health_events_dropped_total": "drops health events",
                "goodput_node_events_dropped_total": "drops rank events",
                "goodput_node_reports_refused_total": "refuses reports of ranks",
            }.items()
        },
    },
}


# The same for alerts on hardware.
CLAUSES |= {
    "hardware_gpu_test.yml": {
        "and on (cluster, instance) goodput_driver_up == 1": "GoodputGpuLost#lost",
        'unless on (cluster, instance) goodput_gpus{kind="unknown"} > 0': "GoodputGpuLost#lost",
        'unless on (cluster, instance, gpu) goodput_gpu_info{parent!=""}': "GoodputGpuLost#lost",
        "unless on (cluster, instance) goodput_driver_up == 0": "GoodputGpuLost#not_seen",
        "|lost": "GoodputGpuLost#not_seen",
        "|unknown": "GoodputGpuLost#not_seen",
        '{reason!="memory"}': "GoodputGpuDriverDown#restarting",
        "(goodput_gpu_xid_errors_total unless goodput_gpu_xid_errors_total offset 15m)\n  or ": "GoodputGpuXid#critical",
        "or increase(goodput_gpu_xid_errors_total[15m]) > 0": "GoodputGpuXid#critical",
        "or max by (cluster, instance, gpu, xid, class) (goodput_gpu_xid_errors_total > 0)\n": "GoodputGpuXid#critical",
        'unless on (cluster, instance, gpu) goodput_gpu_recovery_action{action="none"} == 1': "GoodputGpuXid#critical",
        'or goodput_gpu_pages_retired{kind="pending"} == 1': "GoodputGpuMemory#reset_pending",
        "|hw_thermal": "GoodputGpuThrottled",
        'and on (cluster, instance, gpu) avg_over_time(goodput_gpu_activity_ratio{unit="utilization"}[5m]) > 0.5': "GoodputGpuPcieDegraded",
    },
    "hardware_network_test.yml": {
        "and on (cluster, instance, device, port) infiniband_port:up:timestamp": "GoodputLinkDown#infiniband",
        "or infiniband_port:up:timestamp > time() - 86400": "GoodputLinkDown#infiniband",
        "and on (cluster, instance, device) network_device:up:timestamp": "GoodputLinkDown#network",
        "or network_device:up:timestamp > time() - 86400": "GoodputLinkDown#network",
        "|veth": "GoodputLinkDown#network",
        'or increase(goodput_infiniband_errors_total{kind="link_downed"}[30m]) >= 2': "GoodputLinkDegraded#flapping",
        "and on (cluster, instance, device, port) goodput_infiniband_up == 1": "GoodputLinkDegraded#rate_or_errors",
        '{direction="receive"}': "GoodputNetworkCongestion#congestion",
        "\n  and on (cluster, instance) node_run:seen:timestamp > time() - 900": "GoodputNetworkCongestion#backlog",
    },
    "hardware_host_test.yml": {
        "and on (cluster, instance) node_run:seen:timestamp > time() - 900": "GoodputHostDegraded#pressure",
        '{kind="package"}': "GoodputHostDegraded#heat",
        "\n  and on (cluster, instance) node_run:seen:timestamp > time() - 900": "GoodputHostDegraded#heat",
        "and on (cluster, instance, mount) filesystem:writable:timestamp": "GoodputHostDegraded#storage",
        "or filesystem:writable:timestamp > time() - 86400": "GoodputHostDegraded#storage",
        '{kind="maximum"}': "GoodputClocksContradict#unsynchronised",
        "and on (cluster, instance) goodput_host_clock_synchronised == 0": "GoodputClocksContradict#unsynchronised",
        ">= 0.03": "GoodputFilesystemNearlyFull",
        "squashfs|": "GoodputFilesystemNearlyFull",
    },
}


def promtool(*arguments, cwd=RULES) -> subprocess.CompletedProcess:
    require("promtool")
    return subprocess.run(["promtool", *arguments], cwd=cwd, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("what", [("rules", *FILES), ("config", "prometheus.yml")])
def test_files_are_valid(what):
    done = promtool("check", *what)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alertmanager_configuration_names_existing_alerts():
    require("amtool")
    path = RULES / "alertmanager.yml"
    done = subprocess.run(["amtool", "check-config", str(path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    text = path.read_text()
    assert set(re.findall(r"Goodput\w+", text)) <= NAMES
    problems = {rule["labels"].get("problem") for rule in EVERY}
    named = re.findall(r'problem!?=~?"([\w|]+)"', text)
    assert {problem for some in named for problem in some.split("|")} <= problems


def test_alerts_stay_few():
    """An alert of its own only for what has a runbook of its own; its problems are sections there."""
    assert len(NAMES) < 35


@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.stem)
def test_promtool_cases_pass(path, tmp_path):
    assert read(path)["rule_files"] == [f"../{name}" for name in FILES if f"../{name}" in path.read_text()]
    done = promtool("test", "rules", *map(str, each_pruned(path, tmp_path)))
    assert done.returncode == 0, done.stdout + done.stderr


def with_second_aggregator(path: Path, target: Path) -> Path:
    """The test with every aggregator's series twice, as of a pair that all agents push to."""
    document, added = read(path), 0
    for test in document["tests"]:
        for one in list(test["input_series"]):
            name, _, labels = one["series"].partition("{")
            if getattr(CATALOGUE.get(name), "exposer", "") == "aggregator" and "instance=" not in labels:
                second = f'{name}{{instance="b:9471"{"," if labels else ""}{labels or "}"}'
                test["input_series"].append({**one, "series": second})
                added += 1
    assert added, "no series of an aggregator"
    target.write_text(json.dumps(document))
    return target


# Those that take over 1 s are left to `make fuzz`.
OF_AGGREGATORS = [
    pytest.param(name, marks=[pytest.mark.mutation] * takes_long, id=name)
    for takes_long, names in (
        (False, ("run_stalled", "scrape_intervals", "telemetry_missing")),
        (True, ("objective_burn", "objective_burn_hours", "run_causes", "run_checkpoint", "run_ended")),
        (True, ("utilisation_drop",)),
    )
    for name in names
]


@pytest.mark.parametrize("name", OF_AGGREGATORS)
def test_second_aggregator_of_a_run_changes_no_alert(name, tmp_path):
    path = with_second_aggregator(RULES / "tests" / f"{name}_test.yml", tmp_path / f"{name}_test.yml")
    done = promtool("test", "rules", *map(str, each_pruned(path, tmp_path)))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.mutation
@pytest.mark.parametrize(
    ("file", "clause", "name"),
    [
        pytest.param(file, clause, name, id=f"{clause[:40]}-{name}")
        for file, some in CLAUSES.items()
        for clause, name in some.items()
    ],
)
def test_rule_tests_detect_a_removed_clause(file, clause, name, tmp_path):
    """A clause whose removal no test detects is redundant or untested."""
    changed = []

    def without(rule: dict) -> None:
        key = alert_key(rule["labels"], rule["alert"]) if "alert" in rule else name
        if clause in rule["expr"] and key == name:
            changed.append(rule)
            rule["expr"] = rule["expr"].replace(clause, "")

    path = pruned(RULES / "tests" / file, tmp_path, without, only=name)
    assert changed, "no rule has the clause"
    assert promtool("check", "rules", *read(path)["rule_files"], cwd=tmp_path).returncode == 0
    assert promtool("test", "rules", str(path)).returncode != 0


def seen_in_tests() -> dict[str, set[str]]:
    """What the cases show of each alert: that it fires, resolves (later in the same case), and stays silent in a case.

    For hardware alerts a moment before firing counts as silent: another GPU, port or file system is healthy in each case.
    """
    found: dict[str, set[str]] = {name: set() for name in ALERTS}
    for path in RULE_TESTS:
        for test in read(path)["tests"]:
            for name in alerts_in(test) & set(found):
                found[name] |= _seen(test, name)
    return found


def _seen(test: dict, name: str) -> set[str]:
    """What one case of a file shows of an alert."""
    times: dict[float, bool] = defaultdict(bool)
    alert = name.partition("#")[0]
    for case in test.get("alert_rule_test", []):
        if case["alertname"] == alert:
            fires = bool(case.get("exp_alerts")) and name in keys_in_case(case)
            times[_minutes(case["eval_time"])] |= fires
    for case in test.get("promql_expr_test", []):
        if name in keys_in_case(case):
            times[_minutes(case["eval_time"])] |= any(alert in str(one) for one in case["exp_samples"] or [])
    fired = [at for at, fires in times.items() if fires]
    if not fired:
        return {"stays silent"}
    seen = {"fires"}
    if any(at > min(fired) and not fires for at, fires in times.items()):
        seen.add("resolves")
    if ALERTS[name]["file"] == "alerts_hardware.yml" and min(times) < min(fired):
        seen.add("stays silent")
    return seen


def _minutes(text: str) -> float:
    return sum(
        float(n) * {"h": 60, "m": 1, "s": 1 / 60}[unit] for n, unit in re.findall(r"(\d+)([hms])", text)
    )


@pytest.mark.parametrize("what", ["fires", "resolves", "stays silent"])
def test_every_alert_is_tested(what):
    assert [name for name, seen in seen_in_tests().items() if what not in seen] == []


@every_rule
def test_every_alert_has_a_level(rule):
    """Rank (or GPU), node, run or cluster; the inhibitions compare by it."""
    labels, expr = rule["labels"], rule["expr"]
    allowed = {
        "alerts_runs.yml": {"run", "rank", "cluster"},
        "alerts_hardware.yml": {"rank", "node"},
        "alerts_stack.yml": {"node", "cluster"},
    }
    assert labels["level"] in allowed[rule["file"]]
    if labels["level"] == "run":
        assert "by (cluster, run" in expr or "(cluster, run)" in expr


def test_xid_severities_match_the_agent():
    def numbers(severity: str) -> set[str]:
        return {str(number) for number, one in XIDS.items() if one.severity == severity}

    def named(alert: str) -> set[str]:
        return set(re.search(r'xid[=!]~"([\d|]+)"', ALERTS[alert]["expr"])[1].split("|"))

    assert named("GoodputGpuXid#critical") == numbers("critical")
    assert named("GoodputGpuXid#other") == numbers("critical") | numbers("info")
    # None of the application's is critical, or it would fire in neither place or in both.
    assert {one.severity for one in XIDS.values() if one.kind == "application"} == {"warning"}


def test_critical_xid_alert_says_the_remedy_of_the_agent(tmp_path):
    """Each number, by promtool, which renders the text."""
    critical = [one for one in XIDS.values() if one.severity == "critical"]
    prefix = "The driver reports an error after which the GPU is unusable. First: "
    probe = {
        "alert": "Remedy",
        "expr": "goodput_gpu_xid_errors_total > 0",
        "annotations": {
            "text": ALERTS["GoodputGpuXid#critical"]["annotations"]["description"].partition(". Keep")[0]
        },
    }
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [probe]}]}))
    labels = [{"xid": str(one.number)} for one in critical]
    test = {
        "input_series": [
            {"series": f'goodput_gpu_xid_errors_total{{xid="{one.number}"}}', "values": "1x5"}
            for one in critical
        ],
        "alert_rule_test": [
            {
                "alertname": "Remedy",
                "eval_time": "2m",
                "exp_alerts": [
                    {"exp_labels": own, "exp_annotations": {"text": prefix + REMEDIES[one.action]}}
                    for own, one in zip(labels, critical, strict=True)
                ],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [test]}))
    done = promtool("test", "rules", "test.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@every_rule
def test_alert_has_annotations_and_links(rule):
    name = rule["alert"]
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url"}
    section = f"#{rule['labels']['problem']}" if "problem" in rule["labels"] else ""
    assert rule["annotations"]["runbook_url"] == f"{RUNBOOK_URL}{name}.md{section}"
    variable = {
        "cluster": "",
        "run": "?var-run={{ $labels.run | urlquery }}&",
        "node": "?var-instance={{ $labels.instance | urlquery }}&",
        "rank": "?var-instance={{ $labels.instance | urlquery }}&var-gpu={{ $labels.gpu | urlquery }}&",
    }["run" if name == "GoodputStragglerRank" else rule["labels"]["level"]]
    # Grafana's address is a label of Prometheus; where it sets none, the link is the path alone.
    assert rule["annotations"]["dashboard_url"].startswith("{{ $externalLabels.grafana }}/d/goodput-")
    assert variable in rule["annotations"]["dashboard_url"]
    # An event needs no time to become true; a state does.
    is_event = "xid_errors" in rule["expr"] or "ecc_errors" in rule["expr"]
    assert re.fullmatch("0s" if is_event else "[1-5]m|1[05]m|20m|1h", rule["for"])


@pytest.mark.parametrize("name", [name for name, rule in ALERTS.items() if "hardware" in rule["file"]])
def test_hardware_alert_queries_its_owner_and_joins_the_host(name):
    rule = ALERTS[name]
    assert re.search(
        r"\* on \(cluster, instance\) group_left \(host(, switch)?\) node:host:info\s*$", rule["expr"]
    )
    assert "absent" not in rule["expr"]
    summary = rule["annotations"]["summary"]
    owner = {"rank": "gpu:owner:info", "node": "node:owner:info"}[rule["labels"]["level"]]
    assert "$labels.host" in summary and f"{owner}{{" in summary
    assert "$labels.gpu" in summary or rule["labels"]["level"] == "node"
    assert "$labels.run" not in str(rule) and "$labels.rank" not in str(rule)


def test_runbook_queries_use_existing_series(tmp_path):
    """Indented lines of the diagnosis, each as the expression of a rule."""
    rules = []
    for path in sorted(RUNBOOKS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        diagnoses = re.findall(r"(?ms)^##+ Diagnosis$(.*?)^##+ Mitigation$", text)
        assert len(diagnoses) == text.count("# Diagnosis\n")
        lines = "".join(diagnoses).splitlines()
        found = [line.strip() for line in lines if line.startswith("    ")]
        assert found, path.name
        for query in found:
            unknown = {
                name for name in series_of(query) if name not in CATALOGUE and name not in {*RECORDS, "up"}
            }
            assert not unknown, f"{path.name}: {query}"
        rules += [
            {"record": f"runbook:{path.stem.lower()}:query{at}", "expr": one} for at, one in enumerate(found)
        ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}, width=10_000))
    done = promtool("check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(NAMES))
def test_runbook_has_its_sections(name):
    """The same four for each problem."""
    lines = (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == f"# {name}"
    headings = [line for line in lines[1:] if line.startswith("#")]
    parts = ["Meaning", "Impact", "Diagnosis", "Mitigation"]
    problems = {rule["labels"].get("problem") for rule in EVERY if rule["alert"] == name}
    if problems == {None}:
        assert headings == [f"## {part}" for part in parts]
    else:
        sections = [line for line in headings if line.startswith("## ")]
        assert set(sections) == {f"## {problem}" for problem in problems}
        assert headings == [one for line in sections for one in (line, *(f"### {part}" for part in parts))]


def test_every_runbook_has_an_alert():
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == NAMES


def base_of(names) -> set[str]:
    """The catalogue's series behind these, through recording rules."""
    found, todo = set(), list(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += series_of(RECORDED[name]["expr"]) if name in RECORDED else ()
    return found


# Series that join or suppress an alert; a panel that shows only these does not show the alert.
JOINED = base_of(
    ["gpu:owner:info", "node:owner:info", "run:planned_pause:bool", "run:expected_to_work:bool"]
) | {"goodput_rank_last_report_age_seconds"}
# Their panels show the effect: counters that are left out, an event, a damaged GPU.
SHOWN_BY_EFFECT = {"GoodputCollectorDown#false_zero", "GoodputLinkDown#network", "GoodputGpuNeedsRecovery"}
PANELS = alert_links.panels()


def test_alert_links_lead_to_matching_panels():
    assert set(PANELS) == set(ALERTS)
    for name, (_, panel) in PANELS.items():
        shown = base_of(set().union(*(series_of(target["expr"]) for target in panel["targets"])))
        assert name in SHOWN_BY_EFFECT or (base_of(series_of(ALERTS[name]["expr"])) - JOINED) & shown, name


@pytest.mark.parametrize("path", [*map(RULES.joinpath, FILES), *RULE_TESTS], ids=lambda path: path.stem)
def test_links_are_current(path):
    assert alert_links.linked(path.read_text(), PANELS) == path.read_text(), (
        "python -m dashboards.alert_links"
    )
    for name in set(ALERTS) & {
        f"{name}{section}" for name, section in re.findall(r"runbooks/(\w+)\.md(#\w+)?", path.read_text())
    }:
        assert re.search(rf"[?&]viewPanel={PANELS[name][1]['id']}\D", path.read_text()), name


def test_objective_can_be_set_per_run(tmp_path):
    """With the commented lines of the file."""
    text = (RULES / "recording.yml").read_text()
    begin = text.index("      #   0.95 * group by (cluster, run)")
    lines = text[begin : text.index("      - record: run:goodput:objective")].splitlines()
    written = "\n".join(line.strip().removeprefix("#").strip() for line in lines)
    test = {
        "rule_files": ["rules.yml"],
        "tests": [
            {
                "input_series": [
                    {"series": f'goodput_run_info{{run="{run}",status="running"}}', "values": "1x5"}
                    for run in ("prod-1", "sweep-1", "other")
                ],
                "promql_expr_test": [
                    {
                        "expr": "run:goodput:objective",
                        "eval_time": "3m",
                        "exp_samples": [
                            {"labels": f'run:goodput:objective{{run="{run}"}}', "value": value}
                            for run, value in {"prod-1": 0.95, "sweep-1": 0.6, "other": 0.9}.items()
                        ],
                    }
                ],
            }
        ],
    }
    rules = {"groups": [{"name": "one", "rules": [{"record": "run:goodput:objective", "expr": written}]}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    done = promtool("test", "rules", "test.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", RECORDS)
def test_record_is_named_level_metric_operations(name):
    levels = "cluster|cluster_[a-z]+|run|rank|node_[a-z]+|run_[a-z]+(_[a-z]+)*|gpu|gpu_rank|node|node_run|node_resource|network_device|infiniband_port|filesystem"
    assert re.fullmatch(rf"({levels}):[a-z_]+:[a-z0-9_]+", name)


def test_docs_table_lists_every_alert():
    text = (REPOSITORY / "docs" / "alerts.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| \[([\w: ]+)\]\((\S+)\) \| (\w+) \| (\w+) \| .+ \| (\w+) \| (.+) \|$", text)
    listed = [(name.replace(": ", "#"), severity, level, hold) for name, _, severity, level, hold, _ in rows]
    assert sorted(listed) == sorted(
        (rule["key"], rule["labels"]["severity"], rule["labels"]["level"], rule["for"]) for rule in EVERY
    )
    for name, link, *_ in rows:
        path, _, section = link.partition("#")
        assert f"# {section or name}\n" in (REPOSITORY / "docs" / path).read_text(encoding="utf-8")


def test_a_hanging_run_has_a_status_of_its_own(tmp_path):
    """The boards draw it red, above `running`, in the table and the timeline."""
    info = [
        {"series": f'goodput_run_info{{run="{run}",device="H100",status="running"}}', "values": "1x9"}
        for run in "ab"
    ]
    hang = [
        {"series": f'goodput_hang_seconds{{run="{run}"}}', "values": values}
        for run, values in (("a", "0x9"), ("b", "0x4 60x5"))
    ]
    cases = [
        {"expr": fleet.STATUS, "eval_time": at, "exp_samples": [
            {"labels": '{run="a"}', "value": 1}, {"labels": '{run="b"}', "value": value}]}
        for at, value in (("3m", 1), ("7m", HANGING))
    ]  # fmt: skip
    path = tmp_path / "status_test.yml"
    test = {"interval": "1m", "input_series": info + hang, "promql_expr_test": cases}
    path.write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert STATUS_MEANINGS[HANGING] == ("hangs", RED)
