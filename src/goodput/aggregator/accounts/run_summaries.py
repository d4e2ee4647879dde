"""The list of runs, a page at a time, each run's row made anew only when it may be another one.

In: the accounts. Out: rows as models_runs.Summary has them, newest run first. A row of a run with a thousand ranks takes
some milliseconds to make, so it is kept: until the run changes, and where nobody runs or reports it, whose time yet goes
on, for AGE_SECONDS. A page of a thousand such runs takes milliseconds; of others one is made for the page that is asked
for and no more, and in between whatever else came is served. What is kept is one row per run of the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from goodput.access.tokens import EVERYTHING
from goodput.account import FINAL_STATUSES, Account, figures
from goodput.account.states import INDEX, STATES
from goodput.aggregator.accounts.accounts import Accounts

AGE_SECONDS = 10.0
AT_A_TIME_SECONDS = 0.005
_PRODUCTIVE = INDEX["productive"]


class _Kept(NamedTuple):
    row: dict
    account: Account
    change: int
    at_seconds: float


class RunSummaries:
    """Rows by run name."""

    def __init__(self, accounts: Accounts, clock: Callable[[], float] = time.monotonic):
        self._accounts, self._clock = accounts, clock
        self._kept: dict[str, _Kept] = {}

    async def page(
        self, limit: int, offset: int = 0, search: str = "", may: Callable[[str], bool] = EVERYTHING.may
    ) -> dict:
        """`limit` runs from `offset` on, of those whose name contains `search`, and how many there are.

        Runs that whoever asks `may` not see are not there.
        """
        runs, words = self._accounts.store.runs, search.casefold()
        for name in self._kept.keys() - runs.keys():
            del self._kept[name]
        names = [name for name in filter(may, runs) if words in name.casefold()]
        starts = self._accounts.store.starts
        names.sort(key=lambda name: (-starts[name], name))
        shown = names[offset : offset + limit]
        rows, began = [], time.perf_counter()
        for name in shown:
            rows.append(self.row(name))
            if time.perf_counter() - began > AT_A_TIME_SECONDS:
                await asyncio.sleep(0)
                began = time.perf_counter()
        return {
            "runs": rows,
            "total": len(names),
            "truncated": offset + len(shown) < len(names),
        }

    def row(self, name: str) -> dict:
        """One run. Whether it hangs is looked up each time, for that changes without a report."""
        row = self._row(name)
        return {**row, "hang": row["status"] == "running" and self._accounts.hang(name) is not None}

    def _row(self, name: str) -> dict:
        change, now = self._accounts.store.changes.get(name, 0), self._clock()
        kept = self._kept.get(name)
        if kept is not None and kept.change == change:
            status = kept.row["status"]
            if status in FINAL_STATUSES or (status != "running" and now - kept.at_seconds < AGE_SECONDS):
                return kept.row
        account = self._accounts.account(name)
        if kept is None or kept.account is not account:
            row = {**self._accounts.summary(name), **_waste(account)}
            kept = self._kept[name] = _Kept(row, account, change, now)
        return kept.row


def _waste(account: Account) -> dict:
    """GPU-seconds by state, those that are not zero, and what was not productive, in GPU-seconds and dollars."""
    gpu_ns, dollars = account.gpu_ns(), figures.money(account)
    wasted = account.wall_gpu_ns() - gpu_ns[_PRODUCTIVE]
    return {
        "states": {state: ns / 1e9 for state, ns in zip(STATES, gpu_ns, strict=True) if ns},
        "waste_gpu_seconds": wasted / 1e9,
        "cost": None if dollars is None else dollars["total"],
        "waste_cost": None if dollars is None else dollars["total"] - dollars["states"]["productive"],
    }
