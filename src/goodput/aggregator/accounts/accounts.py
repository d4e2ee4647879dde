"""The accounts of the runs in the store, recomputed when something changed or time has passed.

In: the store. Out: account.Account and its document. One computation serves everyone who asks until a report
changes the run or `age_seconds` pass.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import NamedTuple

from goodput.account import FINAL_STATUSES, Account, document
from goodput.account.hang import Hang
from goodput.aggregator.accounts.history import ANONYMOUS, History
from goodput.aggregator.accounts.live import IncrementalAccount, NeedsHistory
from goodput.aggregator.ingest.hangs import HangDetector
from goodput.aggregator.ingest.store import Store
from goodput.causes import explain

ROLLING = (("5m", 300.0), ("1h", 3600.0), ("1d", 86_400.0))
ROLLING_AGE_SECONDS = 10.0
FOLD_AGAIN_SECONDS = 10.0
log = logging.getLogger("goodput.aggregator")


class _Rolled(NamedTuple):
    documents: list[dict]
    at_ns: int
    change: int
    took_seconds: float


def _is_over(rolled: _Rolled, now_ns: int) -> bool:
    """So old that it may be had anew, at the price of a tenth of a core at most."""
    return abs(now_ns - rolled.at_ns) > max(ROLLING_AGE_SECONDS, 10 * rolled.took_seconds) * 1e9


def _short(found: dict) -> dict:
    causes = found["causes"]
    same = ("start", "end", "gpu_seconds", "states", "factors", "steps")
    return {**{name: found[name] for name in same}, "leading_cause": causes[0]["state"] if causes else None}


class _Kept(NamedTuple):
    account: Account
    at_ns: int
    change: int
    cost_ns: int


class Accounts:
    """Accounts by run name. KeyError for a run that is not there."""

    def __init__(
        self,
        store: Store,
        *,
        stall_seconds: float,
        stale_seconds: float,
        age_seconds: float = 0.5,
        history: History | None = None,
    ):
        self.store = store
        self.stall_seconds, self.stale_seconds = stall_seconds, stale_seconds
        self._age_ns = int(age_seconds * 1e9)
        self._kept: dict[str, _Kept] = {}
        self._rolling: dict[str, _Rolled] = {}
        self._lives: dict[str, IncrementalAccount] = {}
        self._folding: dict[str, asyncio.Task] = {}
        self.history = history
        self.hangs = HangDetector(store, stall_seconds=stall_seconds, stale_seconds=stale_seconds)
        self._idle: dict[str, int] = {}  # by run that is not running: its change when that was seen

    def account(self, name: str, now_ns: int | None = None) -> Account:
        """The account of a run, at most `age_seconds` old while it runs."""
        run = self.store.runs[name]
        now_ns = time.time_ns() if now_ns is None else now_ns
        change = self.store.changes.get(name, 0)
        kept = self._kept.get(name)
        if kept is not None and self._is_fresh(kept, change, now_ns):
            return kept.account
        began = time.perf_counter_ns()
        live = self._lives.get(name)
        if live is None or live.run is not run:
            live = self._lives[name] = IncrementalAccount(
                run, stall_seconds=self.stall_seconds, stale_seconds=self.stale_seconds
            )
        try:
            account = live.account(now_ns)
        except NeedsHistory as needs:
            self._fold_anew(name, live, needs)
            return live.last
        self._kept[name] = _Kept(account, now_ns, change, time.perf_counter_ns() - began)
        return account

    def _fold_anew(self, name: str, live: IncrementalAccount, needs: NeedsHistory) -> None:
        """Have the run folded from the ledger; until that is done its last account stands."""
        if name in self._folding:
            return

        async def fold() -> None:
            try:
                began = time.perf_counter()
                read = await self.history.folded(live.run, needs.facts, self.stall_seconds)
                live.begin(*read, late=needs.late)
                # Should it be wrong again and again, then at the price of a tenth of a core at most.
                await asyncio.sleep(min(10 * (time.perf_counter() - began), FOLD_AGAIN_SECONDS))
            except Exception as error:
                log.error("run %r: its account stands still: %s", name, error)
                await asyncio.sleep(FOLD_AGAIN_SECONDS)
            finally:
                del self._folding[name]

        self._folding[name] = asyncio.get_running_loop().create_task(fold())

    def _is_fresh(self, kept: _Kept, change: int, now_ns: int) -> bool:
        """Unchanged and recent; or so costly that recomputing at every report would take over a tenth of a core."""
        same = kept.change == change
        if same and kept.account.status in FINAL_STATUSES:
            return True
        # A clock that was set back must not keep an account for good.
        return abs(now_ns - kept.at_ns) < max(self._age_ns if same else 0, 10 * kept.cost_ns)

    def hang(self, name: str, now_ns: int | None = None) -> Hang | None:
        """The verdict on a run that hangs, None while it does not."""
        now_ns = time.time_ns() if now_ns is None else now_ns
        change = self.store.changes.get(name, 0)
        if self._idle.get(name) == change or not self.hangs.may_hang(name, now_ns):
            self.hangs.forget(name)
            return None
        account = self.account(name, now_ns)
        if account.status == "running":
            return self.hangs.look(name, now_ns, account.threshold_ns, account.world_size)
        # Without a report it will not run again, so it need not be looked at before there is one.
        self._idle[name] = change
        self.hangs.forget(name)
        return None

    def find_hangs(self) -> None:
        """Look at all runs, so that stacks are asked for whether or not anybody looks at the page or the series."""
        for name in list(self.store.runs):
            self.hang(name)

    def document(self, name: str) -> dict:
        """The account document of a run, with what each rank is doing now as `live` and step time lately."""
        account = self.account(name)
        found = document(account, explain(account))
        hang = self.hang(name)
        found["hang"] = self.hangs.document(name, hang) if hang else None
        found["live"] = self._live(name, account)
        found["windows"] = self.store.trends[name].document(account.end_ns, account.world_size)
        return found

    async def past(self, name: str, start_ns: int | None, end_ns: int | None, owner: str = ANONYMOUS) -> dict:
        """The account document of a window, for the token with the id `owner`. Raises KeyError, HistoryError."""
        documents, _ = await self._history(name, [(start_ns, end_ns)], owner)
        return documents[0]

    async def rolling(self, name: str, owner: str = ANONYMOUS) -> list[dict]:
        """The accounts of ROLLING and of the whole run, in short. Raises KeyError, HistoryError."""
        account, now_ns = self.account(name), time.time_ns()
        kept = self._rolling.get(name)
        if kept is None or (kept.change != self.store.changes.get(name, 0) and _is_over(kept, now_ns)):
            change = self.store.changes.get(name, 0)
            windows = [(account.end_ns - int(seconds * 1e9), account.end_ns) for _, seconds in ROLLING]
            # The windows move on with the run, and are one question all the same.
            documents, took = await self._history(name, windows, owner, "rolling")
            kept = self._rolling[name] = _Rolled(documents, now_ns, change, took)
        names = [*ROLLING, ("lifetime", (account.end_ns - account.start_ns) / 1e9)]
        documents = [*kept.documents, document(account, explain(account))]
        return [
            {"name": window, "seconds": seconds, **_short(found)}
            for (window, seconds), found in zip(names, documents, strict=True)
        ]

    async def _history(
        self, name: str, windows: list, owner: str, question: str | None = None
    ) -> tuple[list[dict], float]:
        account = self.account(name)
        return await self.history.documents(
            self.store.runs[name],
            windows,
            now_ns=account.end_ns if account.status == "running" else time.time_ns(),
            threshold_ns=account.threshold_ns,
            stale_seconds=self.stale_seconds,
            owner=owner,
            question=question,
        )

    def summary(self, name: str) -> dict:
        """A run in one row of the list of runs."""
        account = self.account(name)
        causes = explain(account)
        return {
            "run": name,
            "status": account.status,
            "start": account.start_ns / 1e9,
            "end": account.end_ns / 1e9,
            "world_size": account.world_size,
            "gpu_seconds": account.wall_gpu_ns() / 1e9,
            "goodput": account.ratio("goodput"),
            "mfu": account.ratio("mfu"),
            "restarts": len(account.restarts),
            "leading_cause": causes[0]["state"] if causes else None,
            "hang": self.hang(name) is not None,
        }

    def _live(self, name: str, account: Account) -> list[dict]:
        rows = []
        for rank, attempts in sorted(self.store.runs[name].by_rank().items()):
            newest = attempts[-1]
            last = newest.rows[max(newest.rows)] if newest.rows else None
            rows.append(
                {
                    "rank": rank,
                    "host": newest.host,
                    "attempt": newest.attempt,
                    "alive": newest.known_end_ns() is None,
                    "ended": newest.how() or ("" if newest.known_end_ns() is None else "killed"),
                    "phase": newest.phase,
                    "phase_seconds": max(newest.seen_ns - newest.last_ns, 0) / 1e9,
                    "step": last.step if last else None,
                    "step_seconds": (last.end_ns - last.start_ns) / 1e9 if last else None,
                    "report_age_seconds": max(account.end_ns - (newest.heard_ns or newest.seen_ns), 0) / 1e9,
                }
            )
        return rows
