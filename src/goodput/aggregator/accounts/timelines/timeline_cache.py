"""Timelines of runs with their marks (restarts, checkpoints, stalls), cached."""

from __future__ import annotations

from goodput.account import Account, Run
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import ANONYMOUS
from goodput.aggregator.accounts.past import Check, Past, Window
from goodput.aggregator.accounts.recorded_steps import ranks_by_excess
from goodput.aggregator.accounts.result_cache import ResultCache
from goodput.aggregator.accounts.timelines.timeline import RANKS_SHOWN, Mark, Timeline, timeline_of
from goodput.aggregator.ledger.ledger import Ledger

RESTARTS_MARKED_MAX = 200


class TimelineCache:
    """Timelines by run, number of points and window."""

    def __init__(self, accounts: Accounts):
        self._accounts, self._cache = accounts, ResultCache()

    async def get(
        self, run: str, points: int, window: Window = (None, None), owner: str = ANONYMOUS
    ) -> Timeline:
        """The timeline of a run, for the token with the id `owner`. Raises KeyError, HistoryError, QueueFull."""
        account = await self._accounts.latest(run)
        timeline = await self._cache.get(
            (run, points, window),
            lambda: self._compute(account, points, window, owner),
            self._accounts.final_revision(account),
        )
        timeline.status = account.status
        return timeline

    def clear(self) -> int:
        """Drop all timelines; returns how many there were."""
        return self._cache.clear()

    async def _compute(
        self, account: Account, points: int, window: Window, owner: str
    ) -> tuple[Timeline, float]:
        run, past = self._accounts.store.runs[account.run], self._accounts.past(account)
        timeline, took_seconds = await self._accounts.history.run(
            *(owner, _timeline_of, past, window, points, account)
        )
        _add_marks(timeline, run, account)
        if not timeline.buckets:
            timeline.start = timeline.end = account.start_ns / 1e9
        return timeline, took_seconds


def _timeline_of(
    ledger: Ledger, past: Past, window: Window, points: int, account: Account, check: Check
) -> Timeline:
    return timeline_of(ledger, past, window, points, ranks_by_excess(account)[:RANKS_SHOWN], check)


def _add_marks(timeline: Timeline, run: Run, account: Account) -> None:
    """Add the restarts, and at most one committed checkpoint per bucket; oldest first."""
    marks = timeline.marks + [
        Mark("restart", one.time_ns / 1e9, step=one.resume_step, attempt=one.attempt)
        for one in account.restarts[-RESTARTS_MARKED_MAX:]
    ]
    if timeline.buckets:
        marks += _checkpoints(run, timeline)
        start, end = timeline.start, timeline.end
        marks = [one for one in marks if one.time <= end and (one.end or one.time) >= start]
    timeline.marks = sorted(marks, key=lambda one: one.time)


def _checkpoints(run: Run, timeline: Timeline) -> list[Mark]:
    """As reported by the first rank of each attempt that committed any; the last one of each bucket."""
    start, length, count = timeline.start, timeline.end - timeline.start, len(timeline.buckets)
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
            bucket = int((at - start) / length * count) if length else 0
            if bucket not in marks or marks[bucket].time < at:
                marks[bucket] = Mark("checkpoint", at, step=event.step, attempt=number)
    return list(marks.values())
