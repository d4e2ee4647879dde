"""Stragglers: communication split into what all ranks paid and what waiting for the slowest rank cost.

Ranks are matched by group and steps by attempt and index; clocks of different hosts are never compared. Intrinsic
communication is the smallest of a step's ranks; the culprit of a step is the rank that waited least. Slowdown is the sum
of step times over their sum had each step's own work been spread evenly, after Lin et al., "Understanding Stragglers in
Large Model Training Using What-if Analysis" (2025); with one collective per step that is length / (length - straggler).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from statistics import median

from goodput.account.fold import COMMUNICATION, COMPILE, STALL, Fold
from goodput.account.onset import Onset, hits
from goodput.account.states import INDEX, STATES

_STRAGGLER = INDEX["straggler"]
# A rank is a culprit only if its own time exceeds its group's median by this ratio ...
SLOW_RATIO_MIN = 1.02
# ... and if that excess explains at least this part of the waiting it caused: where ranks alternate in being
# last, one of them is last most often by chance.
EXPLAINED_RATIO_MIN = 0.5
SHARES_MAX = 16
# Detection restarts with each attempt; a rank slow within so many steps of the last attempt's end was slow before.
NEAR_STEPS = 16
SWEEP_ENTRIES = 4096
_NOT_OWN = (COMMUNICATION, _STRAGGLER, COMPILE, STALL)

Key = tuple[int, int]  # (rank, attempt number)


class Groups:
    """Steps that wait here until all ranks of their group have passed them. `folds` has all attempts."""

    def __init__(self, folds: Mapping[Key, Fold]):
        self.folds = folds
        self.onsets: dict[Key, Onset] = {}
        self.members: dict[tuple[int, str], list[Key]] = {}
        self.settled: dict[tuple[int, str], int] = {}  # by group, the last compared step
        self.late = False  # a step came after others of its group were compared
        self.find_members()
        self._waiting: dict[tuple, list[tuple]] = {}
        self._passed: dict[Key, int] = {}
        self._new = self._left = 0  # entries since the last sweep, and those that it left

    def find_members(self) -> None:
        """Find the members of each group; called again when there are new attempts or first steps."""
        self.members = {}
        for (rank, number), fold in self.folds.items():
            first = fold.attempt.first_step
            if first is not None:
                group = (number, fold.attempt.group)
                self.members.setdefault(group, []).append((rank, number))
                self.late |= not fold.steps and group in self.settled and first <= self.settled[group]

    def copy(self, folds: dict[Key, Fold]) -> Groups:
        """An independent copy, over copies of the folds."""
        other = copy(self)
        other.folds = folds
        other.onsets = {key: onset.copy() for key, onset in self.onsets.items()}
        other.settled, other._passed = dict(self.settled), dict(self._passed)
        other._waiting = {together: list(members) for together, members in self._waiting.items()}
        return other

    def add(
        self, key: Key, step: int, count: int, compared: tuple[int, int, int, int], first: bool = False
    ) -> None:
        """Add what Fold.add returned for a step; `first` marks an attempt's first step, which comes late."""
        group = (key[1], self.folds[key].attempt.group)
        if len(self.members[group]) < 2:
            # A rank that joins the group later does not take part in this step.
            self.settled[group] = max(step, self.settled.get(group, -1))
            return
        # A rank that repeats its own steps is not late: folding it anew would change nothing.
        self.late |= not first and self.folds[key].top_step <= step <= self.settled.get(group, -1)
        self._waiting.setdefault((*group, step, count), []).append((key, *compared))
        if not first:
            self._passed[key] = step
            self._new += 1
            if self._new >= SWEEP_ENTRIES and self._new >= 2 * self._left:
                self._sweep()

    def flush(self) -> None:
        """Settle all waiting steps, in order."""
        held = self._held()
        for together in sorted(self._waiting):
            self._settle(together[2], self._waiting[together], together not in held)
        self._waiting.clear()

    def _held(self) -> set[tuple]:
        """Steps that wait for a first step, which its fold holds back."""
        return {
            (*group, *self.folds[key].held_back())
            for group, members in self.members.items()
            for key in members
        }

    def _sweep(self) -> None:
        """Settle the steps that every rank has passed, or has ended before.

        Always in the order of steps, so that the result does not depend on the order of ranks.
        """
        lows, held = {}, self._held()
        for group, members in self.members.items():
            going = [self._passed.get(key, -1) for key in members if not self.folds[key].exhausted]
            lows[group] = min(going, default=None)
        for together in sorted(self._waiting):
            low = lows[together[:2]]
            if (low is None or together[2] < low) and together not in held:
                self.settled[together[:2]] = together[2]
                self._settle(together[2], self._waiting.pop(together), True)
        self._new, self._left = 0, sum(map(len, self._waiting.values()))

    def _settle(self, step: int, members: list[tuple], noted: bool) -> None:
        """Compare one step. `noted`: it counts for onsets, unless it is a first step, which comes too late."""
        # All entries are one rank's, which repeated its own step.
        if all(member[0] == members[0][0] for member in members):
            return
        least = min(communication for _, communication, *_ in members)
        culprits = sorted(key for key, communication, *_ in members if communication == least)
        waited = 0
        for key, communication, within, _, length in members:
            excess = communication - least
            if within != communication:
                # Only a part of this step lies in the account's window.
                excess = excess * within // communication
            fold = self.folds[key]
            fold.straggler_ns += excess
            fold.matched_ns += length
            waited += excess
        for position, key in enumerate(culprits):
            # A tie is shared; the remainder of the division goes to the first ranks, so the sum is exact.
            self.folds[key].caused_ns += waited // len(culprits) + (position < waited % len(culprits))
        members.sort()
        if noted:
            found, chance = hits([own for _, _, _, own, _ in members])
            for (key, *_), hit in zip(members, found, strict=True):
                self.onsets.setdefault(key, Onset()).note(step, hit, chance)


