"""After the first pass: fill in what attempts' own lines lack, and note lines that contradict each other."""

from __future__ import annotations

from goodput.account import DECLARED, Attempt
from goodput.runlog.scan_results import AttemptTrack, Problems, RunTrack

# Taken from the rank's attempt before if an attempt has no line of its own.
LASTING = (
    *("devices", "group", "role", "worker", "stage", "tensor", "device", "dtype"),
    *("microbatches", "total_steps"),
)
# Taken from the attempt before if the attempt's line omits them. For the other fields an omission has a meaning.
KEPT = ("host", "device", "dtype")


def complete_attempts(found: RunTrack) -> None:
    """Fill in the fields of attempts from earlier attempts of the rank and from the run's lines."""
    run_lines = sorted(found.run_lines, key=lambda line: line.time_ns)
    # A kept run has a line of each of its hosts.
    found.run.is_without_gpu = bool(run_lines) and all(line.without_gpu for line in run_lines)
    ranks = 1 + max((rank for rank, _ in found.tracks), default=0)
    first = min((number for _, number in found.tracks), default=0)
    rank_before: dict[int, Attempt] = {}
    for (rank, number), track in sorted(found.tracks.items()):
        attempt = track.attempt
        if attempt.seen_ns >= 0 and rank in rank_before:
            for name in LASTING:
                setattr(attempt, name, getattr(rank_before[rank], name))
            attempt.phase_states = dict(rank_before[rank].phase_states)
        elif rank in rank_before:
            for name in KEPT:
                if getattr(attempt, name) in (None, "", 0):
                    setattr(attempt, name, getattr(rank_before[rank], name))
        rank_before[rank] = attempt
        before = [line for line in run_lines if line.time_ns <= attempt.start_ns] or run_lines[:1]
        for name in DECLARED:
            if name == "submit_time" and number != first:
                continue  # It is the submission of the first attempt; a restart has its own, or none.
            own = getattr(attempt, name)
            if own in (None, "") or (own == 0 and name in ("world_size", "devices")):
                value = next(
                    (v for v in (getattr(line, name) for line in reversed(before)) if v is not None), None
                )
                if value is not None:
                    setattr(attempt, name, str(value) if name == "group" else value)
        for line in before:
            attempt.phase_states = {**(line.phase_states or {}), **attempt.phase_states}
        attempt.world_size, attempt.devices = attempt.world_size or ranks, attempt.devices or 1
        attempt.seen_ns = max(attempt.last_ns, attempt.start_ns)
        found.run.attempts[rank, number] = attempt
    found.phases.set_phases(found.run.attempts.values())


def note_contradictions(found: RunTrack, problems: Problems) -> None:
    """Note ends before the last step, and overlapping attempts of a rank. All of them are used."""
    before: AttemptTrack | None = None
    tracks = sorted(
        found.tracks.values(), key=lambda t: (t.attempt.rank, t.attempt.start_ns, t.attempt.attempt)
    )
    for track in tracks:
        attempt, number = track.attempt, track.attempt.attempt
        if track.end_number and attempt.rows_end_ns > attempt.end_ns:
            late = (attempt.rows_end_ns - attempt.end_ns) / 1e9
            problems.note(
                track.end_number, f"the attempt ends {late:.3f} s before its last step; the steps count"
            )
        if before is not None and before.attempt.rank == attempt.rank:
            over = (before.attempt.last_ns - attempt.start_ns) / 1e9
            if over > 0:
                other = before.attempt.attempt
                problems.note(
                    track.number,
                    f"attempt {number} of rank {attempt.rank} begins {over:.3f} s before the last line of attempt "
                    f"{other}; the overlap counts for the earlier one",
                )
        if before is None or before.attempt.rank != attempt.rank or attempt.last_ns > before.attempt.last_ns:
            before = track
    if found.run.end_ns is not None and found.high_ns > found.run.end_ns:
        late = (found.high_ns - found.run.end_ns) / 1e9
        problems.note(found.end_number, f"the run ends {late:.3f} s before its last line")
