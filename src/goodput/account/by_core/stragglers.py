"""Who waited for whom in a run, from the core's sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from operator import sub

from goodput.account.attempts import Attempt, padded, states_of_phases
from goodput.account.by_core.attempt_sums import AttemptSums
from goodput.account.by_core.engine import CoreEngine
from goodput.account.facts import Key
from goodput.account.slow_ranks.comparable import ComparableSums
from goodput.account.slow_ranks.onset import Onset, Stretch
from goodput.account.slow_ranks.slow_phase import NOT_OWN, PhaseTimes
from goodput.account.states import vector
from goodput.account.straggler import Straggler, add_caused, add_steps
from goodput.slices import AT_A_TIME, Slices


def sum_stragglers(
    engine: CoreEngine, sums: Mapping[Key, AttemptSums], before: CoreEngine | None = None
) -> Slices[Straggler]:
    """Ranks are compared by their own time per step, without the first step of an attempt, stalls and lost steps.

    `before` has the run up to where `sums` begin. In slices.
    """
    own_ns, phases = {}, {}
    result = Straggler(
        own_ns=own_ns,
        phases=phases,
        onsets=_onsets(engine, sums),
        all_ns=sum(sum(sums[key].kept) for key in _with_peers(engine, sums)),
    )
    for at, (key, own) in enumerate(sorted(sums.items())):
        if at % AT_A_TIME == 0:
            yield
        attempt = engine.run.attempts[key]
        stage = attempt.stage if attempt.attempt in engine.pipelines else None
        result.groups[attempt.rank] = attempt.group_name()
        if stage is not None:
            result.stages[attempt.rank] = stage
        result.length_ns += own.matched_ns
        result.waited_ns += own.waited_ns
        if own.caused_ns:
            add_caused(result, attempt.rank, attempt, own.caused_ns, own.caused_in_group_ns)
        if own.compared_steps:
            add_steps(result, attempt.rank, own.compared_steps, own.last_steps)
        phases[key] = times = _phase_times(engine, attempt, before)
        own_ns[key], result.steps[key] = _own_ns(times, attempt), times.steps
        result.units[key] = attempt.group_name(), stage
    _add_stages(result, engine, before)
    result.comparable = ComparableSums(
        {key: own.compared_own_ns for key, own in sums.items()},
        {key: own.compared_count for key, own in sums.items()},
        phases=phases,
    )
    return result


def _with_peers(engine: CoreEngine, sums: Mapping[Key, AttemptSums]) -> list[Key]:
    """The attempts with steps that there are others to compare with."""
    groups = {key: engine.group_name(engine.run.attempts[key]) for key, own in sums.items() if own.rows}
    members = Counter(groups.values())
    return [key for key, group in groups.items() if members[group] > 1]


def _phase_times(engine: CoreEngine, attempt: Attempt, before: CoreEngine | None) -> PhaseTimes:
    key = attempt.rank, attempt.attempt
    steps, ns = engine.core.phase_times(engine.places[key])
    if before is not None and key in before.places:
        earlier, earlier_ns = before.core.phase_times(before.places[key])
        steps, ns = steps - earlier, list(map(sub, ns, padded(earlier_ns, len(ns))))
    return PhaseTimes(attempt.phases, attempt.phase_states, steps, tuple(ns))


def _own_ns(times: PhaseTimes, attempt: Attempt) -> list[int]:
    own = vector()
    for state, spent in zip(states_of_phases(attempt), times.totals, strict=True):
        own[state] += spent
    for state in NOT_OWN:
        own[state] = 0
    return own


def _onsets(engine: CoreEngine, sums: Mapping[Key, AttemptSums]) -> dict[Key, Onset]:
    """Stretches of slow steps; those of an attempt that was followed by another end with it."""
    newest, found = {rank: own[-1].attempt for rank, own in engine.facts.by_rank.items()}, {}
    for key, own in sums.items():
        if own.first_compared is None:
            continue
        stretches = [Stretch(*one) for one in engine.core.stretches(engine.places[key])]
        onset = found[key] = Onset(stretches, slow=own.is_slow, first=own.first_compared)
        if onset.slow and key[1] != newest[key[0]]:
            onset.end(own.top_step)
    return found


def _add_stages(result: Straggler, engine: CoreEngine, before: CoreEngine | None) -> None:
    for number, pipeline in engine.pipelines.items():
        for stage in range(pipeline.stages):
            caused_ns, steps = engine.core.read_stage(engine.groups[number, ""], stage)
            if before is not None and (number, "") in before.groups:
                earlier_ns, earlier = before.core.read_stage(before.groups[number, ""], stage)
                caused_ns, steps = caused_ns - earlier_ns, steps - earlier
            if not caused_ns:
                continue
            for sums, more in (
                (result.stage_caused_ns, caused_ns),
                (result.by_stage_ns, caused_ns),
                (result.stage_last_steps, steps),
            ):
                sums[stage] = sums.get(stage, 0) + more
