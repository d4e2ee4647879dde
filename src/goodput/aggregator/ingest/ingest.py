"""Accepting a push: decode, merge into the store, write to the ledger, answer.

The Ack is sent when everything accepted is committed. Pushes that arrive together are merged together, since NumPy costs
per call, and share one transaction; where the last one was shared, the next waits for more, no push longer than
GATHER_SECONDS. Tokens are served round-robin: a large push is decoded and checked in a thread, one at a time, and merged
in parts, over several transactions if it has many rows. When the ledger cannot be written the push is answered with an
error, so the agent keeps it; what was merged meanwhile is written with the next transaction that succeeds. Unwritten
parts of one process are joined into one, so that pushes repeated against a broken ledger do not accumulate.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from goodput.access.tokens import EVERYTHING, Access
from goodput.aggregator.clock import Offset
from goodput.aggregator.fair_queue import FairQueue
from goodput.aggregator.ingest import moved_times
from goodput.aggregator.ingest.agent_versions import AgentVersions
from goodput.aggregator.ingest.checks import (
    BODY_BYTES_AT_ONCE,
    LARGE_WAITING_MAX,
    ROWS_AT_ONCE,
    allowed_part,
    checked,
    decoded,
    merged_bytes,
    out_of_scope,
    rejection,
)
from goodput.aggregator.ingest.hangs import HangDetector
from goodput.aggregator.ingest.health_log import NODE_WEIGHT_MAX, HealthLog
from goodput.aggregator.ingest.known_ranks import AnyReport, KnownPart, KnownPush, KnownRanks
from goodput.aggregator.ingest.node_clocks import NodeClocks
from goodput.aggregator.ingest.pushed_steps import PushedSteps
from goodput.aggregator.ingest.store import ReportRejected, Store
from goodput.aggregator.ingest.waiting_pushes import Part, Push, SomeRanks, WaitingPushes, call_in_turns
from goodput.aggregator.ingest.write_failures import WriteFailures
from goodput.aggregator.ledger.damage import without_damage
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.ledger.segments import Segment
from goodput.aggregator.ledger.threads import in_thread
from goodput.aggregator.records import HealthKey, NewRecords, health_key
from goodput.aggregator.run_states import RunState, StateError, decode
from goodput.wire import schema

log = logging.getLogger("goodput.aggregator")
# Rejections that are logged; the counters have all.
LOGGED_PER_HOUR_MAX = 256
# A transaction costs as much as the rows of ten pushes.
GATHER_SECONDS = 0.025
# Rows of one transaction, for which other pushes wait.
TRANSACTION_ROWS = 16 * ROWS_AT_ONCE
# Pushes of more rows are decoded and checked in a thread.
PUSH_ROWS_AT_ONCE = 2 * ROWS_AT_ONCE
# Pushes that wait for a transaction are merged without it after this time, so that the account goes on.
UNMERGED_SECONDS = 0.25
_AT_ONCE = nullcontext()


class Reservation(Protocol):
    """Notes memory that is about to be taken, and refuses by an exception what would be too much."""

    async def add(self, more: int, what: str) -> None: ...

    def fits(self, more: int) -> bool: ...


class Ingest:
    """`counts` holds the aggregator's own counters by (series, label), `seconds` the CPU time spent on pushes."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        clock_ns=time.time_ns,
        hangs: HangDetector | None = None,
        health: HealthLog | None = None,
        clocks: NodeClocks | None = None,
    ):
        self._store, self._ledger, self._clock_ns, self._hangs = store, ledger, clock_ns, hangs
        self.health = HealthLog() if health is None else health
        self.clocks = NodeClocks(clock_ns) if clocks is None else clocks
        self._scoped_clocks = NodeClocks(clock_ns)  # as tokens for some runs say
        # Brings runs of Store.stored back into memory.
        self.load: Callable[[str], Awaitable[object]] | None = None
        self.counts: Counter = Counter()
        self.agents = AgentVersions()
        self._known = KnownRanks(store)
        self.seconds = 0.0
        self._unmerged, self._large = WaitingPushes(), FairQueue(LARGE_WAITING_MAX, "large pushes")
        self._merging: set[str] = set()  # runs of the pushes that are being merged
        self._unwritten: list[NewRecords] = []
        self._appending: list[NewRecords] = []  # in the transaction that is being written
        self._unwritten_health: dict[HealthKey, schema.Health] = {}
        self._writing = asyncio.Lock()
        self._segments: dict[str, tuple[Segment, int]] = {}  # by run, with its late rows
        self._transaction: asyncio.Task | None = None  # the one that begins next
        self._batch = 1  # its number
        # Pushes that are not committed, and what is called when they are.
        self._waiting: list[tuple[Push, Callable[[], object]]] = []
        self._was_shared = False  # whether several pushes were in the one before
        self._failures = WriteFailures()
        self._logged: set[tuple] = set()
        self._logged_since = time.monotonic()

    def restore(
        self,
        then: Callable[[str, RunState | None], object] = lambda run, state: None,
        progress: Callable[[int], object] = lambda restored: None,
        has_room: Callable[[], bool] = lambda: True,
    ) -> int:
        """Fill the store from the ledger, run by run, but for Store.stored; returns how many processes were restored.

        Runs that reported last come first; those for which `has_room()` is false are left in the ledger.
        `then(run, state)` is called when a run is complete, so that its rows can be folded before the next run is read.
        The rows are those after `state`, the newest segment of the run, all without one. `progress(restored)` is called
        after each process.
        """
        restored = 0
        for run, start_ns in self._ledger.starts().items():
            if run in self._store.stored or run in self._store.runs:
                continue
            if not has_room():
                self._store.stored[run] = start_ns
                continue

            def count() -> None:
                nonlocal restored
                restored += 1
                progress(restored)

            read = partial(restore_run, self._ledger, self._store, run, count)
            state = without_damage(self._ledger, read, partial(self._store.forget, run))
            if run in self._store.runs:
                then(run, state)
        self._store.new = self._store.repeated = 0
        for node, event in self._ledger.health(NODE_WEIGHT_MAX):
            self.health.restore(node, event)
        self.health.counts.clear()
        return restored

    def unwritten(self) -> set[str]:
        """Runs of which something waits to be merged or written."""
        return (
            self._unmerged.runs()
            | self._merging
            | {part.report.identity.run for part in self._unwritten + self._appending}
        )

    def forget(self, run: str) -> None:
        """Drop a run that was deleted from the ledger, and what of it waits to be written."""
        self._unwritten = [part for part in self._unwritten if part.report.identity.run != run]
        self._segments.pop(run, None)
        self._store.forget(run)

    async def let_go(self, is_gone: Callable[[str], bool]) -> list[str]:
        """Drop runs that another aggregator serves now, which nothing may push meanwhile; returns which."""
        async with self._writing:
            self._unwritten = [part for part in self._unwritten if not is_gone(part.report.identity.run)]
            self._segments = {run: one for run, one in self._segments.items() if not is_gone(run)}
            runs = [run for run in (*self._store.runs, *self._store.stored) if is_gone(run)]
            self._store.forget(*runs)
            self._store.late_from = {
                run: late for run, late in self._store.late_from.items() if not is_gone(run)
            }
        return runs

    async def accept(
        self,
        body: bytes,
        access: Access = EVERYTHING,
        memory: Reservation | None = None,
        spent: Callable[[float], object] = lambda seconds: None,
        arrived_ns: int | None = None,
    ) -> schema.Ack:
        """Accept one push. Raises SchemaError (nothing was accepted), LedgerError or QueueFull (push it again), or an unexpected error.

        `arrived_ns` is when it arrived, in our unix ns, by default now. What it takes is added to `memory`, which may raise
        an exception of its own; then nothing was accepted. `spent` is called with the seconds of CPU time that it took.
        Parts of runs that `access` does not allow are left out: their ranks are rejected, their stacks and health events
        ignored.
        """
        owner = access.token_id or access.name
        arrived_ns = self._clock_ns() if arrived_ns is None else arrived_ns
        push = Push([], "" if access.is_of_all else owner, [], owner=owner, arrived_ns=arrived_ns)
        try:
            return await self._accept(push, body, access, memory)
        finally:
            self._unmerged.discard(push)
            self.seconds += push.seconds
            spent(push.seconds)

    def accept_known(
        self,
        body: bytes,
        owner: str,
        memory: Reservation,
        since: float,
        then: Callable[[schema.Ack | BaseException], object],
    ) -> bool:
        """Accept a push with a token for all runs of which all ranks are known, without a task of its own.

        It came at `since`, by the monotonic clock. `then` is called with what `accept` would return or raise. False for
        any other push, of which nothing is noted.
        """
        arrived_ns = self._clock_ns() - int(1e9 * (time.monotonic() - since))
        push = Push([], "", [], owner=owner, since=since, arrived_ns=arrived_ns)
        report = self._decode_known(push, body)
        if report is None or self._stored_runs(report) or not memory.fits(merged_bytes(report)):
            self.seconds += push.seconds
            return False
        self._note(push, report)

        def finish() -> None:
            self.seconds += push.seconds
            try:
                found = push.error or self._ack(push, report, len(report.ranks))
            except Exception as error:
                found = error
            then(found)

        self._enqueue(push, finish)
        return True

    async def _accept(
        self, push: Push, body: bytes, access: Access, memory: Reservation | None
    ) -> schema.Ack:
        is_small_of_all = access.is_of_all and len(body) <= BODY_BYTES_AT_ONCE
        report = self._decode_known(push, body) if is_small_of_all else None
        if report is None:
            async with self._turn(push, len(body) > BODY_BYTES_AT_ONCE):
                report = await self._decode(push, body, access)
        if memory is not None:
            what = f"a report of {len(report.ranks)} ranks of node {report.node[:64]!r}"
            await memory.add(merged_bytes(report), what)
        await self._load_stored(report, access)
        ranks, push.sent_ns = len(report.ranks), report.sent_ns
        if isinstance(report, KnownPush) or access.is_of_all:
            self._note(push, report)
        else:
            of_token = replace(report, node=f"{push.owner}/{report.node}")
            push.offset = self._scoped_clocks.add(of_token, push.arrived_ns)
            report, push.rejected = self._allowed_part(report, access)
        self._add_health(report, push.offset, is_scoped=not access.is_of_all)
        if not isinstance(report, KnownPush):
            await self._check(push, report.ranks, len(body))
        done = asyncio.get_running_loop().create_future()
        self._enqueue(push, lambda: done.done() or done.set_result(None))
        await done
        if push.error is not None:
            raise push.error
        if is_small_of_all and not isinstance(report, KnownPush):
            self._known.note(body, report.ranks, ROWS_AT_ONCE)
        if self._hangs is not None:
            self._hangs.add_stacks(report.stacks)
        return self._ack(push, report, ranks)

    def _note(self, push: Push, report: AnyReport) -> None:
        """What a report with a token for all runs says of its node."""
        push.sent_ns = report.sent_ns
        push.offset = self.clocks.add(report, push.arrived_ns)
        self.agents.add(report.node, report.agent)

    def _ack(self, push: Push, report: AnyReport, ranks: int) -> schema.Ack:
        """The answer to a push of so many ranks that is committed; `report` has those that it may push."""
        self.counts["report", "accepted"] += 1
        requests = self._hangs.stack_requests(report.ranks) if self._hangs is not None else []
        return schema.Ack(ranks - len(push.rejected), push.rejected, requests)

    def _turn(self, push: Push, is_large: bool) -> AbstractAsyncContextManager:
        """One large push at a time is worked on in a thread; tokens take turns. Entering raises QueueFull."""
        return self._large.slot(push.owner, LARGE_WAITING_MAX) if is_large else _AT_ONCE

    def _decode_known(self, push: Push, body: bytes) -> KnownPush | None:
        """A push whose ranks are all known; its one part needs no check."""
        # It is short and keeps the interpreter's lock, and a thread's CPU time costs a system call.
        began = time.perf_counter()
        report = self._known.decode(body, ROWS_AT_ONCE)
        if report is not None and report.ranks:
            push.parts = [report.part]
        push.seconds += time.perf_counter() - began
        return report

    async def _decode(self, push: Push, body: bytes, access: Access) -> schema.NodeReport:
        """Raises SchemaError, which is counted."""
        try:
            return await self._work(push, len(body) > BODY_BYTES_AT_ONCE, schema.decode, body)
        except schema.SchemaError as error:
            self.counts["report", "malformed"] += 1
            by = f" by token {access.name}" if access.name else ""
            self._log_once(("report", access.name), f"a whole report{by} rejected (report): {error}")
            raise

    async def _work(self, push: Push, is_large: bool, function: Callable, *arguments):
        """`function(*arguments)`, of a large push in a thread; its CPU time is added to the push."""

        def timed():
            began = time.thread_time()
            try:
                return function(*arguments)
            finally:
                push.seconds += time.thread_time() - began

        return await in_thread(timed) if is_large else timed()

    async def _check(self, push: Push, ranks: list[schema.RankReport], body_bytes: int) -> None:
        """Add the parts of valid rank reports to a push; the others are rejected."""
        rows = sum([len(rank.steps) + sum([block.count for block in rank.blocks]) for rank in ranks])
        is_large = body_bytes > BODY_BYTES_AT_ONCE or rows > PUSH_ROWS_AT_ONCE
        async with self._turn(push, is_large):
            found = await self._work(push, is_large, checked, ranks, self._store.has_accepted, is_large)
        for report, error in found.fields:
            text = f"rank report used without a wrong field: {error}"
            self._log_rank(report.identity, "field", text)
        for report, error in found.wrong:
            self._reject(push, report, error)
        push.parts = found.parts[::-1]

    def _enqueue(self, push: Push, then: Callable[[], object]) -> None:
        """Merge the parts of a push and call `then` when they are committed, or `push.error` says why they are not."""
        push.batch = self._batch
        self._unmerged.add(push)
        self._waiting.append((push, then))
        if push.since - self._unmerged.since() > UNMERGED_SECONDS:
            self._merge_some()
        self._begin_transaction()

    def _stored_runs(self, report: AnyReport) -> set[str]:
        """Runs of a report that are in the ledger alone."""
        stored = self._store.stored
        return {rank.identity.run for rank in report.ranks} & stored.keys() if stored else set()

    async def _load_stored(self, report: AnyReport, access: Access) -> None:
        """Bring back the runs of a report that are in the ledger alone. Raises LedgerError."""
        for run in self._stored_runs(report):
            if self.load is not None and access.may(run):
                try:
                    await self.load(run)
                except LedgerError:
                    self.counts["report", "failed"] += 1
                    raise

    def _allowed_part(
        self, report: schema.NodeReport, access: Access
    ) -> tuple[schema.NodeReport, list[schema.Rejection]]:
        """The part of a report that a token for some runs may push, and rejections of the other ranks."""
        allowed, refused = allowed_part(report, access)
        self.health.counts["dropped", "scope"] += len(report.health) - len(allowed.health)
        return allowed, [self._rejection(one, "scope", out_of_scope(one, access)) for one in refused]

    def _merge_some(self) -> int:
        """Merge the next parts of the pushes that wait, up to about ROWS_AT_ONCE rows; returns how many rows."""
        began = time.thread_time()
        taken = self._unmerged.take(ROWS_AT_ONCE)
        weights = [part.weight for _, part in taken]
        self._merging = set().union(*[part.runs() for _, part in taken])
        self._merge_parts(taken)
        self._merging = set()
        seconds, total = time.thread_time() - began, sum(weights)
        for (push, _), weight in zip(taken, weights, strict=True):
            push.seconds += seconds * weight / total
        return total

    def _merge_parts(self, taken: list[tuple[Push, SomeRanks]]) -> None:
        """Merge parts of valid reports, which are rejected where they contradict what is known.

        An unexpected error fails the push with that report alone, not those of other nodes beside it.
        """
        now_ns = self._clock_ns()
        move = partial(moved_times.moved, self._store, self.clocks)
        steps = iter(decoded([part for _, part in taken if isinstance(part, Part)]))
        for push, part in taken:
            push.batch = self._batch
            if isinstance(part, KnownPart):
                self._unwritten += self._known.merge(push, part, now_ns, partial(self._reject, push), move)
            elif isinstance(part, Part):
                self._merge_part(push, part.report, next(steps), now_ns)

    def _merge_part(
        self, push: Push, report: schema.RankReport, steps: PushedSteps | Exception, now_ns: int
    ) -> None:
        if push.refused and report.identity in push.refused:
            return  # Another part of the same report was.
        try:
            if isinstance(steps, Exception):
                raise steps
            read_ns = push.read_ns(report.sequence, now_ns)
            report, steps = moved_times.moved(self._store, self.clocks, push, report, steps)
            self._unwritten.append(self._store.merge(report, now_ns, push.token, steps, read_ns))
        except Exception as error:
            push.refused.add(report.identity)
            self._reject(push, report, error)

    def _reject(self, push: Push, report: schema.RankReport, error: Exception) -> None:
        """Reject one rank report of a push; an unexpected error fails the push."""
        if isinstance(error, schema.SchemaError):
            push.rejected.append(self._rejection(report.identity, "malformed", str(error)))
        elif isinstance(error, ReportRejected):
            push.rejected.append(self._rejection(report.identity, error.reason, str(error)))
        else:
            log.exception("%s: its report could not be merged", schema.name_of(report), exc_info=error)
            push.error = error

    def _rejection(self, identity: schema.Identity, reason: str, text: str) -> schema.Rejection:
        self.counts["rejection", reason] += 1
        self._log_rank(identity, reason, f"rank report rejected ({reason}): {text}")
        return rejection(identity, reason, text)

    def _log_rank(self, identity: schema.Identity, reason: str, text: str) -> None:
        # The names of a rejected rank may have any length.
        run, host = identity.run[:128], identity.host[:128]
        self._log_once(
            (run, identity.rank, reason), f"{text} [run {run!r} rank {identity.rank} host {host!r}]"
        )

    def _log_once(self, key: tuple, text: str) -> None:
        """Log this key once an hour."""
        now = time.monotonic()
        if now - self._logged_since > 3600:
            self._logged.clear()
            self._logged_since = now
        if key not in self._logged and len(self._logged) < LOGGED_PER_HOUR_MAX:
            self._logged.add(key)
            log.warning("%s", text)

    def _add_health(self, report: AnyReport, offset: Offset | None, is_scoped: bool) -> None:
        """An event that cannot be kept is counted and skipped."""
        now_ns = self._clock_ns() if report.health else 0
        for event in moved_times.moved_events(report.health, offset, self.clocks):
            if self.health.add(report.node, event, now_ns, is_scoped):
                self._unwritten_health[health_key(report.node, event, is_scoped)] = event

    async def add_segment(self, segment: Segment, late: int) -> None:
        """Write a segment of a run that had `late` late rows when it was taken, and its rows with it. Raises LedgerError."""
        self._segments[segment.run] = (segment, late)
        await self._write()

    async def flush(self) -> None:
        """Wait until everything merged until now is in the ledger. Raises LedgerError."""
        if self._unwritten or self._writing.locked():
            await self._write()

    async def _write(self) -> None:
        """Wait until everything merged is committed. Raises LedgerError."""
        await asyncio.shield(self._begin_transaction())

    def _begin_transaction(self) -> asyncio.Task:
        """The next transaction."""
        if self._transaction is None:
            self._transaction = asyncio.ensure_future(self._commit())
            # Its pushes have its error; nobody else may wait for it.
            self._transaction.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._transaction

    async def _commit(self) -> None:
        error, batch = None, self._batch
        try:
            async with self._writing:
                if self._was_shared:
                    await self._gather()
                # Pushes from now on are in the next transaction.
                self._transaction, self._was_shared = None, len(self._waiting) > 1
                merged = 0
                while self._unmerged and merged < TRANSACTION_ROWS:
                    merged += self._merge_some()
                    if self._unmerged:
                        await asyncio.sleep(0)
                batch, self._batch = self._batch, self._batch + 1
                await self._append()
        except BaseException as raised:
            error = raised
            if self._transaction is asyncio.current_task():
                self._transaction = None
            raise
        finally:
            self._answer(batch, error)

    def _answer(self, batch: int, error: BaseException | None) -> None:
        """Answer the pushes that were in a transaction. One of which parts are left waits for another."""
        waiting, self._waiting, answered = self._waiting, [], []
        for push, then in waiting:
            if push.batch > batch or (push.parts and error is None):
                self._waiting.append((push, then))
                continue
            push.error = push.error or error
            if push.error is not None:
                self.counts["report", "failed"] += 1
                self._unmerged.discard(push)
            answered.append(then)
        call_in_turns(answered)
        if self._waiting:
            self._begin_transaction()

    async def _gather(self) -> None:
        """Wait for more pushes, until the one that waits longest has waited GATHER_SECONDS."""
        left = self._unmerged.since() + GATHER_SECONDS - time.monotonic()
        if left > 0:
            await asyncio.sleep(left)

    async def _append(self) -> None:
        batch, self._unwritten = self._unwritten, []
        self._appending = batch
        events, self._unwritten_health = self._unwritten_health, {}
        segments, self._segments = self._segments, {}
        right = [one for run, (one, late) in segments.items() if self._store.late_rows(run) == late]
        if not batch and not events and not right:
            return
        late = self._store.take_late()
        try:
            await in_thread(self._ledger.append, batch, events, right, late)
        except BaseException as error:
            self._store.put_back_late(late)
            # Also when cancelled: the store has these rows, so a repeated push would not bring them again.
            self._unwritten = _merged_by_process(batch + self._unwritten)
            events |= self._unwritten_health
            self._unwritten_health = {key: event for key, event in events.items() if key in self.health}
            if isinstance(error, LedgerError):
                self.counts["ledger", "error"] += 1
                self._failures.failed(error)
            raise
        else:
            self._failures.succeeded()
        finally:
            self._appending = []


