"""Accounts of a run's past, folded from the ledger's columns in a thread of History.

A fold begins with the newest state in the ledger that is right under the run's facts, else with the first row. The
account of a window is that up to its end less that up to its start, so the rows beside both are read. About
Ledger.rows_held rows are in memory at most, or HELD_LEAST of each attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter

import numpy as np

from goodput._core import FIRST_OTHERS, READ_INDEX
from goodput.account import Account, Attempt, Run, document
from goodput.account.by_core.compute import finishing
from goodput.account.by_core.engine import CoreEngine
from goodput.account.document_types import AccountDocument
from goodput.account.facts import Facts, Key, gather
from goodput.aggregator.accounts.new_rows import fold_parts, settled_until_ns, table_of, wanted_of
from goodput.aggregator.accounts.stored_states import States
from goodput.aggregator.column_attempt import ColumnAttempt
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.ledger.page_reader import PageBounds
from goodput.aggregator.ledger.stored_process import StoredProcess
from goodput.causes import explain
from goodput.defaults import STALL_SECONDS
from goodput.wire.step_blocks import END, NUMBER, TOTALS
from goodput.wire.step_columns import widened

# Of an attempt's trimmed rows that end beyond its bound this many are returned; the rest become one long step.
BEYOND_MAX = 10_000
HELD_LEAST, PAGE_ROWS_MAX = 32, 1 << 14
# Rows after a bound that are read for the comparison of steps before it.
AFTER_MAX = 4096
_NUMBER, _TOP_STEP, _END, _PROVISIONAL, _LATE = (
    READ_INDEX[name] for name in ("number", "top_step", "end_ns", "provisional", "late_rows")
)

Window = tuple[int | None, int | None]  # unix ns, None for the run's own start or end
Check = Callable[[], None]  # called between slices; raises to end the work
Arrays = Iterator[np.ndarray]  # rows of an attempt in order, (columns, rows) as in wire.step_blocks


def never() -> None:
    pass


@dataclass
class Past:
    """What the aggregator knows of a run besides its rows, which are in the ledger."""

    run: Run
    now_ns: int
    threshold_ns: int  # of the run's account, 0 where it is not known
    stale_seconds: float
    stall_seconds: float = STALL_SECONDS

    def __post_init__(self):
        self.run = without_rows(self.run)

    def rows(self) -> int:
        """How many rows the run has, about."""
        return sum(attempt.top_number for attempt in self.run.attempts.values())

    def facts(self, window: Window) -> Facts:
        return gather(self.run, self.now_ns, self.threshold_ns, self.stale_seconds, True, window)


def without_rows(run: Run) -> Run:
    """A copy of a run without rows and events; what the facts need of them is in its attempts."""
    return replace(run, attempts={key: _without_rows(attempt) for key, attempt in run.attempts.items()})


@cache
def _fields_of(type_: type[Attempt]) -> attrgetter:
    return attrgetter(*type_.__match_args__)


def _without_rows(attempt: Attempt) -> Attempt:
    # dataclasses.replace takes 30 us, for each rank and on the event loop.
    other = type(attempt)(*_fields_of(type(attempt))(attempt))
    other.rows, other.events, other.holes = {}, {}, list(attempt.holes)
    if isinstance(other, ColumnAttempt):
        other.parts = []
    return other


def documents(
    ledger: Ledger, past: Past, windows: list[Window], check: Check = never
) -> list[AccountDocument]:
    """The account documents of these windows."""
    accounts = [account_of(ledger, past, window, check) for window in windows]
    return [document(account, explain(account)) for account in accounts]


def account_of(ledger: Ledger, past: Past, window: Window, check: Check = never) -> Account:
    """The account of a window."""
    facts = past.facts(window)
    engine = engine_until(ledger, past, window[1], check)
    is_begun = window[0] is not None and facts.start_ns > engine.facts.start_ns
    before = engine_until(ledger, past, window[0], check) if is_begun else None
    slices = finishing(engine, facts, before)
    while True:
        try:
            next(slices)
        except StopIteration as over:
            return over.value
        check()


def engine_until(ledger: Ledger, past: Past, end_ns: int | None, check: Check = never) -> CoreEngine:
    """An engine of a run up to a time, with the rows that decide on what came before it."""
    facts, states = past.facts((None, end_ns)), States(ledger, past.run)
    for begun in states.engines(facts, past.stall_seconds):
        late = _late_rows(begun)
        if wanted_of(begun) is not None:
            fold_until(ledger, begun, check)
            if _late_rows(begun) == late:
                return begun
    engine = CoreEngine(past.run, facts, past.stall_seconds)
    fold_until(ledger, engine, check)
    return engine


def _late_rows(engine: CoreEngine) -> int:
    """How many rows came too late for their group: where a state had given up on a rank, more rows are read."""
    return int(table_of(engine)[:, _LATE].sum())


def fold_until(ledger: Ledger, engine: CoreEngine, check: Check) -> None:
    """Fold the rows up to the end of the attempts' bounds, and of the rows after it those that their steps need."""
    processes = processes_of(ledger, engine.run)
    table, open_ = table_of(engine), dict[Key, PageBounds]()
    for key, place in engine.places.items():
        number, to_ns = int(table[place, _NUMBER]), engine.facts.bounds[key].to_ns
        is_reached = number and table[place, _END] + engine.origin_ns >= to_ns
        if key in processes and number < engine.run.attempts[key].top_number and not is_reached:
            open_[key] = PageBounds(number, None, to_ns)
    readers = [
        Reader(key, _up_to(pages, engine.facts.bounds[key].to_ns))
        for key, pages in pages_of(ledger, processes, open_, len(engine.places)).items()
    ]
    for parts in together(readers, check):
        fold_parts(engine, parts)
    _fold_after(ledger, engine, processes, check)


