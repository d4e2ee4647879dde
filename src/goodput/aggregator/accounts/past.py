"""Accounts of a run's past, computed from the ledger's rows in a child process of History.

Only rows inside the window are read and only a few per rank are held, so a short window of a long run is cheap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import itemgetter

import numpy as np
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
from goodput.columns.attempts import columns_of
from goodput.columns.fold import fold_columns
from goodput.columns.groups import ColumnGroups
from goodput.columns.lengths import add_lengths
from goodput.wire import schema
from goodput.wire.step_blocks import END, TOTALS

# How far back to search for the last row before a window; ten times further each time none is found.
SEARCH_BACK_NS = 60 * 10**9
# Of an attempt's trimmed rows that end beyond its bound this many are returned; the rest become one long step.
BEYOND_MAX = 10_000

Window = tuple[int | None, int | None]  # unix ns, None for the run's own start or end
Rows = Callable[[Ledger, schema.Identity, Fold], Iterator[schema.StepRow]]
ROWS_READ = 512  # of an attempt, at a time


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
    attempts = {key: replace(attempt, parts=[], events={}) for key, attempt in run.attempts.items()}
    return replace(run, attempts=attempts)


def documents(ledger: Ledger, past: Past, windows: list[Window]) -> list[AccountDocument]:
    """The account documents of these windows."""
    accounts = [account_of(ledger, past, window) for window in windows]
    return [document(account, explain(account)) for account in accounts]


def account_of(ledger: Ledger, past: Past, window: Window) -> Account:
    """The account of a window."""
    engine = Engine(past.run, past.facts(window), groups_type=ColumnGroups, planned=past.planned.copy())
    readers = [Reader(fold, rows_of(ledger, identity, fold)) for identity, fold in _in_bounds(engine, ledger)]
    for parts in _together(readers):
        fold_columns(engine, parts)
    return engine.finish()


def feed(engine: Engine, ledger: Ledger, rows: Rows) -> None:
    """Feed an engine the rows in its bounds one by one, in order of time over all ranks."""
    streams = [
        _marked_over(fold, rows(ledger, identity, fold)) for identity, fold in _in_bounds(engine, ledger)
    ]
    for _, key, row in heapq.merge(*streams, key=itemgetter(0)):
        engine.row(key, row)


def _marked_over(fold: Fold, rows: Iterator[schema.StepRow]) -> Iterator[tuple]:
    for row in rows:
        yield row.end_ns, (fold.attempt.rank, fold.attempt.attempt), row
    fold.exhausted = True


def _in_bounds(engine: Engine, ledger: Ledger) -> Iterator[tuple[schema.Identity, Fold]]:
    """The attempts that have rows in their bounds, in the order of their starts."""
    identities = _identities(ledger, engine.run)
    folds = sorted(engine.folds.items(), key=lambda item: (item[0][0], item[1].attempt.start_ns, item[0][1]))
    for key, fold in folds:
        if (
            key in identities
            and fold.bound.to_ns > fold.bound.from_ns
            and fold.attempt.first_step is not None
        ):
            yield identities[key], fold
        else:
            fold.exhausted = True


class Reader:
    """Rows of one attempt as columns, some at a time."""

    def __init__(self, fold: Fold, rows: Iterator[schema.StepRow], goes_on: bool = False):
        self.fold, self._rows, self.goes_on = fold, rows, goes_on  # whether more rows may be reported
        self.key = (fold.attempt.rank, fold.attempt.attempt)
        self._fill()

    def _fill(self) -> None:
        some = list(islice(self._rows, ROWS_READ))
        self.is_empty = not some
        self._waiting = columns_of(some) if some else np.zeros((TOTALS, 0), np.int64)
        # Clocks may have been set back.
        self._latest = np.maximum.accumulate(self._waiting[END])

    def until_ns(self) -> int:
        return int(self._latest[-1])

    def take(self, until_ns: int) -> np.ndarray:
        """The rows that have ended by then, as far as they were read."""
        count = int(np.searchsorted(self._latest, until_ns, side="right"))
        found = self._waiting[:, :count]
        if count < self._waiting.shape[1]:
            self._waiting, self._latest = self._waiting[:, count:], self._latest[count:]
        else:
            self._fill()
        return found


def _together(readers: list[Reader]) -> Iterator[dict[Key, np.ndarray]]:
    """All rows, some at a time, in order of time over all ranks, so that a group's steps meet."""
    while readers:
        for reader in readers:
            # What it had was folded.
            reader.fold.exhausted |= reader.is_empty and not reader.goes_on
        readers = [reader for reader in readers if not reader.is_empty]
        if readers:
            until_ns = min(reader.until_ns() for reader in readers)
            yield {reader.key: reader.take(until_ns) for reader in readers}