def states(ledger: Ledger, run: str) -> Iterator[RunState]:
    """The run's segments that can be used, the newest first."""
    for body in ledger.segments(run):
        try:
            yield decode(body)
        except StateError as error:
            log.warning("run %r: a segment in the ledger is not used, more rows are read: %s", run, error)


def restore_run(
    ledger: Ledger, store: Store, run: str, progress: Callable[[], object] = lambda: None
) -> RunState | None:
    """Read a run from the ledger into a store: the rows after its newest segment, which is returned, or all.

    `progress` is called after each process. Raises LedgerError.
    """
    processes, end_marks = ledger.processes(run), ledger.ends(run)
    keys = {(one.identity.rank, one.identity.attempt) for one in processes}
    state = next((one for one in states(ledger, run) if one.rows.keys() <= keys), None)
    events, whole, after = ledger.events_of_run(run), [], []
    for process in processes:
        key = schema.stack_request(process.identity)
        try:
            store.merge(replace(process, events=events.pop(key, [])), 0)
            store.end(process.identity, end_marks.get(key))
            whole.append(process)
            after.append(_restore_rows(store, process, state))
        except ReportRejected as rejected:
            log.warning("a process in the ledger was not restored: %s", rejected)
    left, newest = len(whole), None
    for process, steps in ledger.tails(whole, after):
        store.restore_steps(process.identity, steps.values)
        if process is not newest:
            newest, left = process, left - 1
            progress()
    for _ in range(left):
        progress()
    return state


def _restore_rows(store: Store, process: schema.RankReport, state: RunState | None) -> int:
    """Let an attempt know the rows in `state`; returns the number above which rows are to be read."""
    attempt = store.attempt(process.identity)
    key = (attempt.rank, attempt.attempt)
    if state is None or key not in state.rows:
        return 0
    state.restore_rows(key, attempt)
    # From the last one that was folded, with which the next one is compared.
    return max(attempt.top_number - 1, 0)


def _merged_by_process(batch: list[NewRecords]) -> list[NewRecords]:
    """One part per process: all rows and events, and the newest live part."""
    merged: dict[tuple, NewRecords] = {}
    for part in batch:
        identity = part.report.identity
        key = (identity.run, identity.rank, identity.attempt)
        kept = merged.setdefault(key, NewRecords(part.report, [], []))
        kept.blocks += part.blocks
        kept.events += part.events
        if part.report.sequence > kept.report.sequence:
            kept.report = part.report
    return list(merged.values())
