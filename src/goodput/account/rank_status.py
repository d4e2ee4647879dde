"""A rank's newest process as the hang verdict takes it, from its attempt and its last completed step."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Protocol

from goodput.account.attempts import Attempt
from goodput.account.collectives.calls import PROFILED
from goodput.account.hang import RankStatus
from goodput.account.stall_threshold import PlannedLimits
from goodput.account.states import PHASE_STATES, PLANNED


class LastStep(Protocol):
    """The last completed step: its index, its end in unix ns of its host, the totals up to then."""

    @property
    def step(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    @property
    def totals(self) -> tuple[int, ...]: ...


def rank_status(
    attempt: Attempt, last: LastStep | None, limits: PlannedLimits, received_ns: int
) -> RankStatus:
    """The status of a process that was last heard of at `received_ns`, on the clock of the verdict."""
    state = _state_of(attempt.phase, attempt.phase_states)
    planned = _planned_ns(attempt, last)
    progress_ns = last.end_ns if last else attempt.start_ns
    return RankStatus(
        rank=attempt.rank,
        host=attempt.host,
        attempt=attempt.attempt,
        phase=attempt.phase,
        state=state,
        phase_since_ns=max(attempt.last_ns, attempt.start_ns),
        seen_ns=attempt.seen_ns,
        received_ns=received_ns,
        last_progress_ns=progress_ns,
        step=last.step if last else None,
        planned=planned,
        limit_ns=limits.of_state(attempt.rank, state),
        alive=attempt.alive,
        ended=attempt.end_reason(),
        generates=last is None and (state == "rollout" or planned["rollout"] > 0),
        is_profiled=last is None and attempt.role == PROFILED,
    )


def _state_of(phase: str, user_states: dict[str, str]) -> str:
    return user_states.get(phase) or PHASE_STATES.get(phase, "unattributed")


def _planned_ns(attempt: Attempt, last: LastStep | None) -> Counter[str]:
    """Time in planned states since the last completed step, up to the last boundary."""
    before = last.totals if last else ()
    spent: Counter[str] = Counter()
    for i, state in _planned_columns(attempt.phases, tuple(attempt.phase_states.items())):
        if i < len(attempt.totals):
            spent[state] += max(attempt.totals[i] - (before[i] if i < len(before) else 0), 0)
    return spent


@functools.lru_cache(maxsize=256)
def _planned_columns(
    phases: tuple[str, ...], user_states: tuple[tuple[str, str], ...]
) -> list[tuple[int, str]]:
    """Cached, since the ranks of a run mostly have the same phases."""
    states = dict(user_states)
    found = [(i, _state_of(phase, states)) for i, phase in enumerate(phases)]
    return [(i, state) for i, state in found if state in PLANNED]
