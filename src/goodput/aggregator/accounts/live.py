"""The account of a running run: every row is folded once by the compiled core and then need not be kept.

The result equals account.compute over all rows, however they came. Rows that only the newest facts cut, at the account's
end, are folded into a copy each time. Folded rows are in the ledger too, so they are dropped. Where the fold turns out to
be wrong (a restart made steps lost, a rank reported late) it starts again: from the rows in memory, or from a state in
the ledger that is right still, with the rows after it (RunIsDirty).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np

from goodput._core import READ_INDEX
from goodput.account import Account, Run
from goodput.account.by_core.compute import finishing
from goodput.account.by_core.engine import CoreEngine
from goodput.account.facts import Facts, Key, gathering
from goodput.aggregator.accounts.new_rows import (
    Batch,
    Wanted,
    batches,
    fold,
    settled_until_ns,
    table_of,
    wanted_of,
)
from goodput.aggregator.column_attempt import ColumnAttempt
from goodput.aggregator.run_states import RunState
from goodput.slices import Slices, result_of

# Above ROWS_MAX rows of a run the folded ones are dropped, of a finished one above so many of each attempt.
ROWS_MAX, FINISHED_ROWS_MAX = 16_384, 16
# More rows are not folded together: as columns they take some 60 MB.
TOGETHER_ROWS_MAX = 1 << 18
BEHIND_NS_MAX = 60 * 10**9
_NUMBER, _ROWS, _LATE, _END, _PENDING = (
    READ_INDEX[name] for name in ("number", "rows", "late_rows", "end_ns", "pending_rows")
)


class RunIsDirty(Exception):
    """Rows came after their place was folded, or steps were lost since, and not all rows are in memory.

    `facts` is what to fold by, `late` for `begin`.
    """

    def __init__(self, facts: Facts, late: int):
        super().__init__("not all rows are in memory")
        self.facts, self.late = facts, late


class IncrementalAccount:
    """The folded part of a run, and its account at any later moment."""

    def __init__(self, run: Run, *, stall_seconds: float, stale_seconds: float | None):
        self.run = run
        self._stall_seconds, self._stale_seconds = stall_seconds, stale_seconds
        self._engine: CoreEngine | None = None
        self._late = 0  # late rows of the attempts when the fold began
        # Rows that were late for their group also in a fold of all rows, those after the account's end too.
        self._late_steps, self._late_at_end = 0, None
        self._going = 0
        self._is_computing = False
        self._behind_since_ns: int | None = None
        self.last: Account | None = None

    def account(self, now_ns: int) -> Account:
        """The account at `now_ns`; see account.compute with `known_only`. Raises RunIsDirty."""
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
            if self._engine is not None:
                self._engine.facts = self._engine.facts.without_attempts()
        return self.last

    def _computing(self, now_ns: int) -> Slices[Account]:
        facts = yield from self._facts(now_ns)
        if self._engine is not None and self._late == self._rows_late():
            engine = yield from self._folded(self._engine, facts)
            if engine is not None:
                return (yield from finishing(engine))
            self._engine = None
        elif self._engine is None and self.last is None and not self._trimmed():
            return (yield from finishing((yield from self._restart(facts, now_ns))))
        if self.last is not None and self._behind(self.last, facts, now_ns):
            return self.last
        if self._trimmed():
            raise RunIsDirty(facts, self._rows_late())
        return (yield from finishing((yield from self._restart(facts, now_ns))))

    def _facts(self, now_ns: int) -> Slices[Facts]:
        return (yield from gathering(self.run, now_ns, 0, self._stale_seconds, True))

    def _restart(self, facts: Facts, now_ns: int) -> Slices[CoreEngine]:
        """Fold again from the rows in memory, which are all; returns a copy as `_folded` does."""
        while True:
            # A row that comes late while they are taken is noticed by the next account.
            new = CoreEngine(self.run, facts, self._stall_seconds)
            self.begin(new, late=self._rows_late())
            engine = yield from self._folded(new, facts, is_new=True)
            if engine is not None:
                return engine
            # The first rows of an attempt came meanwhile.
            facts = yield from self._facts(now_ns)

    def _folded(self, engine: CoreEngine, facts: Facts, is_new: bool = False) -> Slices[CoreEngine | None]:
        """A copy of the engine with all rows that the facts know of, also those whose result may still change.

        None where folded rows would differ, now that these are known. `is_new` is an engine without rows.
        """
        if not (yield from engine.following(facts)):
            return None
        self._going = sum(bound.running for bound in facts.bounds.values())
        yield
        wanted = wanted_of(engine)
        while wanted is not None and _count(wanted) > TOGETHER_ROWS_MAX:
            # As columns all of them would take six times as much memory as they do as blocks.
            some = list({one[0][0]: one for one in reversed(wanted)}.values())
            yield from _folding(engine, some, TOGETHER_ROWS_MAX // (2 * len(some)) + 1)
            before, wanted = _count(wanted), wanted_of(engine)
            if wanted is None or _count(wanted) == before:
                break
        if wanted is None:
            return None
        rest = yield from _folding(engine, wanted)
        table = table_of(engine)
        late = int(table[:, _LATE].sum())
        if is_new:
            self._late_steps = late
        if late > self._late_steps:
            return None
        self._let_go(engine, facts, table, {key for batch in rest for key in batch.keys})
        self._trim(engine, facts, table)
        yield
        engine = engine.copy()
        yield
        for batch in rest:
            fold(engine, batch)
            yield
        late = int(table_of(engine)[:, _LATE].sum()) if rest else late
        if self._late_at_end is None:
            self._late_at_end = late
        return None if late > max(self._late_at_end, self._late_steps) else engine

    def _let_go(self, engine: CoreEngine, facts: Facts, table: np.ndarray, waiting: set[Key]) -> None:
        """Let groups whose rows wait go on without the attempts that are over, of which all rows are folded, or are silent.

        Of others late rows may follow as if they had come in time.
        """
        numbers, pending = table[:, _NUMBER].tolist(), table[:, _PENDING].tolist()
        places, attempts = engine.places.items(), self.run.attempts
        held = {engine.group_name(attempts[key]) for key, at in places if pending[at]}
        for own in facts.by_rank.values() if held else ():
            for one in own:
                key = one.rank, one.attempt
                if key not in engine.places or key in engine.ended or key in waiting:
                    continue
                if engine.group_name(one) not in held:
                    continue
                is_over = one is not own[-1] or one.known_end_ns() is not None
                if one.top_number <= numbers[engine.places[key]] and (is_over or facts.bounds[key].running):
                    engine.leave(key)

    def _trim(self, engine: CoreEngine, facts: Facts, table: np.ndarray) -> None:
        """Drop the folded rows where there are many."""
        attempts = self.run.attempts
        is_finished = facts.status == "finished"
        most = min(FINISHED_ROWS_MAX * len(attempts), ROWS_MAX) if is_finished else ROWS_MAX
        # No more are in memory, but for those that were put back.
        untrimmed = sum([attempt.top_number - attempt.trimmed for attempt in attempts.values()])
        if untrimmed > most and kept_rows(self.run) > most:
            self._drop_up_to(engine, table)

    def _drop_up_to(self, engine: CoreEngine, table: np.ndarray) -> None:
        numbers = table[:, _NUMBER].tolist()
        for key, at in engine.places.items():
            self._attempt(key).trim(numbers[at])

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
        engine: CoreEngine,
        beyond: Mapping[Key, np.ndarray] | None = None,
        late: int | None = None,
    ) -> None:
        """Continue from this engine.

        `beyond` are trimmed rows that lie beyond the bounds now and are to be folded again; `late` is the count of late
        rows when the rows were read.
        """
        engine.run, self._engine = self.run, engine
        self._late = self._rows_late() if late is None else late
        self._late_steps, self._late_at_end = int(table_of(engine)[:, _LATE].sum()), None
        for key, rows in (beyond or {}).items():
            self._attempt(key).put_back(rows)

    def begin_with(self, state: RunState, now_ns: int) -> None:
        """Continue from a state in the ledger, or with no row where its sums are not right any more. Raises StateError."""
        engine = state.engine(self.run, result_of(self._facts(now_ns)), self._stall_seconds)
        if engine is not None:
            self.begin(engine)

    def drop_rows(self) -> int:
        """Drop the folded rows; returns how many."""
        if self._engine is None or self._is_computing:
            return 0
        before = kept_rows(self.run)
        self._drop_up_to(self._engine, table_of(self._engine))
        return before - kept_rows(self.run)

    def rows(self) -> int:
        """How many rows are folded."""
        return 0 if self._engine is None else int(table_of(self._engine)[:, _ROWS].sum())

    def going(self) -> int:
        """How many attempts may go on, when the account was computed last."""
        return self._going

    def copy(self) -> tuple[CoreEngine, int] | None:
        """The folded part and its number of late rows, None while there is none that is right."""
        if self._is_computing or self._engine is None or self._late != self._rows_late():
            return None
        is_late = int(table_of(self._engine)[:, _LATE].sum()) > self._late_steps
        return None if is_late else (self._engine.copy(), self._late)

    def _attempt(self, key: Key) -> ColumnAttempt:
        attempt = self.run.attempts[key]
        assert isinstance(attempt, ColumnAttempt)
        return attempt

    def _rows_late(self) -> int:
        return sum(attempt.late_count for attempt in self.run.attempts.values())

    def _trimmed(self) -> bool:
        return any(attempt.trimmed for attempt in self.run.attempts.values())


def _count(wanted: list[Wanted]) -> int:
    """How many rows wait to be folded, about: as if none of an attempt were missing."""
    return sum([attempt.top_number - number for _, attempt, number in wanted])


def _folding(engine: CoreEngine, wanted: list[Wanted], most: int = sys.maxsize) -> Slices[list[Batch]]:
    """Fold these attempts' next rows that are settled, of each at most so many; returns those that follow."""
    rest: list[Batch] = []
    ends = (table_of(engine)[:, _END] + engine.origin_ns).tolist()
    for batch in batches(wanted, most):
        latest = [ends[engine.places[key]] for key in batch.keys]
        inside, beyond = batch.split(
            batch.within([settled_until_ns(engine.facts, key) for key in batch.keys], latest)
        )
        fold(engine, inside)
        rest += [beyond] if beyond.keys else []
        yield
    return rest


def kept_rows(run: Run) -> int:
    """How many rows of a run are in memory."""
    columns = [one for one in run.attempts.values() if isinstance(one, ColumnAttempt)]
    return sum([one.kept_rows() for one in columns])
