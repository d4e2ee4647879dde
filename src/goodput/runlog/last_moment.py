"""The hang verdict at the last moment of a run log: what each rank's newest attempt was doing when the log ended.

A run that has ended without finishing is judged just before its end, as it stood when it was killed.
"""

from __future__ import annotations

from collections.abc import Mapping

from goodput.account import Account, Attempt
from goodput.account.attempts import states_of_phases
from goodput.account.collectives.calls import PROFILED
from goodput.account.facts import Facts, Key
from goodput.account.hang import STALE_NS, Hang, RankStatus, verdict
from goodput.account.states import INDEX, PLANNED, STATES, state_of, vector
from goodput.runlog.attempt_rows import Last
from goodput.runlog.scan_results import AttemptTrack, RunTrack


def hang_at_end(
    facts: Facts, account: Account, found: RunTrack, lasts: Mapping[Key, Last], is_known_only: bool
) -> Hang | None:
    """The hang with which the log ends, None without one. `lasts` is where each attempt is."""
    left_out, now_ns = found.run.left_out(), found.now_ns()
    newest = [own[-1] for rank, own in facts.by_rank.items() if rank not in left_out]
    if all(attempt.end_reason() == "finished" for attempt in newest):
        return None
    is_open = account.status in ("running", "unobserved")
    if not is_open:
        now_ns = max(facts.bounds[one.rank, one.attempt].end_ns for one in newest)
    statuses = []
    for attempt in newest:
        known, key = attempt.known_end_ns(), (attempt.rank, attempt.attempt)
        seen_ns = known if known is not None else attempt.seen_ns if is_known_only and is_open else now_ns
        status = _status(account, found.tracks[key], lasts[key], seen_ns)
        # Those that were killed with the run were alive until then.
        if not is_open and now_ns - seen_ns <= STALE_NS and status.ended != "finished":
            status = status._replace(alive=True, ended="")
        statuses.append(status)
    unseen = max(account.world_size - len(newest), 0)
    return verdict(statuses, now_ns, account.threshold_ns, unseen=unseen)


def _status(account: Account, track: AttemptTrack, last: Last, seen_ns: int) -> RankStatus:
    """An attempt as it was at `seen_ns`."""
    attempt, tail = track.attempt, _tail(track.attempt, last)
    state = STATES[state_of(last.phase, attempt.phase_states)]
    progress_ns = last.end_ns if last.steps else attempt.start_ns
    # What no line names is the last phase's, as in the account.
    spent_ns = tail[INDEX[state]] + max(seen_ns - progress_ns - sum(tail), 0)
    there_ns = spent_ns if track.phase_ns is None else seen_ns - track.tail_ns + track.phase_ns
    same_ns = max(spent_ns - there_ns, 0)
    planned = {name: same_ns if name == state else tail[INDEX[name]] for name in PLANNED}
    return RankStatus(
        rank=attempt.rank,
        host=attempt.host,
        attempt=attempt.attempt,
        phase=last.phase,
        state=state,
        phase_since_ns=seen_ns - max(there_ns, 0),
        seen_ns=seen_ns,
        received_ns=seen_ns,
        last_progress_ns=progress_ns,
        step=last.step if last.steps else None,
        planned=planned,
        limit_ns=account.planned.of_state(attempt.rank, state),
        alive=attempt.alive,
        ended=attempt.end_reason(),
        generates=not last.steps and (state == "rollout" or tail[INDEX["rollout"]] > 0),
        is_profiled=not last.steps and attempt.role == PROFILED,
    )


def _tail(attempt: Attempt, last: Last) -> list[int]:
    """The time after the last step, by state."""
    tail = vector()
    for state, ns in zip(states_of_phases(attempt), last.tail, strict=True):
        tail[state] += ns
    return tail
