"""Accounts of a run's past, folded from the ledger's columns in a thread of History.

A fold begins with the newest segment that is right under the run's facts, else with the first row. Of a window only the
rows inside are read. About Ledger.rows_held rows are in memory at most, or HELD_LEAST of each attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from operator import attrgetter

import numpy as np

from goodput.account import Account, Attempt, Run, document
from goodput.account.document_types import AccountDocument
from goodput.account.facts import Bound, Facts, Key, gather
from goodput.account.fold import OTHERS_MAX, Fold
from goodput.account.stall_threshold import PlannedLimits, StepLengths
from goodput.aggregator.accounts.stored_states import States, begun_between
from goodput.aggregator.column_attempt import ColumnAttempt, row_of
from goodput.aggregator.ledger import step_lengths
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.ledger.page_reader import PageBounds
from goodput.aggregator.ledger.stored_process import StoredProcess
from goodput.causes import explain
from goodput.columns.engine import ColumnEngine
from goodput.columns.fold import fold_columns
from goodput.columns.lengths import add_lengths
from goodput.defaults import STALL_SECONDS
from goodput.wire.step_blocks import END, NUMBER, TOTALS
from goodput.wire.step_columns import widened

# Of an attempt's trimmed rows that end beyond its bound this many are returned; the rest become one long step.
BEYOND_MAX = 10_000
HELD_LEAST, PAGE_ROWS_MAX = 32, 1 << 14

Window = tuple[int | None, int | None]  # unix ns, None for the run's own start or end
Check = Callable[[], None]  # called between slices; raises to end the work
Arrays = Iterator[np.ndarray]  # rows of an attempt in order, (columns, rows) as in wire.step_blocks

Columns = Callable[[Ledger, StoredProcess, Fold, Arrays], Arrays]


def never() -> None:
    pass


@dataclass
class Past:
    """What the aggregator knows of a run besides its rows, which are in the ledger."""

    run: Run
    now_ns: int
    threshold_ns: int
    stale_seconds: float
    planned: PlannedLimits = field(default_factory=PlannedLimits)
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
    for engine, is_last in _begun_windows(ledger, past, facts, check):
        for parts in together(readers(engine, ledger), check):
            fold_columns(engine, parts)
        if is_last or not engine.groups.has_late:
            return engine.finish()
    raise AssertionError


def _begun_windows(
    ledger: Ledger, past: Past, facts: Facts, check: Check
) -> Iterator[tuple[ColumnEngine, bool]]:
    """Engines that have folded the first rows of a window; the last one has none, and is marked so."""
    # A state has all rows from the start of the run on.
    if all(attempt.start_ns >= facts.start_ns for attempt in past.run.attempts.values()):
        for begun in _begun(ledger, past.run, facts):
            if begun is not None:
                yield begun[0], False
    else:
        both, fold_until = (facts, past.facts((None, None))), partial(_fold_until, ledger, check)
        begun = begun_between(States(ledger, past.run), past.run, both, past.planned, fold_until)
        if begun is not None:
            yield begun, False
    yield ColumnEngine(past.run, facts, past.planned.copy()), True


def _fold_until(ledger: Ledger, check: Check, engine: ColumnEngine, last: Mapping[Key, Fold]) -> None:
    """Fold the rows of these attempts up to the last ones of these folds."""

    def until(ledger: Ledger, process: StoredProcess, fold: Fold, pages: Arrays) -> Arrays:
        number = last[fold.attempt.rank, fold.attempt.attempt].number
        for values in rows_of_bound(ledger, process, fold, pages):
            count = int(np.searchsorted(values[NUMBER], number, side="right"))
            if count:
                yield values[:, :count]
            if values.shape[1] and values[NUMBER, -1] >= number:
                return

    ends_ns = {key: fold.last_end_ns for key, fold in last.items()}
    for parts in together(readers(engine, ledger, until, goes_on=True, only=ends_ns), check):
        fold_columns(engine, parts)


def _begun(ledger: Ledger, run: Run, facts: Facts) -> Iterator[tuple[ColumnEngine, StepLengths] | None]:
    """Folds of the run's first rows that are right under these facts, those of the most rows first; last None."""
    states = States(ledger, run)
    for at in reversed(range(states.count_within(facts))):
        begun = states.engine(at, facts)
        if begun is not None:
            yield begun
    yield None


