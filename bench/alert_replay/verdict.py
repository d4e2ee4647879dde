"""What a replay has shown: pages that nobody should have got, and of each planted fault when it was told and for how long.

In: Replays, faults, the rules. Out: plain values, for the command line, the table and the tests.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.alert_replay.evaluate import Firing
from bench.alert_replay.planted import Fault
from bench.alert_replay.rules import Rule

# An alert on a fault may come a moment early: the trouble begins between two scrapes.
EARLY_SECONDS = 60.0
# What follows from a fault may follow so long after it.
AFTER_SECONDS = 5400.0
# Labels by which a firing is put down to a fault: of one run, one node, or of all.
SHARED = ("run", "instance")


@dataclass(frozen=True)
class Told:
    """A fault and the firings that told of it, while it was there and a moment longer."""

    fault: Fault
    firings: list[Firing]

    @property
    def firing(self) -> Firing | None:
        return self.firings[0] if self.firings else None

    @property
    def delay(self) -> float | None:
        return None if self.firing is None else max(self.firing.at - self.fault.at, 0.0)

    @property
    def resolved(self) -> float | None:
        """Seconds from the fault's end to that of its last firing, negative before; None where it fires still."""
        if not self.firings or self.firings[-1].resolved == float("inf"):
            return None
        return self.firings[-1].resolved - self.fault.until

    @property
    def late(self) -> bool:
        return self.delay is None or self.delay > self.fault.within


def told(faults: list[Fault], firings: list[Firing]) -> list[Told]:
    """Each fault with the firings of its alert that have its labels, after it began and not long after its end."""
    found = []
    for fault in faults:
        until = max(fault.until, fault.at + fault.within) + EARLY_SECONDS
        mine = [one for one in firings if one.alert == fault.alert and matches(fault, one)]
        found.append(Told(fault, [one for one in mine if one.at <= until] or mine[:1]))
    return found


def matches(fault: Fault, one: Firing) -> bool:
    return one.at >= fault.at - EARLY_SECONDS and set(fault.labels) <= set(one.labels.items())


def strays(faults: list[Fault], firings: list[Firing]) -> list[Firing]:
    """Firings that no fault explains: none on that run or node, or on all, was there lately."""

    def explains(fault: Fault, one: Firing) -> bool:
        where, labels = dict(fault.labels), one.labels
        if not fault.at - EARLY_SECONDS <= one.at <= fault.until + AFTER_SECONDS:
            return False
        everywhere = not any(name in where for name in SHARED)
        return everywhere or any(name in where and where[name] == labels.get(name) for name in SHARED)

    return [one for one in firings if not any(explains(fault, one) for fault in faults)]


def uncovered(rules: list[Rule], faults: list[Fault]) -> list[str]:
    """Alerts for which no fault is planted."""
    covered = {fault.alert for fault in faults}
    return sorted({rule.name for rule in rules if rule.alert} - covered)
