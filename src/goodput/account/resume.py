"""Kept and lost: which completed steps a later attempt did again.

A step is kept unless a later attempt resumed before it. An attempt's resume point is the step it declared, else the one
before its first step; while it has none, or the run has failed, the last committed checkpoint before it. Where no
checkpoint was ever reported nothing is declared lost, since it is unknown. Nor is it where an attempt loaded a
checkpoint whose step nobody knows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from goodput.account.attempts import Attempt, Run
from goodput.account.states import INDEX

KEEP_ALL = 1 << 62
_DOWN, _STARTUP = INDEX["down"], INDEX["startup"]


@dataclass
class Restart:
    """A start of the run after the first, with what it cost. Times in unix ns, sums in GPU-ns."""

    attempt: int
    time_ns: int
    resume_step: int | None
    devices: int = 0
    down_gpu_ns: int = 0
    lost_steps: int = 0
    lost_gpu_ns: int = 0
    startup_gpu_ns: int = 0  # startup, restore and compile of this attempt

    def gpu_ns(self) -> int:
        return self.down_gpu_ns + self.lost_gpu_ns + self.startup_gpu_ns

    def add_gap(self, state: int, gpu_ns: int) -> None:
        """Add time before this start in which no process of a rank existed."""
        self.down_gpu_ns += gpu_ns if state == _DOWN else 0
        self.startup_gpu_ns += gpu_ns if state == _STARTUP else 0


def resume_points(run: Run) -> dict[int, int | None]:
    """Per attempt number the last step whose work it starts from, None where unknown.

    Ranks of one attempt resume together, so the lowest declared step holds.
    """
    declared: dict[int, list[int]] = {}
    before: dict[int, list[int]] = {}
    restored: set[int] = set()
    for (_, number), attempt in run.attempts.items():
        if attempt.declared_resume_step is not None:
            declared.setdefault(number, []).append(attempt.declared_resume_step)
        if attempt.restored:
            restored.add(number)
        if attempt.first_step is not None:
            before.setdefault(number, []).append(attempt.first_step - 1)
    points: dict[int, int | None] = {}
    checkpoints = _Checkpoints(run)
    for number in sorted({number for _, number in run.attempts}):
        known = declared.get(number) or before.get(number)
        if number in restored and number not in declared:
            points[number] = None
        else:
            points[number] = min(known) if known else checkpoints.last
        checkpoints.pass_attempt(number, points[number])
    return points


class _Checkpoints:
    """`last` is the step of the last checkpoint committed in the attempts passed, in ascending number.

    It is -1 when all were left open, None where none was reported. A checkpoint beyond the step from which a later attempt
    resumed holds lost work and does not count.
    """

    def __init__(self, run: Run):
        self.last: int | None = None
        self._begun: set[int] = set()
        self._committed: dict[int, int] = {}
        for (_, number), attempt in run.attempts.items():
            if attempt.begun:
                self._begun.add(number)
            if attempt.committed is not None:
                self._committed[number] = max(attempt.committed, self._committed.get(number, -1))

    def pass_attempt(self, number: int, point: int | None) -> None:
        last = -1 if self.last is None else self.last
        last = last if point is None else min(last, point)
        last = max(last, self._committed.get(number, -1))
        if self.last is not None or number in self._begun:
            self.last = last


def kept_until(run: Run, points: dict[int, int | None], has_failed: bool) -> dict[tuple[int, int], int]:
    """For each (rank, attempt) the last step index that counts.

    A rank that is not part of a later attempt also loses its steps up to that attempt's start. Takes n log n of n attempts.
    """
    limit = provisional_limit(run, points) if has_failed else KEEP_ALL
    starts, limits = run.starts(), {}
    later, own = _LowestFrom(), dict[int, int]()  # of attempts of higher number, any rank's and by rank
    numbers: dict[int, list[int]] = {}
    for rank, number in run.attempts:
        numbers.setdefault(number, []).append(rank)
    for number in sorted(numbers, reverse=True):
        if not own:
            limits.update(((rank, number), limit) for rank in numbers[number])
        for rank in numbers[number] if own else ():
            over_ns = _end_with_slack_ns(run.attempts[rank, number])
            limits[rank, number] = min(limit, own.get(rank, KEEP_ALL), later.lowest(over_ns))
        point = points.get(number)
        if point is not None:
            later.add(starts[number], point)
            own.update((rank, min(point, own.get(rank, point))) for rank in numbers[number])
    return {key: limits[key] for key in run.attempts}


def provisional_limit(run: Run, points: dict[int, int | None]) -> int:
    """The last committed checkpoint of a run that has failed."""
    checkpoints = _Checkpoints(run)
    for number in sorted({number for _, number in run.attempts}):
        checkpoints.pass_attempt(number, points.get(number))
    return KEEP_ALL if checkpoints.last is None else checkpoints.last


class _LowestFrom:
    """The lowest of the points added so far whose start is not before a time."""

    def __init__(self):
        # A point is left out where a lower one starts as late: both ascend.
        self._starts: list[int] = []
        self._points: list[int] = []

    def add(self, start_ns: int, point: int) -> None:
        if self.lowest(start_ns) <= point:
            return
        at = bisect_right(self._starts, start_ns)
        first = bisect_left(self._points, point, 0, at)
        self._starts[first:at], self._points[first:at] = [start_ns], [point]

    def lowest(self, since_ns: int) -> int:
        at = bisect_left(self._starts, since_ns)
        return self._points[at] if at < len(self._points) else KEEP_ALL


def _end_with_slack_ns(attempt: Attempt) -> int:
    """An attempt that begins after this moment began after this one ended.

    Ranks of one attempt do not start at once and hosts' clocks differ, so a known end gets a minute of slack.
    """
    end_ns = attempt.known_end_ns()
    return attempt.beat_ns() if end_ns is None else end_ns - 60_000_000_000