def readers(
    engine: ColumnEngine,
    ledger: Ledger,
    columns: Columns | None = None,
    goes_on: bool = False,
    only: Mapping[Key, int] | None = None,
    page_rows: int = 0,
) -> list[Reader]:
    """A reader for each attempt that has rows within its bound, in the order of their starts; by default of all those rows.

    With `only` those of these attempts, up to about these times; `goes_on` where other rows of them are folded
    afterwards. `page_rows` are read of an attempt at a time, by default as many as fit.
    """
    processes = _processes(ledger, engine.run)
    chosen: list[tuple[StoredProcess, Fold]] = []
    bounds: list[PageBounds] = []
    folds = sorted(engine.folds.items(), key=lambda item: (item[0][0], item[1].attempt.start_ns, item[0][1]))
    for key, fold in folds:
        bound, attempt = fold.bound, fold.attempt
        has_rows = bound.to_ns > bound.from_ns and attempt.first_step is not None
        has_more = not fold.number or fold.number < attempt.top_number
        fold.exhausted = key not in processes or not has_rows or not has_more
        fold.final = not goes_on
        if not fold.exhausted and (only is None or key in only):
            chosen.append((processes[key], fold))
            bounds.append(_page_bounds(fold, bound, only))
    most = page_rows or _rows_each(ledger, len(engine.folds))
    pages = ledger.pages([process for process, _ in chosen], bounds, most)
    find = columns or rows_of_bound
    return [
        Reader(fold, find(ledger, process, fold, rows), goes_on)
        for rows, (process, fold) in zip(pages, chosen, strict=True)
    ]


class Reader:
    """Rows of one attempt as columns, some at a time."""

    def __init__(self, fold: Fold, pages: Arrays, goes_on: bool = False):
        self.fold, self._pages, self.goes_on = fold, pages, goes_on  # whether more rows may be reported
        self.key = (fold.attempt.rank, fold.attempt.attempt)
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
    """All rows, some at a time, in order of time over all ranks, so that a group's steps meet.

    What is yielded is empty when the next ones are read, so that they need not be in memory together.
    """
    while readers:
        check()
        for reader in readers:
            reader.fill()
            # What it had was folded.
            reader.fold.exhausted |= reader.is_empty and not reader.goes_on
        readers = [reader for reader in readers if not reader.is_empty]
        if readers:
            known = [until_ns for reader in readers if (until_ns := reader.until_ns()) is not None]
            until_ns = min(known, default=None)
            parts = {reader.key: reader.take(until_ns) for reader in readers}
            yield parts
            parts.clear()


