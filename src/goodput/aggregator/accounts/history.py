"""Runs computations over the ledger in a child process (history_worker.py).

One child runs at a time and takes SECONDS_MAX at most, so the aggregator keeps taking reports meanwhile. Requests wait
in a fair queue by token; identical concurrent requests for documents share one child.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

from goodput.account.document_types import AccountDocument
from goodput.aggregator.accounts import past
from goodput.aggregator.accounts.fair_queue import FairQueue
from goodput.aggregator.accounts.past import Past, Window
from goodput.aggregator.accounts.result_cache import SingleFlight

SECONDS_MAX = 120.0
# Pending requests: of everybody together, of one token, and of all requests without a token together.
WAITING_MAX, OWNER_WAITING_MAX, ANONYMOUS_WAITING_MAX = 64, 2, 8
ANONYMOUS = ""


class HistoryError(Exception):
    """A query of the past that failed; the text has the reason."""


class History:
    """`owner` is the id of the client's token. Methods return their result and the seconds that it took."""

    def __init__(self, url: str):
        self._url = url
        self._queue = FairQueue(WAITING_MAX)
        self._flights = SingleFlight()

    async def documents(
        self, of: Past, windows: list[Window], owner: str = ANONYMOUS
    ) -> tuple[list[AccountDocument], float]:
        """The accounts of these windows. Raises HistoryError, QueueFull."""
        return await self._flights.run(
            (of.run.name, tuple(windows)), lambda: self.run(owner, past.documents, of, windows)
        )

    async def run(self, owner: str | None, function: Callable, *arguments) -> tuple[Any, float]:
        """`function(ledger, *arguments)`, all of which are pickled. Raises HistoryError, QueueFull."""
        # Through a pipe: the URL may hold a password, which a command line would show.
        job = pickle.dumps((self._url, function, arguments))
        owner_max = ANONYMOUS_WAITING_MAX if owner == ANONYMOUS else OWNER_WAITING_MAX
        async with self._queue.slot(owner, owner_max):
            began = time.perf_counter()
            return pickle.loads(await _child(job)), time.perf_counter() - began


async def _child(job: bytes) -> bytes:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "goodput.aggregator.accounts.history_worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await asyncio.wait_for(child.communicate(job), SECONDS_MAX)
    except asyncio.TimeoutError:
        raise HistoryError(
            f"the query takes more than {SECONDS_MAX:.0f} s; ask for a shorter window"
        ) from None
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    if child.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines() or [f"exit status {child.returncode}"]
        raise HistoryError(lines[-1])
    return out
