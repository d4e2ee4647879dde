"""The hang verdict at the last moment of a run log: what each rank's newest attempt was doing when the log ended.

A run that has ended without finishing is judged just before its end, as it stood when it was killed.
"""

from __future__ import annotations

from goodput.account import Account, Attempt
from goodput.account.account import Engine
from goodput.account.collectives.calls import PROFILED
from goodput.account.hang import STALE_NS, Hang, RankStatus, verdict
from goodput.account.states import INDEX, PLANNED, STATES


def hang_at_end(
    engine: Engine, account: Account, walks: dict, now_ns: int, is_known_only: bool
) -> Hang | None:
    """The hang with which the log ends, None without one. `walks` has each attempt's walk by its key."""
    left_out = engine.run.left_out()
    newest = [own[-1] for rank, own in engine.facts.by_rank.items() if rank not in left_out]
    if all(attempt.end_reason() == "finished" for attempt in newest):
        return None
    is_open = account.status in ("running", "unobserved")
    if not is_open:
        now_ns = max(engine.facts.bounds[one.rank, one.attempt].end_ns for one in newest)
    statuses = []
    for attempt in newest:
        known = attempt.known_end_ns()
        seen_ns = known if known is not None else attempt.seen_ns if is_known_only and is_open else now_ns
        status = _status(engine, walks[attempt.rank, attempt.attempt], attempt, seen_ns)
        # Those that were killed with the run were alive until then.
        if not is_open and now_ns - seen_ns <= STALE_NS and status.ended != "finished":
            status = status._replace(alive=True, ended="")
        statuses.append(status)
    unseen = max(account.world_size - len(newest), 0)
    return verdict(statuses, now_ns, account.threshold_ns, unseen=unseen)


def _status(engine: Engine, walk, attempt: Attempt, seen_ns: int) -> RankStatus:
    """An attempt as it was at `seen_ns`."""
    fold, tail, phase = engine.folds[attempt.rank, attempt.attempt], walk.tail(), walk.last_phase()
    state = STATES[walk.state_of(phase)]
    progress_ns = fold.last_end_ns if fold.steps else attempt.start_ns
    # What no line names is the last phase's, as in the account.
    spent_ns = tail[INDEX[state]] + max(seen_ns - progress_ns - sum(tail), 0)
    there_ns = spent_ns if walk.track.phase_ns is None else seen_ns - walk.track.tail_ns + walk.track.phase_ns
    same_ns = max(spent_ns - there_ns, 0)
    planned = {name: same_ns if name == state else tail[INDEX[name]] for name in PLANNED}
    return RankStatus(
        rank=attempt.rank,
        host=attempt.host,
        attempt=attempt.attempt,
        phase=phase,
        state=state,
        phase_since_ns=seen_ns - max(there_ns, 0),
        seen_ns=seen_ns,
        received_ns=seen_ns,
        last_progress_ns=progress_ns,
        step=fold.top_step if fold.steps else None,
        planned=planned,
        limit_ns=engine.planned.of_state(attempt.rank, state, progress_ns),
        alive=attempt.alive,
        ended=attempt.end_reason(),
        generates=not fold.steps and (state == "rollout" or tail[INDEX["rollout"]] > 0),
        is_profiled=not fold.steps and attempt.role == PROFILED,
    )
