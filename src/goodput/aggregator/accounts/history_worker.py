"""The child process of History: reads a pickled Job on standard input, writes the answer to standard output.

    python -m goodput.aggregator.accounts.history_worker < job

Accounts and timelines come out as JSON, a fold of a whole run (`Job.facts`) as a pickle. Only rows inside the window
are read and only a few per rank are held, so a short window of a long run is cheap. Errors are one line on standard
error with exit status 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import os
import pickle
import signal
import sys
from collections.abc import Iterator

import msgspec

from goodput.account import Account, document
from goodput.account.account import Engine
from goodput.account.facts import Facts, Key, gather
from goodput.account.fold import Fold
from goodput.account.stall_threshold import StepLengths
from goodput.aggregator.accounts import timeline
from goodput.aggregator.accounts.history import Job, Window
from goodput.aggregator.accounts.window_rows import rows_of
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.causes import explain
from goodput.wire import schema

# Of an attempt's trimmed rows that end beyond its bound this many are returned; the rest become one long step.
BEYOND_MAX = 10_000


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
    # In order of time over all ranks, so that the steps of a group are compared together.
    for _, key, row in heapq.merge(*rows, key=lambda entry: entry[0]):
        engine.row(key, row)
    return engine.finish()


def folded(ledger: Ledger, job: Job, facts: Facts) -> tuple[Engine, StepLengths, dict[Key, list]]:
    """A fold of all rows within the bounds of `facts`, and the trimmed rows beyond them."""
    identities = {(p.identity.rank, p.identity.attempt): p.identity for p in ledger.processes(job.run.name)}
    engine, lengths = Engine(job.run, facts), StepLengths(int(job.stall_seconds * 1e8))
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
            # A fold without those rows would stay wrong: they would count as folded from now on.
            raise LedgerError(
                f"ledger {ledger.url}: it has rank {rank} attempt {number} up to row {last}, not up to {gone} yet"
            )
    return engine, lengths, beyond


def _within(rows: Iterator[schema.StepRow], key: Key, fold: Fold, beyond: list) -> Iterator[tuple]:
    for row in rows:
        if beyond or max(row.end_ns, fold.last_end_ns) > fold.bound.to_ns:
            # Bounds may have shrunk: a rank whose clock is behind the others' has reported since.
            if row.number > fold.attempt.trimmed or len(beyond) >= BEYOND_MAX:
                return
            beyond.append(row)
        else:
            yield row.end_ns, key, row


def main() -> int:
    _end_with_parent()
    job: Job = pickle.load(sys.stdin.buffer)
    # The aggregator, which takes reports, has priority.
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
    """Die with the aggregator: its answer would have no reader."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _answer(ledger: Ledger, job: Job) -> bytes:
    if job.run.attempts and not ledger.processes(job.run.name):
        # Such as a ledger file that was replaced by a new one.
        raise LedgerError(f"ledger {ledger.url}: it has no data of run {job.run.name!r}")
    if job.facts is not None:
        return pickle.dumps(folded(ledger, job, job.facts))
    if job.points:
        return msgspec.json.encode(timeline.data(timeline.timeline_of(ledger, job), job.ranks))
    accounts = [account_of(ledger, job, window) for window in job.windows]
    return msgspec.json.encode([document(one, explain(one)) for one in accounts])


if __name__ == "__main__":
    sys.exit(main())
