"""Accounts of any window of a run's time, from the ledger, in a process of their own.

In: what the aggregator knows of a run but its rows, and windows. Out: one account document per window; or, for a
live run whose rows were let go, all of them folded anew. The rows come from the ledger, those of the window alone,
so a short window of a long run is cheap; memory is a few rows per rank. A child process does it, one at a time, with a
bound on its time: whatever it costs, the aggregator goes on taking reports. Those who ask take turns (turns.py), what
the aggregator needs itself comes first, and who asks what another waits for gets the same answer. `python -m goodput.aggregator.accounts.history` is that child: a pickled Job on standard input, JSON out.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import heapq
import os
import pickle
import signal
import sys
import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

import msgspec

from goodput.account import Account, Run, document
from goodput.account.account import Engine
from goodput.account.facts import Facts, Key, gather
from goodput.account.fold import OTHERS_MAX, Fold
from goodput.account.stall_threshold import Lengths
from goodput.aggregator.accounts.fair_queue import ITSELF, Full, Turns
from goodput.aggregator.accounts.single_flight import Asked
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.causes import explain
from goodput.wire import schema

SECONDS_MAX = 120.0
# Of all who ask, and of one token; who asks for no token is everybody, and has as many as all had before.
WAITING_MAX, OWNER_WAITING_MAX, ANONYMOUS_WAITING_MAX = 64, 2, 8
ANONYMOUS = ""
# Where to look for the last row before a window: so far back, then ten times further, and so on.
BACK_NS = 60 * 10**9
# Of an attempt's rows that are let go and lie beyond the bounds, so many come back; the rest are one long step.
BEYOND_MAX = 10_000

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


def bare(run: Run) -> Run:
    """A copy of a run without rows: what is known of them is in its attempts."""
    attempts = {key: replace(attempt, rows={}, events={}) for key, attempt in run.attempts.items()}
    return replace(run, attempts=attempts)


def account_of(ledger: Ledger, job: Job, window: Window) -> Account:
    """The account of a window (start_ns, end_ns), either None for the run's own."""
    identities = {(p.identity.rank, p.identity.attempt): p.identity for p in ledger.processes(job.run.name)}
    engine = Engine(job.run, gather(job.run, job.now_ns, job.threshold_ns, job.stale_seconds, True, window))
    rows = []
    for key, fold in engine.folds.items():
        bound, identity = fold.bound, identities.get(key)
        if identity is None or bound.to_ns <= bound.from_ns or fold.attempt.first_step is None:
            fold.exhausted = True
        else:
            rows.append(rows_of(ledger, identity, key, fold))
    # Ranks side by side, so that the steps of a group come together.
    for _, key, row in heapq.merge(*rows, key=lambda entry: entry[0]):
        engine.row(key, row)
    return engine.finish()


def rows_of(ledger: Ledger, identity: schema.Identity, key, fold: Fold) -> Iterator[tuple]:
    """(end ns, key, row) of an attempt's rows from the beginning of its bound to the first that ends beyond it."""
    before, bound = None, fold.bound
    if bound.from_ns > fold.attempt.start_ns:
        before = _row_before(ledger, identity, bound.from_ns, fold.attempt.start_ns)
        if before is not None:
            fold.begin(before)
    for row in ledger.rows(identity, start_ns=bound.from_ns if before else None):
        if before is None or row.number > before.number:
            yield row.end_ns, key, row
            # That row also tells what the time before it was; a first step is measured against those that follow.
            if row.end_ns >= bound.to_ns and (before is not None or row.number > OTHERS_MAX):
                break
    fold.exhausted = True


def _row_before(
    ledger: Ledger, identity: schema.Identity, at_ns: int, start_ns: int
) -> schema.StepRow | None:
    """The last row that ended before a moment, None if there is none."""
    back = BACK_NS
    while True:
        found = None
        for row in ledger.rows(identity, start_ns=at_ns - back, end_ns=at_ns):
            if row.end_ns >= at_ns:
                break
            found = row
        if found is not None or at_ns - back <= start_ns:
            return found
        back *= 10


