"""Stragglers: which ranks and stages of a pipeline others waited for, and in what they are slow.

The core has split the communication of each step; here are its sums over an attempt and over a run. Slowdown is the
sum of step times over their sum had each step's own work been spread evenly, after Lin et al., "Understanding
Stragglers in Large Model Training Using What-if Analysis" (2025); with one collective per step that is length /
(length - straggler).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import nsmallest
from statistics import median

from goodput.account.attempts import Attempt
from goodput.account.derived import Derived
from goodput.account.facts import Key
from goodput.account.slow_ranks.comparable import ComparableSums, less
from goodput.account.slow_ranks.onset import Onset
from goodput.account.slow_ranks.slow_phase import PhaseTimes, excess, mean_phases, most_of
from goodput.account.states import INDEX, STATES

_STRAGGLER, _BUBBLE = INDEX["straggler"], INDEX["bubble"]
# A rank or stage is a culprit only if its own time exceeds the median of its peers by this ratio ...
SLOW_RATIO_MIN = 1.02
# ... if that excess explains at least this part of the waiting it caused: where ranks alternate in being last, one of
# them is last most often by chance ...
EXPLAINED_RATIO_MIN = 0.5
# ... and at least this part of all waiting.
WAITING_SHARE_MIN = 0.05
# A rank or stage that others wait for in fewer steps than this is slow at times, as a few long batches make one.
LAST_SHARE_MIN = 0.1
# In fewer steps than this one long batch, or one pause of the machine, makes a rank slower than its peers.
STEPS_MIN = 8
# A stage also only if waiting for it is this part of the steps. Stages never have quite the same work: the last one has the
# loss, the first one the embedding, and layers move as a whole.
STAGE_STEP_SHARE_MIN = 0.025
SHARES_MAX = 16
# Detection restarts with each attempt; a rank slow within so many steps of the last attempt's end was slow before.
NEAR_STEPS = 16

Unit = tuple[str, "int | None"]  # what a rank is compared within: its group, its stage of a pipeline


@dataclass
class Straggler:
    """Sums over kept steps that at least two ranks of a group reported.

    Ranks are compared attempt by attempt: those of one attempt made the same steps, while an elastic run's attempts have
    other ranks, and other ranks in a stage.
    """

    length_ns: int = 0
    all_ns: int = (
        0  # the length of all kept steps of ranks that have peers, also of those that could not be compared
    )
    waited_ns: int = 0
    caused_ns: dict[int, int] = field(default_factory=dict)  # by rank
    by_host_ns: dict[str, int] = field(default_factory=dict)
    by_stage_ns: dict[int, int] = field(default_factory=dict)
    own_ns: Mapping[Key, list[int]] = field(default_factory=dict)  # per state, of whole kept steps
    steps: dict[Key, float] = field(default_factory=dict)  # their number
    units: dict[Key, Unit] = field(default_factory=dict)
    groups: dict[int, str] = field(default_factory=dict)  # by rank, of its newest attempt
    stages: dict[int, int] = field(default_factory=dict)  # by rank, of a pipeline
    # What its own group, or its stage of several groups, waited for it; also where a slower stage covers it.
    caused_in_group_ns: dict[int, int] = field(default_factory=dict)
    stage_caused_ns: dict[int, int] = field(default_factory=dict)  # by a stage, not by one of its ranks
    compared_steps: dict[int, int] = field(default_factory=dict)  # by rank
    last_steps: dict[int, int] = field(default_factory=dict)  # of them, those in which others waited for it
    stage_last_steps: dict[int, int] = field(default_factory=dict)
    onsets: Mapping[Key, Onset] = field(default_factory=dict)
    phases: Mapping[Key, PhaseTimes] = field(default_factory=dict)
    phases_before: Mapping[Key, PhaseTimes] = field(
        default_factory=dict
    )  # those up to where these sums begin
    # Known steps: (after, up to).
    spans: Mapping[Key, tuple[int | None, int]] = field(default_factory=dict)
    comparable: ComparableSums | None = field(default=None, compare=False)  # of a live account

    def slowdown(self) -> float | None:
        even = self.length_ns - self.waited_ns
        return self.length_ns / even if even > 0 else None

    def compared_share(self) -> float | None:
        """Share of the time in kept steps of ranks with peers that was compared; None without peers."""
        return min(self.length_ns / self.all_ns, 1.0) if self.all_ns else None

    def shares(self) -> list[tuple[int, float]]:
        """(rank, share of the waiting it caused), largest first."""
        return _shares(self.caused_ns, self.waited_ns)

    def host_shares(self) -> list[tuple[str, float]]:
        return _shares(self.by_host_ns, self.waited_ns)

    def stage_shares(self) -> list[tuple[int, float]]:
        """(pipeline stage, share), where stages are known."""
        return _shares(self.by_stage_ns, self.waited_ns)

    def peers(self, rank: int) -> str | int:
        """What a rank is compared within: its pipeline stage, else its group; of its newest attempt."""
        return self.stages.get(rank, self.groups.get(rank, ""))

    def culprit(self) -> tuple[int, str] | None:
        """The slow rank, and the state in which it exceeds the median of its peers most."""
        rank = self.slow_rank()
        return None if rank is None else (rank, self._state_of_excess(rank))

    def slow_rank(self) -> int | None:
        """The slow rank that is most waited for.

        It must explain WAITING_SHARE_MIN of all waiting, and EXPLAINED_RATIO_MIN of what its group waits for it, and be waited
        for in LAST_SHARE_MIN of the steps, of which there must be STEPS_MIN.
        """
        least_ns = max(WAITING_SHARE_MIN * self.waited_ns, 1)
        by_cause = sorted((-ns, rank) for rank, ns in self.caused_ns.items() if ns >= least_ns)
        for caused, rank in by_cause:
            steps, compared = self._steps_of(rank), self.compared_steps.get(rank, 0)
            if steps < STEPS_MIN or _is_seldom(self.last_steps.get(rank, 0), compared, steps):
                continue
            explained = self._explained(rank)
            if explained >= EXPLAINED_RATIO_MIN and -caused * min(explained, 1.0) >= least_ns:
                return rank
        return None

    def _steps_of(self, rank: int) -> float:
        """The steps in which a rank is compared; of rows of several steps those of which its own time is known."""
        own = sum(self.steps[key] for key in self._attempts.get(rank, ()))
        return max(own, self.compared_steps.get(rank, 0))

    def slowness(self, rank: int) -> float:
        """A rank's own time over what it would be at the median of its peers."""
        own = usual = 0.0
        for key, means in self._compared(rank):
            own += self.steps[key] * means[key]
            usual += self.steps[key] * median(means.values())
        return own / usual if usual else 1.0

    def excess_ns(self, rank: int) -> float:
        """By how much a rank's own time per step is above the median of its peers'."""
        more = steps = 0.0
        for key, means in self._compared(rank):
            own = means.pop(key)
            if means:
                more += self.steps[key] * (own - median(means.values()))
                steps += self.steps[key]
        return more / steps if steps else 0.0

    def stage_slowness(self, stage: int) -> float:
        """A stage's own time, its ranks' median, over that at the median of the other stages."""
        own = usual = 0.0
        for steps, _, means in self._staged:
            others = [ns for other, ns in means.items() if other != stage]
            if stage in means and others:
                own += steps * means[stage]
                usual += steps * median(others)
        return own / usual if usual else 1.0

    def comparable_sums(self) -> ComparableSums:
        """What ranks are compared by over the last minutes; where no steps are common, of all kept ones."""
        if self.comparable is not None:
            return self.comparable
        return ComparableSums(
            {key: sum(own) for key, own in self.own_ns.items()}, self.steps, {}, self.phases
        )

    def compact(self) -> Straggler:
        """A copy without onsets and states: what `since_sums` needs of earlier sums."""
        comparable = self.comparable_sums().compact()
        return replace(
            self, own_ns={}, steps={}, units={}, groups={}, onsets={}, phases={}, comparable=comparable
        )

    def since_sums(self, before: Straggler) -> Straggler | None:
        """The sums of what came after `before`, without onsets and states; None if steps were lost since."""
        sums, earlier = self.comparable_sums(), before.comparable_sums()
        steps = less(sums.steps, earlier.steps)
        waited_ns = self.waited_ns - before.waited_ns
        if waited_ns < 0 or min(steps.values(), default=0.0) < 0:
            return None
        return replace(
            self,
            length_ns=self.length_ns - before.length_ns,
            waited_ns=waited_ns,
            caused_ns=less(self.caused_ns, before.caused_ns),
            caused_in_group_ns=less(self.caused_in_group_ns, before.caused_in_group_ns),
            stage_caused_ns=less(self.stage_caused_ns, before.stage_caused_ns),
            compared_steps=less(self.compared_steps, before.compared_steps),
            last_steps=less(self.last_steps, before.last_steps),
            stage_last_steps=less(self.stage_last_steps, before.stage_last_steps),
            own_ns=Derived(sums.own_ns, lambda key, ns: [ns - earlier.own_ns.get(key, 0)]),
            steps=steps,
            onsets={},
            phases=sums.phases,
            phases_before=earlier.phases,
            spans=Derived(sums.until, lambda key, until: (earlier.until.get(key), until)),
        )

    @cached_property
    def _peers(self) -> dict[tuple, list[Key]]:
        """The ranks that are compared with each other in an attempt: of a stage, else of a group."""
        found: dict[tuple, list[Key]] = {}
        for key, steps in self.steps.items():
            if steps:
                found.setdefault(self._unit_of(key), []).append(key)
        return found

    def _unit_of(self, key: Key) -> tuple:
        group, stage = self.units[key]
        return (key[1], group) if stage is None else (key[1], stage)

    @cached_property
    def _attempts(self) -> dict[int, list[Key]]:
        """By rank, the attempts in which it made steps."""
        found: dict[int, list[Key]] = {}
        for key, steps in self.steps.items():
            if steps:
                found.setdefault(key[0], []).append(key)
        return found

    def _compared(self, rank: int) -> Iterator[tuple[Key, dict[Key, float]]]:
        """Each of a rank's attempts with the own time per step of its peers there, itself included.

        Of these only those that made the same steps, as far as that is known, or else about as many, if there are any: one
        that left early made other steps, whose loader or network may have been faster for all.
        """
        for key in self._attempts.get(rank, ()):
            yield key, self._own_means(self._peers[self._unit_of(key)], key)

    @cached_property
    def _means(self) -> dict[Key, float]:
        """Own time per step of the attempts that made some."""
        return {key: sum(self.own_ns[key]) / steps for key, steps in self.steps.items() if steps}

    def _own_means(self, peers: list[Key], key: Key) -> dict[Key, float]:
        """Own time per step of those peers that are to be compared with `key`."""
        steps, span = self.steps[key], self.spans.get(key)
        means = {one: self._means[one] for one in peers}
        same = {one: mean for one, mean in means.items() if self.spans.get(one) == span}
        if len(same) > 1 and span is not None:
            return same
        alike = {one: mean for one, mean in means.items() if steps <= 2 * self.steps[one] <= 4 * steps}
        return alike if len(alike) > 1 else means

    def _most_usual(self, keys: list[Key]) -> Key:
        """Of the attempts that made the same steps as most others, the one with the most steps."""
        spans = Counter(self.spans.get(key) for key in keys)
        return max(keys, key=lambda key: (spans[self.spans.get(key)], self.steps[key]))

    @cached_property
    def _staged(self) -> list[tuple[float, dict[int, list[Key]], dict[int, float]]]:
        """For each attempt that is a pipeline: its steps, the ranks of each stage, and their median own time per step."""
        found: dict[int, dict[int, list[Key]]] = {}
        for (number, _), keys in self._peers.items():
            stage = self.units[keys[0]][1]
            if stage is not None:
                found.setdefault(number, {})[stage] = keys
        result = []
        for stages in found.values():
            most = self._most_usual([key for keys in stages.values() for key in keys])
            means = {stage: median(self._own_means(keys, most).values()) for stage, keys in stages.items()}
            result.append((self.steps[most], stages, means))
        return result

    def _explained(self, rank: int) -> float:
        """The part of its group's waiting for a rank that its excess over the median of its peers explains.

        In a stage of several groups that of the stage's waiting.
        """
        own_ns = usual_ns = later_ns = 0.0
        for key, means in self._compared(rank):
            own, steps = means.pop(key), self.steps[key]
            if means:
                own_ns += steps * own
                usual_ns += steps * median([own, *means.values()])
                others = len(self._peers[self._unit_of(key)]) - 1
                later_ns += steps * (own - median(means.values())) * others
        waited_for = self.caused_in_group_ns.get(rank, 0)
        if not waited_for or own_ns <= 0 or own_ns < SLOW_RATIO_MIN * usual_ns:
            return 0.0
        return later_ns / waited_for

    def _state_of_excess(self, rank: int) -> str:
        excess = [0.0] * len(STATES)
        for key, means in self._compared(rank):
            for i in range(len(STATES)):
                usual = median(self.own_ns[other][i] / self.steps[other] for other in means)
                excess[i] += self.own_ns[key][i] - self.steps[key] * usual
        return STATES[excess.index(max(excess))]

    def because_phase(self) -> str | None:
        """The phase of the culprit's state in which it exceeds its peers most; None where its phases are not known."""
        found = self.culprit()
        return None if found is None else self.slow_phase(*found)

    def stage_because_phase(self) -> str | None:
        stage = self.culprit_stage()
        return None if stage is None else self.slow_stage_phase(stage)

    def slow_phase(self, rank: int, state: str | None = None) -> str | None:
        """The phase in which a rank exceeds the median of its peers most, of those that map to `state`."""
        sums: dict[str, float] = {}
        states: dict[str, str] = {}
        for key, peers in self._compared(rank):
            own, beside = self._phase_means(key), self._known_means(peers)
            if own is not None:
                for phase, ns in excess(own, beside).items():
                    _add(sums, phase, self.steps[key] * ns)
                states.update(self.phases[key].states)
        return most_of(sums, states, state)

    def slow_stage_phase(self, stage: int) -> str | None:
        """As `because_phase`, for a stage: its ranks' median against the median of the other stages."""
        sums: dict[str, float] = {}
        states: dict[str, str] = {}
        for steps, stages, _ in self._staged:
            known = {one: self._known_means(keys) for one, keys in stages.items()}
            usual = {one: _usual_phases(means) for one, means in known.items() if means}
            for phase, ns in excess(usual.pop(stage, {}), usual.values()).items():
                _add(sums, phase, steps * ns)
            for key in stages.get(stage, ()):
                states.update(self.phases[key].states)
        return most_of(sums, states)

    def _phase_means(self, key: Key) -> dict[str, float] | None:
        return mean_phases(self.phases.get(key), self.phases_before.get(key))

    def _known_means(self, keys: Iterable[Key]) -> list[dict[str, float]]:
        return [found for key in keys if (found := self._phase_means(key)) is not None]

    def culprit_stage(self) -> int | None:
        """The slow pipeline stage most waited for, by the rule of `culprit`: its ranks' median against other stages'.

        Waiting for it must be STAGE_STEP_SHARE_MIN of the steps too.
        """
        least_ns = max(WAITING_SHARE_MIN * self.waited_ns, STAGE_STEP_SHARE_MIN * self.length_ns, 1)
        for caused, stage in sorted((-ns, stage) for stage, ns in self.stage_caused_ns.items()):
            ranks = [rank for rank, own in self.stages.items() if own == stage]
            compared = max((self.compared_steps.get(rank, 0) for rank in ranks), default=0)
            steps = max(map(self._steps_of, ranks), default=0.0)
            if steps < STEPS_MIN or _is_seldom(self.stage_last_steps.get(stage, 0), compared, steps):
                continue
            own_ns = usual_ns = explained_ns = 0.0
            for steps, stages, means in self._staged:
                others = {
                    one: sum(self.steps[key] for key in keys) for one, keys in stages.items() if one != stage
                }
                if stage in means and others:
                    own_ns += steps * means[stage]
                    usual_ns += (
                        steps * sum(means[one] * own for one, own in others.items()) / sum(others.values())
                    )
                    explained_ns += sum((means[stage] - means[one]) * own for one, own in others.items())
            if not usual_ns or own_ns < SLOW_RATIO_MIN * usual_ns:
                continue
            if min(explained_ns, -caused) >= max(least_ns, EXPLAINED_RATIO_MIN * -caused):
                return stage
        return None

    def since(self, rank: int) -> int | None:
        """The step at which this rank became slow, if it is still slow; None if no step stands out."""
        found = self._open_stretch(rank)
        return None if found is None else found[1]

    def is_from_start(self, key: Key, step: int) -> bool:
        """Whether a stretch that begins at `step` begins at the attempt's first comparison: it may have begun before."""
        return key in self.onsets and self.onsets[key].first == step

    def since_start(self, rank: int) -> bool:
        """Whether a rank that is still slow was slow from the start."""
        found = self._open_stretch(rank)
        return found is not None and self.is_from_start(*found)

    def _open_stretch(self, rank: int) -> tuple[Key, int] | None:
        """The attempt and step in which the stretch began in which this rank still is."""
        attempts = sorted((key for key in self.onsets if key[0] == rank), reverse=True)
        if not attempts or not self.onsets[attempts[0]].slow:
            return None
        found = attempts[0], self.onsets[attempts[0]].stretches[-1].first
        for key in attempts[1:]:
            # Slow up to the end of the attempt before: the restart did not cause it.
            stretches = self.onsets[key].stretches
            if not stretches or stretches[-1].last is None or stretches[-1].last + NEAR_STEPS < found[1]:
                break
            if stretches[-1].first < found[1]:
                found = key, stretches[-1].first
        return found


