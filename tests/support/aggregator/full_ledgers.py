"""Ledgers with a row in every table, and the accounts of their runs to the nanosecond.

cd tests && python -m support.aggregator.full_ledgers aggregator/ledger/releases    # what a release adds
"""

from __future__ import annotations

import asyncio
import json
import lzma
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from support.account.account_history import Process, ns
from support.aggregator.exports import STALE
from support.aggregator.ledgers import bodies, take
from support.aggregator.reports import body_of, health_event, rank_report, story

from goodput.account import Account, EndMark
from goodput.account.states import STATES
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.accounts.snapshots import Snapshots
from goodput.aggregator.api.ledger_maintenance import LedgerMaintenance
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import migrations
from goodput.aggregator.ledger.compaction import Keep
from goodput.aggregator.ledger.deletion import delete
from goodput.aggregator.ledger.ledger import Ledger

KEEP = Keep(1 / 24, 90)
STEP_SECONDS = 30
RUNS = ("closed", "going", "marked")


class Aggregator:
    """An aggregator without HTTP, whose clock is that of the reports."""

    def __init__(self, ledger: Ledger, now_ns: int = 0):
        self.now_ns = now_ns
        self.ingest = Ingest(Store(), ledger, clock_ns=self.clock_ns)
        self.accounts = Accounts(
            self.ingest._store,
            stall_seconds=60,
            stale_seconds=STALE,
            age_seconds=0,
            history=History(ledger),
            clock_ns=self.clock_ns,
        )
        self.snapshots = Snapshots(self.accounts, self.ingest)
        self.maintenance = LedgerMaintenance(ledger, self.ingest, self.accounts, KEEP)
        self.ingest.restore(then=self.maintenance.restored)

    def clock_ns(self) -> int:
        return self.now_ns

    def account(self, run: str) -> Account:
        """The account once the run was folded again, if that is necessary."""

        async def latest() -> Account:
            await self.maintenance.memory.load(run)
            for _ in range(2):
                found = self.accounts.account(run, self.now_ns)
                await asyncio.gather(*self.accounts._folding.values())
            return found

        return asyncio.run(latest())

    def maintain(self) -> None:
        async def maintain() -> None:
            await self.maintenance.close_runs(self.now_ns)
            await self.maintenance.move_bases(self.now_ns)
            await self.maintenance.compact(self.now_ns)

        asyncio.run(maintain())


def make(url: str) -> int:
    """A ledger with a closed, a going, a marked and a deleted run; returns the time of its last report, in unix ns."""
    with closing(Ledger(url)) as ledger:
        one = Aggregator(ledger, ns(1100))
        take(one.ingest, *bodies(*story(run="closed")))
        marked = Process(0, 1, 1000).steps(20, forward=1, loader=0.25).saved()
        take(one.ingest, body_of(rank_report(marked, "marked"), health=[health_event(1, 1005, 0)]))
        mark = EndMark("killed", marked.now_ns, marked.now_ns + ns(5))
        ledger.end([(rank_report(marked, "marked").identity, mark)], marked.now_ns)
        take(one.ingest, body_of(rank_report(Process(0, 1, 1000).steps(3, forward=1), "deleted")))
        list(delete(ledger, "deleted"))
        one = Aggregator(ledger, one.now_ns)  # which knows the mark
        ranks = [Process(rank, 1, 1000, world_size=2) for rank in (0, 1)]
        for _ in range(24):
            _report(one, ranks, 20)
        one.maintain()
        _report(one, ranks, 5)
        return one.now_ns


def _report(to: Aggregator, ranks: list[Process], steps: int) -> None:
    sent = len(ranks[0].rows)
    for _ in range(steps):
        for one in ranks:
            wait = one.rank / 8
            one.step(forward=STEP_SECONDS - 1, loader=wait, communication=1 - wait, samples=32)
    ranks[0].saved()
    to.now_ns = max(one.now_ns for one in ranks)
    new = [rank_report(one, "going", rows=one.rows[sent:], events=one.events[-1:]) for one in ranks]
    take(to.ingest, body_of(*new))
    to.account("going")
    asyncio.run(to.snapshots.write("going", to.accounts._lives["going"]))


def accounts_of(url: str, now_ns: int) -> dict[str, dict]:
    """What was measured of each run, in nanoseconds, as an aggregator that opens the ledger computes it; as JSON has it.

    Not what is said about it, which versions may change.
    """
    with closing(Ledger(url)) as ledger:
        one = Aggregator(ledger, now_ns)
        return {run: _measured(one.account(run)) for run in sorted(ledger.runs())}


def _measured(account: Account) -> dict:
    ranks = {
        str(rank.rank): {
            "states": {name: ns for name, ns in zip(STATES, rank.states, strict=True) if ns},
            "productive_ns": rank.productive_ns,
            "wall_ns": rank.wall_ns,
            "kept_steps": rank.kept_steps,
            "lost_steps": rank.lost_steps,
        }
        for rank in account.ranks
    }
    times = {name: getattr(account, name) for name in ("start_ns", "end_ns", "threshold_ns")}
    return {"status": account.status, **times, "ranks": ranks}


def write_release(folder: Path) -> None:
    """The ledger of this version and the accounts of its runs, as `version-N.db.xz` and `version-N.json`."""
    name = f"version-{migrations.HEAD}"
    with TemporaryDirectory() as temporary:
        file = Path(temporary) / "ledger.db"
        now_ns = make(f"sqlite:///{file}")
        found = {"now_ns": now_ns, "accounts": accounts_of(f"sqlite:///{file}", now_ns)}
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
            connection.execute("VACUUM")
        (folder / f"{name}.db.xz").write_bytes(lzma.compress(file.read_bytes(), preset=9))
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    write_release(Path(sys.argv[1]))
