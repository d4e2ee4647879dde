"""Which runs are in memory: those that are over leave it for the ledger, and come back when asked for or reported.

A run whose account was stored at its end leaves at leisure. Where a bound is full the runs that have not reported for
the longest time leave at once, those that are over first; their steps are in the ledger, from which they are folded
again. So a new run is refused only where the bound is full of runs that report now.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection

import msgspec

from goodput.account import FINAL_STATUSES, Account
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.live import IncrementalAccount
from goodput.aggregator.accounts.result_cache import SingleFlight
from goodput.aggregator.accounts.run_summaries import RunSummary, summary_of
from goodput.aggregator.api.stored_accounts import decoded_account
from goodput.aggregator.ingest import store as bounds
from goodput.aggregator.ingest.ingest import Ingest, restore_run
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import closed_runs
from goodput.aggregator.ledger.ledger import Ledger

log = logging.getLogger("goodput.aggregator")
# A run that has reported or was asked for within this time stays, whatever is full.
USED_SECONDS = 120.0
# A run that is over stays for so long after its last report, so that its last series are scraped and its page is fast.
ENDED_SECONDS = 3600.0
# Of a full bound so much is freed at once: looking for the oldest takes a look at all.
FREED_SHARE = 16


class RunMemory:
    """`ingest.counts` has what left and came back, by ("runs", what)."""

    def __init__(self, ledger: Ledger, ingest: Ingest, accounts: Accounts):
        self._ledger, self._ingest, self._accounts = ledger, ingest, accounts
        self._store, self._counts = accounts.store, ingest.counts
        self._flights = SingleFlight()
        self._used: dict[str, float] = {}  # when runs were loaded
        self._store.make_room = self.make_room
        ingest.load = self.load

    def find_stored(self) -> int:
        """Note the closed runs of the ledger, which need not be in memory; returns how many processes they have."""
        found = closed_runs.closed(self._ledger)
        self._store.stored |= {run: one.start_ns for run, one in found.items()}
        return sum(one.processes for one in found.values())

    # ---- Out of memory

    def make_room(self, token: str = "") -> int:
        """Take the oldest runs that are not in use out of memory; returns how many."""
        ours = self._store.taken if token else self._store.runs
        old = [run for run in ours if self._is_unused(run, USED_SECONDS)]
        if token:
            old = [run for run in old if any(of == token for of, _ in self._store.taken[run])]
        last, reported = self._accounts.last_of, self._store.reported_ns

        def order(run: str) -> tuple[bool, int]:
            account = last(run)
            return account is None or account.status not in FINAL_STATUSES, reported[run]

        old.sort(key=order)
        some = old[: max(len(old) // FREED_SHARE, bounds.RUNS_MAX // FREED_SHARE, 1)]
        self._store_away(some, "full")
        if some:
            log.warning(
                "a bound of the memory is full: %d runs left for the ledger, the oldest being %r",
                len(some),
                some[0],
            )
        return len(some)

    def store_ended(self, runs: Collection[str]) -> None:
        """Take closed runs out of memory that nobody has used for a while."""
        self._store_away([run for run in runs if self._is_unused(run, ENDED_SECONDS)], "ended")

    def _is_unused(self, run: str, seconds: float) -> bool:
        if run not in self._store.runs or time.monotonic() - self._used.get(run, -seconds) < min(
            seconds, USED_SECONDS
        ):
            return False
        is_old = time.time_ns() - self._store.reported_ns.get(run, 0) > seconds * 1e9
        return is_old and self._ingest.is_written(run)

    def _store_away(self, runs: list[str], why: str) -> None:
        if runs:
            self._store.store_away(*runs)
            for run in runs:
                self._accounts.forget(run)
                self._used.pop(run, None)
            self._counts["runs", why] += len(runs)

    # ---- Back into memory

    async def load(self, run: str) -> None:
        """Bring a run back that is in the ledger alone; nothing for another one. Raises LedgerError."""
        if run in self._store.stored:
            await self._flights.run(run, lambda: self._load(run))

    async def _load(self, run: str) -> None:
        found, account, live = await asyncio.to_thread(self._read, run)
        if run not in self._store.stored:
            return  # deleted meanwhile
        if len(self._store.runs) >= bounds.RUNS_MAX or len(self._store.processes) >= bounds.PROCESSES_MAX:
            self.make_room()
        self._used[run] = time.monotonic()
        self._store.adopt(found)
        self._counts["runs", "loaded"] += 1
        if account is not None:
            self._accounts.keep(run, account)
        elif live is not None:
            self._accounts.adopt(run, live)

    def _read(self, run: str) -> tuple[Store, Account | None, IncrementalAccount | None]:
        """The run as the ledger has it, with its stored account or one of its steps."""
        found = Store()
        state = restore_run(self._ledger, found, run)
        if run not in found.runs:
            return found, None, None
        account = decoded_account(self._ledger, run)
        if account is not None:
            found.drop_steps(run, closed_runs.is_thinned(self._ledger, run))
            return found, account, None
        return found, None, self._accounts.resumed_in(found, run, state)

    async def summaries(self, runs: Collection[str]) -> dict[str, RunSummary]:
        """The stored summaries of runs that are in the ledger alone; one without is brought back."""
        bodies = await asyncio.to_thread(closed_runs.summaries, self._ledger, runs)
        found = {run: _summary_decoder.decode(body) for run, body in bodies.items()}
        for run in runs:
            if run not in found:
                await self.load(run)
                if run in self._store.runs:
                    found[run] = summary_of(self._accounts.account(run))
        return found


_summary_decoder = msgspec.json.Decoder(RunSummary)
