"""Taking one push: decode, merge, write to the ledger, answer.

In: the body of a push. Out: an Ack, sent when what was taken is committed. Pushes that arrive together share one
transaction, and where that is so they wait 25 ms for more; one that comes alone does not wait. When the ledger cannot be written the push is answered with an error, so the agent keeps it; what
was merged meanwhile is written with the next push that works. Of what waits so there is one part per process,
whose rows are those in the store, so pushes repeated against a broken ledger do not pile up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable

from msgspec.structs import replace

from goodput.access.tokens import EVERYTHING, Access
from goodput.aggregator.ingest.hangs import HangDetector
from goodput.aggregator.ingest.health_log import AHEAD_NS_MAX, NODE_WEIGHT_MAX, HealthLog
from goodput.aggregator.ingest.store import ReportRefused, Store
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.records import HealthKey, NewRecords, health_key
from goodput.wire import schema

log = logging.getLogger("goodput.aggregator")
# Of refusals that the log names; the counters tell of all.
NAMED_PER_HOUR_MAX = 256
# A transaction costs as much as the rows of ten pushes. Where several came together, the next one waits this long.
GATHER_SECONDS = 0.025


class Ingest:
    """The way in. `counts` holds the aggregator's own counters by (series, label)."""

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
        self._unwritten: list[NewRecords] = []
        self._unwritten_health: dict[HealthKey, schema.Health] = {}
        self._writing = asyncio.Lock()
        self._transaction: asyncio.Future | None = None  # that begins next
        self._together, self._has_company = (
            0,
            False,
        )  # pushes that wait for it; whether the one before had several
        self.counts: Counter = Counter()
        self.seconds = 0.0
        self._named: set[tuple] = set()
        self._named_since = time.monotonic()

    def restore(self, then: Callable[[str], object] = lambda run: None) -> int:
        """Fill the store from the ledger, run by run; returns how many processes were found.

        `then(run)` is called when all of a run is there, so that not all rows of all runs are held at once.
        """
        restored = 0
        for run in self._ledger.runs():
            ends = self._ledger.ends(run)
            for process in self._ledger.processes(run):
                rows, events = self._ledger.rows(process.identity), self._ledger.events(process.identity)
                try:
                    self._store.merge(replace(process, steps=list(rows), events=events), 0)
                    self._store.end(process.identity, ends.get(schema.stack_request(process.identity)))
                    restored += 1
                except ReportRefused as refused:
                    log.warning("ledger: %s", refused)
            if run in self._store.runs:
                then(run)
        self._store.new = self._store.repeated = 0
        for node, event in self._ledger.health(NODE_WEIGHT_MAX):
            self.health.restore(node, event)
        self.health.counts.clear()
        return restored

    async def take(self, body: bytes, access: Access = EVERYTHING) -> schema.Ack:
        """Take one push. Raises SchemaError (nothing taken) or LedgerError (push again).

        What is of runs that `access` is not for is left out, each part by itself: ranks are rejected, stacks ignored,
        health events taken for the runs that it is for.
        """
        began = time.perf_counter()
        try:
            report = schema.decode(body)
            ranks = len(report.ranks)
        except schema.SchemaError:
            self.counts["report", "malformed"] += 1
            raise
        finally:
            self.seconds += time.perf_counter() - began
        began = time.perf_counter()
        rejected: list[schema.Rejection] = []
        if not access.is_of_all:
            report, rejected = self._within(report, access)
        rejected += [r for r in map(self._merge, report.ranks) if r is not None]
        self._take_health(report, is_scoped=not access.is_of_all)
        self.seconds += time.perf_counter() - began
        try:
            await self._write()
        except LedgerError:
            self.counts["report", "failed"] += 1
            raise
        self.counts["report", "accepted"] += 1
        wanted = []
        if self._hangs is not None:
            self._hangs.take(report.stacks)
            wanted = self._hangs.wanted(report.ranks)
        return schema.Ack(ranks - len(rejected), rejected, wanted)

    def _within(self, report: schema.NodeReport, access: Access) -> tuple[schema.NodeReport, list]:
        """What of a report is of the runs that a token is for, and rejections of the other ranks.

        An event that hit no rank is of the node, which is nobody's own: it takes a token for all runs.
        """
        ranks, rejected, health = [], [], []
        for rank in report.ranks:
            run = rank.identity.run
            if access.may(run):
                ranks.append(rank)
            else:
                text = f"run {run[:64]!r} is none of the runs that the token {access.name} is for"
                rejected.append(self._rejection(rank.identity, "scope", text))
        for event in report.health:
            hits = [hit for hit in event.hits if access.may(hit[0])]
            if hits:
                health.append(replace(event, hits=hits))
            else:
                self.health.counts["dropped", "scope"] += 1
        stacks = [stack for stack in report.stacks if access.may(stack.of.run)]
        return replace(report, ranks=ranks, health=health, stacks=stacks), rejected

    def _merge(self, report: schema.RankReport) -> schema.Rejection | None:
        identity = report.identity
        try:
            schema.check(report)
            self._unwritten.append(self._store.merge(report, self._clock_ns()))
            return None
        except schema.SchemaError as error:
            reason, text = "malformed", str(error)
        except ReportRefused as refused:
            reason, text = refused.reason, str(refused)
        return self._rejection(identity, reason, text)

    def _rejection(self, identity: schema.Identity, reason: str, text: str) -> schema.Rejection:
        self.counts["rejection", reason] += 1
        # What is refused may be of any length.
        run, now = identity.run[:128], time.monotonic()
        if now - self._named_since > 3600:
            self._named.clear()
            self._named_since = now
        if (run, identity.rank, reason) not in self._named and len(self._named) < NAMED_PER_HOUR_MAX:
            self._named.add((run, identity.rank, reason))
            log.warning("refused: %s", text)
        return schema.Rejection(run, identity.rank, reason, text)

    def _take_health(self, report: schema.NodeReport, is_scoped: bool) -> None:
        """What cannot be kept is counted and left out; it costs the report nothing else."""
        now_ns = self._clock_ns() if report.health else 0
        for event in report.health:
            if self.health.take(report.node, event, now_ns, AHEAD_NS_MAX, is_scoped):
                self._unwritten_health[health_key(report.node, event, is_scoped)] = event

    async def _write(self) -> None:
        """Until all that is merged is committed. Raises LedgerError to everybody whose transaction failed."""
        self._together += 1
        if self._transaction is None:
            self._transaction = asyncio.ensure_future(self._commit())
        # One of them that goes away must not take the others' rows with it.
        await asyncio.shield(self._transaction)

    async def _commit(self) -> None:
        """The next transaction. Whoever comes before it begins is in it; where they come together it lets more come."""
        try:
            async with self._writing:
                if self._has_company:
                    await asyncio.sleep(GATHER_SECONDS)
                self._transaction, self._has_company, self._together = None, self._together > 1, 0
                await self._append()
        except BaseException:
            if self._transaction is asyncio.current_task():
                self._transaction = None
            raise

    async def _append(self) -> None:
        batch, self._unwritten = self._unwritten, []
        events, self._unwritten_health = self._unwritten_health, {}
        if not batch and not events:
            return
        try:
            await asyncio.to_thread(self._ledger.append, batch, events)
        except BaseException as error:
            # Whatever it was, a cancelled push too: the store has these rows, so nobody will send them again.
            self._unwritten = _folded(batch + self._unwritten)
            events |= self._unwritten_health
            self._unwritten_health = {key: event for key, event in events.items() if key in self.health}
            if isinstance(error, LedgerError):
                self.counts["ledger", "error"] += 1
                log.error("%s", error)
            raise


def _folded(batch: list[NewRecords]) -> list[NewRecords]:
    """The same with one part per process: all rows and events, and the newest live part."""
    folded: dict[tuple, NewRecords] = {}
    for merged in batch:
        identity = merged.report.identity
        before = folded.setdefault(
            (identity.run, identity.rank, identity.attempt), NewRecords(merged.report, [], [])
        )
        before.rows += merged.rows
        before.events += merged.events
        if merged.report.sequence > before.report.sequence:
            before.report = merged.report
    return list(folded.values())
