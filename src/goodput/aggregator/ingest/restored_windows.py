"""Step windows of runs that were restored from a segment: the steps of the last minutes that it holds, from the ledger.

Accounts go on from the segment without those rows, so a restored run is served first, and its windows reach as far back
as before some moments later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from goodput.aggregator.ingest.recent.recent_steps import RecentSteps
from goodput.aggregator.ingest.recent.step_trends import WINDOWS_NS
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.ledger.page_reader import PageBounds
from goodput.aggregator.ledger.threads import in_thread
from goodput.aggregator.run_states import RunState
from goodput.wire.step_blocks import NUMBER

log = logging.getLogger("goodput.aggregator")
EVERY_SECONDS = 1.0
# Waits until no run was restored for so long: restored accounts come first.
AFTER_SECONDS = 3.0
PAGE_ROWS = 4096
Key = tuple[int, int]  # (rank, attempt number)


class _Lacking(NamedTuple):
    recent: RecentSteps  # of the run, to see whether it is still the same
    state: RunState


class RestoredWindows:
    """Notes runs in any thread; `run` reads what their windows lack."""

    def __init__(self, ledger: Ledger, store: Store):
        self._ledger, self._store = ledger, store
        self._lacking: dict[str, _Lacking] = {}
        self._noted = 0

    def note(self, run: str, recent: RecentSteps, state: RunState | None) -> None:
        """A run that was restored after `state`: its recent steps lack the rows that are in it."""
        if state is not None:
            self._noted += 1
            self._lacking[run] = _Lacking(recent, state)

    async def run(self) -> None:
        """Work until cancelled."""
        noted, quiet_seconds = self._noted, 0.0
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            quiet_seconds = quiet_seconds + EVERY_SECONDS if noted == self._noted else 0.0
            noted = self._noted
            if self._lacking and quiet_seconds >= AFTER_SECONDS:
                await self.fill(next(iter(self._lacking)))

    async def fill(self, run: str) -> None:
        """Read what the windows of a run lack; those of one that left memory meanwhile are left."""
        lacking = self._lacking.pop(run, None)
        if lacking is None or self._store.recent.get(run) is not lacking.recent:
            return
        attempts = self._store.runs[run].attempts
        since = {key: attempts[key].seen_ns - WINDOWS_NS for key in lacking.state.rows if key in attempts}
        try:
            older = await in_thread(self._read, run, lacking.state, since)
        except LedgerError as error:
            log.warning("run %r: its step windows begin anew: %s", run, error)
            return
        if self._store.recent.get(run) is lacking.recent:
            lacking.recent.add_older(older)
            self._store.revisions[run] += 1

    def _read(self, run: str, state: RunState, since: Mapping[Key, int]) -> RecentSteps:
        keys = {(one.identity.rank, one.identity.attempt): one for one in self._ledger.sources(run)}
        wanted = [key for key in keys if key in since]
        bounds = [PageBounds(from_ns=since[key]) for key in wanted]
        pages = self._ledger.pages([keys[key] for key in wanted], bounds, PAGE_ROWS) if wanted else []
        older = RecentSteps()
        for key, of in zip(wanted, pages, strict=True):
            before: bytes | None = None
            for values in of:
                held = values[:, _are_folded(values[NUMBER], state, key)]
                if held.shape[1]:
                    older.add((), np.ascontiguousarray(held), held.shape[1], before)
                    before = held[:, -1].tobytes()
                if values[NUMBER, -1] >= state.rows[key].number:
                    break
        return older


def _are_folded(numbers: np.ndarray, state: RunState, key: Key) -> np.ndarray:
    """Which rows are in a state: what it lacked is counted when it comes."""
    found = numbers <= state.rows[key].number
    for low, high in state.rows[key].holes:
        found &= (numbers < low) | (numbers > high)
    return found
