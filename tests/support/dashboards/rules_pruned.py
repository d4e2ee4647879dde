"""The shipped rules, reduced to those that a promtool test needs, since promtool evaluates every rule at every step.

A test needs its alerts, the records that it and they read, and the records behind those. It takes a tenth of the time.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from pathlib import Path

import yaml
from support.servers.servers import RULES, series_of


def rule_files() -> list[str]:
    """Names of the rule files in the shipped configuration."""
    return yaml.safe_load((RULES / "prometheus.yml").read_text())["rule_files"]


def read(path: Path) -> dict:
    """A promtool test. Its values are text to promtool, while YAML takes 0x40, forty more zeros, for a number."""
    return yaml.safe_load(re.sub(r"(?m)^( +values: )([^\"'>|\n].*)$", r"\1'\2'", path.read_text()))


def alerts_in(test: dict) -> set[str]:
    """Names of the alerts in one case of a test file."""
    named = {case["alertname"] for case in test.get("alert_rule_test", [])}
    for case in test.get("promql_expr_test", []):
        named |= set(re.findall(r'alertname=~?"([\w|]+)"', case["expr"]))
    return {name for names in named for name in names.split("|")}


def reads(rule: dict) -> set[str]:
    """Series that a rule and its annotations read."""
    quoted = re.findall(
        r'(?:printf|query) "((?:\\.|[^"\\])*)"', " ".join(rule.get("annotations", {}).values())
    )
    found = set().union(*(series_of(text.replace('\\"', '"').replace("%q", '""')) for text in quoted), set())
    return found | series_of(rule["expr"])


def pruned(path: Path, folder: Path, change=lambda rule: None, only: str | None = None) -> Path:
    """Write the test and the rules that it needs; returns the test's new path.

    `change(rule)` may change a rule that stays. With `only` the cases of that alert alone are kept.
    """
    document = read(path)
    if only is not None:
        document["tests"] = [test for test in document["tests"] if only in alerts_in(test)]
        for test in document["tests"]:
            alerts, exprs = test.get("alert_rule_test", []), test.get("promql_expr_test", [])
            test["promql_expr_test"] = [case for case in exprs if f'"{only}"' in case["expr"]]
            # Labels and times are in both; annotations cost queries.
            test["alert_rule_test"] = [
                case
                for case in alerts
                if case["alertname"] == only and not (case.get("exp_alerts") and test["promql_expr_test"])
            ]
    return _with_its_rules(document, folder / path.name, change)


def each_pruned(path: Path, folder: Path) -> list[Path]:
    """Write each case of a test with the rules that it alone needs; returns the paths of the new tests.

    Their cases pass if and only if those of the whole test do: a rule that a case needs is in both.
    """
    document, made = read(path), []
    for number, test in enumerate(document["tests"]):
        (folder / str(number)).mkdir()
        made.append(_with_its_rules({**document, "tests": [test]}, folder / str(number) / path.name))
    return made


def _with_its_rules(document: dict, target: Path, change=lambda rule: None) -> Path:
    """Write a test and, beside it, the rules that its cases need, of which `change` may change each."""
    groups = {name: _groups(name) for name in map(_name, document["rule_files"])}
    rules = [rule for some in groups.values() for group in some for rule in group["rules"]]
    needed: set[str] = set()
    for test in document["tests"]:
        needed |= alerts_in(test)
        for case in test.get("promql_expr_test", []):
            needed |= series_of(case["expr"]) | set(re.findall(r"\w+:\w+:\w+", str(case)))
    kept, before = set(), -1
    while len(kept) > before:
        before = len(kept)
        for at, rule in enumerate(rules):
            if at not in kept and rule.get("alert", rule.get("record")) in needed:
                kept.add(at)
                needed |= reads(rule)
    stay = [id(rule) for at, rule in enumerate(rules) if at in kept]
    order = []
    for name, some in groups.items():
        for group in some:
            group["rules"] = [rule for rule in group["rules"] if id(rule) in stay]
            for rule in group["rules"]:
                change(rule)
        some[:] = [group for group in some if group["rules"]]
        order += [group["name"] for group in some]
        _write(target.parent / name, {"groups": some})
    _write(target, {**document, "rule_files": list(groups), "group_eval_order": order})
    return target


def _groups(name: str) -> list[dict]:
    """The groups of a rule file, the caller's own."""
    return copy.deepcopy(_parsed(name))


@functools.cache
def _parsed(name: str) -> list[dict]:
    return yaml.safe_load((RULES / name).read_text())["groups"]


def _write(path: Path, document: dict) -> None:
    """In JSON, which is YAML as well and written in a tenth of the time."""
    path.write_text(json.dumps(document))


def _name(path: str) -> str:
    return Path(path).name
