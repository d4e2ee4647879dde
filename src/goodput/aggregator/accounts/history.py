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
from dataclasses import dataclass, replace

import msgspec

from goodput.account import Run
from goodput.account.account import Engine
from goodput.account.document_types import AccountDocument
from goodput.account.facts import Facts
from goodput.account.stall_threshold import StepLengths
from goodput.aggregator.accounts.fair_queue import INTERNAL, FairQueue, QueueFull
from goodput.aggregator.accounts.single_flight import SingleFlight
from goodput.defaults import STALL_SECONDS

SECONDS_MAX = 120.0
# Pending requests: of everybody together, of one token, and of all requests without a token together.
WAITING_MAX, OWNER_WAITING_MAX, ANONYMOUS_WAITING_MAX = 64, 2, 8
ANONYMOUS = ""

Window = tuple[int | None, int | None]


class HistoryError(Exception):
    """A query of the past that failed; the text says why."""


@dataclass
class Job:
    """What the child computes: accounts of `windows`, a timeline (`points`) or a fold of the whole run (`facts`).

    `run` has no rows. `url` may hold a password, so a job goes through a pipe, not the command line.
    """

    url: str
    run: Run
    now_ns: int
    threshold_ns: int
    stale_seconds: float
    windows: list[Window]
    facts: Facts | None = None
    stall_seconds: float = STALL_SECONDS
    points: int = 0  # buckets of the timeline of windows[0]
    ranks: tuple[int, ...] = ()  # shown individually in it


def without_rows(run: Run) -> Run:
    """A copy of a run without rows and events; what the facts need of them is in its attempts."""
    attempts = {key: replace(attempt, rows={}, events={}) for key, attempt in run.attempts.items()}
    return replace(run, attempts=attempts)


class History:
    """Runs jobs in child processes. `owner` is the id of the client's token. All methods raise HistoryError."""

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
    ) -> tuple[list[AccountDocument], float]:
        """The accounts of these windows, and the seconds that they took."""

        def compute():
            job = Job(self._url, without_rows(run), now_ns, threshold_ns, stale_seconds, windows)
            return self._run(job, owner)

        out, took_seconds = await self._flights.run((run.name, tuple(windows)), compute)
        return msgspec.json.decode(out), took_seconds

    async def folded(self, run: Run, facts: Facts, stall_seconds: float) -> tuple[Engine, StepLengths, dict]:
        """The engine, step lengths and rows beyond the bounds from which IncrementalAccount continues."""
        out, _ = await self._run(
            Job(self._url, without_rows(run), 0, 0, 0.0, [], facts, stall_seconds), INTERNAL
        )
        return pickle.loads(out)

    async def timeline(self, job: Job, owner: str = ANONYMOUS) -> tuple[bytes, float]:
        """timeline.TimelineData as JSON, and the seconds that it took."""
        return await self._run(replace(job, url=self._url), owner)

    async def _run(self, job: Job, owner: str | None) -> tuple[bytes, float]:
        body = pickle.dumps(job)
        owner_max = ANONYMOUS_WAITING_MAX if owner == ANONYMOUS else OWNER_WAITING_MAX
        try:
            async with self._queue.slot(owner, owner_max):
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
        out, errors = await asyncio.wait_for(child.communicate(body), SECONDS_MAX)
    except TimeoutError:
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