def _is_seldom(last: int, compared: int, steps: float) -> bool:
    """Whether one is waited for in too few of the single steps that were compared; not known where most are in rows of several."""
    return 2 * compared >= steps and last < LAST_SHARE_MIN * compared


def _shares(caused_ns: dict, waited_ns: int) -> list[tuple]:
    if not waited_ns:
        return []
    ranked = nsmallest(SHARES_MAX, caused_ns.items(), key=lambda item: (-item[1], item[0]))
    return [(who, ns / waited_ns) for who, ns in ranked if ns]


def add_caused(result: Straggler, rank: int, attempt: Attempt, caused_ns: int, in_group_ns: int) -> None:
    """Add what others waited for an attempt, and how much of it those of its group."""
    _add(result.caused_ns, rank, caused_ns)
    _add(result.caused_in_group_ns, rank, in_group_ns)
    _add(result.by_host_ns, attempt.host, caused_ns)
    if attempt.stage is not None:
        _add(result.by_stage_ns, attempt.stage, caused_ns)


def add_steps(result: Straggler, rank: int, compared: int, last: int) -> None:
    """Add the steps in which an attempt was compared, and those in which others waited for it."""
    _add(result.compared_steps, rank, compared)
    if last:
        _add(result.last_steps, rank, last)


def _add(into: dict, key, ns: float) -> None:
    into[key] = into.get(key, 0) + ns


def _usual_phases(known: list[dict[str, float]]) -> dict[str, float]:
    """By phase, the median of these ranks."""
    phases = {phase for one in known for phase in one}
    return {phase: median(one.get(phase, 0.0) for one in known) for phase in phases}
