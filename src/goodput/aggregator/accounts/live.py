"""The account of a running run, folded incrementally: every row is folded once and then need not be kept.

The result equals account.compute over all rows, at one to four microseconds per new row and some 200 per rank however
long the run is. Folded rows are in the ledger too, so they are dropped. Where the fold turns out to be wrong (a
restart made steps lost, a rank reported late) it starts again: from the rows in memory, or from a state in the ledger
that is right still, with the rows after it (NeedsHistory).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import cast

import numpy as np

from goodput.account import Account, Run
from goodput.account.facts import Facts, Key
from goodput.account.slow_ranks.comparable import ComparableSums
from goodput.account.stall_threshold import StepLengths
from goodput.aggregator.accounts.common_steps import completed_by_all
from goodput.aggregator.column_attempt import ColumnAttempt, rows_after
from goodput.columns.engine import ColumnEngine
from goodput.columns.facts import ColumnFacts, gathering
from goodput.columns.fold import Batch, counted, folding_batches, latest, portions
from goodput.columns.lengths import add_columns
from goodput.columns.run_columns import RunColumns
from goodput.columns.stragglers import comparable_sums
from goodput.slices import Slices, result_of
from goodput.wire.step_blocks import END, NUMBER, START, STEP

# Above ROWS_MAX rows of a run the folded ones are dropped, of a finished one above so many of each attempt.
ROWS_MAX, FINISHED_ROWS_MAX = 16_384, 16
# More rows are not folded together: as columns they take some 60 MB.
TOGETHER_ROWS_MAX = 1 << 18
BEHIND_NS_MAX = 60 * 10**9


class NewRows:
    """Rows of a run's attempts that are not folded yet, in batches of attempts side by side.

    `batches` come in the order of the starts of each rank's attempts. All other arrays are of all of them together:
    `places` and `counts` by attempt, `number`, `step`, `start` and `end` by row; `begins` has the first row of each attempt and, last,
    their number.
    """

    def __init__(self, batches: list[Batch], places: list[np.ndarray]):
        """`places` are those of each batch's attempts among all of the run."""
        self.batches, self.places = batches, np.concatenate([np.zeros(0, np.int64), *places])
        self.counts = np.concatenate([np.zeros(0, np.int64), *(batch.counts for batch in batches)])
        self.begins = np.append(0, np.cumsum(self.counts))
        self.number, self.step, self.start, self.end = (
            np.concatenate([np.zeros(0, np.int64), *(batch.values[column] for batch in batches)])
            for column in (NUMBER, STEP, START, END)
        )

    def of_attempt(self, values: np.ndarray) -> np.ndarray:
        """One value per attempt for each of its rows."""
        return np.repeat(values, self.counts)

    def first(self, counts: np.ndarray) -> np.ndarray:
        """Which rows are the first so many of their attempts."""
        return np.arange(self.begins[-1]) - self.of_attempt(self.begins[:-1]) < self.of_attempt(counts)

    def split(self, chosen: np.ndarray) -> tuple[list[Batch], list[Batch]]:
        """The batches with some of the rows, and with the others; they are taken out of here one after the other."""
        parts: tuple[list[Batch], list[Batch]] = [], []
        at = 0
        for batch in _taken(self.batches):
            own = chosen[at : at + batch.values.shape[1]]
            at += len(own)
            for found, some in zip(parts, (own, ~own), strict=True):
                if some.any():
                    found.append(batch.part(some))
        return parts


class NeedsHistory(Exception):
    """The fold is wrong and not all rows are in memory. `facts` is what to fold by, `late` for `begin`."""

    def __init__(self, facts: Facts, late: int):
        super().__init__("not all rows are in memory")
        self.facts, self.late = facts, late


