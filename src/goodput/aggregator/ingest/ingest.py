"""Accepting a push: decode, merge into the store, write to the ledger, answer.

The Ack is sent when everything accepted is committed. Pushes that arrive together are merged together, since NumPy costs
per call, and share one transaction; where the last one was shared, the next waits GATHER_SECONDS for more. When the ledger cannot be written the push is answered with
an error, so the agent keeps it; what was merged meanwhile is written with the next transaction that succeeds. Of that
one part per process is kept, whose rows are those in the store, so that pushes repeated against a broken ledger do not
accumulate.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from goodput.access.tokens import EVERYTHING, Access
from goodput.aggregator.ingest.hangs import HangDetector
from goodput.aggregator.ingest.health_log import NODE_WEIGHT_MAX, HealthLog
from goodput.aggregator.ingest.pushed_steps import (
    PushedSteps,
    decode_steps,
    in_version_2,
    refused_beyond_bound,
)
from goodput.aggregator.ingest.store import ReportRejected, Store
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.ledger.segments import Segment
from goodput.aggregator.records import HealthKey, NewRecords, health_key
from goodput.columns.snapshot import FoldState, SnapshotError, decode
from goodput.wire import schema
from goodput.wire.step_blocks import TOTALS

log = logging.getLogger("goodput.aggregator")
# Rejections that are logged; the counters have all.
LOGGED_PER_HOUR_MAX = 256
# A transaction costs as much as the rows of ten pushes.
GATHER_SECONDS = 0.025
# Step rows that are decoded together; after as many the event loop has a turn.
ROWS_AT_ONCE = 4096
# Pushes that wait for a transaction are merged without it after this time, so that the account goes on.
UNMERGED_SECONDS = 0.25


# Merging takes up to so many times the bytes of the rows as columns, and so many bytes for each rank beside.
MERGED_SHARE, RANK_BYTES = 5, 8 << 10


class Reservation(Protocol):
    """Notes memory that is about to be taken, and refuses by an exception what would be too much."""

    async def add(self, more: int, what: str) -> None: ...


@dataclass
class _Push:
    """A push that waits to be merged: the reports that may be, and the rejections of its other ranks."""

    reports: list[schema.RankReport]
    token: str
    rejected: list[schema.Rejection]
    error: Exception | None = None  # why the push failed
    is_checked: bool = False  # `reports` has those left to merge, the next one last
    since: float = field(default_factory=time.monotonic)


class Ingest:
    """`counts` holds the aggregator's own counters by (series, label), `seconds` the CPU time spent on pushes."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        clock_ns=time.time_ns,
        hangs: HangDetector | None = None,
        health: HealthLog | None = None,
    ):
        self._store, self._ledger, self._clock_ns, self._hangs = store, ledger, clock_ns, hangs
        self.health = HealthLog() if health is None else health
        # Brings runs of Store.stored back into memory.
        self.load: Callable[[str], Awaitable[object]] | None = None
        self.counts: Counter = Counter()
        self.seconds = 0.0
        self._unmerged: deque[_Push] = deque()
        self._merging: set[str] = set()  # runs of the pushes that are being merged
        self._unwritten: list[NewRecords] = []
        self._appending: list[NewRecords] = []  # in the transaction that is being written
        self._unwritten_health: dict[HealthKey, schema.Health] = {}
        self._writing = asyncio.Lock()
        self._segments: dict[str, tuple[Segment, int]] = {}  # by run, with its late rows
        self._transaction: asyncio.Future | None = None  # the one that begins next
        self._waiting = 0  # pushes that wait for it
        self._was_shared = False  # whether several pushes were in the one before
        self._logged: set[tuple] = set()
        self._logged_since = time.monotonic()

    def restore(
        self,
        then: Callable[[str, FoldState | None], object] = lambda run, state: None,
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
            if run in self._store.stored:
                continue
            if not has_room():
                self._store.stored[run] = start_ns
                continue

            def count() -> None:
                nonlocal restored
                restored += 1
                progress(restored)

            state = restore_run(self._ledger, self._store, run, count)
            if run in self._store.runs:
                then(run, state)
        self._store.new = self._store.repeated = 0
        for node, event in self._ledger.health(NODE_WEIGHT_MAX):
            self.health.restore(node, event)
        self.health.counts.clear()
        return restored

    def unwritten(self) -> set[str]:
        """Runs of which something waits to be merged or written."""
        waiting = {report.identity.run for push in self._unmerged for report in push.reports}
        return (
            waiting | self._merging | {part.report.identity.run for part in self._unwritten + self._appending}
        )

    def forget(self, run: str) -> None:
        """Drop a run that was deleted from the ledger, and what of it waits to be written."""
        self._unwritten = [part for part in self._unwritten if part.report.identity.run != run]
        self._segments.pop(run, None)
        self._store.forget(run)

    async def accept(
        self, body: bytes, access: Access = EVERYTHING, memory: Reservation | None = None
    ) -> schema.Ack:
        """Accept one push. Raises SchemaError (nothing was accepted) or LedgerError (push it again).

        What it takes is added to `memory`, which may raise an exception of its own; then nothing was accepted.

        Parts of runs that `access` does not allow are left out: their ranks are rejected, their stacks and health
        events ignored.
        """
        began = time.perf_counter()
        try:
            report = schema.decode(body)
        except schema.SchemaError as error:
            self.counts["report", "malformed"] += 1
            by = f" by token {access.name}" if access.name else ""
            self._log_once(("report", access.name), f"a whole report{by} rejected (report): {error}")
            raise
        finally:
            self.seconds += time.perf_counter() - began
        if memory is not None:
            await memory.add(
                merged_bytes(report), f"a report of {len(report.ranks)} ranks of node {report.node[:64]!r}"
            )
        await self._load_stored(report, access)
        began = time.perf_counter()
        try:
            ranks, rejected = len(report.ranks), []
            if not access.is_of_all:
                report, rejected = self._allowed_part(report, access)
            self._add_health(report, is_scoped=not access.is_of_all)
            token = "" if access.is_of_all else access.token_id or access.name
            push = _Push(report.ranks, token, rejected)
            self._unmerged.append(push)
            if push.since - self._unmerged[0].since > UNMERGED_SECONDS:
                self._merge_some()
        finally:
            self.seconds += time.perf_counter() - began
        try:
            await self._write()
        except LedgerError:
            self.counts["report", "failed"] += 1
            raise
        if push.error is not None:
            self.counts["report", "failed"] += 1
            raise push.error
        self.counts["report", "accepted"] += 1
        requests = []
        if self._hangs is not None:
            self._hangs.add_stacks(report.stacks)
            requests = self._hangs.stack_requests(report.ranks)
        return schema.Ack(ranks - len(push.rejected), push.rejected, requests)

    async def _load_stored(self, report: schema.NodeReport, access: Access) -> None:
        """Bring back the runs of a report that are in the ledger alone. Raises LedgerError."""
        stored = self._store.stored
        if not stored or self.load is None:
            return
        for run in {rank.identity.run for rank in report.ranks}:
            if run in stored and access.may(run):
                try:
                    await self.load(run)
                except LedgerError:
                    self.counts["report", "failed"] += 1
                    raise

    def _allowed_part(
        self, report: schema.NodeReport, access: Access
    ) -> tuple[schema.NodeReport, list[schema.Rejection]]:
        """The part of a report that a token for some runs may push, and rejections of the other ranks.

        A health event that hit none of its runs is the node's and needs a token for all runs.
        """
        ranks, rejected, health = [], [], []
        for rank in report.ranks:
            run = rank.identity.run
            if access.may(run):
                ranks.append(rank)
            else:
                text = f"token {access.name} is not for run {run[:64]!r}"
                rejected.append(self._rejection(rank.identity, "scope", text))
        for event in report.health:
            hits = [hit for hit in event.hits if access.may(hit[0])]
            if hits:
                health.append(replace(event, hits=hits))
            else:
                self.health.counts["dropped", "scope"] += 1
        stacks = [stack for stack in report.stacks if access.may(stack.of.run)]
        return replace(report, ranks=ranks, health=health, stacks=stacks), rejected

    def _merge_some(self) -> None:
        """Merge the pushes that have waited longest, or the next ranks of a large one, up to about ROWS_AT_ONCE rows."""
        began, rows, checked = time.perf_counter(), 0, []
        while self._unmerged and rows < ROWS_AT_ONCE:
            push = self._unmerged[0]
            if not push.is_checked:
                push.reports, push.is_checked = self._check(push)[::-1], True
            while push.reports:
                count = sum([block.count for block in push.reports[-1].blocks])
                if checked and rows + count > ROWS_AT_ONCE:
                    rows = ROWS_AT_ONCE
                    break
                rows += count
                checked.append((push, push.reports.pop()))
            if not push.reports:
                self._unmerged.popleft()
        self._merging = {report.identity.run for _, report in checked}
        self._merge_checked(checked)
        self._merging = set()
        self.seconds += time.perf_counter() - began

    def _merge_checked(self, checked: list[tuple[_Push, schema.RankReport]]) -> None:
        """Merge valid reports, which are rejected where they contradict what is known.

        An error that nobody foresaw fails the push with that report alone, not those of other nodes beside it.
        """
        now_ns = self._clock_ns()
        for (push, report), steps in zip(checked, _decoded([one for _, one in checked]), strict=True):
            try:
                if isinstance(steps, Exception):
                    raise steps
                self._unwritten.append(self._store.merge(report, now_ns, push.token, steps))
            except schema.SchemaError as error:
                push.rejected.append(self._rejection(report.identity, "malformed", str(error)))
            except ReportRejected as refused:
                push.rejected.append(self._rejection(report.identity, refused.reason, str(refused)))
            except Exception as error:
                self._fail(push, report, error)

    def _fail(self, push: _Push, report: schema.RankReport, error: Exception) -> None:
        log.exception("%s: its report could not be merged", schema.name_of(report), exc_info=error)
        push.error = error

    def _check(self, push: _Push) -> list[schema.RankReport]:
        """The reports of a push that are valid, with their steps in blocks; the others are rejected."""
        valid = []
        for report in push.reports:
            try:
                valid.append(in_version_2(self._checked(report)))
            except schema.SchemaError as error:
                push.rejected.append(self._rejection(report.identity, "malformed", str(error)))
            except Exception as error:
                self._fail(push, report, error)
        refused = refused_beyond_bound(valid)
        for at, error in refused.items():
            push.rejected.append(self._rejection(valid[at].identity, "malformed", str(error)))
        return [report for at, report in enumerate(valid) if at not in refused] if refused else valid

    def _checked(self, report: schema.RankReport) -> schema.RankReport:
        """The report, without optional fields that are out of bounds. Raises SchemaError."""
        try:
            schema.check(report, is_known=self._store.has_accepted(report))
            return report
        except schema.SchemaError as error:
            usable = schema.without_wrong_options(report)
            schema.check(usable)
            self._log_rank(report.identity, "field", f"rank report used without a wrong field: {error}")
            return usable

    def _rejection(self, identity: schema.Identity, reason: str, text: str) -> schema.Rejection:
        self.counts["rejection", reason] += 1
        self._log_rank(identity, reason, f"rank report rejected ({reason}): {text}")
        return schema.Rejection(identity.run[:128], identity.rank, reason, text)

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

    def _add_health(self, report: schema.NodeReport, is_scoped: bool) -> None:
        """An event that cannot be kept is counted and skipped."""
        now_ns = self._clock_ns() if report.health else 0
        for event in report.health:
            if self.health.add(report.node, event, now_ns, is_scoped):
                self._unwritten_health[health_key(report.node, event, is_scoped)] = event

    async def add_segment(self, segment: Segment, late: int) -> None:
        """Write a segment of a run that had `late` late rows when it was taken. Raises LedgerError.

        It is written with everything merged until now, so that the ledger has all rows that are in it.
        """
        self._segments[segment.run] = (segment, late)
        await self._write()

    async def flush(self) -> None:
        """Wait until everything merged until now is in the ledger. Raises LedgerError."""
        if self._unwritten or self._writing.locked():
            await self._write()

    async def _write(self) -> None:
        """Wait until everything merged is committed. Raises LedgerError in every push of a failed transaction."""
        self._waiting += 1
        if self._transaction is None:
            self._transaction = asyncio.ensure_future(self._commit())
        # A push whose client disconnects must not cancel the others' transaction.
        await asyncio.shield(self._transaction)

    async def _commit(self) -> None:
        try:
            async with self._writing:
                if self._was_shared:
                    await asyncio.sleep(GATHER_SECONDS)
                # Pushes from now on are in the next transaction.
                self._transaction, self._was_shared, self._waiting = None, self._waiting > 1, 0
                while self._unmerged:
                    self._merge_some()
                    if self._unmerged:
                        await asyncio.sleep(0)
                await self._append()
        except BaseException:
            if self._transaction is asyncio.current_task():
                self._transaction = None
            raise

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
            await asyncio.to_thread(self._ledger.append, batch, events, right, late)
        except BaseException as error:
            self._store.put_back_late(late)
            # Also when cancelled: the store has these rows, so a repeated push would not bring them again.
            self._unwritten = _merged_by_process(batch + self._unwritten)
            events |= self._unwritten_health
            self._unwritten_health = {key: event for key, event in events.items() if key in self.health}
            if isinstance(error, LedgerError):
                self.counts["ledger", "error"] += 1
                log.error("%s", error)
            raise
        finally:
            self._appending = []


def merged_bytes(report: schema.NodeReport) -> int:
    """How much memory merging a report may take. A few bytes can claim many steps, which are refused later."""
    rows, width = 0, 0
    for rank in report.ranks:
        rows += len(rank.steps) + sum([min(max(block.count, 0), schema.STEPS_MAX) for block in rank.blocks])
        width = max(width, len(rank.phases))
    columns = TOTALS + 2 * min(width, schema.PHASES_MAX)
    return MERGED_SHARE * 8 * columns * min(rows, schema.STEPS_MAX) + RANK_BYTES * len(report.ranks)


def states(ledger: Ledger, run: str) -> Iterator[FoldState]:
    """The run's segments that can be used, the newest first."""
    for body in ledger.segments(run):
        try:
            yield decode(body)
        except SnapshotError as error:
            log.warning("run %r: a segment in the ledger is not used, more rows are read: %s", run, error)


def restore_run(
    ledger: Ledger, store: Store, run: str, progress: Callable[[], object] = lambda: None
) -> FoldState | None:
    """Read a run from the ledger into a store: the rows after its newest segment, which is returned, or all.

    `progress` is called after each process. Raises LedgerError.
    """
    processes, end_marks = ledger.processes(run), ledger.ends(run)
    keys = {(one.identity.rank, one.identity.attempt) for one in processes}
    state = next((one for one in states(ledger, run) if one.folds.keys() <= keys), None)
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


def _restore_rows(store: Store, process: schema.RankReport, state: FoldState | None) -> int:
    """Let an attempt know the rows in `state`; returns the number above which rows are to be read."""
    attempt = store.attempt(process.identity)
    key = (attempt.rank, attempt.attempt)
    if state is None or key not in state.folds:
        return 0
    state.restore_rows(key, attempt)
    # From the last one that was folded, with which the next one is compared.
    return max(attempt.top_number - 1, 0)


def _decoded(reports: list[schema.RankReport]) -> list[PushedSteps | Exception]:
    """The steps of each report, or why they are refused or could not be decoded."""
    try:
        return [*decode_steps(reports)]
    except Exception as error:
        if len(reports) == 1:
            return [error]
    return [steps for report in reports for steps in _decoded([report])]


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
