"""A window's account from two states of the run's fold in the ledger: their difference, and the rows beside it.

The rows from the window's start to the earlier state are folded, the sums that lie between the states are added as a
difference, and the rows after the later state follow. All sums are those of a fold of all rows, to the nanosecond; where
that cannot be seen (at the earlier state other steps wait to be compared than after the rows, or of a group some ranks
began before the window and some in it) the states are not used. What is no sum is that of the attempt since its
start: the best throughput, and in which steps a rank was slow.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from goodput.account import Run
from goodput.account.facts import Facts, Key
from goodput.account.fold import Fold
from goodput.account.stall_threshold import PlannedLimits, StepLengths
from goodput.aggregator.ledger.ledger import Ledger
from goodput.columns import snapshot
from goodput.columns.differences import add_difference
from goodput.columns.engine import ColumnEngine
from goodput.columns.groups import ColumnGroups, Entries
from goodput.columns.onsets import OnsetColumns
from goodput.columns.snapshot import FoldState, SnapshotError, decode
from goodput.slices import Slices, result_of

log = logging.getLogger("goodput.aggregator")
T = TypeVar("T")
TRIES = 3
# Folds the rows of these attempts up to the last ones of these folds.
FoldUntil = Callable[[ColumnEngine, Mapping[Key, Fold]], None]


class States:
    """The states of a run in the ledger, oldest first, with so many `rows`; each is read when it is needed, and none is
    held."""

    def __init__(self, ledger: Ledger, run: Run):
        self._ledger, self._run = ledger, run
        self.rows = ledger.segment_rows(run.name)
        self._ends: dict[int, dict[Key, int] | None] = {}

    def _read(self, at: int, decoded: Callable[[bytes], T]) -> T | None:
        """A state, None for one that cannot be used."""
        body, name = self._ledger.segment(self._run.name, self.rows[at]), self._run.name
        try:
            return None if body is None else decoded(body)
        except SnapshotError as error:
            log.warning("run %r: a segment in the ledger is not used, more rows are read: %s", name, error)
            return None

    def engine(self, at: int, facts: Facts) -> tuple[ColumnEngine, StepLengths] | None:
        """A state's engine and step lengths, None where its sums are not right under these facts."""
        state = self.state(at)
        engine = None if state is None else self._following(state, facts)
        return None if state is None or engine is None else (engine, state.lengths())

    def state(self, at: int) -> FoldState | None:
        """A state, None for one that cannot be used."""
        return self._read(at, decode)

    def follows(self, state: FoldState, facts: Facts) -> bool:
        """Whether a state's sums are right under these facts."""
        return self._following(state, facts) is not None

    def _following(self, state: FoldState, facts: Facts) -> ColumnEngine | None:
        try:
            engine = state.engine(self._run)
        except SnapshotError:
            return None
        return engine if engine.follow(facts) else None

    def count_within(self, facts: Facts) -> int:
        """How many of the states, from the oldest on, have no row that ends after these facts' bounds."""
        return self._first(lambda at: not self._is_within(at, facts), facts.end_ns)

    def count_before(self, until_ns: int) -> int:
        """How many of the states, from the oldest on, have no row that ends after this time."""
        return self._first(lambda at: max((self._ends_of(at) or {}).values(), default=0) > until_ns, until_ns)

    def first_reaching(self, facts: Facts, keys: set[Key]) -> int:
        """The first state that has rows of all these attempts that end in their bounds."""
        return self._first(lambda at: self._reaches(at, facts, keys), facts.start_ns)

    def _first(self, is_right: Callable[[int], bool], near_ns: int) -> int:
        """The first of the states for which it is right, as for all later ones; few are read that are far from a time."""
        if not self.rows:
            return 0
        start_ns = min(attempt.start_ns for attempt in self._run.attempts.values())
        last_ns = max((self._ends_of(len(self.rows) - 1) or {}).values(), default=start_ns)
        share = (near_ns - start_ns) / max(last_ns - start_ns, 1)
        return first_of(len(self.rows), is_right, bisect_left(self.rows, share * self.rows[-1]))

    def _is_within(self, at: int, facts: Facts) -> bool:
        bounds = facts.bounds
        return all(
            end_ns <= max(bounds[key].to_ns, facts.start_ns)
            for key, end_ns in (self._ends_of(at) or {}).items()
            if key in bounds
        )

    def _reaches(self, at: int, facts: Facts, keys: set[Key]) -> bool:
        ends = self._ends_of(at)
        return ends is not None and all(ends.get(key, -1) >= facts.bounds[key].from_ns for key in keys)

    def _ends_of(self, at: int) -> dict[Key, int] | None:
        """The last end of each attempt that has rows in a state."""
        if at not in self._ends:
            self._ends[at] = self._read(at, snapshot.ends)
        return self._ends[at]


