"""Accounts of the runs in the store: cached until a report changes the run or time has passed.

An account is recomputed at most every `age_seconds`, and so seldom that it takes a tenth of a core at most.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import NamedTuple, cast

from msgspec import Struct

from goodput.account import FINAL_STATUSES, Account, Attempt, Run, document
from goodput.account.account import ReplayedGains
from goodput.account.collectives.slow_link import slow_link
from goodput.account.document_types import AccountDocument
from goodput.account.hang import Hang
from goodput.account.text.answer import with_hang
from goodput.aggregator.accounts.history import ANONYMOUS, History
from goodput.aggregator.accounts.live import IncrementalAccount, RunIsDirty, kept_rows
from goodput.aggregator.accounts.past import Check, Past, Window, folded, without_rows
from goodput.aggregator.accounts.replays import Replays
from goodput.aggregator.accounts.result_cache import ResultCache
from goodput.aggregator.accounts.rolling import RollingWindows, rolling_windows
from goodput.aggregator.accounts.slices import in_slices
from goodput.aggregator.fair_queue import INTERNAL
from goodput.aggregator.ingest.connections import PackedConnections, packed_connections, unpacked
from goodput.aggregator.ingest.hangs import HangDetector
from goodput.aggregator.ingest.health_log import HealthLog
from goodput.aggregator.ingest.node_clocks import NodeClocks
from goodput.aggregator.ingest.recent.step_trends import StepWindows
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.ledger.threads import in_thread
from goodput.aggregator.run_states import RunState, StateError
from goodput.causes import explain
from goodput.slices import AT_A_TIME, Slices, result_of

FOLD_AGAIN_SECONDS = 10.0
# From this many ranks on all accounts are computed in the background, see api.exposition, and readers get the last ones.
LARGE_RANKS = 1024
# No reader waits for an account that takes so much CPU time; all that are computed for readers take a tenth of a core.
COSTLY_NS, READERS_TIMES = 500_000_000, 10
ROWS_DROPPED_LEAST = 256  # of each attempt, on average
log = logging.getLogger("goodput.aggregator")


class LiveRank(Struct):
    """What a rank was doing when its node agent last read its page.

    `gpu_activity` is the share of time in which a kernel ran, `gpu_watts` the power of its GPUs; null where they are
    not measured.
    """

    rank: int
    host: str
    attempt: int
    alive: bool
    ended: str
    phase: str
    phase_seconds: float
    step: int | None
    step_seconds: float | None
    report_age_seconds: float
    gpu_activity: float | None
    gpu_watts: float | None


class SkewedClock(Struct):
    """A host whose clock is off, by so many seconds ahead of the aggregator's; negative is behind.

    Where its times were not moved (`moved_clocks`), those of its ranks lie that much off the others': in between they, or
    the others, count as unobserved.
    """

    host: str
    ahead_seconds: float


class RunDocument(AccountDocument):
    """A run's account, what its ranks are doing now, recent step times, and clocks that are off."""

    live: list[LiveRank]
    clocks: list[SkewedClock]
    windows: StepWindows


class _Cached(NamedTuple):
    account: Account
    at_ns: int
    revision: int
    cost_ns: int
    is_expired: bool = False  # it stands only until another one can be computed


async def _flushed() -> None:
    pass


class _Computation:
    """The account of a run while it is computed, at `now_ns` and for a revision of the run; `cost_ns` of CPU so far."""

    def __init__(self, live: IncrementalAccount, now_ns: int, revision: int):
        self.live, self.now_ns, self.revision, self.cost_ns = live, now_ns, revision, 0
        self.account: Account | None = None
        self._parts = live.computing(now_ns)

    def step(self) -> None:
        """Do the next part; after the last one `account` is set. Raises RunIsDirty."""
        began = time.thread_time_ns()  # without what others take of the machine meanwhile
        try:
            next(self._parts)
        except StopIteration as over:
            self.account = over.value
        self.cost_ns += time.thread_time_ns() - began

    def close(self) -> None:
        self._parts.close()


