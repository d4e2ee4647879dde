"""Writes the state of each run's fold to the ledger from time to time, so that a fold begins there and not at the start.

A run is written once ROWS_MAX rows were folded since the last time, or STEPS_MAX of each of its ranks, and so seldom that
it takes a fiftieth of a core at most. The event loop is held up for a copy of the folds, some 20 us a rank.
"""

from __future__ import annotations

import asyncio
import logging
import time

from goodput.account import FINAL_STATUSES
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.live import IncrementalAccount
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ledger.ledger import LedgerError
from goodput.aggregator.ledger.segments import Segment
from goodput.columns.snapshot import SnapshotError, encode

log = logging.getLogger("goodput.aggregator")
EVERY_SECONDS = 5.0
STEPS_MAX, ROWS_MAX = 1024, 1 << 20
SHARE = 50  # waits for so many times as long as a state took
INT64_MAX = (1 << 63) - 1


class Snapshots:
    """Of the runs of `accounts`, written by `ingest`."""

    def __init__(self, accounts: Accounts, ingest: Ingest):
        self._accounts, self._ingest = accounts, ingest
        self._rows: dict[str, int] = {}  # by run, folded when its state was last written
        self._not_before: dict[str, float] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.write_due()

    async def write_due(self) -> None:
        """Write the states of all runs that are due."""
        folds = dict(self._accounts.folds())
        for held in (self._rows, self._not_before):
            for gone in held.keys() - folds.keys():
                del held[gone]
        for run, live in folds.items():
            if not self._is_due(run, live):
                continue
            began = time.monotonic()
            try:
                await self.write(run, live)
            except (LedgerError, SnapshotError) as error:
                log.warning("run %r: the state of its account was not written: %s", run, error)
            except Exception:
                log.exception("run %r: writing the state of its account failed", run)
            self._not_before[run] = time.monotonic() + SHARE * (time.monotonic() - began)

    def _is_due(self, run: str, live: IncrementalAccount) -> bool:
        if time.monotonic() < self._not_before.get(run, 0.0):
            return False
        new, going = live.rows() - self._rows.get(run, 0), live.going()
        is_over = live.last is not None and live.last.status in FINAL_STATUSES
        return new >= min(STEPS_MAX * (1 if is_over else max(going, 1)), ROWS_MAX) or new < 0

    async def write(self, run: str, live: IncrementalAccount) -> bool:
        """Write the state of a run; False where it has none that is right. Raises LedgerError, SnapshotError."""
        before, self._rows[run] = self._rows.get(run, 0), live.rows()
        if await write_state(self._ingest, run, live):
            return True
        self._rows[run] = before
        return False


async def write_state(ingest: Ingest, run: str, live: IncrementalAccount) -> bool:
    """Write the state of a run; False where it has none that is right. Raises LedgerError, SnapshotError."""
    copied = live.copy()
    if copied is None:
        return False
    engine, lengths, late = copied
    numbers = {key: fold.number for key, fold in engine.folds.items()}
    if sum(numbers.values()) > INT64_MAX:
        raise SnapshotError("it has more rows than can be counted")
    body = await asyncio.to_thread(encode, engine, lengths)
    await ingest.add_segment(Segment(run, numbers, body), late)
    return True
