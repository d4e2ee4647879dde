"""The accounts of the runs in the store, recomputed when something changed or time has passed.

In: the store. Out: account.Account and its document. One computation serves everyone who asks until a report
changes the run or `age_seconds` pass; what depends on rows alone is kept per attempt (account.Memory).
"""

from __future__ import annotations

import time
from typing import NamedTuple

from goodput.account import Account, compute, document
from goodput.account.account import Memory
from goodput.aggregator.store import Store
from goodput.causes import explain


class _Kept(NamedTuple):
    account: Account
    at_ns: int
    change: int
    cost_ns: int


class Accounts:
    """Accounts by run name. KeyError for a run that is not there."""

    def __init__(self, store: Store, *, stall_seconds: float, stale_seconds: float, age_seconds: float = 0.5):
        self.store = store
        self.stall_seconds, self.stale_seconds = stall_seconds, stale_seconds
        self._age_ns = int(age_seconds * 1e9)
        self._memories: dict[str, Memory] = {}
        self._kept: dict[str, _Kept] = {}

    def account(self, name: str, now_ns: int | None = None) -> Account:
        """The account of a run, at most `age_seconds` old while it runs."""
        run = self.store.runs[name]
        now_ns = time.time_ns() if now_ns is None else now_ns
        change = self.store.changes.get(name, 0)
        kept = self._kept.get(name)
        if kept is not None and self._is_fresh(kept, change, now_ns):
            return kept.account
        began = time.perf_counter_ns()
        account = compute(
            run,
            now_ns,
            memory=self._memories.setdefault(name, Memory()),
            stall_seconds=self.stall_seconds,
            stale_seconds=self.stale_seconds,
            known_only=True,
        )
        self._kept[name] = _Kept(account, now_ns, change, time.perf_counter_ns() - began)
        return account

    def _is_fresh(self, kept: _Kept, change: int, now_ns: int) -> bool:
        """Unchanged and recent; or so costly that recomputing at every report would take over a tenth of a core."""
        same = kept.change == change
        if same and kept.account.status == "finished":
            return True
        # A clock that was set back must not keep an account for good.
        return abs(now_ns - kept.at_ns) < max(self._age_ns if same else 0, 10 * kept.cost_ns)

    def document(self, name: str) -> dict:
        """The account document of a run, with what each rank is doing now as `live` and step time lately."""
        account = self.account(name)
        found = document(account, explain(account))
        found["stall_threshold_seconds"] = account.threshold_ns / 1e9
        found["live"] = self._live(name, account)
        found["windows"] = self.store.trends[name].document(account.end_ns, account.world_size)
        return found

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
                    "ended": newest.ended or ("" if newest.known_end_ns() is None else "killed"),
                    "phase": newest.phase,
                    "phase_seconds": max(newest.seen_ns - newest.last_ns, 0) / 1e9,
                    "step": last.step if last else None,
                    "step_seconds": (last.end_ns - last.start_ns) / 1e9 if last else None,
                    "report_age_seconds": max(account.end_ns - (newest.heard_ns or newest.seen_ns), 0) / 1e9,
                }
            )
        return rows
