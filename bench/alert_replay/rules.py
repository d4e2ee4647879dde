"""Reads the shipped rules and sorts them by what they need of each other.

A recording rule that reads its own last result must have the form `A or itself > time() - N`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from goodput.metrics import CATALOGUE

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'')
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class RuleError(ValueError):
    """A rule cannot be replayed; the message has its name and the reason."""


@dataclass(frozen=True)
class Rule:
    """`name` is the alert's, with `#problem` where it has that label, or that of the recorded series.

    `interval_seconds` is that of its group, 0 where it is evaluated like all others.
    """

    name: str
    expr: str
    group: str
    alert: bool
    labels: dict[str, str]
    hold_seconds: float = 0.0
    keep_seconds: float = 0.0
    interval_seconds: float = 0.0
    needs: frozenset[str] = frozenset()

    @property
    def severity(self) -> str:
        return self.labels.get("severity", "")


def load(folder: Path = FOLDER) -> list[Rule]:
    """All rules, in the order of files and groups."""
    found = []
    for path in sorted(folder.glob("*.yml")):
        document = yaml.safe_load(path.read_text()) or {}
        for group in document.get("groups", ()):
            interval = seconds(group.get("interval", 0))
            found += [_rule(rule, group["name"], interval) for rule in group["rules"]]
    if not found:
        raise RuleError(f"no rules in {folder}")
    return found


def ordered(rules: list[Rule]) -> list[Rule]:
    """The alerts, and before them the recording rules that they need, each after those that it needs itself.

    Recording rules that no alert needs are left out.
    """
    alerts = [rule for rule in rules if rule.alert]
    return _recording(rules, {name for alert in alerts for name in alert.needs}) + alerts


def recording(rules: list[Rule]) -> list[Rule]:
    """All recording rules, each after those that it needs."""
    return _recording(rules, {rule.name for rule in rules if not rule.alert})


def _recording(rules: list[Rule], needed: set[str]) -> list[Rule]:
    by_name: dict[str, list[Rule]] = {}
    for rule in rules:
        if not rule.alert:
            by_name.setdefault(rule.name, []).append(rule)
    done: dict[str, list[Rule]] = {}

    def visit(names: set[str] | frozenset[str], path: tuple[str, ...]) -> None:
        for name in sorted(names & by_name.keys()):
            if name in path:
                raise RuleError(f"recording rules need each other: {' needs '.join((*path, name))}")
            if name not in done:
                for rule in by_name[name]:
                    visit(rule.needs - {name}, (*path, name))
                done[name] = by_name[name]

    visit(needed, ())
    return [rule for rules_of_name in done.values() for rule in rules_of_name]


def raw(rules: list[Rule]) -> set[str]:
    """Names of the scraped series that these rules read."""
    names = {name for rule in rules for name in rule.needs}
    return {name for name in names if name in CATALOGUE or name == "up"}


def remembered(rule: Rule) -> tuple[str, float] | None:
    """(A, N) of `A or itself > time() - N`; None for a rule that does not read itself."""
    if rule.name not in rule.needs:
        return None
    own = re.escape(rule.name)
    found = re.fullmatch(rf"(.*)\bor\s+{own}\s*>\s*time\(\)\s*-\s*(\d+)\s*", rule.expr.strip(), re.DOTALL)
    if found is None or rule.name in _names(found[1]):
        raise RuleError(
            f"{rule.name} reads its own result, but not in the form `A or itself > time() - N`: {rule.expr}"
        )
    return found[1], float(found[2])


def seconds(duration: str | int) -> float:
    """Prometheus's durations, such as 1h30m."""
    if isinstance(duration, int):
        return float(duration)
    return float(sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)(ms|[smhdw])", duration)))


def _rule(given: dict, group: str, interval: float) -> Rule:
    labels = {name: str(value) for name, value in given.get("labels", {}).items()}
    name = given.get("alert") or given["record"]
    if "problem" in labels:  # One of the problems for which the alert fires.
        name += f"#{labels['problem']}"
    if any("{{" in value for value in labels.values()):
        raise RuleError(f"{name}: labels with templates are not supported")
    return Rule(
        name=name,
        expr=str(given["expr"]),
        group=group,
        alert="alert" in given,
        labels=labels,
        hold_seconds=seconds(given.get("for", 0)),
        keep_seconds=seconds(given.get("keep_firing_for", 0)),
        interval_seconds=interval,
        needs=frozenset(_names(str(given["expr"]))),
    )


def _names(expr: str) -> set[str]:
    return set(_NAME.findall(_STRING.sub('""', re.sub(r"#.*", "", expr))))
