"""Runs computations over the ledger in a thread, one at a time, while the aggregator keeps taking reports.

Requests wait in a fair queue by token and take SECONDS_MAX at most; identical concurrent requests for documents share
one computation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from goodput.account.document_types import AccountDocument
from goodput.aggregator.accounts import past
from goodput.aggregator.accounts.past import Past, Window
from goodput.aggregator.accounts.result_cache import SingleFlight
from goodput.aggregator.accounts.slices import AT_A_TIME_SECONDS
from goodput.aggregator.fair_queue import INTERNAL, FairQueue
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.ledger.threads import NoThread, in_thread
from goodput.aggregator.memory_bound import MemoryBound, give_back_free_memory

log = logging.getLogger("goodput.aggregator")
SECONDS_MAX = 120.0
# Pending requests: of everybody together, of one token, and of all requests without a token together.
WAITING_MAX, OWNER_WAITING_MAX, ANONYMOUS_WAITING_MAX = 64, 2, 8
ANONYMOUS = ""
# Of a row that is read, in pages that are folded and that come next, and while its steps wait to be compared.
ROW_BYTES = 500


class HistoryError(Exception):
    """A query of the past that failed; the text has the reason."""


class History:
    """`owner` is the id of the client's token. Methods return their result and the seconds that it took."""

    def __init__(self, ledger: Ledger, memory: MemoryBound | None = None):
        self.ledger, self._memory = ledger, memory or MemoryBound()
        self._queue = FairQueue(WAITING_MAX, "history queries")
        self._flights = SingleFlight()
        self.is_stopping = False
        self._has_thread = True

    def used_share(self) -> float:
        """The used part of the bound of pending queries."""
        return self._queue.waiting() / WAITING_MAX

    def stop(self) -> None:
        """End what is running, for which the server would wait."""
        self.is_stopping = True

    async def documents(
        self, of: Past, windows: list[Window], owner: str = ANONYMOUS
    ) -> tuple[list[AccountDocument], float]:
        """The accounts of these windows. Raises HistoryError, QueueFull."""
        return await self._flights.run(
            (of.run.name, tuple(windows)), lambda: self.run(owner, past.documents, of, windows)
        )

    async def run(self, owner: str | None, function: Callable, *arguments) -> tuple[Any, float]:
        """`function(ledger, *arguments, check)`. Raises HistoryError, QueueFull.

        What it has freed is returned to the system, as glibc would keep most of it in its heaps.
        `check` is to be called some times a second; it ends the thread's work by an exception.
        """
        owner_max = ANONYMOUS_WAITING_MAX if owner == ANONYMOUS else OWNER_WAITING_MAX
        async with self._queue.slot(owner, owner_max), self._memory.reservation() as memory:
            if self._memory.bytes_max is not None and arguments and isinstance(arguments[0], Past):
                rows = min(arguments[0].rows(), past.rows_held(self.ledger, arguments[0].run))
                # One of a large run is not refused for good, as a request for that much is.
                most = self._memory.request_bytes_max()
                await memory.add(min(rows * ROW_BYTES, most), "a query of the past")
            began, thread = time.perf_counter(), _Work(self, None if owner is INTERNAL else SECONDS_MAX)
            try:
                found = await in_thread(function, self.ledger, *arguments, thread.check)
                self._has_thread = True
            except NoThread as error:
                if self._has_thread:
                    self._has_thread = False
                    log.error("queries of the past fail (logged once): %s", error)
                raise HistoryError(str(error)) from None
            except LedgerError as error:
                raise HistoryError(str(error)) from None
            finally:
                thread.is_cancelled = True
            with suppress(NoThread):
                await in_thread(give_back_free_memory)
            return found, time.perf_counter() - began


class _Work:
    """What a thread asks whether it should go on."""

    def __init__(self, history: History, seconds_max: float | None):
        self._history, self._seconds_max, self._began = history, seconds_max, time.monotonic()
        self._worked_seconds = 0.0  # CPU time of the thread when it last slept
        self.is_cancelled = False

    def check(self) -> None:
        if self.is_cancelled or self._history.is_stopping:
            raise HistoryError("the aggregator stops, or no client waits for the result any more")
        if self._seconds_max is not None and time.monotonic() - self._began > self._seconds_max:
            raise HistoryError(
                f"the query takes more than {self._seconds_max:.0f} s; ask for a shorter window"
            )
        if self._seconds_max is None:
            self._give_way()

    def _give_way(self) -> None:
        """Sleep for as long as the thread has computed, since pushes need the interpreter too and nobody waits for it."""
        if time.thread_time() - self._worked_seconds > AT_A_TIME_SECONDS:
            time.sleep(AT_A_TIME_SECONDS)
            self._worked_seconds = time.thread_time()
