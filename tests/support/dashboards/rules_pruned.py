"""The shipped rules, cut down to those that a promtool test asks for, since promtool evaluates every rule at every step.

In: a file of deploy/prometheus/tests. Out: a folder with that file and the rules it needs: its alerts, the records that
it and they read, and the records that those read, in their groups and their order. It takes a tenth of the time.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from support.servers.servers import RULES, series_of


def rule_files() -> list[str]:
    """Names of the rule files that the shipped configuration names."""
    return yaml.safe_load((RULES / "prometheus.yml").read_text())["rule_files"]


def read(path: Path) -> dict:
    """A promtool test. Its values are text to promtool, while YAML takes 0x40, forty more zeros, for a number."""
    return yaml.safe_load(re.sub(r"(?m)^( +values: )([^\"'>|\n].*)$", r"\1'\2'", path.read_text()))


def alerts_asked(test: dict) -> set[str]:
    """Names of the alerts that one case of a test file asks for."""
    named = {case["alertname"] for case in test.get("alert_rule_test", [])}
    for case in test.get("promql_expr_test", []):
        named |= set(re.findall(r'alertname=~?"([\w|]+)"', case["expr"]))
    return {name for names in named for name in names.split("|")}


def reads(rule: dict) -> set[str]:
    """Series that a rule reads, those that its annotations ask for among them."""
    quoted = re.findall(
        r'(?:printf|query) "((?:\\.|[^"\\])*)"', " ".join(rule.get("annotations", {}).values())
    )
    found = set().union(*(series_of(text.replace('\\"', '"').replace("%q", '""')) for text in quoted), set())
    return found | series_of(rule["expr"])


def pruned(path: Path, folder: Path, change=lambda rule: None, only: str | None = None) -> Path:
    """Write the test and the rules that it needs; returns the test's new path.

    `change(rule)` may change a rule that stays. With `only` the cases that ask for that alert alone are kept.
    """
    told = read(path)
    if only is not None:
        told["tests"] = [test for test in told["tests"] if only in alerts_asked(test)]
        for test in told["tests"]:
            alerts, exprs = test.get("alert_rule_test", []), test.get("promql_expr_test", [])
            test["promql_expr_test"] = [case for case in exprs if f'"{only}"' in case["expr"]]
            # Labels and times are in both; annotations cost queries.
            test["alert_rule_test"] = [
                case
                for case in alerts
                if case["alertname"] == only and not (case.get("exp_alerts") and test["promql_expr_test"])
            ]
    groups = {
        name: yaml.safe_load((RULES / name).read_text())["groups"] for name in map(_name, told["rule_files"])
    }
    rules = [rule for some in groups.values() for group in some for rule in group["rules"]]
    wanted: set[str] = set()
    for test in told["tests"]:
        wanted |= alerts_asked(test)
        for case in test.get("promql_expr_test", []):
            wanted |= series_of(case["expr"]) | set(re.findall(r"\w+:\w+:\w+", str(case)))
    kept, before = set(), -1
    while len(kept) > before:
        before = len(kept)
        for at, rule in enumerate(rules):
            if at not in kept and rule.get("alert", rule.get("record")) in wanted:
                kept.add(at)
                wanted |= reads(rule)
    stay = [id(rule) for at, rule in enumerate(rules) if at in kept]
    order = []
    for name, some in groups.items():
        for group in some:
            group["rules"] = [rule for rule in group["rules"] if id(rule) in stay]
            for rule in group["rules"]:
                change(rule)
        some[:] = [group for group in some if group["rules"]]
        order += [group["name"] for group in some]
        (folder / name).write_text(yaml.safe_dump({"groups": some}, width=10_000, sort_keys=False))
    told["rule_files"] = list(groups)
    told["group_eval_order"] = order
    target = folder / path.name
    target.write_text(yaml.safe_dump(told, width=10_000, sort_keys=False))
    return target


def _name(path: str) -> str:
    return Path(path).name
