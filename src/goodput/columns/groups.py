"""Stragglers over NumPy columns: the comparison of `account.rank_groups.Groups` for all steps of all groups at once.

Sums are exact in int64. Pipelines are compared step by step, as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from goodput.account.facts import Key
from goodput.account.rank_groups import Groups
from goodput.account.slow_ranks.onset import HIT_RATIO_MIN, LOW_SPREADS_MIN, SPREADS_MIN, low_place
from goodput.columns.fold_table import UNKNOWN, FoldTable
from goodput.columns.onsets import OnsetColumns
from goodput.slices import Slices, result_of

_NEVER = 1 << 62


class Compared(NamedTuple):
    """Steps, or rows of several, each within its attempt's bound: parallel arrays of step indices and ns."""

    step: np.ndarray
    communication: np.ndarray
    own: np.ndarray
    length: np.ndarray


class Times(NamedTuple):
    """Where rows of `count` steps lie, each within its attempt's bound: parallel arrays. `attempt` is the place among keys.

    `inside` and `gap` are ns by state, within the steps and between `began` and their start.
    """

    attempt: np.ndarray
    count: np.ndarray
    began: np.ndarray
    end: np.ndarray
    inside: dict[int, np.ndarray]
    gap: dict[int, np.ndarray]


class Entries:
    """Steps of ranks that are to be compared: parallel arrays in the order of group, step, count and rank.

    `group` and `rank` are places in ColumnGroups' sorted groups and keys; `within` is the part of `communication` in the
    window. `begins` has the first entry of each step of a group and, last, the number of entries.
    """

    def __init__(self, columns: Sequence[np.ndarray]):
        self.columns = columns
        self.group, self.rank, self.step, self.count = columns[:4]
        self.communication, self.within, self.own, self.length = columns[4:]
        changes = (np.diff(self.step) != 0) | (np.diff(self.group) != 0) | (np.diff(self.count) != 0)
        edges = np.flatnonzero(changes) + 1
        self.begins = np.concatenate(([0], edges, [len(self)])) if len(self) else np.zeros(1, np.int64)
        self.sizes = np.diff(self.begins)

    def __len__(self) -> int:
        return len(self.step)

    def part(self, chosen: np.ndarray) -> Entries:
        return self if chosen.all() else Entries([column[chosen] for column in self.columns])

    def by_step(self, values: np.ndarray) -> np.ndarray:
        """One value per step of a group for each of its entries."""
        return np.repeat(values, self.sizes)

    def of_several_ranks(self) -> np.ndarray:
        """The entries of steps that are not one rank's alone, which repeated its own step."""
        return self.by_step(self.rank[self.begins[:-1]] != self.rank[self.begins[1:] - 1])


