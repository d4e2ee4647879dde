"""Which runs are in memory: those that are over leave it for the ledger, and come back when requested or reported.

A run whose account was stored at its end leaves at leisure. Where a bound is full, of runs, processes or bytes, the runs
that have not reported for the longest time leave at once, those that are over first; their steps are in the ledger, from
which they are folded again. So a new run is refused only where the bound is full of runs that report now.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import msgspec

from goodput.account import FINAL_STATUSES, Account
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.live import IncrementalAccount
from goodput.aggregator.accounts.result_cache import SingleFlight
from goodput.aggregator.accounts.run_summaries import RunSummary, summary_of
from goodput.aggregator.accounts.slices import in_slices
from goodput.aggregator.api.exposition import KEPT_SECONDS
from goodput.aggregator.api.stored_accounts import decoded_account
from goodput.aggregator.ingest import store as bounds
from goodput.aggregator.ingest.ingest import Ingest, restore_run
from goodput.aggregator.ingest.restored_windows import RestoredWindows
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import closed_runs
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.ledger.threads import in_thread
from goodput.aggregator.memory_bound import MemoryBound, Reservation

log = logging.getLogger("goodput.aggregator")
# A run that has reported or was requested within this time stays, whatever is full; one whose ranks have all ended is not
# in use for as long.
USED_SECONDS, OVER_SECONDS = 120.0, 10.0
# A run that is over stays for so long after its last report, so that its last series are scraped and its page is fast.
ENDED_SECONDS = 3600.0
# So many runs are read at the same time: while one waits for the database another one computes. More would only take turns
# at the interpreter with each other and with the event loop, and all would be late.
READ_AT_ONCE = 2
# What a rank process takes when its run is read.
PROCESS_BYTES = 32 << 10
# A full bound divided by this is freed at once: looking for the oldest takes a look at all.
FREED_DIVISOR = 16


class RunMemory:
    """`ingest.counts` has what left and came back, by ("runs", what)."""

    def __init__(self, ledger: Ledger, ingest: Ingest, accounts: Accounts, memory: MemoryBound):
        self._ledger, self._ingest, self._accounts, self._memory = ledger, ingest, accounts, memory
        self._store, self._counts = accounts.store, ingest.counts
        self.windows = RestoredWindows(ledger, accounts.store)
        self._flights = SingleFlight()
        self._reading = asyncio.Semaphore(READ_AT_ONCE)
        self._used: dict[str, float] = {}  # when runs were loaded, or requested last
        self._requests: Counter[str] = Counter()  # that are under way, by run
        # Of runs that left since they were over; None where the ledger has it.
        self._summaries: dict[str, RunSummary | None] = {}
        self.closed_at: Counter[str] = Counter()  # by run: its revision when it was closed
        self._store.make_room = self.make_room
        ingest.load = self.load

    def find_stored(self) -> int:
        """Note the closed runs of the ledger, which need not be in memory; returns how many processes they have.

        But for those whose last values are still exposed.
        """
        exposed_ns = self._accounts.clock_ns() - int(KEPT_SECONDS * 1e9)
        closed = closed_runs.closed(self._ledger)
        found = {run: one for run, one in closed.items() if one.newest_ns < exposed_ns}
        self._store.stored |= {run: one.start_ns for run, one in found.items()}
        self._summaries |= dict.fromkeys(found)
        return sum(one.processes for one in found.values())

    def note_closed(self, runs: Collection[str]) -> None:
        """Note runs that are in the ledger alone and were closed there."""
        self._summaries |= dict.fromkeys(runs)

    def forget(self, run: str) -> None:
        """Forget a run that another aggregator serves now."""
        for held in (self._summaries, self._used, self.closed_at):
            held.pop(run, None)

    def has_room(self) -> bool:
        """Whether runs may be read that no client has requested."""
        return self._memory.has_room()

    # ---- Out of memory

    def make_room(self, token: str = "") -> int:
        """Take the oldest runs that are not in use out of memory; returns how many."""
        old = self._oldest(token)
        some = old[: max(len(old) // FREED_DIVISOR, bounds.RUNS_MAX // FREED_DIVISOR, 1)]
        self._store_away(some, "full")
        if some:
            log.warning(
                "a bound of the memory is full: %d runs left for the ledger, the oldest being %r",
                len(some),
                some[0],
            )
        return len(some)

    async def free(self, is_enough: Callable[[], bool]) -> int:
        """Take the oldest runs that are not in use out of memory until it is enough; returns how many."""
        left = 0
        while not is_enough() and (old := self._oldest()):
            some = old[: -(-len(old) // FREED_DIVISOR)]
            self._store_away(some, "memory")
            left += len(some)
            await asyncio.sleep(0)
        return left

    def _oldest(self, token: str = "") -> list[str]:
        """Runs that are not in use, of a token or all, in the order in which they should leave."""
        runs: Collection[str] = self._store.taken if token else self._store.runs
        if token:
            runs = [run for run in runs if any(of == token for of, _ in self._store.taken[run])]
        last, reported = self._accounts.last_of, self._store.reported_ns

        def order(run: str) -> tuple[bool, int]:
            account = last(run)
            return account is None or not account.is_settled(), reported[run]

        return sorted(self._unused(runs), key=order)

    def store_ended(self, runs: Collection[str]) -> None:
        """Take closed runs out of memory that have not been used for a while."""
        self._store_away(self._unused(runs, ENDED_SECONDS), "ended")
        self._summaries = {run: one for run, one in self._summaries.items() if run in self._store.stored}

    def read_again(self, runs: Collection[str]) -> set[str]:
        """Take runs out of memory to whose rows in the ledger something happened; returns those that are not left in it."""
        busy = self._ingest.unwritten() | set(self._requests)
        self._store_away([run for run in runs if run in self._store.runs and run not in busy], "damaged")
        for run in runs:
            self._summaries.pop(run, None)
        return {run for run in runs if run not in self._store.runs}

    def _unused(self, runs: Collection[str], seconds: float | None = None) -> list[str]:
        """Runs without a report for so many seconds, by default for as long as they stay where a bound is full."""
        unwritten, found = self._ingest.unwritten(), []
        now, now_ns = time.monotonic(), self._accounts.clock_ns()
        for run in runs:
            least = seconds or (OVER_SECONDS if self._has_ended(run) else USED_SECONDS)
            is_old = now_ns - self._store.reported_ns[run] > least * 1e9
            is_asked_for = now - self._used.get(run, -least) < min(least, USED_SECONDS)
            if is_old and not is_asked_for and run not in unwritten and run not in self._requests:
                found.append(run)
        return found

    def _has_ended(self, run: str) -> bool:
        return all(one.attempt.known_end_ns() is not None for one in self._store.newest[run].values())

    def _store_away(self, runs: list[str], why: str) -> None:
        if runs:
            for run in runs:
                self._keep_summary(run)
            self._store.store_away(*runs)
            for run in runs:
                self._accounts.forget(run)
                self._used.pop(run, None)
            self._counts["runs", why] += len(runs)
            # Their blocks are merged after the next search of the ledger for small ones.
            gone = set(runs)
            for key in [key for key in list(self._ledger.appended) if key[0] in gone]:
                self._ledger.appended.pop(key, None)

    def _keep_summary(self, run: str) -> None:
        account = self._accounts.account_over(run)
        self._summaries.pop(run, None)
        if self.closed_at.pop(run, None) == self._store.revisions[run]:
            self._summaries[run] = None
        elif account is not None:
            self._summaries[run] = summary_of(account)

    # ---- Back into memory

    async def load(self, run: str) -> None:
        """Bring a run back that is in the ledger alone; nothing for another one. Raises LedgerError, Refusal."""
        if run in self._store.stored:
            await self._flights.run(run, lambda: self._load(run))

    @contextmanager
    def requested(self, run: str) -> Iterator[None]:
        """Meanwhile, and for a while after it, a run stays in memory if it is there."""
        self._requests[run] += 1
        try:
            yield
        finally:
            self._requests[run] -= 1
            if not self._requests[run]:
                del self._requests[run]
            if run in self._store.runs:
                self._used[run] = time.monotonic()

    async def _load(self, run: str) -> None:
        async with self._reading, self._memory.reservation() as memory:
            await self._reserve(memory, run)
            found, account, live = await in_thread(self._read, run)
        if run not in self._store.stored:
            return  # deleted meanwhile
        if len(self._store.runs) >= bounds.RUNS_MAX or len(self._store.processes) >= bounds.PROCESSES_MAX:
            self.make_room()
        self._used[run] = time.monotonic()
        self._store.adopt(found)
        self._summaries.pop(run, None)
        self._counts["runs", "loaded"] += 1
        if account is not None:
            self._accounts.keep(run, account)
        elif live is not None:
            self._accounts.adopt(run, live)

    async def _reserve(self, memory: Reservation, run: str) -> None:
        processes = await in_thread(self._ledger.count_processes, run)
        # A large run is not refused for good, as a request for that much is.
        await memory.add(min(processes * PROCESS_BYTES, self._memory.request_bytes_max()), f"run {run!r}")

    def _read(self, run: str) -> tuple[Store, Account | None, IncrementalAccount | None]:
        """The run as the ledger has it, with its stored account or one of its steps."""
        found = Store()
        state = restore_run(self._ledger, found, run)
        if run not in found.runs:
            return found, None, None
        account = decoded_account(self._ledger, run)
        if account is not None:
            found.drop_steps(run, bool(closed_runs.thinned_seconds(self._ledger, run)))
            return found, account, None
        self.windows.note(run, found.recent[run], state)
        return found, None, self._accounts.resumed_in(found, run, state)

    async def summaries(self, runs: Collection[str]) -> dict[str, RunSummary]:
        """The summaries of runs that are in the ledger alone; one without is brought back where memory is not full."""
        kept = {run: self._summaries[run] for run in runs if run in self._summaries}
        closed = [run for run, summary in kept.items() if summary is None]
        bodies = await in_thread(closed_runs.summaries, self._ledger, closed) if closed else {}
        found: dict[str, RunSummary | None] = {run: one for run, one in kept.items() if one is not None}
        found |= {run: _summary_decoder.decode(body) for run, body in bodies.items()}
        for run in runs:
            if run not in found:
                if not self._memory.has_room():
                    found[run] = await self._read_summary(run)
                    continue
                await self.load(run)
                if run in self._store.runs:
                    found[run] = summary_of(await in_slices(self._accounts.computing(run)))
        return {run: summary for run, summary in found.items() if summary is not None}

    async def _read_summary(self, run: str) -> RunSummary | None:
        """The summary of a run, which stays in the ledger; None if it was deleted."""
        async with self._memory.reservation() as memory:
            await self._reserve(memory, run)
            _, account, live = await in_thread(self._read, run)
        account = account or (live and live.last)
        summary = None if account is None else summary_of(account)
        if summary is not None and summary.status in FINAL_STATUSES and run in self._store.stored:
            self._summaries[run] = summary
        return summary


_summary_decoder = msgspec.json.Decoder(RunSummary)