def _identities(ledger: Ledger, run: Run) -> dict[Key, schema.Identity]:
    processes = ledger.processes(run.name)
    if run.attempts and not processes:
        # Such as a ledger file that was replaced by a new one.
        raise LedgerError(f"ledger {ledger.url}: it has no data of run {run.name!r}")
    return {(one.identity.rank, one.identity.attempt): one.identity for one in processes}


def rows_of(ledger: Ledger, identity: schema.Identity, fold: Fold) -> Iterator[schema.StepRow]:
    """An attempt's rows, from the start of its bound to the first row that ends beyond it."""
    before, bound = None, fold.bound
    if bound.from_ns > fold.attempt.start_ns:
        before = _row_before(ledger, identity, bound.from_ns, fold.attempt.start_ns)
        if before is not None:
            fold.begin(Row(*astuple(before)))
    for row in ledger.rows(identity, start_ns=bound.from_ns if before else None):
        if before is None or row.number > before.number:
            yield row
            # This row covers the rest of the bound; an attempt's first step is compared with the OTHERS_MAX after it.
            if row.end_ns >= bound.to_ns and (before is not None or row.number > OTHERS_MAX):
                break


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
) -> tuple[Engine, StepLengths, dict[Key, np.ndarray]]:
    """From what IncrementalAccount.begin continues: a fold of all rows within the bounds, and trimmed rows beyond."""
    identities = _identities(ledger, run)
    engine = Engine(run, facts, groups_type=ColumnGroups)
    lengths, beyond = StepLengths.for_threshold(stall_seconds), {}
    readers = []
    for key, fold in engine.folds.items():
        fold.final = False
        if key in identities:
            rows = _within(ledger.rows(identities[key]), fold, beyond.setdefault(key, []))
            readers.append(Reader(fold, rows, goes_on=True))
    for parts in _together(readers):
        add_lengths(lengths, list(parts.values()), [engine.folds[key].number for key in parts])
        fold_columns(engine, parts)
    for (rank, number), fold in engine.folds.items():
        more, gone = beyond.get((rank, number), []), fold.attempt.trimmed
        last = more[-1].number if more else fold.number
        if last < gone and len(more) < BEYOND_MAX:
            # A fold without those rows would stay wrong: they would count as folded from now on.
            raise LedgerError(
                f"ledger {ledger.url}: it has rank {rank} attempt {number} up to row {last}, not up to {gone} yet"
            )
    return engine, lengths, {key: columns_of(rows) for key, rows in beyond.items() if rows}


def _within(rows: Iterator[schema.StepRow], fold: Fold, beyond: list) -> Iterator[schema.StepRow]:
    latest_ns = fold.last_end_ns
    for row in rows:
        latest_ns = max(row.end_ns, latest_ns)
        if beyond or latest_ns > fold.bound.to_ns:
            # Bounds may have shrunk: a rank whose clock is behind the others' has reported since.
            if row.number > fold.attempt.trimmed or len(beyond) >= BEYOND_MAX:
                return
            beyond.append(row)
        else:
            yield row