def _up_to(pages: Arrays, to_ns: int) -> Arrays:
    """The rows up to the first one that ends then or later."""
    for values in pages:
        is_last = values[END] >= to_ns
        if is_last.any():
            yield values[:, : int(is_last.argmax()) + 1]
            return
        yield values


def _fold_after(
    ledger: Ledger, engine: CoreEngine, processes: dict[Key, StoredProcess], check: Check
) -> None:
    """Fold rows after the bounds, until a first step has others to be compared with, and its group's ranks all have the steps
    in it."""
    table = table_of(engine)
    reached: dict[tuple[int, str], int] = {}
    names = {key: engine.group_name(engine.run.attempts[key]) for key in engine.places}
    for key, place in engine.places.items():
        reached[names[key]] = max(reached.get(names[key], -1), int(table[place, _TOP_STEP]))
    begun = table[:, _NUMBER].copy()
    while True:
        check()
        table, open_ = table_of(engine), dict[Key, PageBounds]()
        for key, place in engine.places.items():
            number = int(table[place, _NUMBER])
            is_behind = table[place, _TOP_STEP] < reached[names[key]] and number - begun[place] < AFTER_MAX
            is_held = table[place, _PROVISIONAL] and number <= 1 + FIRST_OTHERS
            has_more = key in processes and number < engine.run.attempts[key].top_number
            if has_more and (is_behind or is_held):
                open_[key] = PageBounds(number)
        parts = {
            key: values
            for key, pages in pages_of(ledger, processes, open_, len(engine.places), HELD_LEAST).items()
            if (values := next(pages, None)) is not None
        }
        if not parts:
            return
        fold_parts(engine, parts)


def pages_of(
    ledger: Ledger,
    processes: dict[Key, StoredProcess],
    bounds: dict[Key, PageBounds],
    attempts: int,
    rows: int = 0,
) -> dict[Key, Arrays]:
    """The rows of these attempts, `rows` of each at a time, by default as many as fit."""
    chosen = [processes[key] for key in bounds]
    pages = (
        ledger.pages(chosen, list(bounds.values()), rows or _rows_each(ledger, attempts)) if chosen else []
    )
    return dict(zip(bounds, pages, strict=True))


class Reader:
    """Rows of one attempt as columns, some at a time."""

    def __init__(self, key: Key, pages: Arrays):
        self.key, self._pages = key, pages
        self._waiting, self._is_read = np.zeros((TOTALS, 0), np.int64), False
        self._fill()

    @property
    def is_empty(self) -> bool:
        return self._is_read and not self._waiting.shape[1]

    def fill(self) -> None:
        """Add the next page, unless enough of the last one is left."""
        # Before nothing is left, or ranks whose pages end one after the other would be read one by one.
        if not self._is_read and self._waiting.shape[1] <= self._least:
            self._fill()

    def _fill(self) -> None:
        page = next(self._pages, None)
        if page is None:
            self._is_read = True
        else:
            self._waiting = joined([self._waiting, page]) if self._waiting.shape[1] else page
        self._least = self._waiting.shape[1] // 2
        # Clocks may have been set back.
        self._latest = np.maximum.accumulate(self._waiting[END])

    def until_ns(self) -> int | None:
        """Until when all rows are at hand, None if all of them are."""
        return None if self._is_read else int(self._latest[-1])

    def take(self, until_ns: int | None) -> np.ndarray:
        """The rows that have ended by then, as far as they were read."""
        latest = self._latest
        count = len(latest) if until_ns is None else int(latest.searchsorted(until_ns, side="right"))
        found = self._waiting[:, :count]
        self._waiting, self._latest = self._waiting[:, count:], self._latest[count:]
        return found


def together(readers: list[Reader], check: Check = never) -> Iterator[dict[Key, np.ndarray]]:
    """All rows, some at a time, in order of time over all ranks, so that a group's steps meet; those of a rank in the order of
    its attempts.

    What is yielded is empty when the next ones are read, so that they need not be in memory together.
    """
    while readers:
        check()
        for reader in readers:
            reader.fill()
        readers = [reader for reader in readers if not reader.is_empty]
        if readers:
            # The rows of an attempt wait until all of the rank's attempt before it are taken.
            first = {reader.key[0]: reader for reader in reversed(readers)}
            known = [ns for reader in first.values() if (ns := reader.until_ns()) is not None]
            until_ns = min(known, default=None)
            parts = {reader.key: reader.take(until_ns) for reader in first.values()}
            yield parts
            parts.clear()


