"""The timelines of runs, kept while they are fresh, with their marks.

In: the accounts, whose store knows restarts and checkpoints; timeline.py in the child of history.py for the rest. Out:
documents as models_runs.Timeline has them. Whoever asks for what is being made waits for that one; of a run that goes on it
is made anew after ten times the time that it took, so it costs a tenth of a core at most, however many look. At most
KEPT_MAX are kept.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from statistics import median
from typing import NamedTuple

from goodput.account import FINAL_STATUSES, Account, Run
from goodput.account.states import INDEX
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import ANONYMOUS, Job, without_rows
from goodput.aggregator.accounts.single_flight import SingleFlight
from goodput.aggregator.accounts.timeline import RANKS_SHOWN

KEPT_MAX = 64
AGE_SECONDS = 10.0
RESTARTS_MARKED_MAX = 200
# What of a rank's time is its own work, as the steps of ranks are compared.
_OWN = tuple(INDEX[state] for state in ("productive", "loader", "h2d", "launch", "unattributed"))
Window = tuple[int | None, int | None]


class _Kept(NamedTuple):
    document: dict
    at_ns: int
    change: int
    took_seconds: float


class TimelineCache:
    """TimelineCache by run, points and window."""

    def __init__(self, accounts: Accounts):
        self._accounts = accounts
        self._kept: OrderedDict[tuple, _Kept] = OrderedDict()
        self._flights = SingleFlight()

    async def of(self, run: str, points: int, window: Window = (None, None), owner: str = ANONYMOUS) -> dict:
        """The timeline of a run, for the token with the id `owner`. Raises KeyError, HistoryError."""
        account = self._accounts.account(run)
        key = (run, points, window)
        kept = self._kept.get(key)
        if kept is None or not self._is_fresh(run, kept):
            kept = await self._flights.run(key, lambda: self._make(key, owner))
        else:
            self._kept.move_to_end(key)
        return {**kept.document, "status": account.status}

    def _is_fresh(self, run: str, kept: _Kept) -> bool:
        unchanged = kept.change == self._accounts.store.changes.get(run, 0)
        if unchanged and self._accounts.account(run).status in FINAL_STATUSES:
            return True
        return abs(time.time_ns() - kept.at_ns) < max(AGE_SECONDS, 10 * kept.took_seconds) * 1e9

    async def _make(self, key: tuple, owner: str) -> _Kept:
        name, points, window = key
        accounts, now_ns = self._accounts, time.time_ns()
        change, account, run = (
            accounts.store.changes.get(name, 0),
            accounts.account(name),
            accounts.store.runs[name],
        )
        worst = ranks_by_excess(account)
        job = Job(
            "",
            without_rows(run),
            account.end_ns if account.status == "running" else now_ns,
            account.threshold_ns,
            accounts.stale_seconds,
            [window],
            points=points,
            ranks=tuple(worst[:RANKS_SHOWN]),
        )
        found, took = await accounts.history.timeline(job, owner)
        buckets, hosts = found.pop("buckets"), {rank.rank: rank.host for rank in account.ranks}
        for row in found["heat"]["ranks"] if found["heat"] else ():
            row["host"] = hosts.get(row["rank"], "")
        marks = _marks(run, account, buckets, found.pop("stalls"))
        start, end = (buckets[0]["start"], buckets[-1]["end"]) if buckets else (account.start_ns / 1e9,) * 2
        document = {"run": name, "start": start, "end": end, "buckets": buckets, "marks": marks, **found}
        kept = self._kept[key] = _Kept(document, time.time_ns(), change, took)
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return kept


def ranks_by_excess(account: Account) -> list[int]:
    """Ranks by how much more own time a step takes them than the median of their group, the worst first."""
    own, groups = {}, {}
    for rank in account.ranks:
        if rank.kept_steps:
            own[rank.rank] = sum(rank.states[i] for i in _OWN) / rank.kept_steps
            groups.setdefault(account.straggler.groups.get(rank.rank, ""), []).append(own[rank.rank])
    usual = {group: median(values) for group, values in groups.items()}
    excess = {rank: seconds - usual[account.straggler.groups.get(rank, "")] for rank, seconds in own.items()}
    culprit = account.straggler.culprit()
    return sorted(own, key=lambda rank: (culprit is None or rank != culprit[0], -excess[rank], rank))


def _marks(run: Run, account: Account, buckets: list[dict], stalls: list[dict]) -> list[dict]:
    """Restarts, stalls and, at most one a bucket, checkpoints that were committed; oldest first."""
    marks = [
        _mark("restart", one.time_ns / 1e9, None, one.resume_step, one.attempt)
        for one in account.restarts[-RESTARTS_MARKED_MAX:]
    ]
    marks += [_mark("stall", one["start"], one["end"], None, None) for one in stalls]
    if buckets:
        marks += _checkpoints(run, buckets)
        marks = [
            one
            for one in marks
            if one["time"] <= buckets[-1]["end"] and (one["end"] or one["time"]) >= buckets[0]["start"]
        ]
    return sorted(marks, key=lambda one: one["time"])


def _checkpoints(run: Run, buckets: list[dict]) -> list[dict]:
    """As the first rank of each attempt that committed any said it; of one bucket the last."""
    start, length = buckets[0]["start"], buckets[-1]["end"] - buckets[0]["start"]
    first: dict[int, int] = {}
    for (rank, number), attempt in run.attempts.items():
        if attempt.commits:
            first[number] = min(rank, first.get(number, rank))
    found: dict[int, dict] = {}
    for number, rank in first.items():
        for event in run.attempts[rank, number].events.values():
            if event.kind != "checkpoint_committed":
                continue
            at = event.time_ns / 1e9
            place = int((at - start) / length * len(buckets)) if length else 0
            if place not in found or found[place]["time"] < at:
                found[place] = _mark("checkpoint", at, None, event.step, number)
    return list(found.values())


def _mark(kind: str, at: float, end: float | None, step: int | None, attempt: int | None) -> dict:
    return {"kind": kind, "time": at, "end": end, "step": step, "attempt": attempt}