def first_of(count: int, is_right: Callable[[int], bool], near: int) -> int:
    """The first of `count` places for which it is right, as for all after it; `count` where there is none.

    The farther it is from `near`, the more places are asked about: twice the logarithm of the distance.
    """
    low, high, step = -1, count, 1
    while high - low > 1:
        near = min(max(near, low + 1), high - 1)
        if is_right(near):
            high, near = near, near - step
        else:
            low, near = near, near + step
        step *= 2
        if low >= 0 and high < count:
            near = (low + high) // 2
    return high


def begun_between(
    states: States, run: Run, facts: tuple[Facts, Facts], planned: PlannedLimits, fold_until: FoldUntil
) -> ColumnEngine | None:
    """An engine of a window that has folded its rows up to a state; None where no two states serve.

    `facts` are those of the window and of the whole run.
    """
    window, whole = facts
    begun = _Window(run, window, planned)
    later = states.count_within(window) - 1
    if later < 1 or not begun.cut or not begun.is_apart():
        return None
    first = states.first_reaching(window, begun.cut)
    for earlier in range(first, min(first + TRIES, later)):
        both = states.engine(earlier, whole), states.engine(later, whole)
        if both[0] is None or both[1] is None:
            continue
        begun = _Window(run, window, planned)
        if begun.add(both[0][0], both[1][0], fold_until):
            return begun.engine
    return None


class _Window:
    """The engine of a window. `cut` are the attempts with time in it that have begun before."""

    def __init__(self, run: Run, facts: Facts, planned: PlannedLimits):
        self.engine = ColumnEngine(run, facts, planned.copy(), _WindowGroups)
        self._alive: set[Key] = set()
        self.cut: set[Key] = set()
        for key, fold in self.engine.folds.items():
            bound = fold.bound
            if bound.to_ns > bound.from_ns and fold.attempt.first_step is not None:
                self._alive.add(key)
                if not bound.first:
                    self.cut.add(key)

    def is_apart(self) -> bool:
        """Whether of each group the ranks have all begun before the window, or all in it."""
        members = self.engine.groups.members.values()
        return all(len({key in self.cut for key in own if key in self._alive}) < 2 for own in members)

    def add(self, earlier: ColumnEngine, later: ColumnEngine, fold_until: FoldUntil) -> bool:
        """Fold up to the later state; False where the sums would not be those of a fold of all rows."""
        groups = self.engine.groups
        assert isinstance(groups, _WindowGroups)
        if not self._take_whole(later):
            return False
        beside = groups.members_beside(self.cut)
        if not all(_is_same(key, earlier, later) for key in beside - self.cut):
            return False
        if _has_late(list(self.cut), earlier, later):
            return False
        groups.compare_as(earlier.groups)
        last = {key: earlier.folds[key] for key in self.cut}
        fold_until(self.engine, last)
        is_complete = all(self.engine.folds[key].number == fold.number for key, fold in last.items())
        if not is_complete or not groups.settle_as(earlier.groups, beside):
            return False
        add_difference(self.engine.folds, list(self.cut), earlier.folds, later.folds)
        groups.go_on_from(earlier.groups, later.groups, self.cut)
        return True

    def _take_whole(self, later: ColumnEngine) -> bool:
        """Take the folds of attempts that begin in the window; False where they would differ."""
        facts = self.engine.facts
        for key in self._alive - self.cut:
            fold = later.folds.get(key)
            if fold is None or not fold.steps:
                continue
            if not fold.fits(*facts.criteria(key)):
                return False
            fold.follow(*facts.criteria(key))
            self.engine.folds[key] = fold
        return all(key in later.folds for key in self.cut)


def _is_same(key: Key, earlier: ColumnEngine, later: ColumnEngine) -> bool:
    """Whether the later state has no more rows of an attempt."""
    first, last = earlier.folds.get(key), later.folds.get(key)
    return last is None or (first is not None and first.number == last.number)


def _has_late(keys: list[Key], earlier: ColumnEngine, later: ColumnEngine) -> bool:
    """Whether the later state has steps of a rank that was given up on in the earlier one, where its group's steps of the same
    index were compared without it. In the later one they are compared with it, also those that lie before the window."""
    first, last, groups = earlier.folds.rows(keys), later.folds.rows(keys), earlier.groups
    settled = np.array([groups.settled.get(groups.group_of(key), -1) for key in keys], np.int64)
    has_more = later.folds.number[last] > earlier.folds.number[first]
    return bool((has_more & (earlier.folds.top_step[first] < settled)).any())


