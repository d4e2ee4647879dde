"""Timelines of runs with their marks (restarts, checkpoints, stalls), cached."""

from __future__ import annotations

import time
from statistics import median

import msgspec
from msgspec import Struct

from goodput.account import FINAL_STATUSES, Account, Run
from goodput.account.states import INDEX
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import ANONYMOUS, Job, Window, without_rows
from goodput.aggregator.accounts.result_cache import ResultCache
from goodput.aggregator.accounts.timeline import RANKS_SHOWN, Bucket, Heat, Sampled, TimelineData

RESTARTS_MARKED_MAX = 200
# The states of a rank's own work, by which ranks are compared.
_OWN = tuple(INDEX[state] for state in ("productive", "loader", "h2d", "launch", "unattributed"))


class Mark(Struct):
    """A restart, a committed checkpoint (the last of its bucket) or a stall, which alone has an `end`.

    `step` is that of the checkpoint, or the one a restart resumes from.
    """

    kind: str
    time: float
    end: float | None = None
    step: int | None = None
    attempt: int | None = None


class Timeline(Struct):
    """A run over time, in equal buckets. `sampled` is null where every row was read."""

    run: str
    status: str
    start: float
    end: float
    buckets: list[Bucket]
    marks: list[Mark]
    sampled: Sampled | None
    heat: Heat | None


class TimelineCache:
    """Timelines by run, number of points and window."""

    def __init__(self, accounts: Accounts):
        self._accounts, self._cache = accounts, ResultCache()

    async def get(
        self, run: str, points: int, window: Window = (None, None), owner: str = ANONYMOUS
    ) -> Timeline:
        """The timeline of a run, for the token with the id `owner`. Raises KeyError, HistoryError."""
        account = self._accounts.account(run)
        timeline = await self._cache.get(
            (run, points, window),
            self._accounts.store.revisions.get(run, 0),
            account.status in FINAL_STATUSES,
            lambda: self._compute(run, points, window, owner),
        )
        timeline.status = account.status
        return timeline

    async def _compute(self, name: str, points: int, window: Window, owner: str) -> tuple[Timeline, float]:
        accounts = self._accounts
        account, run = accounts.account(name), accounts.store.runs[name]
        job = Job(
            "",
            without_rows(run),
            account.end_ns if account.status == "running" else time.time_ns(),
            account.threshold_ns,
            accounts.stale_seconds,
            [window],
            points=points,
            ranks=tuple(ranks_by_excess(account)[:RANKS_SHOWN]),
        )
        encoded, took_seconds = await accounts.history.timeline(job, owner)
        data = msgspec.json.decode(encoded, type=TimelineData)
        buckets, hosts = data.buckets, {rank.rank: rank.host for rank in account.ranks}
        for row in data.heat.ranks if data.heat else ():
            row.host = hosts.get(row.rank, "")
        start, end = (buckets[0].start, buckets[-1].end) if buckets else (account.start_ns / 1e9,) * 2
        marks = _marks(run, account, buckets, data.stalls)
        timeline = Timeline(name, account.status, start, end, buckets, marks, data.sampled, data.heat)
        return timeline, took_seconds


def ranks_by_excess(account: Account) -> list[int]:
    """Ranks by their own time per step beyond the median of their group, the worst first."""
    own, groups = {}, {}
    for rank in account.ranks:
        if rank.kept_steps:
            own[rank.rank] = sum(rank.states[i] for i in _OWN) / rank.kept_steps
            groups.setdefault(account.straggler.groups.get(rank.rank, ""), []).append(own[rank.rank])
    medians = {group: median(values) for group, values in groups.items()}
    excess = {rank: ns - medians[account.straggler.groups.get(rank, "")] for rank, ns in own.items()}
    culprit = account.straggler.culprit()
    return sorted(own, key=lambda rank: (culprit is None or rank != culprit[0], -excess[rank], rank))


def _marks(run: Run, account: Account, buckets: list[Bucket], stalls: list[tuple]) -> list[Mark]:
    """Restarts, stalls and at most one committed checkpoint per bucket, oldest first."""
    marks = [
        Mark("restart", one.time_ns / 1e9, step=one.resume_step, attempt=one.attempt)
        for one in account.restarts[-RESTARTS_MARKED_MAX:]
    ]
    marks += [Mark("stall", start, end) for start, end in stalls]
    if buckets:
        marks += _checkpoints(run, buckets)
        start, end = buckets[0].start, buckets[-1].end
        marks = [one for one in marks if one.time <= end and (one.end or one.time) >= start]
    return sorted(marks, key=lambda one: one.time)


def _checkpoints(run: Run, buckets: list[Bucket]) -> list[Mark]:
    """As reported by the first rank of each attempt that committed any; the last one of each bucket."""
    start, length = buckets[0].start, buckets[-1].end - buckets[0].start
    first: dict[int, int] = {}
    for (rank, number), attempt in run.attempts.items():
        if attempt.commits:
            first[number] = min(rank, first.get(number, rank))
    marks: dict[int, Mark] = {}
    for number, rank in first.items():
        for event in run.attempts[rank, number].events.values():
            if event.kind != "checkpoint_committed":
                continue
            at = event.time_ns / 1e9
            bucket = int((at - start) / length * len(buckets)) if length else 0
            if bucket not in marks or marks[bucket].time < at:
                marks[bucket] = Mark("checkpoint", at, step=event.step, attempt=number)
    return list(marks.values())