@dataclass
class Straggler:
    """Sums over kept steps that at least two ranks of a group reported."""

    length_ns: int = 0
    waited_ns: int = 0
    caused_ns: dict[int, int] = field(default_factory=dict)  # by rank
    by_host_ns: dict[str, int] = field(default_factory=dict)
    by_stage_ns: dict[int, int] = field(default_factory=dict)
    own_ns: dict[int, list[int]] = field(default_factory=dict)  # by rank, per state, of kept steps
    steps: dict[int, float] = field(default_factory=dict)  # by rank, kept ones
    groups: dict[int, str] = field(default_factory=dict)
    onsets: dict[Key, Onset] = field(default_factory=dict)

    def slowdown(self) -> float | None:
        even = self.length_ns - self.waited_ns
        return self.length_ns / even if even > 0 else None

    def shares(self) -> list[tuple[int, float]]:
        """(rank, share of the waiting it caused), largest first."""
        return _shares(self.caused_ns, self.waited_ns)

    def host_shares(self) -> list[tuple[str, float]]:
        return _shares(self.by_host_ns, self.waited_ns)

    def stage_shares(self) -> list[tuple[int, float]]:
        """(pipeline stage, share), where stages are known."""
        return _shares(self.by_stage_ns, self.waited_ns)

    def culprit(self) -> tuple[int, str] | None:
        """The rank most waited for and the state in which it exceeds its group's median most, if it is slow."""
        if not self.waited_ns:
            return None
        rank = max(self.caused_ns, key=lambda r: (self.caused_ns[r], -r))
        means = {
            r: [ns / self.steps[r] for ns in own]
            for r, own in self.own_ns.items()
            if self.groups[r] == self.groups[rank] and self.steps[r]
        }
        if rank not in means:
            return None
        own = means[rank]
        others = [sum(peer) for r, peer in means.items() if r != rank]
        later_ns = (sum(own) - median(others)) * self.steps[rank] if others else 0
        if sum(own) < SLOW_RATIO_MIN * median(map(sum, means.values())):
            return None
        if later_ns * (len(means) - 1) < EXPLAINED_RATIO_MIN * self.caused_ns[rank]:
            return None
        excess = [own[i] - median(peer[i] for peer in means.values()) for i in range(len(STATES))]
        return rank, STATES[excess.index(max(excess))]

    def since(self, rank: int) -> int | None:
        """The step at which this rank became slow, if it is still slow; None if no step stands out."""
        attempts = sorted((key for key in self.onsets if key[0] == rank), reverse=True)
        if not attempts or not self.onsets[attempts[0]].slow:
            return None
        first = self.onsets[attempts[0]].stretches[-1].first
        for key in attempts[1:]:
            # Slow up to the end of the attempt before: the restart did not cause it.
            stretches = self.onsets[key].stretches
            if not stretches or stretches[-1].last is None or stretches[-1].last + NEAR_STEPS < first:
                break
            first = min(first, stretches[-1].first)
        return first


def _shares(caused_ns: dict, waited_ns: int) -> list[tuple]:
    if not waited_ns:
        return []
    ranked = sorted(caused_ns.items(), key=lambda item: (-item[1], item[0]))
    return [(who, ns / waited_ns) for who, ns in ranked[:SHARES_MAX] if ns]


def sum_stragglers(groups: Groups) -> Straggler:
    """Move each fold's excess communication from `communication` to `straggler`, and sum up over ranks."""
    result = Straggler(onsets=groups.onsets)
    newest = dict(sorted(groups.folds))
    for (rank, number), onset in groups.onsets.items():
        if onset.slow and number != newest[rank]:
            onset.end(groups.folds[rank, number].top_step)
    for (rank, _), fold in sorted(groups.folds.items()):
        fold.kept[COMMUNICATION] -= fold.straggler_ns
        fold.kept[_STRAGGLER] += fold.straggler_ns
        result.groups[rank] = fold.attempt.group
        result.length_ns += fold.matched_ns
        result.waited_ns += fold.straggler_ns
        if fold.caused_ns:
            _add(result.caused_ns, rank, fold.caused_ns)
            _add(result.by_host_ns, fold.attempt.host, fold.caused_ns)
            if fold.attempt.stage is not None:
                _add(result.by_stage_ns, fold.attempt.stage, fold.caused_ns)
        own = result.own_ns.setdefault(rank, [0] * len(STATES))
        for i, ns in enumerate(fold.kept):
            if i not in _NOT_OWN:
                own[i] += ns
        result.steps[rank] = result.steps.get(rank, 0.0) + fold.work
    return result


def _add(into: dict, key, ns: int) -> None:
    into[key] = into.get(key, 0) + ns