def _rows_each(ledger: Ledger, attempts: int) -> int:
    """How many rows of each attempt may be in memory."""
    return min(max(ledger.rows_held // max(attempts, 1), HELD_LEAST), PAGE_ROWS_MAX)


def rows_held(ledger: Ledger, run: Run) -> int:
    """How many rows of a run may be in memory, about."""
    return _rows_each(ledger, len(run.attempts)) * len(run.attempts)


def _processes(ledger: Ledger, run: Run) -> dict[Key, StoredProcess]:
    processes = ledger.sources(run.name)
    if run.attempts and not processes:
        # Such as a ledger file that was replaced by a new one.
        raise LedgerError(f"ledger {ledger.url}: it has no data of run {run.name!r}")
    return {(one.identity.rank, one.identity.attempt): one for one in processes}


def _cut_ns(fold: Fold, bound: Bound) -> int | None:
    """Where the bound of an attempt begins, if that is not where the attempt does and no row was folded yet."""
    return bound.from_ns if not fold.number and bound.from_ns > fold.attempt.start_ns else None


def _page_bounds(fold: Fold, bound: Bound, only: Mapping[Key, int] | None) -> PageBounds:
    """Blocks that begin after what is wanted need not be listed, of which a long run has many."""
    until_ns, attempt = bound.to_ns, fold.attempt
    if only is not None:
        until_ns = min(until_ns, only[attempt.rank, attempt.attempt])
    return PageBounds(fold.number, _cut_ns(fold, bound), until_ns)


def _needs_others(fold: Fold) -> bool:
    """Whether the attempt's first step is or will be among those that are folded."""
    return not fold.steps or fold.held_back() != (-1, 0)


def rows_of_bound(_ledger: Ledger, _process: StoredProcess, fold: Fold, pages: Arrays) -> Arrays:
    """Of an attempt's rows those from the start of its bound to the first row that ends beyond it.

    The fold begins with the row before.
    """
    bound = fold.bound
    cut_ns, before = _cut_ns(fold, bound), None
    if fold.last_end_ns >= bound.to_ns and (
        fold.number > OTHERS_MAX or (fold.number and not _needs_others(fold))
    ):
        return
    for page in pages:
        values = page
        if cut_ns is not None:
            is_inside = values[END] >= cut_ns
            at = int(is_inside.argmax()) if is_inside.any() else values.shape[1]
            before = values[:, at - 1].tolist() if at else before
            if at == values.shape[1]:
                continue
            if before is not None:
                fold.begin(row_of(before))
            cut_ns, values = None, values[:, at:]
        # This row covers the rest of the bound; an attempt's first step is compared with the OTHERS_MAX after it.
        is_last = values[END] >= bound.to_ns
        if _needs_others(fold):
            is_last &= values[NUMBER] > OTHERS_MAX
        if is_last.any():
            yield values[:, : int(is_last.argmax()) + 1]
            return
        yield values
    if cut_ns is not None and before is not None:
        fold.begin(row_of(before))


def folded(
    ledger: Ledger,
    run: Run,
    facts: Facts,
    stall_seconds: float,
    known: step_lengths.KnownLengths | None = None,
    check: Check = never,
) -> tuple[ColumnEngine, StepLengths, dict[Key, np.ndarray]]:
    """From what IncrementalAccount.begin continues: a fold of all rows within the bounds, and trimmed rows beyond.

    `known` lengths count instead of those of thinned rows where the ledger has none.
    """
    processes = _processes(ledger, run)
    known = step_lengths.of_thinned(ledger, run.name, known)
    most = _rows_each(ledger, len(run.attempts))
    for begun in _begun(ledger, run, facts):
        is_whole = begun is None
        engine, lengths = begun or (
            ColumnEngine(run, facts),
            StepLengths.for_threshold(stall_seconds),
        )
        has_known = known is None or engine.folds.count_rows() >= sum(known[1].values())
        lengths, before = (lengths, {}) if known is None or has_known else (known[0].copy(), known[1])
        chosen, beyond = [], {}
        for key, fold in engine.folds.items():
            fold.final = False
            fold.exhausted &= fold.number >= fold.attempt.top_number
            if key in processes and not fold.exhausted:
                chosen.append(key)
        bounds = [PageBounds(engine.folds[key].number) for key in chosen]
        found = []
        for key, rows in zip(
            chosen, ledger.pages([processes[key] for key in chosen], bounds, most), strict=True
        ):
            fold = engine.folds[key]
            found.append(Reader(fold, _within(rows, fold, beyond.setdefault(key, [])), goes_on=True))
        for parts in together(found, check):
            _add_lengths(lengths, engine, parts, before)
            fold_columns(engine, parts)
            if engine.groups.has_late and not is_whole:
                break
        if is_whole or not engine.groups.has_late:
            _check_trimmed(ledger, engine, beyond)
            return engine, lengths, {key: joined(parts) for key, parts in beyond.items() if parts}
    raise AssertionError


def _add_lengths(
    lengths: StepLengths, engine: ColumnEngine, parts: Mapping[Key, np.ndarray], before: Mapping[Key, int]
) -> None:
    """Add those of rows that are folded next, without the rows up to those of the numbers `before`."""
    after = [max(engine.folds[key].number, before.get(key, 0)) for key in parts]
    new = [
        values[:, values[NUMBER] > before[key]] if key in before else values for key, values in parts.items()
    ]
    add_lengths(lengths, new, after)


def _check_trimmed(ledger: Ledger, engine: ColumnEngine, beyond: dict[Key, list[np.ndarray]]) -> None:
    """Raise LedgerError where the ledger lacks rows that are not in memory: they would count as folded from now on."""
    for (rank, number), fold in engine.folds.items():
        more, gone = beyond.get((rank, number), []), fold.attempt.trimmed
        last = int(more[-1][NUMBER, -1]) if more else fold.number
        if last < gone and sum(part.shape[1] for part in more) < BEYOND_MAX:
            raise LedgerError(
                f"ledger {ledger.url}: it has rank {rank} attempt {number} up to row {last}, not up to {gone} yet"
            )


def joined(parts: list[np.ndarray]) -> np.ndarray:
    """Rows one after the other, with zeros for phases that a part lacks."""
    width = max((len(part) - TOTALS) // 2 for part in parts)
    return np.concatenate([widened(part, width) for part in parts], axis=1)


def _within(rows: Arrays, fold: Fold, beyond: list[np.ndarray]) -> Arrays:
    """The rows that end within the bound; of those after, what was trimmed is added to `beyond`.

    Bounds may have shrunk: a rank whose clock is behind the others' has reported since.
    """
    latest_ns, left = fold.last_end_ns, BEYOND_MAX
    for some in rows:
        values = some
        if not beyond:
            latest = np.maximum.accumulate(np.maximum(values[END], latest_ns))
            latest_ns = int(latest[-1])
            count = int(np.searchsorted(latest, fold.bound.to_ns, side="right"))
            if count:
                yield values[:, :count]
            values = values[:, count:]
        gone = values[:, values[NUMBER] <= fold.attempt.trimmed][:, :left]
        if gone.shape[1]:
            beyond.append(gone)
            left -= gone.shape[1]
        if gone.shape[1] < values.shape[1]:
            return
