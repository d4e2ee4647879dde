"""The aggregator's background work on its ledger: closes runs, compacts, and forgets runs that were deleted from it.

A run is closed once it has been over for CLOSED_SECONDS: its account is stored, so that it may leave memory, and its
steps may be thinned once they are as old as they are kept. Of a run that is not over, those may that lie before a state
of its account. It takes a tenth of a core at most.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from goodput.account import FINAL_STATUSES, Account
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.bases import moving
from goodput.aggregator.accounts.live import RunIsDirty
from goodput.aggregator.accounts.slices import in_slices
from goodput.aggregator.accounts.snapshots import write_state
from goodput.aggregator.api.run_memory import RunMemory
from goodput.aggregator.api.stored_accounts import bodies_of, decoded_account
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ledger import bases, closed_runs
from goodput.aggregator.ledger.blocks import HOURS, MINUTES
from goodput.aggregator.ledger.compaction import DAY_NS, SEGMENT_ROWS, Compaction, Keep
from goodput.aggregator.ledger.damage import log_set_aside, runs_of, set_aside
from goodput.aggregator.ledger.deletion import deletions
from goodput.aggregator.ledger.inspection import size_bytes
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.ledger.threads import in_thread
from goodput.aggregator.memory_bound import MemoryBound
from goodput.aggregator.run_states import RunState, StateError

log = logging.getLogger("goodput.aggregator")
DELETIONS_EVERY_SECONDS, COMPACT_EVERY_SECONDS = 10.0, 60.0
SEARCH_EVERY_SECONDS = 86_400.0
DAMAGE_EVERY_SECONDS = 60.0
CLOSED_SECONDS = 120.0
WAIT_TIMES = 9  # waits for so many times as long as a step took
MOVES = 28  # of a run's base, in the time for which its steps (or its minutes) are kept


class LedgerMaintenance:
    """What it does is counted in `ingest.counts`, by ("ledger", series)."""

    def __init__(
        self,
        ledger: Ledger,
        ingest: Ingest,
        accounts: Accounts,
        keep: Keep,
        memory: MemoryBound | None = None,
    ):
        self._ledger, self._ingest, self._accounts = ledger, ingest, accounts
        self.memory = RunMemory(ledger, ingest, accounts, memory or MemoryBound())
        self.compaction = Compaction(ledger, keep)
        self._counts = ingest.counts
        self._deletions: dict[str, int] = {}
        self._damage_not_before = 0.0
        self._to_read_again: set[str] = set()  # runs of which damaged rows were set aside
        # When the bases of a run may be moved on again, by run and tier.
        self._bases_due_ns: dict[tuple[str, int], int] = {}
        if not ledger.is_old:
            self.begin()

    def begin(self) -> None:
        """Note the state of the ledger, once it is of the present version."""
        self._counts["ledger", "bytes"] = size_bytes(self._ledger)
        self._deletions = deletions(self._ledger)

    def restored(self, run: str, state: RunState | None) -> None:
        """Called when a run was read from the ledger: the stored account of a closed one stands.

        Its steps may be thinned, so an account of them would be less exact.
        """
        stored = decoded_account(self._ledger, run)
        if stored is None:
            self._accounts.resume(run, state)
            self.memory.windows.note(run, self._accounts.store.recent[run], state)
            return
        self._accounts.keep(run, stored)
        self.memory.closed_at[run] = self._accounts.store.revisions[run]
        self._accounts.store.drop_steps(run, bool(closed_runs.thinned_seconds(self._ledger, run)))

    def works(self) -> list[Callable[[], Awaitable[None]]]:
        """What is to run until it is cancelled."""
        return [self.run, self.run_moves, self.memory.windows.run]

    async def run(self) -> None:
        """Work until cancelled."""
        compacted, searched = time.monotonic(), -SEARCH_EVERY_SECONDS
        while True:
            await asyncio.sleep(DELETIONS_EVERY_SECONDS)
            with self._errors_logged():
                await self.set_damage_aside()
            with self._errors_logged():
                await self.forget_deleted()
                if time.monotonic() - compacted > COMPACT_EVERY_SECONDS:
                    await self.close_runs(self._accounts.clock_ns())
                    is_due = time.monotonic() - searched > SEARCH_EVERY_SECONDS
                    await self.compact(self._accounts.clock_ns(), search=is_due)
                    searched = time.monotonic() if is_due else searched
                    self._counts["ledger", "bytes"] = await in_thread(size_bytes, self._ledger)
                    compacted = time.monotonic()

    async def run_moves(self) -> None:
        """Move bases until cancelled, beside the other work, since those of a large run take minutes."""
        while True:
            await asyncio.sleep(COMPACT_EVERY_SECONDS)
            with self._errors_logged():
                await self.move_bases(self._accounts.clock_ns())

    @contextmanager
    def _errors_logged(self) -> Iterator[None]:
        try:
            yield
        except LedgerError as error:
            self._counts["ledger", "error"] += 1
            log.error("maintenance of the ledger: %s", error)
        except Exception:
            log.exception("maintenance of the ledger failed")

    async def set_damage_aside(self) -> None:
        """Where a query found damage since the last call: move the damaged rows away, after which it is answered without them.

        Runs of which rows were moved are read from the ledger again. All of the ledger is read, so not again at once.
        """
        if self._ledger.has_damage and time.monotonic() >= self._damage_not_before:
            began, self._ledger.has_damage = time.monotonic(), False
            try:
                found = await in_thread(set_aside, self._ledger)
            finally:
                now = time.monotonic()
                self._damage_not_before = now + max(DAMAGE_EVERY_SECONDS, WAIT_TIMES * (now - began))
            if found:
                log_set_aside(self._ledger, found)
                self._to_read_again |= await in_thread(runs_of, self._ledger, found)
        if self._to_read_again:
            self._to_read_again -= self.memory.read_again(self._to_read_again)

    async def forget_deleted(self) -> None:
        """Drop runs from memory that were deleted from the ledger since the last call."""
        found = await in_thread(deletions, self._ledger)
        for run, at_ns in found.items():
            if self._deletions.get(run) != at_ns:
                self._ingest.forget(run)
                self._accounts.forget(run)
                log.info("run %r was deleted from the ledger", run)
        self._deletions = found

    async def compact(self, now_ns: int, search: bool = True) -> None:
        """Thin and merge what is due; with `search` also what was left before the aggregator started."""
        async for _ in _slowly(self.compaction.work(now_ns, search=search)):
            self._count_compaction()

    async def move_bases(self, now_ns: int) -> None:
        """Move the bases of runs that are not over on to states that are as old as steps are kept, some times in that time."""
        store, keep = self._accounts.store, self.compaction.keep
        for tier, days in ((MINUTES, keep.steps_days), (HOURS, keep.minutes_days)):
            every_ns = max(int(days * DAY_NS) // MOVES, SEGMENT_ROWS * tier * 10**9)
            for run in list(store.runs):
                account = self._accounts.last_of(run)
                if account is None or account.status in FINAL_STATUSES or run not in store.runs:
                    continue
                before_ns = now_ns - int(days * DAY_NS)
                if now_ns < self._bases_due_ns.get((run, tier), account.start_ns + int(days * DAY_NS)):
                    continue
                # Where no state serves yet, one may soon. A run that fails waits as long, so that others have their turn.
                self._bases_due_ns[run, tier] = now_ns + every_ns // MOVES
                if await self._move_base(account, tier, before_ns):
                    self._bases_due_ns[run, tier] = now_ns + every_ns
        self._bases_due_ns = {of: due for of, due in self._bases_due_ns.items() if of[0] in store.runs}

    def _count_compaction(self) -> None:
        counts = self.compaction.counts
        for name, count in (
            ("blocks_merged", counts.blocks_merged),
            ("blocks_thinned", counts.blocks_thinned),
            ("rows_thinned_total", counts.rows_thinned),
            ("freed_bytes_total", counts.bytes_freed),
        ):
            self._counts["ledger", name] = count

    async def _move_base(self, account: Account, tier: int, before_ns: int) -> bool:
        """Whether the base moved on."""
        before = await in_thread(bases.stored, self._ledger.fetch, account.run)
        async for _ in _slowly(moving(self._ledger, self._accounts.past(account), tier, before_ns)):
            pass
        return await in_thread(bases.stored, self._ledger.fetch, account.run) != before

    async def close_runs(self, now_ns: int) -> None:
        """Store the accounts of runs that have been over for long enough, after which they may leave memory."""
        store = self._accounts.store
        after_ns = min(int(self.compaction.keep.steps_days * DAY_NS), int(CLOSED_SECONDS * 1e9))
        for run in list(store.runs):
            if run in store.runs and self.memory.closed_at[run] != store.revisions[run]:
                # Where its account needs a fold of the ledger first, the next round will have it; or it was deleted.
                with suppress(KeyError, RunIsDirty):
                    await self._close(run, now_ns - after_ns)
                await asyncio.sleep(0)
        self.memory.store_ended(
            [run for run in store.runs if self.memory.closed_at[run] == store.revisions[run]]
        )
        self.memory.closed_at = Counter({run: self.memory.closed_at[run] for run in store.runs})

    async def _close(self, run: str, before_ns: int) -> None:
        store = self._accounts.store
        attempts = store.runs[run].attempts.values()
        last_ns = max((max(one.rows_end_ns, one.seen_ns) for one in attempts), default=0)
        # Where the clocks of its nodes are behind, its last account tells that it is not over.
        if max(last_ns, self._accounts.not_over_at_ns(run)) > before_ns:
            return
        revision = store.revisions[run]
        state = await in_thread(closed_runs.state_of, self._ledger, run)
        if run not in store.runs:
            return
        account = await in_slices(self._accounts.computing(run))
        if not account.is_settled() or store.revisions[run] != revision:
            return
        if not await in_thread(closed_runs.is_closed, self._ledger, run):
            await self._write_state(run)
            bodies = await in_thread(bodies_of, account)
            await in_thread(closed_runs.close_run, self._ledger, run, state, last_ns, bodies)
            self._counts["ledger", "runs_closed_total"] += 1
        self.memory.closed_at[run] = revision

    async def _write_state(self, run: str) -> None:
        """Write the state of the run's account, from which late rows are folded when the others are thinned."""
        live = dict(self._accounts.folds()).get(run)
        if live is not None:
            try:
                await write_state(self._ingest, run, live)
            except StateError as error:
                log.warning("run %r: the state of its account was not written: %s", run, error)


async def _slowly(work: Iterator[None]) -> AsyncIterator[None]:
    """Do work in threads, with waits between its steps."""
    began = time.perf_counter()
    while await in_thread(next, work, False) is None:
        yield
        await asyncio.sleep(WAIT_TIMES * (time.perf_counter() - began))
        began = time.perf_counter()