class Accounts:
    """Accounts by run name. Methods raise KeyError for an unknown run."""

    def __init__(
        self,
        store: Store,
        *,
        stall_seconds: float,
        stale_seconds: float,
        history: History,
        age_seconds: float = 0.5,
        clock_ns: Callable[[], int] = time.time_ns,
        clocks: NodeClocks | None = None,
        health: HealthLog | None = None,
    ):
        self.store, self.history, self.clock_ns = store, history, clock_ns
        self.always_fresh = False  # for readers of a large installation too
        self.clocks = NodeClocks(clock_ns) if clocks is None else clocks
        self.stall_seconds, self.stale_seconds = stall_seconds, stale_seconds
        self.hangs = HangDetector(
            store,
            stall_seconds=stall_seconds,
            stale_seconds=stale_seconds,
            clock_ns=clock_ns,
            health=health,
        )
        self.replays = Replays(history, self._take_gains)
        self.flush: Callable[[], Awaitable[None]] = _flushed  # waits until what was merged is in the ledger
        self._age_ns = int(age_seconds * 1e9)
        self._readers_wait_until = 0.0  # by the monotonic clock
        # When a reader asked last for what is computed in the background, by the monotonic clock.
        self.last_read = -math.inf
        self._cached: dict[str, _Cached] = {}
        self._rolling = ResultCache()
        self._lives: dict[str, IncrementalAccount] = {}
        self._computations: dict[str, _Computation] = {}
        self._folding: dict[str, asyncio.Future] = {}
        self._folded: dict[
            str, tuple[int, float]
        ] = {}  # when a fold from the ledger was done, and for how long not again
        self._not_running: dict[str, int] = {}  # by run: its revision when it was found not running

    def account(self, name: str, now_ns: int | None = None) -> Account:
        """The account of a run, at most `age_seconds` old while it runs, or the last one while a newer is computed."""
        cached = self._cached.get(name)
        if cached is not None and not cached.is_expired and name in self._computations:
            return cached.account
        return result_of(self.computing(name, now_ns))

    def computing(self, name: str, now_ns: int | None = None) -> Slices[Account]:
        """As `account`, in slices: of a run of ten thousand ranks it takes seconds."""
        run, cached = self.store.runs[name], self._cached.get(name)
        now_ns = self.clock_ns() if now_ns is None else now_ns
        revision = self.store.revisions[name]
        if cached is not None and self._is_fresh(cached, revision, now_ns):
            return cached.account
        computation = self._computations.get(name)
        if computation is None or computation.live.run is not run:
            live = self._fold_of(name, run, cached)
            computation = self._computations[name] = _Computation(live, now_ns, revision)
        try:
            # Several may wait for it; each does a part in its turn.
            while computation.account is None and self._computations.get(name) is computation:
                computation.step()
                if computation.account is None:
                    yield
        except RunIsDirty as needs:
            self._drop_computation(name, computation)
            if computation.live.last is None:
                raise
            self._fold_again(name, computation.live, needs)
            return computation.live.last
        except BaseException:
            self._drop_computation(name, computation)
            raise
        if computation.account is None:
            # The run was read again or deleted meanwhile.
            return (yield from self.computing(name, now_ns))
        if self._computations.get(name) is computation:
            self._drop_computation(name, computation)
            computation.account.replayed = self.replays.of(name)
            self._cached[name] = _Cached(
                computation.account, computation.now_ns, computation.revision, computation.cost_ns
            )
        return computation.account

    def _take_gains(self, name: str, gains: ReplayedGains) -> None:
        cached = self._cached.get(name)
        if cached is not None:
            cached.account.replayed = gains

    def request_replay(self, account: Account) -> None:
        """Have the steps of a run that goes on replayed now and then, for the series."""
        if account.status == "running":
            self.replays.request_seldom(account, lambda: self.past(account), None)

    def _drop_computation(self, name: str, computation: _Computation | None = None) -> None:
        """Drop the account that is being computed, or this one if it still is."""
        if computation is None or self._computations.get(name) is computation:
            dropped = self._computations.pop(name, None)
            if dropped is not None:
                dropped.close()

    def _fold_of(self, name: str, run: Run, cached: _Cached | None = None) -> IncrementalAccount:
        live = self._lives.get(name)
        if live is None or live.run is not run:
            live = self._lives[name] = IncrementalAccount(
                run, stall_seconds=self.stall_seconds, stale_seconds=self.stale_seconds
            )
            # That of a closed run, whose rows are in the ledger alone, stands until they have been folded.
            live.last = cached.account if cached is not None else None
        return live

    def resume(self, name: str, state: RunState | None, now_ns: int | None = None) -> None:
        """Compute the account of a run that was read from the ledger, from `state` on if it has one."""
        live = self._fold_of(name, self.store.runs[name])
        self._drop_computation(name)
        now_ns = self.clock_ns() if now_ns is None else now_ns
        if state is not None:
            with suppress(StateError):
                live.begin_with(state, now_ns)
        try:
            self.account(name, now_ns)
        except RunIsDirty as needs:
            # The segment is not right any more: steps were lost since.
            run = without_rows(live.run)
            read = folded(self.history.ledger, run, needs.facts, self.stall_seconds)
            live.begin(*read, late=needs.late)
            self.account(name, now_ns)

    def resumed_in(self, store: Store, name: str, state: RunState | None) -> IncrementalAccount:
        """The fold of a run of another store, for `adopt`; in any thread."""
        other = Accounts(
            store,
            stall_seconds=self.stall_seconds,
            stale_seconds=self.stale_seconds,
            history=self.history,
            clock_ns=self.clock_ns,
        )
        other.resume(name, state)
        return other._lives[name]

    def folds(self) -> Iterator[tuple[str, IncrementalAccount]]:
        """The folds of the runs in the store, by name."""
        return ((name, live) for name, live in list(self._lives.items()) if name in self.store.runs)

    def last(self) -> Iterator[Account]:
        """The accounts of the runs in the store as they were last computed."""
        return (cached.account for name, cached in self._cached.items() if name in self.store.runs)

    def keep(self, name: str, account: Account) -> None:
        """Let the account of a run that has ended stand until a report changes the run."""
        self._cached[name] = _Cached(account, account.end_ns, self.store.revisions[name], 0)

    def expire(self, name: str) -> None:
        """Let readers from now on have an account with what is known of the run now, such as its end.

        Series of a large installation follow when they are rendered next.
        """
        self._drop_computation(name)
        if name in self._cached:
            self._cached[name] = self._cached[name]._replace(is_expired=True)

    def is_expired(self, name: str) -> bool:
        """Whether the last account of a run is one that readers should not have any more."""
        return name in self._cached and self._cached[name].is_expired

    def adopt(self, name: str, live: IncrementalAccount) -> None:
        """Continue from the account of a run that was just read from the ledger."""
        self._lives[name] = live

    def is_large(self) -> bool:
        """Whether all accounts are computed in the background, so that readers need not wait for them."""
        return len(self.store.processes) >= LARGE_RANKS and not self.always_fresh

    async def latest(self, name: str) -> Account:
        """The account of one run for a reader, computed with other requests in between.

        In a large installation it is the last one if computing it is costly, or if readers have had their share.
        """
        before, now_seconds = self._cached.get(name), time.monotonic()
        self.last_read = now_seconds
        is_over_share = now_seconds < self._readers_wait_until
        if (
            before is not None
            and not before.is_expired
            and self.is_large()
            and (is_over_share or before.cost_ns >= COSTLY_NS)
        ):
            return before.account
        account, cached = await in_slices(self.computing(name)), self._cached.get(name)
        if cached is not None and cached is not before:
            self._readers_wait_until = time.monotonic() + READERS_TIMES * cached.cost_ns / 1e9
        return account

    def computing_first(self) -> Slices[None]:
        """Compute the accounts of the runs that have none yet."""
        for name in [name for name in self.store.runs if name not in self._cached]:
            yield
            with suppress(KeyError):  # It was deleted meanwhile.
                yield from self.computing(name)

    def last_of(self, name: str) -> Account | None:
        """The account of a run as it was last computed."""
        cached = self._cached.get(name)
        return None if cached is None else cached.account

    def not_over_at_ns(self, name: str) -> int:
        """When a run was last found not to be over, by `clock_ns`; 0 where its last account says that it is, or there is none."""
        cached = self._cached.get(name)
        return 0 if cached is None or cached.account.status in FINAL_STATUSES else cached.at_ns

    def account_over(self, name: str) -> Account | None:
        """The last account of a run that is over, None if the run is not, or was reported since."""
        cached = self._cached.get(name)
        if cached is None or cached.revision != self.store.revisions[name]:
            return None
        return cached.account if cached.account.status in FINAL_STATUSES else None

    async def drop_folded_rows(self, _is_enough: object = None) -> int:
        """Fold and drop the rows of runs that hold many, which the ledger has too; returns how many."""
        dropped = 0
        for name, run in list(self.store.runs.items()):
            # A fold takes as much memory as some 170 packed rows of each rank, by estimate: 7 KiB, and 43 bytes a row.
            if kept_rows(run) > ROWS_DROPPED_LEAST * len(run.attempts):
                with suppress(KeyError, RunIsDirty):
                    await in_slices(self.computing(name))
                if name in self._lives:
                    dropped += self._lives[name].drop_rows()
        return dropped

    def clear_results(self) -> int:
        """Drop cached results of queries; returns how many."""
        return self._rolling.clear()

    def forget(self, name: str) -> None:
        """Drop what is known of a run that was deleted or stored away."""
        self._drop_computation(name)
        self.hangs.clear(name)
        self.replays.forget(name)
        for held in (self._cached, self._lives, self._folded, self._not_running):
            held.pop(name, None)

    def _is_fresh(self, cached: _Cached, revision: int, now_ns: int) -> bool:
        """Unchanged and recent, or so costly that recomputing it now would exceed a tenth of a core."""
        if cached.is_expired:
            return False
        unchanged = cached.revision == revision
        if unchanged and cached.account.status in FINAL_STATUSES:
            return True
        # The absolute difference, or a clock that was set back would keep an account for good.
        return abs(now_ns - cached.at_ns) < max(self._age_ns if unchanged else 0, 10 * cached.cost_ns)

    def _fold_again(self, name: str, live: IncrementalAccount, needs: RunIsDirty) -> None:
        """Start a fold of the run from the ledger; until it is done the last account stands.

        A run that needs this repeatedly takes a tenth of a core at most, by the clock of the accounts, as `_is_fresh`.
        """
        last_ns, pause_seconds = self._folded.get(name, (0, 0.0))
        if name in self._folding or abs(self.clock_ns() - last_ns) < pause_seconds * 1e9:
            return

        async def fold() -> None:
            pause_seconds = FOLD_AGAIN_SECONDS
            try:
                began = time.perf_counter()
                run = without_rows(live.run)
                # The rows in memory are read from the ledger, which may not have the newest yet.
                await self.flush()
                read, _ = await self.history.run(INTERNAL, folded, run, needs.facts, self.stall_seconds)
                self._drop_computation(name)
                live.begin(*read, late=needs.late)
                pause_seconds = min(10 * (time.perf_counter() - began), FOLD_AGAIN_SECONDS)
            except Exception as error:
                log.error("run %r: folding it from the ledger failed, its account is stale: %s", name, error)
            finally:
                self._folded[name] = self.clock_ns(), pause_seconds
                del self._folding[name]

        self._folding[name] = asyncio.get_running_loop().create_task(fold())

    def hang(self, name: str, now_ns: int | None = None, account: Account | None = None) -> Hang | None:
        """The verdict on a run that hangs, None while it does not. `account` is its newest, if it is at hand."""
        return result_of(self.judging(name, now_ns, account))

    def judging(
        self, name: str, now_ns: int | None = None, account: Account | None = None
    ) -> Slices[Hang | None]:
        """As `hang`, in slices."""
        now_ns = self.clock_ns() if now_ns is None else now_ns
        revision = self.store.revisions[name]
        if not self._may_hang(name, now_ns):
            self.hangs.clear(name)
            return None
        account = self.account(name, now_ns) if account is None else account
        if account.status == "running":
            what = account.threshold_ns, account.world_size, account.planned
            return (yield from self.hangs.evaluating(name, now_ns, *what))
        # It cannot run again without a report, which changes its revision.
        self._not_running[name] = revision
        self.hangs.clear(name)
        return None

    def _may_hang(self, name: str, now_ns: int) -> bool:
        is_over = self._not_running.get(name) == self.store.revisions[name]
        return not is_over and self.hangs.may_hang(name, now_ns)

    def detecting_hangs(self) -> Slices[None]:
        """Evaluate all runs, so that stacks are requested also where no client reads the page or the series."""
        for name in list(self.store.runs):
            yield
            with suppress(KeyError):  # It was deleted meanwhile.
                may_hang = self._may_hang(name, self.clock_ns())
                account = (yield from self.computing(name)) if may_hang else None
                yield from self.judging(name, account=account)

    async def document(self, name: str) -> RunDocument:
        """The account document of a run, with its hang, what each rank is doing now and recent step times.

        Made in a thread, since it takes a second of ten thousand ranks. Raises LedgerError where none can be started.
        """
        account = await self.latest(name)
        await self.replays.refresh(account, lambda: self.past(account), self.final_revision(account))
        connections = packed_connections(self.store.newest[name].values())
        found: AccountDocument = await in_thread(lambda: _document_with_link(account, connections))
        live = await in_slices(self._live(name, account))
        hang = await in_slices(self.judging(name, account=account))
        return {
            **cast("AccountDocument", with_hang(found, self.hangs.document(name, hang) if hang else None)),
            "live": live,
            "clocks": self._skewed(name),
            "windows": self.store.recent[name].windows(account.end_ns, account.world_size),
        }

    async def window(self, name: str, window: Window, owner: str = ANONYMOUS) -> AccountDocument:
        """The account document of a window, for the token with the id `owner`. Raises HistoryError, QueueFull."""
        account = await self.latest(name)
        start_ns, end_ns = window
        if (start_ns or 0) <= account.start_ns and (end_ns is None or end_ns >= account.end_ns):
            found, _ = await self.history.run(owner, _document_of, account)
            return found
        documents, _ = await self.history.documents(self.past(account), [window], owner)
        return documents[0]

    async def rolling(self, name: str, owner: str = ANONYMOUS) -> RollingWindows:
        """Short accounts of the last while and of the whole run. Raises HistoryError, QueueFull."""
        account = await self.latest(name)
        return await self._rolling.get(
            name,
            lambda: self.history.run(owner, rolling_windows, self.past(account), account),
            self.final_revision(account),
        )

    def final_revision(self, account: Account) -> int | None:
        """The revision of a run that has ended, None while its time goes on."""
        return self.store.revisions[account.run] if account.status in FINAL_STATUSES else None

    def past(self, account: Account) -> Past:
        """The run of an account that was just computed, as the functions that read the ledger take it."""
        now_ns = account.end_ns if account.status == "running" else self.clock_ns()
        run = self.store.runs[account.run]
        return Past(run, now_ns, account.threshold_ns, self.stale_seconds, self.stall_seconds)

    def _skewed(self, name: str) -> list[SkewedClock]:
        hosts = (process.attempt.host for process in self.store.newest[name].values())
        return [SkewedClock(host, offset.ns / 1e9) for host, offset in self.clocks.skewed(hosts)]

    def progress_ns(self, account: Account) -> int:
        """When a step of the run last completed, or the run began, on our clock."""
        known_ns = self.store.progress_ns.get(account.run, 0)
        if known_ns:
            return known_ns
        # Nothing of it has been received since the start, or no step.
        attempts, ours = self.store.runs[account.run].attempts.values(), self._ours
        ends = [ours(one, one.rows_end_ns) for one in attempts if one.rows_end_ns]
        return max(ends) if ends else min(ours(one, one.start_ns) for one in attempts)

    def received_ns(self, attempt: Attempt) -> int:
        """When an attempt was last reported, on our clock; since a restart, when it was last seen."""
        return attempt.received_ns or self._ours(attempt, attempt.seen_ns)

    def _ours(self, attempt: Attempt, ns: int) -> int:
        """A time of an attempt on our clock, to which it may have been moved before it was stored."""
        return ns if attempt.clock_moved_seconds is not None else self.clocks.ours(attempt.host, ns)

    def _live(self, name: str, account: Account) -> Slices[list[LiveRank]]:
        ranks: list[LiveRank] = []
        now_ns = account.end_ns if account.status in FINAL_STATUSES else self.clock_ns()
        for rank, process in sorted(self.store.newest[name].items()):
            if len(ranks) % AT_A_TIME == 0:
                yield
            newest, last = process.attempt, process.last
            alive = newest.known_end_ns() is None
            ranks.append(
                LiveRank(
                    rank=rank,
                    host=newest.host,
                    attempt=newest.attempt,
                    alive=alive,
                    ended=newest.end_reason() or ("" if alive else "killed"),
                    phase=newest.phase,
                    phase_seconds=max(newest.seen_ns - newest.last_ns, 0) / 1e9,
                    step=last.step if last else None,
                    step_seconds=(last.end_ns - last.start_ns) / 1e9 if last else None,
                    report_age_seconds=max(now_ns - self.received_ns(newest), 0) / 1e9,
                    gpu_activity=_present(newest, "busy_ppm", 1e6) if alive else None,
                    gpu_watts=_present(newest, "power_mw", 1e3) if alive else None,
                )
            )
        return ranks


def _present(attempt: Attempt, name: str, unit: float) -> float | None:
    """A figure of the rank's GPUs at their last sample."""
    value = attempt.hardware.get(name)
    return None if value is None else value / unit


def _document_of(_ledger: Ledger, account: Account, _check: Check) -> AccountDocument:
    """As a computation of History, since it takes a second of ten thousand ranks."""
    return document(account, explain(account))


def _document_with_link(account: Account, connections: list[PackedConnections]) -> AccountDocument:
    """The document of a run as it is now: with the rank whose link is slow while it runs."""
    account.slow_link = slow_link(unpacked(connections)) if account.status == "running" else None
    return document(account, explain(account))
