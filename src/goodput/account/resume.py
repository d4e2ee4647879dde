"""Kept and lost: which completed steps a later attempt did again.

A step is kept unless a later attempt resumed before it. An attempt's resume point is the step it declared, else the one
before its first step; while it has none, or the run is down, the last committed checkpoint before it. Where no
checkpoint was ever reported nothing is declared lost, since it is unknown.
"""

from __future__ import annotations

from goodput.account.attempts import Attempt, Run

KEEP_ALL = 1 << 62


def resume_points(run: Run) -> dict[int, int | None]:
    """Per attempt number the last step whose work it starts from, None where unknown.

    Ranks of one attempt resume together, so the lowest declared step holds.
    """
    declared: dict[int, list[int]] = {}
    before: dict[int, list[int]] = {}
    for (_, number), attempt in run.attempts.items():
        if attempt.declared_resume_step is not None:
            declared.setdefault(number, []).append(attempt.declared_resume_step)
        if attempt.first_step is not None:
            before.setdefault(number, []).append(attempt.first_step - 1)
    points: dict[int, int | None] = {}
    for number in sorted({number for _, number in run.attempts}):
        known = declared.get(number) or before.get(number)
        points[number] = min(known) if known else last_checkpoint(run, number, points)
    return points


def last_checkpoint(run: Run, before: int, points: dict[int, int | None]) -> int | None:
    """Step of the last checkpoint committed in attempts numbered below `before`; -1 when all were left open.

    A checkpoint beyond the step from which a later attempt resumed holds lost work and does not count.
    """
    begun = False
    committed: dict[int, int] = {}
    for (_, number), attempt in run.attempts.items():
        if number >= before:
            continue
        begun = begun or attempt.begun
        if attempt.committed is not None:
            committed[number] = max(attempt.committed, committed.get(number, -1))
    last = -1
    for number in sorted({number for _, number in run.attempts if number < before}):
        point = points.get(number)
        if point is not None:
            last = min(last, point)
        last = max(last, committed.get(number, -1))
    return last if begun else None


def kept_until(run: Run, points: dict[int, int | None], down: bool) -> dict[tuple[int, int], int]:
    """For each (rank, attempt) the last step index that counts.

    A rank that is not part of a later attempt also loses its steps up to that attempt's start.
    """
    provisional = last_checkpoint(run, run.newest() + 1, points) if down else None
    starts, limits = run.starts(), {}
    for (rank, number), attempt in run.attempts.items():
        limit = KEEP_ALL if provisional is None else provisional
        for later, point in points.items():
            if later <= number or point is None:
                continue
            if (rank, later) in run.attempts or _end_with_slack_ns(attempt) <= starts[later]:
                limit = min(limit, point)
        limits[rank, number] = limit
    return limits


def _end_with_slack_ns(attempt: Attempt) -> int:
    """An attempt that begins after this moment began after this one ended.

    Ranks of one attempt do not start at once and hosts' clocks differ, so a known end gets a minute of slack.
    """
    end_ns = attempt.known_end_ns()
    return attempt.beat_ns() if end_ns is None else end_ns - 60_000_000_000
