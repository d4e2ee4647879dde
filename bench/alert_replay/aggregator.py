"""The project's own aggregator on a simulated clock: Store, Accounts, Ingest's counters, Exposition.

It has no HTTP, no database and no child process: reports are checked and merged in place, and no rows of a run are
released. A restart forgets everything and loads again what a ledger would have, as Ingest.restore does.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Container, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from goodput import causes
from goodput.account.attempts import EndMark
from goodput.aggregator.accounts import live
from goodput.aggregator.accounts.abandonment import START_SECONDS, Abandonment
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.health_costs import HealthCosts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.api.exposition import EVERYTHING, Exposition
from goodput.aggregator.http.authentication import RequestAuthenticator
from goodput.aggregator.ingest.health_log import HealthLog
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.run_end import RunEnder
from goodput.aggregator.ingest.store import ReportRejected, Store
from goodput.metrics import CATALOGUE
from goodput.simulate.node import Key
from goodput.simulate.scenario import EPOCH_SECONDS
from goodput.wire import schema

STALL_SECONDS, STALE_SECONDS = 60.0, 30.0
# The process runs a thousand times too fast here: its own counters grow by this per second instead.
PROCESS_RATES = {
    "goodput_aggregator_cpu_seconds_total": 0.02,
    "goodput_aggregator_ingest_seconds_total": 0.01,
}
PROCESS_MEMORY_BYTES = 120e6
LEDGER_BYTES, LEDGER_BYTES_A_ROW = 118_784, 44  # docs/ledger.md
REQUEST_SECONDS = 0.002
_ADVISERS = functools.cache(causes.advisers)


class _Accounts(Accounts):
    """Accounts whose `now` is the simulated one."""

    def __init__(self, store: Store, clock_ns, **given):
        super().__init__(store, history=History(None), clock_ns=clock_ns, **given)


@contextmanager
def adapted() -> Iterator[None]:
    """Meanwhile the aggregator's modules are as a replay needs them, in this whole process."""
    changes = (
        # Rows that were released could only be read from a ledger, in a child process.
        (live, "ROWS_MAX", 1 << 40),
        # The folder of causes would be listed at every scrape, which is most of the work for a small run.
        (causes, "advisers", _ADVISERS),
    )
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    try:
        for module, name, value in changes:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


class _EndMarks:
    """The part of a Ledger that holds end marks."""

    def __init__(self):
        self.of: dict[schema.Identity, EndMark] = {}

    def end(self, marks: list[tuple[schema.Identity, EndMark]], _set_ns: int) -> None:
        self.of.update(marks)


class Aggregator:
    """The caller sets `now`, in simulated seconds."""

    def __init__(self):
        self.now = 0.0
        self._end_marks = _EndMarks()
        self._ledger: dict[tuple, tuple[schema.RankReport, list, list]] = {}
        self.start()

    def start(self) -> None:
        """Start a new process with what the ledger has."""
        self._began = self.now
        self.store = Store()
        for report, rows, events in self._ledger.values():
            self.store.merge(replace(report, steps=rows, events=events), 0)
        for identity, mark in self._end_marks.of.items():
            self.store.end(identity, mark)
        self.store.new = self.store.repeated = 0
        given = {"stall_seconds": STALL_SECONDS, "stale_seconds": STALE_SECONDS}
        self.accounts = _Accounts(self.store, self._clock_ns, **given)
        self._ender = RunEnder(
            self.store, self._end_marks, stale_seconds=STALE_SECONDS, clock_ns=self._clock_ns
        )
        self._abandonment = Abandonment(self.accounts, self._ender)
        self.health, self.authenticator = HealthLog(), RequestAuthenticator()
        self.ingest = Ingest(self.store, None, self._clock_ns, self.accounts.hangs, self.health)
        view = HealthCosts(self.health, self.accounts)
        self.exposition = Exposition(
            self.accounts, self.ingest, view, self.authenticator, clock_ns=self._clock_ns
        )

    def take(self, report: schema.RankReport) -> bool:
        """Merge one rank's report; returns whether it was accepted."""
        self.authenticator.metrics.observe("ingest", 200, REQUEST_SECONDS)
        try:
            schema.check(report)
            merged = self.store.merge(report, self._clock_ns())
        except schema.SchemaError:
            self.ingest.counts["rejection", "malformed"] += 1
            return False
        except ReportRejected as rejected:
            self.ingest.counts["rejection", rejected.reason] += 1
            return False
        self.ingest.counts["report", "accepted"] += 1
        identity = merged.report.identity
        key = (identity.run, identity.rank, identity.host, identity.pid, identity.start_ns)
        _, rows, events = self._ledger.get(key, (None, [], []))
        rows += merged.rows()
        events += merged.events
        self._ledger[key] = (merged.report, rows, events)
        return True

    def end(self, run: str, reason: str) -> None:
        """Declare a run over."""
        asyncio.run(self._ender.end(run, reason, force=True))

    def take_event(self, node: str, event: schema.Health) -> None:
        self.health.add(node, event)

    def scrape(self, wanted: Container[str] = CATALOGUE) -> dict[Key, float]:
        """Every series of these names that it exposes now. Runs that are due are abandoned first."""
        if self.now - self._began >= START_SECONDS:
            asyncio.run(self._abandonment.mark_due(self._clock_ns()))
        found: dict[Key, float] = {}
        for name, rows in self.exposition.families(EVERYTHING).rows.items():
            if name not in wanted:
                continue
            names = CATALOGUE[name].labels
            for values, *value in rows:
                labels = tuple(sorted(zip(names, values, strict=True)))
                if len(value) == 1:
                    found[name, labels] = float(value[0])
                else:
                    found |= _histogram(name, labels, *value[:2])
        up_seconds = self.now - self._began
        own = {name: rate * up_seconds for name, rate in PROCESS_RATES.items()}
        own["goodput_aggregator_memory_bytes"] = PROCESS_MEMORY_BYTES
        rows = sum(len(rows) for _, rows, _ in self._ledger.values())
        own["goodput_aggregator_ledger_bytes"] = LEDGER_BYTES + LEDGER_BYTES_A_ROW * rows
        return found | {(name, ()): value for name, value in own.items() if name in wanted}

    def _clock_ns(self) -> int:
        return round((self.now + EPOCH_SECONDS) * 1e9)


def _histogram(name: str, labels: tuple, buckets: list[tuple[str, int]], total: float) -> dict[Key, float]:
    found = {(f"{name}_bucket", tuple(sorted((*labels, ("le", le))))): float(count) for le, count in buckets}
    return found | {(f"{name}_sum", labels): total, (f"{name}_count", labels): float(buckets[-1][1])}
