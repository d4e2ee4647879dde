"""The text of docs/detection.md: how long each alert takes, and what fired in ten innocent days."""

from __future__ import annotations

from collections import Counter

from bench.alert_replay.replay import Replay
from bench.alert_replay.rules import Rule
from bench.alert_replay.verdict import Detection, uncovered, unexplained

_HEAD = """# How soon each alert fires

Written by `make replay-alerts` (`bench/alert_replay`) on {date}; not edited by hand. The rules are those of `deploy/prometheus` as shipped.

## Method

Two scenarios are simulated (`goodput.simulate`) and replayed through a real Prometheus ({version}). Runs, ranks, checkpoints and restarts are simulated rank by rank; the aggregator's series come from the project's own store, account and exposition on a simulated clock; the node agents' series are simulated, and checked against the catalogue by name and labels. Everything goes into Prometheus by remote write, with staleness marks; Prometheus evaluates every expression at every moment; `for` and `keep_firing_for` are applied as it does, which a test compares with `promtool test rules`.

- Innocent scenario: {days:g} days, {innocent_ranks} ranks at most on {innocent_nodes} nodes in {innocent_runs} runs, scraped and evaluated every {base:g} s, and every {fine:g} s for some minutes before and after each start, end and outage ({innocent_ticks} moments, {innocent_samples:.1f} million samples).
- Planted scenario: {hours:g} hours, {planted_runs} runs on {planted_nodes} nodes, {faults} faults, scraped and evaluated every {planted_base:g} s. The shipped configuration scrapes every 5 s and evaluates every 10 s, and an agent pushes every 5 s: a delay in practice differs from these by some 15 s at most.
- Not covered: Alertmanager, which adds its `group_wait` of 10 to 30 s and inhibits; the agents' own code; what lies between two scrapes.

## Ten innocent days

With ordinary restarts of every kind, a node that dies and is replaced, one in maintenance with its agent gone, preemptions, a world size that changes, checkpoints of 20 s to 10 min, evaluations, epochs, restarts of the aggregator and the agents, gaps of Prometheus, and the small faults of sound hardware:

**{pages} pages** (alerts of severity critical).

"""


def page(
    innocent: Replay, planted: Replay, found: list[Detection], rules: list[Rule], *, date: str, version: str
) -> str:
    one, two = innocent.scenario, planted.scenario
    text = _HEAD.format(
        date=date,
        version=version,
        days=one.ticks.seconds / 86_400,
        innocent_ranks=max_ranks(innocent),
        innocent_nodes=len(one.nodes),
        innocent_runs=len(one.runs),
        base=one.ticks.base,
        fine=one.ticks.fine,
        innocent_ticks=f"{len(one.ticks.times):,}".replace(",", " "),
        innocent_samples=innocent.samples / 1e6,
        hours=two.ticks.seconds / 3600,
        planted_runs=len(two.runs),
        planted_nodes=len(two.nodes),
        planted_base=two.ticks.base,
        faults=len(found),
        pages=len(innocent.pages()) or "No",
    )
    return text + _innocent(innocent) + _delays(found, rules) + _rest(found, planted, rules)


def max_ranks(replay: Replay) -> int:
    """The most ranks that were alive at once."""
    attempts = [attempt for run in replay.scenario.runs for attempt in run.attempts]
    moments = {attempt.start for attempt in attempts}
    return max(sum(len(one.places) for one in attempts if one.start <= at < one.end) for at in moments)


def _innocent(innocent: Replay) -> str:
    counts = Counter((one.severity, one.alert) for one in innocent.firings)
    if not counts:
        return "Nothing else fired either.\n"
    lines = [
        "Alerts that fired without paging anyone:",
        "",
        "| alert | severity | times | on |",
        "|---|---|---|---|",
    ]
    for (severity, alert), count in sorted(counts.items()):
        where = Counter(
            one.labels.get("run") or one.labels.get("instance", "")
            for one in innocent.firings
            if one.alert == alert
        )
        names = ", ".join(name or "the stack" for name, _ in where.most_common(4))
        lines.append(f"| {alert} | {severity} | {count} | {names} |")
    return "\n".join(lines) + "\n"


def _delays(found: list[Detection], rules: list[Rule]) -> str:
    holds = {(rule.name, rule.severity): rule for rule in rules if rule.alert}
    severities = {rule.name: rule.severity for rule in rules if rule.alert}
    lines = [
        "\n## Delays",
        "",
        "From the fault to the alert's firing, and from the fault's end to the alert's. The bound is the sum of the alert's "
        "windows and its `for`, and a minute; a later firing fails the test. An alert on an event, or on a window, fires "
        "until the window has passed; one that compares a run with itself may end before the fault, when the run's own "
        "baseline has come down to it.",
        "",
        "| alert | severity | fault | `for` | delay | bound | ended after |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in sorted(found, key=lambda one: (one.fault.alert, one.fault.start)):
        severity = severities.get(one.fault.alert, "") if one.firing is None else one.firing.severity
        rule = holds.get((one.fault.alert, severity))
        hold = "" if rule is None else length(rule.hold_seconds)
        delay = "**not seen**" if one.delay is None else length(one.delay)
        ended = _ended(one)
        bound = length(one.fault.within)
        lines.append(
            f"| {one.fault.alert} | {severity} | {one.fault.what} | {hold} | {delay} | {bound} | {ended} |"
        )
    return "\n".join(lines) + "\n"


def _ended(one: Detection) -> str:
    if one.resolved is None:
        return "not within the replay"
    after = length(one.resolved) if one.resolved >= 0 else f"{length(-one.resolved)} before it"
    return after if len(one.firings) == 1 else f"{after}; fired {len(one.firings)} times"


def _rest(found: list[Detection], planted: Replay, rules: list[Rule]) -> str:
    missing = uncovered(rules, found)
    extra = unexplained([one.fault for one in found], planted.firings)
    text = "\n## Not covered\n\n"
    text += (
        "".join(f"- {name}: no fault of its own is planted.\n" for name in missing)
        or "Every alert has a planted fault.\n"
    )
    text += "\nAn alert with several branches has one fault here; `deploy/prometheus/tests` covers the other branches.\n"
    if extra:
        text += "\nFired without a fault that explains it:\n\n"
        text += "".join(f"- {one.alert} on {dict(sorted(one.labels.items()))}\n" for one in extra)
    return text


def length(seconds: float) -> str:
    """A duration such as 40 s, 6 min 30 s, 2 h 5 min."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    parts = [(hours, "h"), (minutes, "min"), (0 if hours else rest, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"
