"""Writes the state of each run's fold to the ledger from time to time, so that a fold begins there and not at the start.

A run is written once ROWS_MAX rows were folded since the last time, though at least STEPS_LEAST of each of its ranks, or
STEPS_MAX of each, and so seldom that it takes a fiftieth of a core at most. Where another aggregator may have to take it
over within seconds it is written every INTERIM_SECONDS too; of such states the ledger keeps the last. The event loop is
held up for a copy of the folds, some 20 us a rank.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time

from goodput._core import READ_INDEX
from goodput.account import FINAL_STATUSES
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.live import IncrementalAccount
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ledger.ledger import LedgerError
from goodput.aggregator.ledger.segments import Segment
from goodput.aggregator.run_states import StateError, encode

log = logging.getLogger("goodput.aggregator")
EVERY_SECONDS = 5.0
STEPS_LEAST, STEPS_MAX, ROWS_MAX = 128, 1024, 1 << 18
INTERIM_SECONDS = 60.0
WAIT_TIMES = 50  # waits for so many times as long as a state took
INT64_MAX = (1 << 63) - 1
_NUMBER = READ_INDEX["number"]


def rows_between(ranks: int) -> int:
    """How many rows of so many ranks lie between two states."""
    return min(STEPS_MAX * ranks, max(ROWS_MAX, STEPS_LEAST * ranks))


class Snapshots:
    """Of the runs of `accounts`, written by `ingest`; with `interim_seconds` at least so often."""

    def __init__(self, accounts: Accounts, ingest: Ingest, interim_seconds: float | None = None):
        self._accounts, self._ingest, self._interim_seconds = accounts, ingest, interim_seconds
        self._rows: dict[str, int] = {}  # by run, folded when its state was last written, interim ones apart
        self._interim: dict[str, int | None] = {}  # the rows of the last one that another one will replace
        # When a state of the run was last written, and of how many rows.
        self._written: dict[str, tuple[float, int]] = {}
        self._not_before: dict[str, float] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.write_due()

    async def write_due(self) -> None:
        """Write the states of all runs that are due."""
        folds = dict(self._accounts.folds())
        for held in (self._rows, self._not_before, self._interim, self._written):
            for gone in held.keys() - folds.keys():
                del held[gone]
        for run, live in folds.items():
            is_interim = not self._is_due(run, live)
            if is_interim and not self._is_interim_due(run, live):
                continue
            began, rows = time.monotonic(), live.rows()
            try:
                await self.write(run, live, is_interim)
            except (LedgerError, StateError) as error:
                log.warning("run %r: the state of its account was not written: %s", run, error)
            except Exception:
                log.exception("run %r: writing the state of its account failed", run)
            self._written[run] = time.monotonic(), rows
            self._not_before[run] = time.monotonic() + WAIT_TIMES * (time.monotonic() - began)

    def _is_interim_due(self, run: str, live: IncrementalAccount) -> bool:
        if self._interim_seconds is None:
            return False
        at, rows = self._written[run]
        is_old = time.monotonic() >= max(at + self._interim_seconds, self._not_before.get(run, 0.0))
        return is_old and live.rows() != rows

    def _is_due(self, run: str, live: IncrementalAccount) -> bool:
        if self._interim_seconds is not None and run not in self._written:
            # One that was taken over has a recent state; those that come together are not all due together.
            self._rows[run] = live.rows()
            self._written[run] = time.monotonic() - random.random() * self._interim_seconds, live.rows()
        if time.monotonic() < self._not_before.get(run, 0.0):
            return False
        new, going = live.rows() - self._rows.get(run, 0), live.going()
        is_over = live.last is not None and live.last.status in FINAL_STATUSES
        return new < 0 or new >= rows_between(1 if is_over else max(going, 1))

    async def write(self, run: str, live: IncrementalAccount, is_interim: bool = False) -> bool:
        """Write the state of a run; False where it has none that is right. Raises LedgerError, StateError.

        It takes the place of the last one if that was interim.
        """
        before = self._rows.get(run, 0)
        if not is_interim:
            self._rows[run] = live.rows()
        rows = await write_state(self._ingest, run, live, self._interim.get(run))
        if rows is None:
            self._rows[run] = before
            return False
        self._interim[run] = rows if is_interim else None
        return True


async def write_state(
    ingest: Ingest, run: str, live: IncrementalAccount, replaces: int | None = None
) -> int | None:
    """Write the state of a run, in place of one of so many rows; how many rows are in it, None where none is right.

    Raises LedgerError, StateError.
    """
    copied = live.copy()
    if copied is None:
        return None
    engine, late = copied
    values = engine.core.read_all()
    numbers = {key: values[place, _NUMBER] for key, place in engine.places.items()}
    if sum(numbers.values()) > INT64_MAX:
        raise StateError("it has more rows than can be counted")
    body = await asyncio.to_thread(encode, engine)
    segment = Segment(run, numbers, body, replaces)
    await ingest.add_segment(segment, late)
    return segment.rows()
