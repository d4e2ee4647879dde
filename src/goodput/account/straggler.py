"""Who waited for whom: communication split into what all paid and what waiting for the slowest rank cost.

In: per rank and step, the exposed communication and the step's length. Out: each rank's straggler ns per step,
the slowdown and the ranks that explain it. Ranks are matched by group, steps by attempt and index; clocks of
different hosts are never compared. Intrinsic communication is the smallest among a step's ranks; the culprit of a
step is the rank that waited least. Slowdown = sum of step times / sum of step times had each step's own work been
spread evenly, after the what-if analysis of Lin et al., "Understanding Stragglers in Large Model Training Using
What-if Analysis" (2025); for one collective per step that is length / (length - straggler), in sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from goodput.account.cut import COMMUNICATION, Step
from goodput.account.states import INDEX, STATES

_STRAGGLER = INDEX["straggler"]
# The rank that a step waited for is a culprit only if its own time is above its group's median by this.
SLOW_RATIO_MIN = 1.02
# And only if that much more time explains at least this part of the waiting it caused: where ranks take turns at
# being last, somebody is last most often.
EXPLAINED_RATIO_MIN = 0.5
SHARES_MAX = 16


@dataclass
class Straggler:
    """Sums over kept steps that at least two ranks of a group reported."""

    length_ns: int = 0
    waited_ns: int = 0
    caused_ns: dict[int, int] = field(default_factory=dict)  # by rank
    own_ns: dict[int, list[int]] = field(default_factory=dict)  # by rank, per state, steps of `groups`
    groups: dict[int, str] = field(default_factory=dict)

    def slowdown(self) -> float | None:
        even = self.length_ns - self.waited_ns
        return self.length_ns / even if even > 0 else None

    def shares(self) -> list[tuple[int, float]]:
        """(rank, share of the waiting it caused), largest first."""
        if not self.waited_ns:
            return []
        ranked = sorted(self.caused_ns.items(), key=lambda item: (-item[1], item[0]))
        return [(rank, ns / self.waited_ns) for rank, ns in ranked[:SHARES_MAX]]

    def culprit(self) -> tuple[int, str] | None:
        """The rank most waited for and the state in which it exceeds its group's median most, if it is slow."""
        if not self.waited_ns:
            return None
        rank = max(self.caused_ns, key=lambda r: (self.caused_ns[r], -r))
        peers = [own for r, own in self.own_ns.items() if self.groups[r] == self.groups[rank]]
        own = self.own_ns[rank]
        others = [sum(peer) for peer in peers if peer is not own]
        later_ns = sum(own) - median(others) if others else 0
        if sum(own) < SLOW_RATIO_MIN * median(map(sum, peers)):
            return None
        if later_ns * (len(peers) - 1) < EXPLAINED_RATIO_MIN * self.caused_ns[rank]:
            return None
        excess = [own[i] - median(peer[i] for peer in peers) for i in range(len(STATES))]
        return rank, STATES[excess.index(max(excess))]


def split(steps: dict[tuple, list[tuple[int, Step]]], groups: dict[int, str]) -> Straggler:
    """Move each rank's excess communication from `communication` to `straggler`, in place, and sum up.

    `steps` maps (attempt, group, last index, count) to the (rank, step) that are to be compared.
    """
    result = Straggler(groups=groups)
    for members in steps.values():
        if len(members) < 2:
            continue
        least = min(step.states[COMMUNICATION] for _, step in members)
        culprits = [rank for rank, step in members if step.states[COMMUNICATION] == least]
        waited = 0
        for rank, step in members:
            excess = step.states[COMMUNICATION] - least
            step.states[COMMUNICATION] = least
            step.states[_STRAGGLER] += excess
            waited += excess
            result.length_ns += step.length_ns
            own = result.own_ns.setdefault(rank, [0] * len(STATES))
            for i, ns in enumerate(step.states):
                if i not in (COMMUNICATION, _STRAGGLER):
                    own[i] += ns
        result.waited_ns += waited
        for position, rank in enumerate(sorted(culprits)):
            # A tie is shared; the remainder of the division goes to the first ranks, so the sum is exact.
            part = waited // len(culprits) + (position < waited % len(culprits))
            result.caused_ns[rank] = result.caused_ns.get(rank, 0) + part
    return result
