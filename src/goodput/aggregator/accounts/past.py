"""Accounts of a run's past, computed from the ledger's rows in a child process of History.

Only rows inside the window are read and only a few per rank are held, so a short window of a long run is cheap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter

from msgspec.structs import astuple

from goodput.account import Account, Run, document
from goodput.account.account import Engine
from goodput.account.attempts import Row
from goodput.account.document_types import AccountDocument
from goodput.account.facts import Facts, Key, gather
from goodput.account.fold import OTHERS_MAX, Fold
from goodput.account.stall_threshold import PlannedLimits, StepLengths
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.causes import explain
from goodput.wire import schema

# How far back to search for the last row before a window; ten times further each time none is found.
SEARCH_BACK_NS = 60 * 10**9
# Of an attempt's trimmed rows that end beyond its bound this many are returned; the rest become one long step.
BEYOND_MAX = 10_000

Window = tuple[int | None, int | None]  # unix ns, None for the run's own start or end
Rows = Callable[[Ledger, schema.Identity, Key, Fold], Iterator[tuple]]


@dataclass
class Past:
    """What the aggregator knows of a run besides its rows, which are in the ledger."""

    run: Run
    now_ns: int
    threshold_ns: int
    stale_seconds: float
    planned: PlannedLimits = field(default_factory=PlannedLimits)

    def __post_init__(self):
        self.run = without_rows(self.run)

    def facts(self, window: Window) -> Facts:
        return gather(self.run, self.now_ns, self.threshold_ns, self.stale_seconds, True, window)


def without_rows(run: Run) -> Run:
    """A copy of a run without rows and events; what the facts need of them is in its attempts."""
    attempts = {key: replace(attempt, rows={}, events={}) for key, attempt in run.attempts.items()}
    return replace(run, attempts=attempts)


def documents(ledger: Ledger, past: Past, windows: list[Window]) -> list[AccountDocument]:
    """The account documents of these windows."""
    accounts = [account_of(ledger, past, window) for window in windows]
    return [document(account, explain(account)) for account in accounts]


def account_of(ledger: Ledger, past: Past, window: Window) -> Account:
    """The account of a window."""
    engine = Engine(past.run, past.facts(window), planned=past.planned.copy())
    feed(engine, ledger)
    return engine.finish()


def feed(engine: Engine, ledger: Ledger, rows: Rows | None = None) -> None:
    """Feed an engine the rows in its bounds, in order of time over all ranks, so that a group's steps meet."""
    identities, streams = _identities(ledger, engine.run), []
    for key, fold in engine.folds.items():
        if key not in identities or fold.bound.to_ns <= fold.bound.from_ns or fold.attempt.first_step is None:
            fold.exhausted = True
        else:
            streams.append((rows or rows_of)(ledger, identities[key], key, fold))
    for _, key, row in heapq.merge(*streams, key=itemgetter(0)):
        engine.row(key, row)


def _identities(ledger: Ledger, run: Run) -> dict[Key, schema.Identity]:
    processes = ledger.processes(run.name)
    if run.attempts and not processes:
        # Such as a ledger file that was replaced by a new one.
        raise LedgerError(f"ledger {ledger.url}: it has no data of run {run.name!r}")
    return {(one.identity.rank, one.identity.attempt): one.identity for one in processes}


def rows_of(ledger: Ledger, identity: schema.Identity, key: Key, fold: Fold) -> Iterator[tuple]:
    """(end_ns, key, row) of an attempt's rows, from the start of its bound to the first row that ends beyond it."""
    before, bound = None, fold.bound
    if bound.from_ns > fold.attempt.start_ns:
        before = _row_before(ledger, identity, bound.from_ns, fold.attempt.start_ns)
        if before is not None:
            fold.begin(Row(*astuple(before)))
    for row in ledger.rows(identity, start_ns=bound.from_ns if before else None):
        if before is None or row.number > before.number:
            yield row.end_ns, key, row
            # This row covers the rest of the bound; an attempt's first step is compared with the OTHERS_MAX after it.
            if row.end_ns >= bound.to_ns and (before is not None or row.number > OTHERS_MAX):
                break
    fold.exhausted = True


def _row_before(
    ledger: Ledger, identity: schema.Identity, at_ns: int, start_ns: int
) -> schema.StepRow | None:
    """The last row that ended before `at_ns`, None if there is none."""
    back = SEARCH_BACK_NS
    while True:
        found = None
        for row in ledger.rows(identity, start_ns=at_ns - back, end_ns=at_ns):
            if row.end_ns >= at_ns:
                break
            found = row
        if found is not None or at_ns - back <= start_ns:
            return found
        back *= 10


def folded(
    ledger: Ledger, run: Run, facts: Facts, stall_seconds: float
) -> tuple[Engine, StepLengths, dict[Key, list]]:
    """From what IncrementalAccount.begin continues: a fold of all rows within the bounds, and trimmed rows beyond."""
    identities = _identities(ledger, run)
    engine, lengths = Engine(run, facts), StepLengths.for_threshold(stall_seconds)
    streams, beyond = [], {}
    for key, fold in engine.folds.items():
        fold.final = False
        if key in identities:
            streams.append(_within(ledger.rows(identities[key]), key, fold, beyond.setdefault(key, [])))
    for _, key, row in heapq.merge(*streams, key=itemgetter(0)):
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
