"""Steps compared within groups: communication split into what all ranks paid and what waiting for the slowest cost.

Ranks are matched by group and steps by attempt and index; clocks of different hosts are never compared. Intrinsic
communication is the smallest of a step's ranks; the culprit of a step is the rank that waited least.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping

from goodput.account.attempts import Attempt
from goodput.account.fold import Fold
from goodput.account.slow_ranks.onset import Onset, hits
from goodput.account.slow_ranks.pipeline import Pipeline, pipeline_of, unit_of, waiting
from goodput.slices import Slices

SWEEP_ENTRIES = 4096

Key = tuple[int, int]  # (rank, attempt number)


class Groups:
    """Steps that wait here until all ranks of their group have passed them. `folds` has all attempts."""

    def __init__(self, folds: Mapping[Key, Fold]):
        self.folds = folds
        self.onsets: MutableMapping[Key, Onset] = {}
        self.members: dict[tuple[int, str], list[Key]] = {}
        self._group: dict[Key, tuple[int, str]] = {}
        self.settled: dict[tuple[int, str], int] = {}  # by group, the last compared step
        self.has_late = False  # a step came after others of its group were compared
        self.pipelines: dict[int, Pipeline] = {}  # by attempt number
        self.stage_caused_ns: dict[int, int] = {}
        self.stage_last_steps: dict[int, int] = {}  # steps in which others waited for the stage
        self._waiting: dict[tuple, list[tuple]] = {}
        self.find_members()
        self._passed: dict[Key, int] = {}
        self._new = self._left = 0  # entries since the last sweep, and those that it left

    def find_members(self) -> None:
        """Find the members of each group; called again when there are new attempts or first steps."""
        self._find_pipelines()
        self.members, self._group = {}, {}
        names: dict[tuple[int, str], tuple[int, str]] = {}
        for key, attempt, steps in self._attempts():
            first, number = attempt.first_step, key[1]
            if first is not None:
                name = "" if number in self.pipelines else attempt.group_name()
                group = self._group[key] = names.setdefault((number, name), (number, name))
                self.members.setdefault(group, []).append(key)
                self.has_late |= not steps and group in self.settled and first <= self.settled[group]

    def _attempts(self) -> Iterable[tuple[Key, Attempt, int]]:
        """All attempts, and how many steps of each were folded."""
        return [(key, fold.attempt, fold.steps) for key, fold in self.folds.items()]

    def _find_pipelines(self) -> None:
        """Find which attempts are pipelines. Steps that were compared otherwise must be compared anew."""
        attempts: dict[int, list[Attempt]] = {}
        for (_, number), attempt, _ in self._attempts():
            if attempt.first_step is not None:
                attempts.setdefault(number, []).append(attempt)
        before = self.pipelines
        found = {number: pipeline_of(own) for number, own in attempts.items()}
        self.pipelines = {number: one for number, one in found.items() if one is not None}
        self.has_late |= any(self.pipelines.get(number) != before.get(number) for number in self._taken())

    def _taken(self) -> set[int]:
        """Attempt numbers of which steps were taken."""
        return {number for number, *_ in (*self.settled, *self._waiting)}

    def with_peers(self) -> list[Key]:
        """The attempts whose ranks there are others to compare with."""
        return [key for members in self.members.values() if len(members) > 1 for key in members]

    def group_of(self, key: Key) -> tuple[int, str]:
        """The ranks whose steps are compared with each other's: a group, all ranks in a pipeline."""
        return self._group[key]

    def add(
        self, key: Key, step: int, count: int, compared: tuple[int, int, int, int], first: bool = False
    ) -> None:
        """Add what Fold.add returned for a step; `first` marks an attempt's first step, which comes late."""
        group = self.group_of(key)
        if len(self.members[group]) < 2:
            # A rank that joins the group later does not take part in this step.
            self.settled[group] = max(step, self.settled.get(group, -1))
            return
        # A rank that repeats its own steps is not late: folding it anew would change nothing.
        self.has_late |= not first and self.folds[key].top_step <= step <= self.settled.get(group, -1)
        self._wait(group, step, count, key, compared)
        if not first:
            self._note_passed(key, step)
            self._new += 1
            self._sweep_if_due()

    def _note_passed(self, key: Key, step: int) -> None:
        self._passed[key] = step

    def _is_due(self) -> bool:
        return self._new >= SWEEP_ENTRIES and self._new >= 2 * self._left

    def _sweep_if_due(self) -> None:
        if self._is_due():
            self.sweep()

    def _wait(self, group: tuple[int, str], step: int, count: int, key: Key, compared: tuple) -> None:
        self._waiting.setdefault((*group, step, count), []).append((key, *compared))

    def flushing(self) -> Slices[None]:
        """Settle all waiting steps, in order, in slices."""
        yield
        held = self._held()
        for together in sorted(self._waiting):
            *_, step, count = together
            self._settle(step, count, self._waiting[together], together not in held)
        self._waiting.clear()

    def _held(self) -> set[tuple]:
        """Steps that wait for a first step, which its fold holds back."""
        return {(*group, *held) for group in self.members for held in self._held_of(group)}

    def _held_of(self, group: tuple[int, str]) -> set[tuple[int, int]]:
        """(step, count) of the first steps that a group's folds hold back."""
        return {self.folds[key].held_back() for key in self.members[group]}

    def _low(self, group: tuple[int, str]) -> int | None:
        """The first step that a rank of the group has not passed; None where all have ended."""
        going = [self._passed.get(key, -1) for key in self.members[group] if not self.folds[key].exhausted]
        return min(going, default=None)

    def sweep(self) -> None:
        """Settle the steps that every rank has passed, or has ended before.

        Always in the order of steps, so that the result does not depend on the order of ranks.
        """
        lows, held = {group: self._low(group) for group in self.members}, self._held()
        for together in sorted(self._waiting):
            low = lows[together[:2]]
            if (low is None or together[2] < low) and together not in held:
                self.settled[together[:2]] = together[2]
                *_, step, count = together
                self._settle(step, count, self._waiting.pop(together), True)
        self._new, self._left = 0, sum(map(len, self._waiting.values()))

    def _settle(self, step: int, count: int, members: list[tuple], noted: bool) -> None:
        """Compare one step, or rows of `count` steps.

        `noted`: it counts for onsets, unless it is a first step, which comes too late.
        """
        # All entries are one rank's, which repeated its own step.
        if all(member[0] == members[0][0] for member in members):
            return
        members.sort()
        pipeline = self.pipelines.get(members[0][0][1])
        if pipeline is None:
            least = min(communication for _, communication, *_ in members)
            last = [key for key, communication, *_ in members if communication == least]
            waited = sum(self._move(member, member[1] - least) for member in members)
            self._blame(waited, last)
            self._note_in_group(waited, last)
            self._note_last(last if len(last) < len(members) else [], count)
        else:
            self._settle_pipeline(pipeline, members, count)
        for key, *_, length in members:
            self.folds[key].matched_ns += length
            self.folds[key].compared_steps += count
        if noted:
            self._note_onsets(step, members, pipeline is not None)

    def _settle_pipeline(self, pipeline: Pipeline, members: list[tuple], count: int) -> None:
        """Split communication into waiting for slower ranks of the group, then for a rank or stage, bubble, the rest.

        What ranks of a faster stage wait for the last of their group is waiting for the slow stage as far as that covers it.
        """
        together: dict[tuple[int, str], list[tuple]] = {}
        staged: dict[int, list[tuple]] = {}
        for member in members:
            attempt = self.folds[member[0]].attempt
            stage = attempt.stage or 0  # all ranks of a pipeline declare one
            together.setdefault((stage, attempt.group_name()), []).append(member)
            staged.setdefault(stage, []).append(member)
        units = [unit_of(stage, ranks) for (stage, _), ranks in together.items()]
        found = waiting(pipeline, units, {stage: [m[3] for m in ranks] for stage, ranks in staged.items()})
        parts = list(zip(units, together.values(), found.for_rank, found.for_stage, strict=True))
        total = sum(m[1] - u.least_ns + one + other for u, ranks, one, other in parts for m in ranks)
        kept = pipeline.kept_ns(total, sum(m[1] for m in members), sum(m[3] for m in members))
        last: set[Key] = set(found.ranks if any(found.for_rank) else ())
        by_rank = by_stage = 0
        apart: set[int] = set()  # stages of several groups
        for unit, ranks, for_rank, for_stage in parts:
            in_group = covered = 0
            for member in ranks:
                beyond = member[1] - unit.least_ns
                hidden = min(found.covered_ns(unit, member[3]), beyond)
                waits = [beyond - hidden, for_rank, for_stage, hidden]
                if kept < total:
                    waits = [ns * kept // total for ns in waits]
                bubble = pipeline.bubble_ns(member[1] + member[3] - kept // len(members))
                in_group += self._move(member, waits[0], min(bubble, member[1] - sum(waits)))
                by_rank += self._move(member, waits[1])
                by_stage += self._move(member, waits[2])
                covered += self._move(member, waits[3])
            by_stage += covered
            self._blame(in_group, unit.last)
            last.update(unit.last if in_group else ())
            if len(ranks) == len(staged[unit.stage]):
                self._note_in_group(in_group + covered, unit.last)
            else:
                apart.add(unit.stage)
        self._blame(by_rank, sorted(found.ranks))
        for stage in sorted(apart):
            self._compare_stage(staged[stage], kept, total)
        self._note_last(last, count)
        for stage, ns in _divided(by_stage, found.stages):
            self.stage_caused_ns[stage] = self.stage_caused_ns.get(stage, 0) + ns
            if by_stage:
                self.stage_last_steps[stage] = self.stage_last_steps.get(stage, 0) + count

    def _compare_stage(self, ranks: list[tuple], kept: int, total: int) -> None:
        """Note what the ranks of a stage of several groups wait for its last rank: they meet in no group's collective."""
        latest = max(own for _, _, _, own, _ in ranks)
        waited = sum(
            _inside(member, min(latest - member[3], member[1]) * kept // max(total, 1)) for member in ranks
        )
        self._note_in_group(waited, [key for key, _, _, own, _ in ranks if own == latest])

    def _blame(self, waited: int, last: list[Key]) -> None:
        for key, ns in _divided(waited, last):
            self.folds[key].caused_ns += ns

    def _note_last(self, last: Iterable[Key], count: int) -> None:
        for key in last:
            self.folds[key].last_steps += count

    def _note_in_group(self, waited: int, last: list[Key]) -> None:
        for key, ns in _divided(waited, last):
            self.folds[key].caused_in_group_ns += ns

    def _note_onsets(self, step: int, members: list[tuple], by_stage: bool) -> None:
        """Compare own times within the group, within the stage in a pipeline."""
        peers: dict[int | None, list[tuple]] = {}
        for member in members:
            stage = self.folds[member[0]].attempt.stage if by_stage else None
            peers.setdefault(stage, []).append(member)
        for ranks in peers.values():
            found = hits([own for _, _, _, own, _ in ranks])
            for (key, *_), hit, beside in zip(ranks, found.slowest, found.beside, strict=True):
                onset = self.onsets.get(key) or Onset()
                onset.note(step, hit, found.chance, beside, found.chance_beside)
                self.onsets[key] = onset

    def slow_keys(self) -> list[Key]:
        """The attempts whose ranks are slow now."""
        return [key for key, onset in self.onsets.items() if onset.slow]

    def _move(self, member: tuple, straggler_ns: int, bubble_ns: int = 0) -> int:
        """Move a rank's communication to other states, in proportion if only a part of the step is in the window."""
        straggler_ns = _inside(member, straggler_ns)
        fold = self.folds[member[0]]
        fold.straggler_ns += straggler_ns
        fold.bubble_ns += _inside(member, bubble_ns)
        return straggler_ns


def _inside(member: tuple, ns: int) -> int:
    """The part of a rank's communication that lies in the window, in proportion."""
    _, communication, within, *_ = member
    return ns if within == communication else ns * within // communication


def _divided(ns: int, among: list) -> list[tuple]:
    """A tie is shared; the remainder of the division goes to the first, so the sum is exact."""
    return [(one, ns // len(among) + (i < ns % len(among))) for i, one in enumerate(among)]
