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


def alert_key(labels: dict, name: str) -> str:
    """An alert's name and, where it fires for several problems, `#` and the problem."""
    return f"{name}#{labels['problem']}" if "problem" in labels else name


def keys_in_case(case: dict) -> set[str]:
    """The alerts that one moment of a test names, as `alert_key` does; without a problem if it names none."""
    if "alertname" in case:
        expected = case.get("exp_alerts") or [{"exp_labels": {}}]
        return {alert_key(one["exp_labels"], case["alertname"]) for one in expected}
    found = set()
    for selector in re.findall(r"\{[^}]*\}", case["expr"]):
        problem = re.search(r'\bproblem="(\w+)"', selector)
        labels = {"problem": problem[1]} if problem else {}
        for names in re.findall(r'alertname=~?"([\w|]+)"', selector):
            found |= {alert_key(labels, name) for name in names.split("|")}
    return found


def alerts_in(test: dict) -> set[str]:
    """The alerts in one case of a test file, as `alert_key` names them."""
    moments = [*test.get("alert_rule_test", []), *test.get("promql_expr_test", [])]
    return set().union(*map(keys_in_case, moments))


def reads(rule: dict) -> set[str]:
    """Series that a rule and its annotations read."""
    quoted = re.findall(
        r'(?:printf|query) "((?:\\.|[^"\\])*)"', " ".join(rule.get("annotations", {}).values())
    )
    found = set().union(*(series_of(text.replace('\\"', '"').replace("%q", '""')) for text in quoted), set())
    return found | series_of(rule["expr"])


def pruned(path: Path, folder: Path, change=lambda rule: None, only: str | None = None) -> Path:
    """Write the test and the rules that it needs; returns the test's new path.

    `change(rule)` may change a rule that stays. With `only`, as `alert_key` names it, the cases of that alert alone are kept.
    """
    document = read(path)
    if only is not None:
        document["tests"] = [test for test in document["tests"] if only in alerts_in(test)]
        for test in document["tests"]:
            alerts, exprs = test.get("alert_rule_test", []), test.get("promql_expr_test", [])
            test["promql_expr_test"] = [case for case in exprs if only in keys_in_case(case)]
            # Labels and times are in both; annotations cost queries.
            test["alert_rule_test"] = [
                case
                for case in alerts
                if only in keys_in_case(case) and not (case.get("exp_alerts") and test["promql_expr_test"])
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
        # All problems of an alert: a case compares all that fires under its name.
        needed |= {key.partition("#")[0] for key in alerts_in(test)}
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
