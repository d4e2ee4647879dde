"""A run of a log when all its lines were seen once: what attempts lack, and what their lines contradict.

In: a Found of scan.py. Out: its attempts as the account takes them, and notes on lines that cannot be true beside
others. Nothing is dropped here. It reads no file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from goodput.account import DECLARED, Attempt

if TYPE_CHECKING:
    from goodput.runlog.scan import Found, Problems, Track

# What a rank keeps over a restart, as far as anyone can tell.
LASTING = ("devices", "group", "stage", "tensor", "device", "dtype", "microbatches")
# And what a later attempt is taken to have kept where its own line does not say; the rest has a meaning left out.
KEPT = ("host", "device", "dtype")


def complete(found: Found) -> None:
    """Give attempts what their run's lines say and they themselves do not."""
    given = sorted(found.given, key=lambda line: line.time_ns)
    seen = 1 + max((rank for _, rank, _ in found.tracks), default=0)
    first = min((number for *_, number in found.tracks), default=0)
    rank_before: dict[int, Attempt] = {}
    for (_, rank, number), track in sorted(found.tracks.items()):
        attempt = track.attempt
        if attempt.seen_ns >= 0 and rank in rank_before:
            # Its own line is missing, so it is taken to be what its rank was before.
            for name in LASTING:
                setattr(attempt, name, getattr(rank_before[rank], name))
            attempt.phase_states = dict(rank_before[rank].phase_states)
        elif rank in rank_before:
            for name in KEPT:
                if getattr(attempt, name) in (None, "", 0):
                    setattr(attempt, name, getattr(rank_before[rank], name))
        rank_before[rank] = attempt
        before = [line for line in given if line.time_ns <= attempt.start_ns] or given[:1]
        for name in DECLARED:
            if name == "submit_time" and number != first:
                continue  # The run was submitted before its first start; a later one waits from its own submission on.
            own = getattr(attempt, name)
            if own in (None, "") or (own == 0 and name in ("world_size", "devices")):
                value = next(
                    (v for v in (getattr(line, name) for line in reversed(before)) if v is not None), None
                )
                if value is not None:
                    setattr(attempt, name, str(value) if name == "group" else value)
        for line in before:
            attempt.phase_states = {**(line.phase_states or {}), **attempt.phase_states}
        attempt.world_size, attempt.devices = attempt.world_size or seen, attempt.devices or 1
        attempt.seen_ns = max(attempt.last_ns, attempt.start_ns)
        found.run.attempts[rank, number] = attempt


def contradictions(found: Found, problems: Problems) -> None:
    """Say where an end lies before what it ends, and where a rank's attempts overlap. Nothing of it is dropped."""
    before: Track | None = None
    tracks = sorted(
        found.tracks.values(), key=lambda t: (t.attempt.rank, t.attempt.start_ns, t.attempt.attempt)
    )
    for track in tracks:
        attempt, number = track.attempt, track.attempt.attempt
        if track.end_number and attempt.rows_end_ns > attempt.end_ns:
            late = (attempt.rows_end_ns - attempt.end_ns) / 1e9
            problems.note(track.end_number, f"it ends {late:.3f} s before its last step; the steps count")
        if before is not None and before.attempt.rank == attempt.rank:
            over = (before.attempt.last_ns - attempt.start_ns) / 1e9
            if over > 0:
                other = before.attempt.attempt
                problems.note(
                    track.number,
                    f"attempt {number} of rank {attempt.rank} begins {over:.3f} s before attempt {other} was last "
                    "heard of; what they share counts for the earlier one",
                )
        if before is None or before.attempt.rank != attempt.rank or attempt.last_ns > before.attempt.last_ns:
            before = track
    if found.run.end_ns is not None and found.high_ns > found.run.end_ns:
        late = (found.high_ns - found.run.end_ns) / 1e9
        problems.note(found.end_number, f"the run ends {late:.3f} s before what was last heard of it")
