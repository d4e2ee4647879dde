"""The project's own aggregator on a simulated clock: Store, Accounts, Ingest's counters, Exposition.

In: rank reports at simulated moments. Out: at each scrape every series of its exposition. A restart forgets everything
and takes in again what a ledger would have, as Ingest.restore does. What would go through HTTP, a database and a child
process does not here: reports are checked and merged in place, and no rows of a run are let go.
"""

from __future__ import annotations

import functools
from collections.abc import Container

from msgspec.structs import replace

from bench.alert_replay.reports import Key
from bench.alert_replay.trainer import EPOCH_SECONDS
from goodput import causes
from goodput.account import straggler
from goodput.aggregator.accounts import live
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.health_costs import HealthView
from goodput.aggregator.api import exposition
from goodput.aggregator.api.exposition import EVERYTHING, Exposition
from goodput.aggregator.http.authentication import Door
from goodput.aggregator.ingest.hangs import HangDetector
from goodput.aggregator.ingest.health_log import HealthLog
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import ReportRefused, Store
from goodput.metrics import CATALOGUE
from goodput.wire import schema

STALL_SECONDS, STALE_SECONDS = 60.0, 30.0
# Series of the process itself, which runs a thousand times too fast here: a sound one's instead.
OWN = {"goodput_aggregator_cpu_seconds_total": 0.02, "goodput_aggregator_ingest_seconds_total": 0.01}
OWN_MEMORY_BYTES = 120e6
WAITING_MAX = 4
_ADVISERS = functools.cache(causes.advisers)


class _NoUsage:
    """In place of `resource`: what this process itself takes is said by OWN, and to ask for it is slow."""

    ru_utime = ru_stime = 0.0
    RUSAGE_SELF = 0

    @classmethod
    def getrusage(cls, _):
        return cls

    @staticmethod
    def getpagesize():
        return 4096


class _Accounts(Accounts):
    """Accounts whose `now` is the simulated one."""

    def __init__(self, store: Store, clock_ns, **given):
        super().__init__(store, **given)
        self.clock_ns = clock_ns
        self.hangs = HangDetector(store, **given, clock_ns=clock_ns)

    def account(self, name, now_ns=None):
        found = super().account(name, self.clock_ns() if now_ns is None else now_ns)
        groups = self._lives[name]._engine.groups
        # Steps that wait to be compared are else compared anew at each look: after a restart that is all of the run's.
        if len(groups._waiting) > WAITING_MAX:
            groups._sweep()
        return found

    def hang(self, name, now_ns=None):
        return super().hang(name, self.clock_ns() if now_ns is None else now_ns)


class Aggregator:
    """`now` is set by whoever drives it, in simulated seconds."""

    def __init__(self):
        self.now = 0.0
        self._ledger: dict[tuple, tuple[schema.RankReport, list, list]] = {}
        # Rows that were let go could only come from a ledger in a child process.
        live.ROWS_MAX = 1 << 40
        # Looks are minutes apart here, so steps are compared as they come; the result is the same.
        straggler.SWEEP_ENTRIES = 8
        # The folder of causes is else listed at every scrape, which is most of the work for a small run.
        causes.advisers = _ADVISERS
        exposition.resource = _NoUsage
        self.start()

    def start(self) -> None:
        """A new process, with what the ledger has."""
        self._began = self.now
        self.store = Store()
        for report, rows, events in self._ledger.values():
            self.store.merge(replace(report, steps=rows, events=events), 0)
        self.store.new = self.store.repeated = 0
        given = {"stall_seconds": STALL_SECONDS, "stale_seconds": STALE_SECONDS}
        self.accounts = _Accounts(self.store, self._clock_ns, **given)
        health = HealthLog()
        self.ingest = Ingest(self.store, None, self._clock_ns, self.accounts.hangs, health)
        view = HealthView(health, self.accounts)
        self.exposition = Exposition(self.accounts, self.ingest, view, Door(), clock_ns=self._clock_ns)

    def take(self, report: schema.RankReport) -> bool:
        """One rank's report; whether it was taken."""
        try:
            schema.check(report)
            merged = self.store.merge(report, self._clock_ns())
        except schema.SchemaError:
            self.ingest.counts["rejection", "malformed"] += 1
            return False
        except ReportRefused as refused:
            self.ingest.counts["rejection", refused.reason] += 1
            return False
        self.ingest.counts["report", "accepted"] += 1
        identity = merged.report.identity
        key = (identity.run, identity.rank, identity.host, identity.pid, identity.start_ns)
        _, rows, events = self._ledger.get(key, (None, [], []))
        rows += merged.rows
        events += merged.events
        self._ledger[key] = (merged.report, rows, events)
        return True

    def forget(self, run: str) -> None:
        """Drop a run that has been finished for long, as a new aggregator with a new ledger would not know it."""
        for key in [key for key in self._ledger if key[0] == run]:
            del self._ledger[key]
        self.store.runs.pop(run, None)
        self.store.newest.pop(run, None)

    def scrape(self, wanted: Container[str] = CATALOGUE) -> dict[Key, float]:
        """Every series of these names that it exposes now, before it is written as text."""
        found = {}
        for name, rows in self.exposition.families(EVERYTHING).rows.items():
            if name not in wanted:
                continue
            # The order of label names is the catalogue's; histograms, of which no alert is made, are left out.
            names = CATALOGUE[name].labels
            for values, *value in rows:
                if len(value) == 1:
                    found[name, tuple(sorted(zip(names, values, strict=True)))] = float(value[0])
        up = self.now - self._began
        own = {name: rate * up for name, rate in OWN.items()} | {
            "goodput_aggregator_memory_bytes": OWN_MEMORY_BYTES
        }
        return found | {(name, ()): value for name, value in own.items() if name in wanted}

    def _clock_ns(self) -> int:
        return round((self.now + EPOCH_SECONDS) * 1e9)