def _rows_each(ledger: Ledger, attempts: int) -> int:
    """How many rows of each attempt may be in memory."""
    return min(max(ledger.rows_held // max(attempts, 1), HELD_LEAST), PAGE_ROWS_MAX)


def rows_held(ledger: Ledger, run: Run) -> int:
    """How many rows of a run may be in memory, about."""
    return _rows_each(ledger, len(run.attempts)) * len(run.attempts)


def processes_of(ledger: Ledger, run: Run) -> dict[Key, StoredProcess]:
    processes = ledger.sources(run.name)
    if run.attempts and not processes:
        # Such as a ledger file that was replaced by a new one.
        raise LedgerError(f"ledger {ledger.url}: it has no data of run {run.name!r}")
    return {(one.identity.rank, one.identity.attempt): one for one in processes}


def folded(
    ledger: Ledger, run: Run, facts: Facts, stall_seconds: float, check: Check = never
) -> tuple[CoreEngine, dict[Key, np.ndarray]]:
    """From what IncrementalAccount.begin continues: a fold of all rows within the bounds, and trimmed rows beyond."""
    processes = processes_of(ledger, run)
    for begun in States(ledger, run).engines(facts, stall_seconds):
        late = _late_rows(begun)
        if wanted_of(begun) is not None:
            beyond = _fold_within(ledger, begun, processes, check)
            if _late_rows(begun) == late:
                return begun, beyond
    engine = CoreEngine(run, facts, stall_seconds)
    return engine, _fold_within(ledger, engine, processes, check)


def _fold_within(
    ledger: Ledger, engine: CoreEngine, processes: dict[Key, StoredProcess], check: Check
) -> dict[Key, np.ndarray]:
    """Fold the rows within the bounds; returns trimmed rows beyond these. Raises LedgerError."""
    table, bounds = table_of(engine), dict[Key, PageBounds]()
    beyond: dict[Key, list[np.ndarray]] = {}
    for key, place in engine.places.items():
        number = int(table[place, _NUMBER])
        if key in processes and number < engine.run.attempts[key].top_number:
            bounds[key] = PageBounds(number)
    readers = []
    for key, pages in pages_of(ledger, processes, bounds, len(engine.places)).items():
        latest_ns = int(table[engine.places[key], _END]) + engine.origin_ns
        limits = settled_until_ns(engine.facts, key), engine.run.attempts[key].trimmed
        readers.append(Reader(key, _within(pages, latest_ns, *limits, beyond.setdefault(key, []))))
    for parts in together(readers, check):
        fold_parts(engine, parts)
    _check_trimmed(ledger, engine, beyond)
    return {key: joined(parts) for key, parts in beyond.items() if parts}


def _check_trimmed(ledger: Ledger, engine: CoreEngine, beyond: dict[Key, list[np.ndarray]]) -> None:
    """Raise LedgerError where the ledger lacks rows that are not in memory: they would count as folded from now on."""
    table = table_of(engine)
    for (rank, number), place in engine.places.items():
        more, gone = beyond.get((rank, number), []), engine.run.attempts[rank, number].trimmed
        last = int(more[-1][NUMBER, -1]) if more else int(table[place, _NUMBER])
        if last < gone and sum(part.shape[1] for part in more) < BEYOND_MAX:
            raise LedgerError(
                f"ledger {ledger.url}: it has rank {rank} attempt {number} up to row {last}, not up to {gone} yet"
            )


def joined(parts: list[np.ndarray]) -> np.ndarray:
    """Rows one after the other, with zeros for phases that a part lacks."""
    width = max((len(part) - TOTALS) // 2 for part in parts)
    return np.concatenate([widened(part, width) for part in parts], axis=1)


def _within(rows: Arrays, latest_ns: int, to_ns: int, trimmed: int, beyond: list[np.ndarray]) -> Arrays:
    """The rows that end within the bound; of those after, what was trimmed is added to `beyond`.

    Bounds may have shrunk: a rank whose clock is behind the others' has reported since.
    """
    left = BEYOND_MAX
    for some in rows:
        values = some
        if not beyond:
            latest = np.maximum.accumulate(np.maximum(values[END], latest_ns))
            latest_ns = int(latest[-1])
            count = int(np.searchsorted(latest, to_ns, side="right"))
            if count:
                yield values[:, :count]
            values = values[:, count:]
        gone = values[:, values[NUMBER] <= trimmed][:, :left]
        if gone.shape[1]:
            beyond.append(gone)
            left -= gone.shape[1]
        if gone.shape[1] < values.shape[1]:
            return
