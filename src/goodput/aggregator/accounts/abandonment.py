"""Ends runs without a report for a day: their status becomes `abandoned`, and no more time is counted.

A run whose end is never declared would be down, or unobserved, for good. The mark is in the ledger and in exported run logs,
so that every account of the run agrees; the next report of a live process undoes it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from goodput.account import Run
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.live import RunIsDirty
from goodput.aggregator.accounts.slices import in_slices
from goodput.aggregator.ingest.run_end import RunEnder
from goodput.aggregator.ledger.ledger import LedgerError
from goodput.defaults import ABANDONED_SECONDS

log = logging.getLogger("goodput.aggregator")
EVERY_SECONDS = 10.0
# Agents that could not reach an aggregator while it was stopped get this long to report.
START_SECONDS = 300.0
# A run that was reported within this time stays, even if its hosts' clocks are a day behind.
REPORTED_SECONDS = 900.0


class Abandonment:
    """Marks the runs of `accounts` none of whose processes was alive for `seconds`."""

    def __init__(self, accounts: Accounts, ender: RunEnder, seconds: float = ABANDONED_SECONDS):
        self._accounts, self._ender, self._limit_ns = accounts, ender, int(seconds * 1e9)

    async def run(self) -> None:
        """Work until cancelled."""
        await asyncio.sleep(START_SECONDS)
        while True:
            try:
                await self.mark_due(self._accounts.clock_ns())
            except LedgerError as error:
                log.warning("abandoned runs were not marked: %s", error)
            except Exception:
                log.exception("marking abandoned runs failed")
            await asyncio.sleep(EVERY_SECONDS)

    async def mark_due(self, now_ns: int) -> list[str]:
        """Mark all runs that are due at `now_ns`; returns their names. Raises LedgerError."""
        marked = []
        for name in list(self._accounts.store.runs):
            with suppress(KeyError, RunIsDirty):  # It was deleted meanwhile, or has to be read first.
                if await self._is_due(name, now_ns):
                    await self._ender.abandon(
                        name, last_alive_ns(self._accounts.store.runs[name]) + self._limit_ns
                    )
                    marked.append(name)
        return marked

    async def _is_due(self, name: str, now_ns: int) -> bool:
        store = self._accounts.store
        if now_ns - store.reported_ns[name] < min(REPORTED_SECONDS * 1e9, self._limit_ns):
            return False
        if now_ns - last_alive_ns(store.runs[name]) < self._limit_ns:
            return False
        # Of a run that is over its last account, which stands.
        account = self._accounts.account_over(name) or await in_slices(self._accounts.computing(name))
        return account.may_restart or account.status == "unobserved"


def last_alive_ns(run: Run) -> int:
    """The last moment at which a process of the run is known to have been alive, on its host's clock."""
    return max(attempt.known_end_ns() or attempt.beat_ns() for attempt in run.attempts.values())