class IncrementalAccount:
    """The folded part of a run, and its account at any later moment."""

    def __init__(self, run: Run, *, stall_seconds: float, stale_seconds: float | None):
        self.run = run
        self._stall_seconds, self._stale_seconds = stall_seconds, stale_seconds
        self._engine: ColumnEngine | None = None
        self._columns: RunColumns | None = None
        self._late = 0
        self._is_computing = False
        self._behind_since_ns: int | None = None
        self._lengths = StepLengths.for_threshold(stall_seconds)
        self._comparable: ComparableSums | None = None
        self.last: Account | None = None
        self.times_begun = 0
        self._is_last_of_fold = False  # whether `last` was computed since the fold began

    def account(self, now_ns: int) -> Account:
        """The account at `now_ns`; see account.compute with `known_only`. Raises NeedsHistory."""
        return result_of(self.computing(now_ns))

    def computing(self, now_ns: int) -> Slices[Account]:
        """As `account`, in slices. Between two of them reports may be merged, which count in the next account.

        One at a time; `begin` must wait until it is over or closed.
        """
        self._is_computing = True
        try:
            self.last = yield from self._computing(now_ns)
        finally:
            self._is_computing = False
            # An engine from the ledger has none until it follows some.
            if self._engine is not None and hasattr(self._engine, "facts"):
                self._engine.facts = self._engine.facts.without_attempts()
            if self._columns is not None:
                self._columns.forget_places()
        return self.last

    def _computing(self, now_ns: int) -> Slices[Account]:
        engine = self._engine
        if engine is None and self.last is None and not self._trimmed():
            engine = yield from self._restart(now_ns)
            return (yield from self._finished(engine))
        yield from self._catching_up(now_ns)
        facts, rows = yield from self._facts(now_ns)
        is_right = engine is not None and self._late == self._rows_late()
        if engine is not None and is_right and (yield from engine.following(facts)):
            engine = yield from self._folded(engine, facts, rows)
        else:
            engine = None
        # Late steps of a rank that was given up on are only noticed when they are folded (`groups.has_late`).
        if engine is None or engine.groups.has_late:
            if self.last is not None and self._behind(self.last, facts, now_ns):
                return self.last
            if self._trimmed():
                raise NeedsHistory(facts, self._rows_late())
            engine = yield from self._restart(now_ns)
        return (yield from self._finished(engine))

    def _catching_up(self, now_ns: int) -> Slices[None]:
        """Fold the first of many rows, such as those of a restart, some of each attempt at a time: as columns all of them
        would take six times as much memory as they do as blocks."""
        while self._engine is not None and (left := self._rows_left()) > TOGETHER_ROWS_MAX:
            facts, rows = yield from self._facts(now_ns, TOGETHER_ROWS_MAX // 2 // self._attempts_left() + 1)
            if self._late != self._rows_late() or not (yield from self._engine.following(facts)):
                return
            yield from self._advance(self._engine, facts, rows)
            if self._rows_left() >= left:
                return

    def _rows_left(self) -> int:
        """How many rows wait to be folded, about: as if none of an attempt were missing."""
        return sum([one.top_number for one in self.run.attempts.values()]) - self.rows()

    def _attempts_left(self) -> int:
        """How many attempts have rows that wait to be folded, at least 1."""
        assert self._engine is not None
        numbers = self._engine.folds.numbers()
        return max(sum([one.top_number > numbers.get(key, 0) for key, one in self.run.attempts.items()]), 1)

    def _finished(self, engine: ColumnEngine) -> Slices[Account]:
        account = yield from engine.finishing()
        account.straggler.comparable = self._comparable
        self._is_last_of_fold = True
        return account

    def _restart(self, now_ns: int) -> Slices[ColumnEngine]:
        """Fold again from the rows in memory, which are all; returns a copy as `_folded` does."""
        # The lengths, from which the facts' stall threshold comes, may lack a late row.
        self._engine, self._lengths = None, StepLengths.for_threshold(self._stall_seconds)
        # A row that comes late while they are taken is noticed by the next account.
        late = self._rows_late()
        facts, rows = yield from self._facts(now_ns)
        engine = ColumnEngine(self.run, facts)
        self.begin(engine, self._lengths, late=late)
        return (yield from self._folded(engine, facts, rows))

    def _folded(self, engine: ColumnEngine, facts: ColumnFacts, rows: NewRows) -> Slices[ColumnEngine]:
        """A copy of the engine with all these rows, including those whose result may still change."""
        rest = yield from self._advance(engine, facts, rows)
        engine = yield from engine.copying()
        self._comparable = comparable_sums(engine.folds)
        yield
        yield from folding_batches(engine, _taken(rest))
        return engine

    def _behind(self, last: Account, facts: Facts, now_ns: int) -> bool:
        """Whether a silent rank is back and still pushing its backlog: until it has, the last account stands.

        For BEHIND_NS_MAX at most, since its clock may be behind the others' for good.
        """
        if facts.end_ns >= last.end_ns or facts.status != "running":
            self._behind_since_ns = None
            return False
        if self._behind_since_ns is None:
            self._behind_since_ns = now_ns
        return abs(now_ns - self._behind_since_ns) < BEHIND_NS_MAX

    def begin(
        self,
        engine: ColumnEngine,
        lengths: StepLengths,
        beyond: dict[Key, np.ndarray] | None = None,
        late: int | None = None,
    ) -> None:
        """Continue from this engine and these lengths of folded rows.

        `beyond` are trimmed rows that lie beyond the bounds now and are to be folded again; `late` is the count of late
        rows when the rows were read.
        """
        engine.run, self._engine, self._lengths = self.run, engine, lengths
        self.times_begun, self._is_last_of_fold = self.times_begun + 1, False
        self._late = self._rows_late() if late is None else late
        for key, fold in engine.folds.items():
            fold.attempt = self.run.attempts[key]
        engine.folds.final[:] = False
        for key, rows in (beyond or {}).items():
            self._attempt(key).put_back(rows)

    def begin_with_none(self, now_ns: int) -> None:
        """Continue from no folded rows where many are in memory, so that they are folded some at a time; the account may
        raise NeedsHistory then."""
        if self._rows_left() > TOGETHER_ROWS_MAX:
            facts, _ = result_of(self._facts(now_ns, 1))
            self.begin(ColumnEngine(self.run, facts), self._lengths)

    def is_right(self) -> bool:
        """Whether `last` is of the rows that are folded, which are right by what is known, and no account is being computed."""
        if self._engine is None or self._is_computing or not self._is_last_of_fold:
            return False
        return not self._engine.groups.has_late and self._late == self._rows_late()

    def known_lengths(self) -> tuple[StepLengths, Mapping[Key, int]] | None:
        """The lengths of the steps that are folded, and the last ones of these."""
        return None if self._engine is None else (self._lengths.copy(), self._engine.folds.numbers())

    def drop_all_rows(self) -> None:
        """Drop the rows of a run of which none is folded, so that it is folded from the ledger."""
        for key, attempt in self.run.attempts.items():
            self._attempt(key).trim(attempt.top_number)

    def drop_rows(self) -> int:
        """Drop the folded rows; returns how many."""
        if self._engine is None or self._is_computing:
            return 0
        before = kept_rows(self.run)
        for key, number in self._engine.folds.numbers().items():
            self._attempt(key).trim(number)
        return before - kept_rows(self.run)

    def rows(self) -> int:
        """How many rows are folded."""
        return 0 if self._engine is None else self._engine.folds.count_rows()

    def going(self) -> int:
        """How many attempts may go on."""
        return 0 if self._engine is None else self._engine.folds.count_going()

    def copy(self) -> tuple[ColumnEngine, StepLengths, int] | None:
        """The folded part and its number of late rows, None while there is none that is right."""
        if self._is_computing or self._engine is None or self._engine.groups.has_late:
            return None
        if self._late != self._rows_late():
            return None
        return self._engine.copy(), self._lengths.copy(), self._late

    def _attempt(self, key: Key) -> ColumnAttempt:
        attempt = self.run.attempts[key]
        assert isinstance(attempt, ColumnAttempt)
        return attempt

    def _rows_late(self) -> int:
        return sum(attempt.late_count for attempt in self.run.attempts.values())

    def _facts(self, now_ns: int, most: int = sys.maxsize) -> Slices[tuple[ColumnFacts, NewRows]]:
        """The facts, and of each attempt the rows that are not folded yet and that the facts know of.

        With `most` the first so many of each rank's first attempt that has any: what a rank did before decides how long its
        planned phases may take.
        """
        if self._columns is None or len(self._columns) != len(self.run.attempts):
            self._columns = RunColumns(self.run)
        lengths, columns = self._lengths.copy(), self._columns
        numbers = np.zeros(len(columns), np.int64)
        if self._engine is not None:
            at = columns.rows(self._engine.folds)
            numbers = np.where(at < 0, 0, self._engine.folds.number[at])
        tops = np.array([attempt.top_number for attempt in columns.attempts], np.int64)
        batches: list[Batch] = []
        places: list[np.ndarray] = []
        for wanted in _alike(columns, tops, numbers, of_all=most == sys.maxsize):
            yield
            keys, begun = list(map(columns.keys.__getitem__, wanted.tolist())), numbers[wanted].tolist()
            some = list(zip(map(_column_attempts(columns).__getitem__, wanted.tolist()), begun, strict=True))
            batches.append(Batch(keys, *rows_after(some, len(some[0][0].phases), most)))
            places.append(wanted)
        rows = NewRows(batches, places)
        yield
        if batches:
            add_columns(lengths, (rows.number, rows.start, rows.end), rows.counts, numbers[rows.places])
        yield
        threshold_ns = lengths.threshold_ns(self._stall_seconds, self.run.stepping())
        facts = yield from gathering(columns, now_ns, threshold_ns, self._stale_seconds)
        return facts, rows

    def _trimmed(self) -> bool:
        return any(attempt.trimmed for attempt in self.run.attempts.values())

    def _advance(self, engine: ColumnEngine, facts: ColumnFacts, rows: NewRows) -> Slices[list[Batch]]:
        """Fold rows whose result only a new fact can change, and drop them; returns the others."""
        table, attempts = engine.folds, facts.attempts
        assert attempts is not None
        at = attempts.rows(table)[rows.places]
        within = self._within_bounds(engine, at, rows)
        yield
        counts = completed_by_all(engine, at, rows, within)
        yield
        is_folded = rows.first(counts)
        parts, rest = rows.split(is_folded)
        some = counts > 0
        if some.any():
            columns = [column[is_folded] for column in (rows.number, rows.start, rows.end)]
            add_columns(self._lengths, columns, counts[some], table.number[at[some]])
        yield from _whole(folding_batches(engine, _taken(parts)))
        is_finished = facts.status == "finished"
        most = min(FINISHED_ROWS_MAX * len(attempts), ROWS_MAX) if is_finished else ROWS_MAX
        # No more are in memory, but for those that were put back.
        untrimmed = sum([attempt.top_number - attempt.trimmed for attempt in attempts.attempts])
        is_trimming = untrimmed > most and kept_rows(self.run) > most
        # The other ranks' steps do not wait for one that ended or is behind in its reports.
        at = attempts.rows(table)
        is_over = ~table.running[at] | (table.end_ns[at] < facts.end_ns)
        tops = np.array([attempt.top_number for attempt in attempts.attempts], np.int64)
        table.exhausted[at] = is_over & (table.number[at] >= tops)
        yield
        if is_trimming:
            for number, attempt in zip(table.number[at].tolist(), _column_attempts(attempts), strict=True):
                attempt.trim(number)
        return rest

    def _within_bounds(self, engine: ColumnEngine, at: np.ndarray, rows: NewRows) -> np.ndarray:
        """How many of each attempt's rows end within its bound; after a clock was set back a process may start later than
        its first rows."""
        end = latest(rows.end, rows.begins, engine.folds.last_end_ns[at])
        return counted(end <= rows.of_attempt(engine.folds.to_ns[at]), rows.begins)


def _taken(batches: list[Batch]) -> Iterator[Batch]:
    """These batches, each of which can leave memory once it was used."""
    batches.reverse()
    while batches:
        yield batches.pop()


def _alike(
    attempts: RunColumns, tops: np.ndarray, numbers: np.ndarray, of_all: bool = True
) -> Iterator[np.ndarray]:
    """Places of attempts with rows beyond these numbers, some of different ranks with as many phases at a time; those of a
    rank in the order of their starts or, unless `of_all`, its first alone."""
    new = np.flatnonzero(tops > numbers)
    widths = np.array([len(attempts.attempts[at].phases) for at in new.tolist()], np.int64)
    while len(new):
        is_first = np.append(True, np.diff(attempts.of[new]) != 0)
        for width in np.unique(widths[is_first]).tolist():
            own = new[is_first & (widths == width)]
            for some in portions((tops - numbers)[own].tolist()):
                yield own[some.start : some.stop]
        if not of_all:
            return
        new, widths = new[~is_first], widths[~is_first]


def _whole(slices: Slices[None]) -> Slices[None]:
    """These slices; where they are given up, the rest at once, since the step lengths have all of these rows already."""
    try:
        for _ in slices:
            yield
    finally:
        result_of(slices)


def _column_attempts(columns: RunColumns) -> list[ColumnAttempt]:
    return cast("list[ColumnAttempt]", columns.attempts)


def kept_rows(run: Run) -> int:
    """How many rows of a run are in memory."""
    columns = [one for one in run.attempts.values() if isinstance(one, ColumnAttempt)]
    return sum([one.kept_rows() for one in columns])
