"""Judges a replay: when each planted fault was detected, which alerts no fault explains, which alerts have no fault."""

from __future__ import annotations

from dataclasses import dataclass

from bench.alert_replay.evaluate import Firing
from bench.alert_replay.planted import PlantedFault
from bench.alert_replay.rules import Rule

# An alert may fire a moment early: the fault begins between two scrapes.
EARLY_SECONDS = 60.0
# Consequences of a fault may fire so long after it.
AFTER_SECONDS = 5400.0
# Labels by which a firing is attributed to a fault of one run or node; a fault with neither explains every firing.
PLACE_LABELS = ("run", "instance")


@dataclass(frozen=True)
class Detection:
    """A fault and the firings of its alert, during the fault and a moment longer."""

    fault: PlantedFault
    firings: list[Firing]

    @property
    def firing(self) -> Firing | None:
        return self.firings[0] if self.firings else None

    @property
    def delay(self) -> float | None:
        return None if self.firing is None else max(self.firing.at - self.fault.start, 0.0)

    @property
    def resolved(self) -> float | None:
        """Seconds from the fault's end to that of its last firing, negative before; None if it still fires."""
        if not self.firings or self.firings[-1].resolved == float("inf"):
            return None
        return self.firings[-1].resolved - self.fault.end

    @property
    def late(self) -> bool:
        return self.delay is None or self.delay > self.fault.within


def detections(faults: list[PlantedFault], firings: list[Firing]) -> list[Detection]:
    """Each fault with the firings of its alert that have its labels, after it began and not long after its end."""
    found = []
    for fault in faults:
        until = max(fault.end, fault.start + fault.within) + EARLY_SECONDS
        matching = [one for one in firings if one.alert == fault.alert and _matches(fault, one)]
        found.append(Detection(fault, [one for one in matching if one.at <= until] or matching[:1]))
    return found


def _matches(fault: PlantedFault, one: Firing) -> bool:
    return one.at >= fault.start - EARLY_SECONDS and set(fault.labels) <= set(one.labels.items())


def unexplained(faults: list[PlantedFault], firings: list[Firing]) -> list[Firing]:
    """Firings without a recent fault on the same run or node, or on everything."""

    def explains(fault: PlantedFault, one: Firing) -> bool:
        where, labels = dict(fault.labels), one.labels
        if not fault.start - EARLY_SECONDS <= one.at <= fault.end + AFTER_SECONDS:
            return False
        everywhere = not any(name in where for name in PLACE_LABELS)
        return everywhere or any(name in where and where[name] == labels.get(name) for name in PLACE_LABELS)

    return [one for one in firings if not any(explains(fault, one) for fault in faults)]


def uncovered(rules: list[Rule], found: list[Detection]) -> list[str]:
    """Alerts that no fault is planted for, and those of several severities of which one has never fired for its fault."""
    fired = {(one.fault.alert, firing.severity) for one in found for firing in one.firings}
    planted = {one.fault.alert for one in found}
    severities: dict[str, set[str]] = {}
    for rule in rules:
        if rule.alert:
            severities.setdefault(rule.name, set()).add(rule.severity)
    missing = [name for name in severities if name not in planted]
    for name, own in severities.items():
        if name in planted and len(own) > 1:
            missing += [f"{name} ({severity})" for severity in own if (name, severity) not in fired]
    return sorted(missing)
