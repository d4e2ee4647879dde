"""Accounts of any window of a run's time, computed from the ledger in a child process.

Callers pass what the aggregator knows of a run without its rows; the child (history_worker.py) reads the rows of the
window. One child runs at a time and takes SECONDS_MAX at most, so the aggregator keeps taking reports meanwhile.
Requests wait in a fair queue by token; identical concurrent requests share one child.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sys
import time
from collections.abc import Hashable
from dataclasses import dataclass, replace

import msgspec

from goodput.account import Run
from goodput.account.account import Engine
from goodput.account.facts import Facts
from goodput.account.stall_threshold import Lengths
from goodput.aggregator.accounts.fair_queue import INTERNAL, FairQueue, QueueFull
from goodput.aggregator.accounts.single_flight import SingleFlight

SECONDS_MAX = 120.0
# Pending requests: of everybody together, of one token, and of all requests without a token together.
WAITING_MAX, OWNER_WAITING_MAX, ANONYMOUS_WAITING_MAX = 64, 2, 8
ANONYMOUS = ""

Window = tuple[int | None, int | None]


class HistoryError(Exception):
    """A window's account that cannot be had now; the text says why."""


@dataclass
class Job:
    """What the child is to do. `run` has no rows; `url` may hold a password, so it goes through a pipe."""

    url: str
    run: Run
    now_ns: int
    threshold_ns: int
    stale_seconds: float
    windows: list[Window]
    facts: Facts | None = None  # fold all that is within their bounds, instead of accounts of windows
    stall_seconds: float = 60.0
    points: int = 0  # a timeline of the first window in so many buckets, and these ranks by themselves
    ranks: tuple[int, ...] = ()


def without_rows(run: Run) -> Run:
    """A copy of a run without rows: what is known of them is in its attempts."""
    attempts = {key: replace(attempt, rows={}, events={}) for key, attempt in run.attempts.items()}
    return replace(run, attempts=attempts)


class History:
    """The way to the child. One at a time, by turns; `owner` is the id of the token of who asks."""

    def __init__(self, url: str):
        self._url = url
        self._queue = FairQueue(WAITING_MAX)
        self._flights = SingleFlight()

    async def documents(
        self,
        run: Run,
        windows: list[Window],
        *,
        now_ns: int,
        threshold_ns: int,
        stale_seconds: float,
        owner: str = ANONYMOUS,
        question: Hashable = None,
    ) -> tuple[list[dict], float]:
        """The accounts of these windows, and the seconds that they took. Raises HistoryError.

        Who asks the same `question` of a run, by default these windows, while it is being answered gets that answer.
        """
        key = (run.name, tuple(windows) if question is None else question)

        def make():
            return self._ask(
                Job(self._url, without_rows(run), now_ns, threshold_ns, stale_seconds, windows), owner
            )

        out, took = await self._flights.run(key, make)
        return msgspec.json.decode(out), took

    async def folded(self, run: Run, facts: Facts, stall_seconds: float) -> tuple[Engine, Lengths, dict]:
        """What live.IncrementalAccount goes on from, under these facts. Raises HistoryError."""
        out, _ = await self._ask(
            Job(self._url, without_rows(run), 0, 0, 0.0, [], facts, stall_seconds), INTERNAL
        )
        return pickle.loads(out)

    async def timeline(self, job: Job, owner: str = ANONYMOUS) -> tuple[dict, float]:
        """The timeline that a job asks for, and the seconds that it took. Raises HistoryError."""
        out, took = await self._ask(replace(job, url=self._url), owner)
        return msgspec.json.decode(out), took

    async def _ask(self, job: Job, owner: str | None) -> tuple[bytes, float]:
        body, most = pickle.dumps(job), ANONYMOUS_WAITING_MAX if owner == ANONYMOUS else OWNER_WAITING_MAX
        try:
            async with self._queue.slot(owner, most):
                began = time.perf_counter()
                return await _child(body), time.perf_counter() - began
        except QueueFull as full:
            raise HistoryError(str(full)) from None


async def _child(body: bytes) -> bytes:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "goodput.aggregator.accounts.history_worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, said = await asyncio.wait_for(child.communicate(body), SECONDS_MAX)
    except TimeoutError:
        raise HistoryError(f"it takes more than {SECONDS_MAX:.0f} s; ask for a shorter window") from None
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    if child.returncode != 0:
        lines = said.decode(errors="replace").strip().splitlines() or [f"exit status {child.returncode}"]
        raise HistoryError(lines[-1])
    return out
