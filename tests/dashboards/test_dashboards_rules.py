"""Recording rules, alerts and their runbooks: valid by promtool, tested by promtool, and complete."""

import re
import shutil
import subprocess

import pytest
import yaml
from tests.servers import REPOSITORY, RULES, require

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


def promtool(*arguments, cwd=RULES) -> subprocess.CompletedProcess:
    require("promtool")
    return subprocess.run(["promtool", *arguments], cwd=cwd, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("what", [("rules", "recording.yml", "alerts.yml"), ("config", "prometheus.yml")])
def test_files_are_valid(what):
    done = promtool("check", *what)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.stem)
def test_rules_do_what_their_tests_say(path):
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("file", "clause"), [(file, one) for file, some in CLAUSES.items() for one in some])
def test_rule_tests_miss_a_clause_that_is_gone(file, clause, tmp_path):
    """A clause that could be deleted unnoticed is either needless or untested."""
    shutil.copytree(RULES, tmp_path, dirs_exist_ok=True)
    text = (tmp_path / "alerts.yml").read_text()
    assert clause in text
    (tmp_path / "alerts.yml").write_text(text.replace(clause, ""))
    assert promtool("check", "rules", "alerts.yml", cwd=tmp_path).returncode == 0
    assert promtool("test", "rules", f"tests/{file}", cwd=tmp_path).returncode != 0


def test_every_alert_is_tested_firing_and_silent():
    seen = {name: set() for name in ALERTS}
    for path in RULE_TESTS:
        for test in yaml.safe_load(path.read_text())["tests"]:
            for case in test.get("alert_rule_test", []):
                seen[case["alertname"]].add(bool(case.get("exp_alerts")))
    assert all(cases == {True, False} for cases in seen.values()), seen


def test_there_are_three_alerts():
    assert set(ALERTS) == {"GoodputUtilisationDrop", "GoodputRunStalled", "GoodputTelemetryMissing"}


@pytest.mark.parametrize("name", ALERTS)
def test_alert_says_what_to_do(name):
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url"}
    assert rule["annotations"]["runbook_url"] == f"{RUNBOOK_URL}{name}.md"
    assert rule["annotations"]["dashboard_url"].startswith("/d/goodput-run?var-run={{ $labels.run")
    assert re.fullmatch(r"[1-5]m", rule["for"])


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
    assert re.fullmatch(r"(run|rank|run_[a-z]+(_[a-z]+)?):[a-z_]+:[a-z0-9_]+", name)