def folded(ledger: Ledger, job: Job) -> tuple[Engine, Lengths, dict[Key, list]]:
    """All rows within the bounds of `job.facts`, as live.LiveRun folds them, and those beyond that it let go."""
    identities = {(p.identity.rank, p.identity.attempt): p.identity for p in ledger.processes(job.run.name)}
    engine, lengths = Engine(job.run, job.facts), Lengths(int(job.stall_seconds * 1e8))
    rows, beyond = [], {}
    for key, fold in engine.folds.items():
        fold.final = False
        if key in identities:
            rows.append(_within(ledger.rows(identities[key]), key, fold, beyond.setdefault(key, [])))
    for _, key, row in heapq.merge(*rows, key=lambda entry: entry[0]):
        fold = engine.folds[key]
        if fold.number and row.number == fold.number + 1:
            lengths.add(row.end_ns - row.start_ns)
        engine.row(key, row)
    for (rank, number), fold in engine.folds.items():
        more, gone = beyond.get((rank, number), []), fold.attempt.trimmed
        last = more[-1].number if more else fold.number
        if last < gone and len(more) < BEYOND_MAX:
            # Folded without them it would never be right again: later all of them would count as known.
            raise LedgerError(
                f"ledger {ledger.url}: it has rank {rank} attempt {number} up to row {last}, not yet up to {gone}"
            )
    return engine, lengths, beyond


def _within(rows: Iterator[schema.StepRow], key: Key, fold: Fold, beyond: list) -> Iterator[tuple]:
    for row in rows:
        if beyond or max(row.end_ns, fold.last_end_ns) > fold.bound.to_ns:
            # Bounds may shrink: a rank whose clock is behind those of the others has come.
            if row.number > fold.attempt.trimmed or len(beyond) >= BEYOND_MAX:
                return
            beyond.append(row)
        else:
            yield row.end_ns, key, row


class History:
    """The way to the child. One at a time, by turns; `owner` is the id of the token of who asks."""

    def __init__(self, url: str):
        self._url = url
        self._turns = Turns(WAITING_MAX)
        self._asked = Asked()

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
            return self._ask(Job(self._url, bare(run), now_ns, threshold_ns, stale_seconds, windows), owner)

        out, took = await self._asked.of(key, make)
        return msgspec.json.decode(out), took

    async def folded(self, run: Run, facts: Facts, stall_seconds: float) -> tuple[Engine, Lengths, dict]:
        """What live.LiveRun goes on from, under these facts. Raises HistoryError."""
        out, _ = await self._ask(Job(self._url, bare(run), 0, 0, 0.0, [], facts, stall_seconds), ITSELF)
        return pickle.loads(out)

    async def timeline(self, job: Job, owner: str = ANONYMOUS) -> tuple[dict, float]:
        """The timeline that a job asks for, and the seconds that it took. Raises HistoryError."""
        out, took = await self._ask(replace(job, url=self._url), owner)
        return msgspec.json.decode(out), took

    async def _ask(self, job: Job, owner: str | None) -> tuple[bytes, float]:
        body, most = pickle.dumps(job), ANONYMOUS_WAITING_MAX if owner == ANONYMOUS else OWNER_WAITING_MAX
        try:
            async with self._turns.of(owner, most):
                began = time.perf_counter()
                return await _child(body), time.perf_counter() - began
        except Full as full:
            raise HistoryError(str(full)) from None


async def _child(body: bytes) -> bytes:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "goodput.aggregator.accounts.history"),
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


def main() -> int:
    """The child."""
    _end_with_parent()
    job: Job = pickle.load(sys.stdin.buffer)
    # Whoever takes reports comes first.
    with contextlib.suppress(OSError):
        os.nice(5)
    try:
        ledger = Ledger(job.url, create=False)
        try:
            out = _answer(ledger, job)
        finally:
            ledger.close()
    except LedgerError as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(out)
    return 0


def _end_with_parent() -> None:
    """Nobody wants what is computed for an aggregator that was killed."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _answer(ledger: Ledger, job: Job) -> bytes:
    if job.run.attempts and not ledger.processes(job.run.name):
        # Such as a file that was moved away: a new one would be a run without steps.
        raise LedgerError(f"ledger {ledger.url}: it has nothing of run {job.run.name!r}")
    if job.facts is not None:
        return pickle.dumps(folded(ledger, job))
    if job.points:
        from goodput.aggregator.accounts import timeline

        return msgspec.json.encode(timeline.document(timeline.timeline_of(ledger, job), job.ranks))
    accounts = [account_of(ledger, job, window) for window in job.windows]
    return msgspec.json.encode([document(one, explain(one)) for one in accounts])


if __name__ == "__main__":
    sys.exit(main())