class _WindowGroups(ColumnGroups):
    """Groups whose steps are compared up to those that were compared in a state, then as in that state."""

    _is_noting, _until = True, None

    def compare_as(self, state) -> None:
        """Compare only steps that were compared in this state, until `settle_as`."""
        self._until, self._is_noting, self._firsts = self._settled(state), False, {}

    def _lows(self) -> np.ndarray:
        lows = super()._lows()
        return lows if self._until is None else np.minimum(lows, self._until + 1)

    def _settling(self, entries: Entries) -> Slices[None]:
        self._note_firsts(entries)
        yield from super()._settling(entries)

    def _note_firsts(self, entries: Entries) -> None:
        """Note the first step of each group that lies in the window."""
        for at in (
            np.flatnonzero(np.diff(entries.group, prepend=-1)).tolist() if self._until is not None else ()
        ):
            group, step = self._groups[entries.group[at]], int(entries.step[at])
            self._firsts[group] = min(step, self._firsts.get(group, step))

    def members_beside(self, keys: set[Key]) -> set[Key]:
        """All attempts that are compared with one of these, also those that have no time in the window."""
        return {one for members in self.members.values() if keys.intersection(members) for one in members}

    def settle_as(self, state, keys: set[Key]) -> bool:
        """Compare the steps that were compared in a state; False unless those that are left wait in it.

        `keys` are the attempts whose steps may wait in both. One without time in the window has none here: where its
        steps wait in the state, those of others are compared with them later, but not in the window.
        """
        mine, settled = self._gathered(), self._settled(state)
        is_left = mine.step > settled[mine.group]
        theirs = self._translated(state, keys)
        theirs = theirs.part(theirs.step > settled[theirs.group])
        left, is_held = mine.part(is_left), self._is_held(mine)
        self._note_firsts(mine)
        if len(left) != len(theirs) or not all(map(np.array_equal, left.columns, theirs.columns)):
            return False
        self._held_entries = mine.part(~is_left & is_held)
        result_of(self._settling(mine.part(~is_left & ~is_held)))
        self._until, self._is_noting = None, True
        return True

    def _noting(self, entries: Entries) -> Slices[None]:
        """Not before the later state, which has noted all before it."""
        if self._is_noting:
            yield from super()._noting(entries)

    def go_on_from(self, earlier, later, cut: set[Key]) -> None:
        """Take over what waits in the later state, and what was compared between both."""
        for name in ("stage_caused_ns", "stage_last_steps"):
            own, before = getattr(self, name), getattr(earlier, name)
            for stage, number in getattr(later, name).items():
                own[stage] = own.get(stage, 0) + number - before.get(stage, 0)
        entries = self._translated(later, later.folds.keys())
        groups = {self._place[self.group_of(key)] for key in cut}
        # Those that wait for a first step: those of them that lie in the window are held already.
        is_old = np.isin(entries.group, list(groups)) & (entries.step <= self._settled(later)[entries.group])
        self._columns, self._several, self._single = [], [], []
        self._put_back(self._held_entries)
        self._put_back(entries.part(~is_old))
        self.settled, self._passed = dict(later.settled), dict(later._passed)
        onsets = {key: self._since(key, onset) for key, onset in later.onsets.items()}
        self.onsets = OnsetColumns(self.folds.places, onsets)
        self._new, self._left = len(entries), 0

    def _since(self, key: Key, onset):
        """Without stretches that ended before the first step that lies in the window."""
        first = self._firsts.get(self._group.get(key), 0)
        onset.stretches = [one for one in onset.stretches if one.last is None or one.last >= first]
        return onset

    def _settled(self, state) -> np.ndarray:
        return np.array([state.settled.get(group, -1) for group in self._groups], np.int64)

    def _translated(self, state, keys) -> Entries:
        """What waits in a state, of these attempts, in the order of `_gathered`."""
        entries, place = state._gathered(), [self._rank.get(key, -1) for key in state._keys]
        rank = np.array([*place, -1], np.int64)[entries.rank]
        chosen = np.isin(rank, [self._rank[key] for key in keys if key in self._rank])
        groups = np.array([self._place[self.group_of(key)] for key in self._keys], np.int64)
        columns = [column[chosen] for column in entries.columns]
        columns[0], columns[1] = groups[rank[chosen]], rank[chosen]
        order = np.lexsort([*columns[4:][::-1], columns[1], columns[3], columns[2], columns[0]])
        return Entries([column[order] for column in columns])