class ColumnGroups(Groups):
    """Groups that also take many steps at once. Steps are settled by `sweeping`, `sweep` and `flushing` alone."""

    folds: FoldTable  # type: ignore[assignment]
    onsets: OnsetColumns  # type: ignore[assignment]

    def __init__(self, folds):
        self._columns: list[tuple[np.ndarray, Compared]] = []  # by entry the row of its attempt in the table
        # Rows of several steps, and steps that the bound cuts: the same, how many steps each has, and which part of its
        # communication lies within the bound.
        self._several: list[tuple[np.ndarray, np.ndarray, np.ndarray, Compared]] = []
        self._passed_at = np.zeros(0, np.int64)  # by row of the table the last step that was added, or -1
        self._single: list[tuple] = []  # (key, step, count, *compared)
        self._swept = np.zeros(0, np.int64)  # by group, the first step that was not passed at the last sweep
        super().__init__(folds)
        self.onsets = OnsetColumns(self.folds.places)

    def find_members(self) -> None:
        before = self._group
        super().find_members()
        if self._group != before or not before:
            self._number_members()

    def _number_members(self) -> None:
        """Number groups and keys, by which entries are sorted, and find them by the table's rows."""
        self._groups = sorted(self.members)
        self._place = {group: at for at, group in enumerate(self._groups)}
        self._keys = sorted(key for members in self.members.values() for key in members)
        self._rank = {key: at for at, key in enumerate(self._keys)}
        self._row = self.folds.rows(self._keys)  # of each rank
        self._rank_of, self._group_of = np.full((2, self.folds.used), -1, np.int64)
        self._rank_of[self._row] = np.arange(len(self._keys))
        self._group_of[self._row] = [self._place[self._group[key]] for key in self._keys]
        self._row_of_members = [self.folds.rows(self.members[group]) for group in self._groups]
        self._sizes = np.array(list(map(len, self._row_of_members)), np.int64)
        self._swept = np.zeros(0, np.int64)

    def count(self) -> int:
        """The number of groups."""
        return len(self._groups)

    def rows_of_members(self) -> np.ndarray:
        """The rows of the table that are in a group."""
        return self._row

    def places(self, at: np.ndarray) -> np.ndarray:
        """The places of the groups that these rows of the table are in."""
        return self._group_of[at]

    def _attempts(self):
        table = self.folds
        return zip(table.places, table.objects["attempt"], table.steps.tolist(), strict=False)

    def copy(self, folds: FoldTable) -> ColumnGroups:
        """An independent copy, over a copy of the folds."""
        other = copy(self)
        other.folds, other.onsets, other._passed_at = folds, self.onsets.copy(), self._passed_at.copy()
        for name in ("settled", "stage_caused_ns", "stage_last_steps"):
            setattr(other, name, dict(getattr(self, name)))
        for name in ("_columns", "_several", "_single"):
            setattr(other, name, list(getattr(self, name)))
        return other

    def add_columns(
        self,
        at: np.ndarray,
        tops: np.ndarray,
        begins: np.ndarray,
        chosen: np.ndarray,
        counts: np.ndarray,
        within: np.ndarray,
        compared: Compared,
    ) -> None:
        """Add the chosen rows of the attempts in these rows of the table, in order.

        `begins` has each one's first and, last, their number, `counts` the steps of each row, `within` the part of its
        communication within the bound, `tops` the attempts' highest steps before these.
        """
        group, steps, firsts = self._group_of[at], compared.step, begins[:-1]
        alone = self._sizes[group] < 2
        settled = np.array([self.settled.get(self._groups[one], -1) for one in group.tolist()], np.int64)
        settled[alone] = -1
        early = chosen & (steps <= np.repeat(settled, np.diff(begins)))
        if early.any():
            for low, high, top in zip(firsts, begins[1:], tops, strict=True):
                step = steps[low:high]
                tops_now = np.maximum.accumulate(np.maximum(step, top))
                self.has_late |= bool((early[low:high] & (step == tops_now)).any())
        last = np.maximum.reduceat(np.where(chosen, np.arange(len(steps)), -1), firsts)
        for place in np.flatnonzero(alone & (last >= 0)).tolist():
            own = slice(begins[place], begins[place + 1])
            self._settle_alone(int(group[place]), int(steps[own][chosen[own]].max()))
        others = ~alone & (last >= 0)
        self._note_rows_passed(at[others], steps[last[others]])
        chosen = chosen & np.repeat(~alone, np.diff(begins))
        rows = np.repeat(at, np.diff(begins))
        is_whole = (counts == 1) & (within == compared.communication)
        for is_several, some in enumerate((chosen & is_whole, chosen & ~is_whole)):
            if some.any():
                own = Compared(*(one[some] for one in compared))
                if is_several:
                    self._several.append((rows[some], counts[some], within[some], own))
                else:
                    self._columns.append((rows[some], own))
        self._new += int(chosen.sum())

    def _settle_alone(self, place: int, step: int) -> None:
        """A step of a group's only rank: one that joins the group later does not take part in it."""
        group = self._groups[place]
        self.settled[group] = max(step, self.settled.get(group, -1))

    def add_firsts(self, at: np.ndarray, firsts: Compared) -> None:
        """Add the first step of each of the attempts in these rows of the table, which comes late."""
        compared = self._sizes[self._group_of[at]] > 1
        for place in np.flatnonzero(~compared).tolist():
            self._settle_alone(int(self._group_of[at[place]]), int(firsts.step[place]))
        if compared.any():
            self._columns.append((at[compared], Compared(*(one[compared] for one in firsts))))

    def _note_passed(self, key: Key, step: int) -> None:
        self._note_rows_passed(self.folds.rows([key]), np.array([step]))

    def _note_rows_passed(self, at: np.ndarray, steps: np.ndarray) -> None:
        more = self.folds.used - len(self._passed_at)
        if more > 0:
            self._passed_at = np.pad(self._passed_at, (0, more), constant_values=-1)
        self._passed_at[at] = steps

    @property
    def _passed(self) -> dict[Key, int]:
        """By attempt the last step that was added."""
        passed = self._passed_at.tolist()
        return {
            key: passed[at] for key, at in self.folds.places.items() if at < len(passed) and passed[at] >= 0
        }

    @_passed.setter
    def _passed(self, passed: dict[Key, int]) -> None:
        self._passed_at = np.zeros(0, np.int64)
        self._note_rows_passed(self.folds.rows(list(passed)), np.array(list(passed.values()), np.int64))

    def take_times(self, keys: list[Key], times: Times, compared: Compared) -> None:
        """These steps of these attempts were folded at once. For subclasses."""

    def flushing(self) -> Slices[None]:
        return self._settling(self._gathered())

    def sweeping(self) -> Slices[None]:
        """Settle what can be settled if that is due, in slices. One that is closed does the rest at once."""
        if not self._is_due():
            return
        slices = self._sweeping()
        try:
            for _ in slices:
                yield
        finally:
            result_of(slices)

    def _wait(self, group, step, count, key, compared) -> None:
        self._single.append((key, step, count, *compared))

    def _sweep_if_due(self) -> None:
        """Nothing: steps are added in bulk, those before this one perhaps not yet, and `sweeping` follows."""

    def _held_in(self, place: int, low: int, high: int) -> set[tuple[int, int]]:
        """(step, count) of the first steps from `low` to `high` that a group's folds hold back."""
        table = self.folds
        at = self._row_of_members[place]
        first = table.first_step[at]
        at = at[(table.first_length[at] != UNKNOWN) & (low <= first) & (first <= high)]
        if not len(at):
            return set()
        held = at[table.first_end_ns[at] - (table.first_length[at] != 0) >= table.from_ns[at]]
        pairs = np.unique(np.stack((table.first_step[held], table.first_count[held])), axis=1)
        return set(zip(*pairs.tolist(), strict=True))

    def _lows(self) -> np.ndarray:
        """Of each group the first step that one of its ranks has not passed, _NEVER where all have ended."""
        self._note_rows_passed(self._row[:0], self._row[:0])
        found = np.full(len(self._groups), _NEVER)
        going = self._row[~self.folds.exhausted[self._row]]
        np.minimum.at(found, self._group_of[going], self._passed_at[going])
        return found

    def _taken(self) -> set[int]:
        taken = {number for number, _ in self.settled} | {key[1] for key, *_ in self._single}
        rows = [part[0] for part in (*self._columns, *self._several)]
        if rows:
            attempts = self.folds.of("attempt", np.unique(np.concatenate(rows)))
            taken |= {attempt.attempt for attempt in attempts}
        return taken

    def sweep(self) -> None:
        """Settle what can be settled; what waits is in `_columns` and `_single` then, which are stored."""
        result_of(self._sweeping())
        if self._several:
            self._put_back(self._gathered())

    def _sweeping(self) -> Slices[None]:
        lows = self._lows()
        if np.array_equal(lows, self._swept):
            return
        entries, self._swept = self._gathered(), lows
        yield
        low = lows[entries.group]
        ready = ~self._is_held(entries) & ((entries.step < low) | (low == _NEVER))
        settled = entries.part(ready)
        last = np.append(np.flatnonzero(np.diff(settled.group)), len(settled) - 1) if len(settled) else []
        for at in last:
            self.settled[self._groups[settled.group[at]]] = int(settled.step[at])
        self._put_back(entries.part(~ready))
        self._new, self._left = 0, int((~ready).sum())
        yield from self._settling(settled)

    def _gathered(self) -> Entries:
        """All entries that wait, which then wait no more."""
        parts = []
        single = ((rows, np.ones_like(rows), own.communication, own) for rows, own in self._columns)
        for rows, counts, within, own in (*single, *self._several):
            parts.append((self._rank_of[rows], own.step, counts, own.communication, within, *own[2:]))
        if self._single:
            single = [(self._rank[key], *rest) for key, *rest in self._single]
            parts.append(tuple(np.array(single, np.int64).T))
        self._columns, self._several, self._single = [], [], []
        if not parts:
            return Entries([np.zeros(0, np.int64)] * 8)
        rank, step, count, *rest = (np.concatenate(part) for part in zip(*parts, strict=True))
        columns = [self._group_of[self._row[rank]], rank, step, count, *rest]
        order, is_repeated = _order(columns[0], step, count, rank)
        if is_repeated:
            # A rank that has repeated a step: in the order in which `Groups` compares them.
            order = np.lexsort([*rest[::-1], rank, count, step, columns[0]])
        return Entries([column[order] for column in columns])

    def _put_back(self, entries: Entries) -> None:
        if len(entries):
            own = Compared(entries.step, entries.communication, entries.own, entries.length)
            whole = (entries.count == 1) & (entries.within == entries.communication)
            self._columns.append((self._row[entries.rank[whole]], Compared(*(one[whole] for one in own))))
            rows = zip(*(column[~whole].tolist() for column in entries.columns[1:]), strict=True)
            self._single += [(self._keys[rank], *rest) for rank, *rest in rows]

    def _is_held(self, entries: Entries) -> np.ndarray:
        """Entries of steps that wait for a first step, which its fold holds back."""
        found = np.zeros(len(entries), bool)
        bounds = np.searchsorted(entries.group, np.arange(len(self._groups) + 1)).tolist()
        for place, (low, high) in enumerate(pairwise(bounds)):
            steps = entries.step[low:high]
            held = self._held_in(place, int(steps[0]), int(steps[-1])) if low < high else ()
            for step, count in held:
                found[low:high] |= (steps == step) & (entries.count[low:high] == count)
        return found

    def _settling(self, entries: Entries) -> Slices[None]:
        """Compare all steps of these entries, in slices."""
        self.onsets.take_places(self.folds.places)
        yield
        staged = np.array([number in self.pipelines for number, _ in self._groups], bool)[entries.group]
        if staged.any():
            yield from self._settling_pipelines(entries.part(staged))
            entries = entries.part(~staged)
        entries = entries.part(entries.of_several_ranks())
        if len(entries):
            self._split(entries)
            yield
            yield from self._noting(entries.part(~self._is_held(entries)))

    def _settling_pipelines(self, entries: Entries) -> Slices[None]:
        held = self._is_held(entries)[entries.begins[:-1]].tolist()
        rank, step, count, *rest = (column.tolist() for column in entries.columns[1:])
        members = list(zip([self._keys[one] for one in rank], *rest, strict=True))
        for (low, high), is_held in zip(pairwise(entries.begins.tolist()), held, strict=True):
            yield
            self._settle(step[low], count[low], members[low:high], not is_held)

    def _split(self, entries: Entries) -> None:
        """Move what is above the least communication of a step to the ranks that waited least."""
        begins = entries.begins[:-1]
        waited = entries.communication - entries.by_step(np.minimum.reduceat(entries.communication, begins))
        is_last = waited == 0
        for at in np.flatnonzero(entries.within != entries.communication).tolist():
            waited[at] = int(waited[at]) * int(entries.within[at]) // int(entries.communication[at])
        self._note_waited(entries, waited)
        total = entries.by_step(np.add.reduceat(waited, begins))
        last_ranks = entries.by_step(np.add.reduceat(is_last.astype(np.int64), begins))
        # A tie is shared; the remainder goes to the first, so the sum is exact.
        before = np.cumsum(is_last) - is_last
        place = before - entries.by_step(before[begins])
        caused = np.where(is_last, total // last_ranks + (place < total % last_ranks), 0)
        last = np.where(is_last & (last_ranks < entries.by_step(entries.sizes)), entries.count, 0)
        sums = np.zeros((5, len(self._keys)), np.int64)
        for own, values in zip(sums, (waited, caused, entries.length, entries.count, last), strict=True):
            np.add.at(own, entries.rank, values)
        at = self._row
        self.folds.straggler_ns[at] += sums[0]
        self.folds.matched_ns[at] += sums[2]
        self.folds.compared_steps[at] += sums[3]
        self.folds.last_steps[at] += sums[4]
        for name in ("caused_ns", "caused_in_group_ns"):
            self.folds.add_to(name, at, sums[1])

    def slow_keys(self) -> list[Key]:
        return self.onsets.slow_keys()

    def _note_waited(self, entries: Entries, waited: np.ndarray) -> None:
        """Called with the ns of each entry's communication that were waiting for others. For subclasses."""

    def _noting(self, entries: Entries) -> Slices[None]:
        """Note for each rank in which steps it was slow, see onset.hits."""
        if not len(entries):
            return
        order = np.argsort(entries.rank, kind="stable")
        slowest, beside, apart = _hits(entries)
        columns = (entries.rank, entries.step, slowest, beside, entries.by_step(entries.sizes), apart)
        rank, *rest = (column[order] for column in columns)
        yield
        self.onsets.note(self._row[rank], *rest)


def _order(*keys: np.ndarray) -> tuple[np.ndarray, bool]:
    """The order of entries by these keys, the first of which counts most, and whether two entries have the same."""
    # As digits of one number, where they fit, they are sorted in a third of the time.
    lows, spans = [int(key.min()) for key in keys], [int(np.ptp(key)) + 1 for key in keys]
    if prod(spans) < 1 << 62 and min(spans) > 0:
        number = keys[0] - lows[0]
        for key, low, span in zip(keys[1:], lows[1:], spans[1:], strict=True):
            number = number * span + (key - low)
        order = np.argsort(number, kind="stable")
        return order, bool((np.diff(number[order]) == 0).any())
    order = np.lexsort(keys[::-1])
    return order, bool(np.logical_and.reduce([np.diff(key[order]) == 0 for key in keys]).any())


def _hits(entries: Entries) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whether a rank was slow in a step: among the slowest few, and beside others; and how many were beside others."""
    of = np.repeat(np.arange(len(entries.sizes)), entries.sizes)
    ordered = entries.own[np.lexsort((entries.own, of))]
    begins, ends, sizes = entries.begins[:-1], entries.begins[1:], entries.sizes
    middle, fastest = ordered[begins + (sizes - 1) // 2], ordered[begins]
    least = HIT_RATIO_MIN * middle
    apart = np.maximum(least, middle + SPREADS_MIN * (middle - fastest))
    kinds, of_kind = np.unique(sizes, return_inverse=True)
    low = ordered[begins + np.array([low_place(size) for size in kinds.tolist()])[of_kind]]
    from_low = np.maximum(HIT_RATIO_MIN * low, low + LOW_SPREADS_MIN * (low - fastest))
    apart = np.where(low < middle, np.minimum(apart, from_low), apart)

    def over(level: np.ndarray, most: np.ndarray) -> np.ndarray:
        """The ranks at `level` or above; none if a tie at the border makes them more than `most`."""
        found = entries.own >= entries.by_step(level)
        usable = (middle > 0) & (np.add.reduceat(found.astype(np.int64), begins) <= most)
        return found & entries.by_step(usable)

    few, half = np.maximum(1, sizes // 8), np.maximum(1, sizes // 2)
    slowest = over(np.maximum(least, ordered[ends - few]), few)
    beside = over(np.maximum(apart, ordered[ends - half]), half)
    return slowest, beside, entries.by_step(np.add.reduceat(beside.astype(np.int64), begins))
