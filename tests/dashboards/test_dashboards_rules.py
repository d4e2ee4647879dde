"""Recording rules, alerts and their runbooks: valid by promtool, tested by promtool, and complete."""

import re
import shutil
import subprocess

import pytest
import yaml
from tests.servers import REPOSITORY, RULES, require, series_of

from goodput.metrics import CATALOGUE
from goodput_exporters.xid import XIDS

ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load((RULES / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}
RECORDS = [
    rule["record"]
    for group in yaml.safe_load((RULES / "recording.yml").read_text())["groups"]
    for rule in group["rules"]
]
RULE_TESTS = sorted((RULES / "tests").glob("*.yml"))
RUNBOOKS = REPOSITORY / "deploy" / "runbooks"
RUNBOOK_URL = "https://github.com/goodput-telemetry/goodput/blob/main/deploy/runbooks/"
# Clauses of the alerts, each of which keeps one innocent case silent or one guilty case loud.
CLAUSES = {
    "utilisation_drop_test.yml": [
        "and run:steady_goodput:ratio_2m < 0.7 * run:steady_goodput:ratio_baseline",
        'and on (run) goodput_run_info{status=~"running|down"} == 1',
        "and on (run) run:coverage:ratio_5m >= 0.95",
        "unless on (run) goodput_rank_last_report_age_seconds > 60",
    ],
    "utilisation_drop_hours_test.yml": [
        "and on (run) max by (run) (changes(goodput_restarts[1h])) >= 2",
    ],
    "run_stalled_test.yml": [
        "and on (run) (goodput_rank_last_report_age_seconds <= 60 or goodput_rank_alive == 1)",
        "or goodput_rank_alive == 1",
        "unless on (run) rank:steps:rate_1m > 0",
        "unless on (run) run:planned_pause:bool == 1",
    ],
    "telemetry_missing_test.yml": [
        'or absent(up{job="goodput-aggregator"})',
        'or absent(up{job="goodput-node"})',
    ],
}


# The same for alerts on hardware and the recording rules that they build on, each with the alert that shows it.
HARDWARE_CLAUSES = {
    "hardware_gpu_test.yml": {
        "and on (instance) goodput_driver_up == 1": "GoodputGpuLost",
        'unless on (instance, gpu) goodput_gpu_info{parent!=""}': "GoodputGpuLost",
        "or on (instance, gpu) goodput_gpu_up": "GoodputGpuLost",
        "unless on (instance) goodput_driver_up == 0": "GoodputGpuNotSeen",
        "|lost": "GoodputGpuNotSeen",
        '{reason!="memory"}': "GoodputGpuDriverRestarting",
        "(goodput_gpu_xid_errors_total unless goodput_gpu_xid_errors_total offset 15m)\n  or ": "GoodputGpuXidCritical",
        "or increase(goodput_gpu_xid_errors_total[15m]) > 0": "GoodputGpuXidCritical",
        'or goodput_gpu_pages_retired{kind="pending"} == 1': "GoodputGpuRowRemapPending",
        "|hw_thermal": "GoodputGpuThrottled",
        'and on (instance, gpu) avg_over_time(goodput_gpu_activity_ratio{unit="utilization"}[5m]) > 0.5': "GoodputGpuPcieDegraded",
        "or gpu_rank:seen:timestamp > time() - 3600": "GoodputGpuPcieDegraded",
    },
    "hardware_network_test.yml": {
        "and on (instance, device, port) infiniband_port:up:timestamp": "GoodputInfinibandLinkDown",
        "or infiniband_port:up:timestamp > time() - 86400": "GoodputInfinibandLinkDown",
        "and on (instance, device) network_device:up:timestamp": "GoodputNetworkLinkDown",
        "or network_device:up:timestamp > time() - 86400": "GoodputNetworkLinkDown",
        "|veth": "GoodputNetworkLinkDown",
        'or increase(goodput_infiniband_errors_total{kind="link_downed"}[30m]) >= 2': "GoodputLinkFlapping",
        "and on (instance, device, port) goodput_infiniband_up == 1": "GoodputLinkDegraded",
        '{direction="receive"}': "GoodputNetworkCongestion",
    },
    "hardware_host_test.yml": {
        "and on (instance) goodput_rank_alive == 1": "GoodputHostPressure",
        ">= 0.03": "GoodputFilesystemNearlyFull",
        "squashfs|": "GoodputFilesystemNearlyFull",
    },
}


def promtool(*arguments, cwd=RULES) -> subprocess.CompletedProcess:
    require("promtool")
    return subprocess.run(["promtool", *arguments], cwd=cwd, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("what", [("rules", "recording.yml", "alerts.yml"), ("config", "prometheus.yml")])
def test_files_are_valid(what):
    done = promtool("check", *what)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alertmanager_configuration_is_valid_and_names_alerts_that_exist():
    require("amtool")
    path = RULES / "alertmanager.yml"
    done = subprocess.run(["amtool", "check-config", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(re.findall(r"Goodput\w+", path.read_text())) <= set(ALERTS)


@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.stem)
def test_rules_do_what_their_tests_say(path):
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("file", "clause"), [(file, one) for file, some in CLAUSES.items() for one in some])
def test_rule_tests_miss_a_clause_that_is_gone(file, clause, tmp_path):
    """A clause that could be deleted unnoticed is either needless or untested."""
    shutil.copytree(RULES, tmp_path, dirs_exist_ok=True)
    # Without the groups on hardware, which come last and would only take time.
    for name, begins in (("recording.yml", "  # What dashboards and"), ("alerts.yml", "  # -- Hardware")):
        whole = (tmp_path / name).read_text()
        assert begins in whole
        (tmp_path / name).write_text(whole.partition(begins)[0])
    text = (tmp_path / "alerts.yml").read_text()
    assert clause in text
    (tmp_path / "alerts.yml").write_text(text.replace(clause, ""))
    assert promtool("check", "rules", "alerts.yml", cwd=tmp_path).returncode == 0
    assert promtool("test", "rules", f"tests/{file}", cwd=tmp_path).returncode != 0


@pytest.mark.parametrize(
    ("file", "clause", "name"),
    [
        pytest.param(file, clause, name, id=f"{clause[:40]}-{name}")
        for file, some in HARDWARE_CLAUSES.items()
        for clause, name in some.items()
    ],
)
def test_rule_tests_on_hardware_miss_a_clause_that_is_gone(file, clause, name, tmp_path):
    """As above with one alert and its cases alone, which takes a tenth of the time."""
    changed = 0
    for path in (RULES / "recording.yml", RULES / "alerts.yml"):
        rules = yaml.safe_load(path.read_text())
        for group in rules["groups"]:
            of_hardware = group["name"] == "goodput_hardware"
            group["rules"] = [rule for rule in group["rules"] if of_hardware or rule.get("alert") == name]
            for rule in group["rules"]:
                changed += clause in rule["expr"]
                rule["expr"] = rule["expr"].replace(clause, "")
        rules["groups"] = [group for group in rules["groups"] if group["rules"]]
        (tmp_path / path.name).write_text(yaml.safe_dump(rules))
    assert changed, "no rule has the clause"
    assert promtool("check", "rules", "recording.yml", "alerts.yml", cwd=tmp_path).returncode == 0
    told = yaml.safe_load((RULES / "tests" / file).read_text())
    told["rule_files"] = ["recording.yml", "alerts.yml"]
    told["group_eval_order"] = [
        group["name"]
        for path in told["rule_files"]
        for group in yaml.safe_load((tmp_path / path).read_text())["groups"]
    ]
    for test in told["tests"]:
        test["alert_rule_test"] = []
        test["promql_expr_test"] = [one for one in test["promql_expr_test"] if f'"{name}"' in one["expr"]]
    told["tests"] = [test for test in told["tests"] if test["promql_expr_test"]]
    (tmp_path / "test.yml").write_text(yaml.safe_dump(told))
    assert promtool("test", "rules", "test.yml", cwd=tmp_path).returncode != 0


def test_every_alert_is_tested_firing_and_silent():
    seen = {name: set() for name in ALERTS}
    for path in RULE_TESTS:
        for test in yaml.safe_load(path.read_text())["tests"]:
            for case in test.get("alert_rule_test", []):
                seen[case["alertname"]].add(bool(case.get("exp_alerts")))
    assert all(cases == {True, False} for cases in seen.values()), seen


def test_the_alerts_on_runs_are_three_and_all_others_say_their_level():
    of_runs = {name for name, rule in ALERTS.items() if "level" not in rule["labels"]}
    assert of_runs == {"GoodputUtilisationDrop", "GoodputRunStalled", "GoodputTelemetryMissing"}
    assert {rule["labels"].get("level") for rule in ALERTS.values()} == {None, "rank", "node"}


def test_xids_are_graded_as_the_agent_grades_them():
    def numbers(severity: str) -> set[str]:
        return {str(number) for number, one in XIDS.items() if one.severity == severity}

    def named(alert: str) -> set[str]:
        return set(re.search(r'xid[=!]~"([\d|]+)"', ALERTS[alert]["expr"])[1].split("|"))

    assert named("GoodputGpuXidCritical") == numbers("critical")
    assert named("GoodputGpuXid") == numbers("critical") | numbers("info")
    # None of the application's is critical, or it would fire in neither place or in both.
    assert {one.severity for one in XIDS.values() if one.kind == "application"} == {"warning"}


@pytest.mark.parametrize("name", ALERTS)
def test_alert_says_what_to_do(name):
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url"}
    assert rule["annotations"]["runbook_url"] == f"{RUNBOOK_URL}{name}.md"
    board = {
        None: "/d/goodput-run?var-run={{ $labels.run",
        "node": "/d/goodput-node?var-instance={{ $labels.instance | urlquery }}",
        "rank": "/d/goodput-node?var-instance={{ $labels.instance | urlquery }}&var-gpu={{ $labels.gpu",
    }[rule["labels"].get("level")]
    assert rule["annotations"]["dashboard_url"].startswith(board)
    # An event needs no time to become true; a state does.
    is_event = "xid_errors" in rule["expr"] or "ecc_errors" in rule["expr"]
    assert re.fullmatch("0s" if is_event else "[1-5]m|1[05]m", rule["for"])


@pytest.mark.parametrize("name", [name for name, rule in ALERTS.items() if "level" in rule["labels"]])
def test_alert_on_hardware_names_its_owner_and_asks_for_nothing_that_is_absent(name):
    rule = ALERTS[name]
    owner = {"rank": "gpu:owner:info", "node": "node:owner:info"}[rule["labels"]["level"]]
    assert rule["expr"].rstrip().endswith(owner)
    assert "absent" not in rule["expr"]
    summary = rule["annotations"]["summary"]
    assert "$labels.host" in summary and "{{ if $labels.run }}" in summary
    assert ("$labels.gpu" in summary and "$labels.rank" in summary) or rule["labels"]["level"] == "node"


def test_queries_of_runbooks_are_queries_of_series_that_exist(tmp_path):
    """Indented lines of the diagnosis, each as the expression of a rule."""
    rules = []
    for path in sorted(RUNBOOKS.glob("*.md")):
        diagnosis = (
            path.read_text(encoding="utf-8").partition("## Diagnosis")[2].partition("## Mitigation")[0]
        )
        found = [line.strip() for line in diagnosis.splitlines() if line.startswith("    ")]
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


@pytest.mark.parametrize("name", ALERTS)
def test_runbook_has_its_sections(name):
    lines = (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == f"# {name}"
    headings = [line for line in lines if line.startswith("## ")]
    assert headings == ["## Meaning", "## Impact", "## Diagnosis", "## Mitigation"]


def test_every_runbook_has_an_alert():
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == set(ALERTS)


@pytest.mark.parametrize("name", RECORDS)
def test_record_is_named_level_metric_operations(name):
    levels = "run|rank|run_[a-z]+(_[a-z]+)?|gpu|gpu_rank|node|node_run|node_resource|network_device|infiniband_port"
    assert re.fullmatch(rf"({levels}):[a-z_]+:[a-z0-9_]+", name)
