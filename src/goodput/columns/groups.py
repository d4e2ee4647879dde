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

from goodput.account.rank_groups import Groups, Key
from goodput.account.slow_ranks.onset import HIT_RATIO_MIN, SPREADS_MIN
from goodput.columns.fold_table import UNKNOWN, FoldTable
from goodput.columns.onsets import OnsetColumns
from goodput.slices import Slices, result_of


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
        self._columns: list[tuple[list[Key], np.ndarray, Compared]] = []  # keys, place among them by entry
        # Rows of several steps: keys, place among them by entry, and how many steps each has.
        self._several: list[tuple[list[Key], np.ndarray, np.ndarray, Compared]] = []
        self._single: list[tuple] = []  # (key, step, count, *compared)
        self._swept: list[int | None] = []  # by group, the first step that was not passed at the last sweep
        super().__init__(folds)
        self.onsets = OnsetColumns(self.folds.places)

    def find_members(self) -> None:
        super().find_members()
        self._groups = sorted(self.members)
        self._place = {group: at for at, group in enumerate(self._groups)}
        self._keys = sorted(key for members in self.members.values() for key in members)
        self._rank = {key: at for at, key in enumerate(self._keys)}

    def _attempts(self):
        table = self.folds
        return zip(table.places, table.objects["attempt"], table.steps.tolist(), strict=False)

    def copy(self, folds: FoldTable) -> ColumnGroups:
        """An independent copy, over a copy of the folds."""
        other = copy(self)
        other.folds = folds
        other.onsets = self.onsets.copy()
        other.settled, other._passed = dict(self.settled), dict(self._passed)
        other.stage_caused_ns = dict(self.stage_caused_ns)
        for name in ("_columns", "_several", "_single"):
            setattr(other, name, list(getattr(self, name)))
        return other

    def add_columns(
        self,
        keys: list[Key],
        tops: list[int],
        begins: np.ndarray,
        chosen: np.ndarray,
        counts: np.ndarray,
        compared: Compared,
    ) -> None:
        """Add the chosen rows of these attempts, in order; `begins` has each one's first and, last, their number.

        `counts` has the steps of each row, `tops` are the attempts' highest steps before these.
        """
        groups = [self.group_of(key) for key in keys]
        alone = [len(self.members[group]) < 2 for group in groups]
        settled = np.array(
            [-1 if one else self.settled.get(group, -1) for one, group in zip(alone, groups, strict=True)]
        )
        early = chosen & (compared.step <= np.repeat(settled, np.diff(begins)))
        if early.any():
            for low, high, top in zip(begins[:-1], begins[1:], tops, strict=True):
                step = compared.step[low:high]
                tops_now = np.maximum.accumulate(np.maximum(step, top))
                self.late |= bool((early[low:high] & (step == tops_now)).any())
        steps, place = compared.step, np.repeat(np.arange(len(keys)), np.diff(begins))
        for at, (key, group) in enumerate(zip(keys, groups, strict=True)):
            own = steps[begins[at] : begins[at + 1]][chosen[begins[at] : begins[at + 1]]]
            if not len(own):
                continue
            if alone[at]:
                self.settled[group] = max(int(own.max()), self.settled.get(group, -1))
            else:
                self._passed[key] = int(own[-1])
        chosen = chosen & ~np.array(alone)[place]
        for is_several, some in enumerate((chosen & (counts == 1), chosen & (counts > 1))):
            if some.any():
                own = Compared(*(one[some] for one in compared))
                if is_several:
                    self._several.append((keys, place[some], counts[some], own))
                else:
                    self._columns.append((keys, place[some], own))
        self._new += int(chosen.sum())

    def add_firsts(self, keys: list[Key], firsts: Compared) -> None:
        """Add the first step of each of these attempts, which comes late."""
        groups = [self.group_of(key) for key in keys]
        compared = [len(self.members[group]) > 1 for group in groups]
        for group, is_compared, step in zip(groups, compared, firsts.step.tolist(), strict=True):
            if not is_compared:
                self.settled[group] = max(step, self.settled.get(group, -1))
        place = np.flatnonzero(compared)
        if len(place):
            self._columns.append((keys, place, Compared(*(one[place] for one in firsts))))

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
        """Not yet: an attempt's steps before this one may not have been added."""

    def _held_of(self, group: tuple[int, str]) -> set[tuple[int, int]]:
        table = self.folds
        at = table.rows(self.members[group])
        length = table.first_length[at]
        from_ns = np.array([bound.from_ns for bound in table.of("bound", at)], np.int64)
        held = at[(length != UNKNOWN) & (table.first_end_ns[at] - (length != 0) >= from_ns)]
        pairs = np.unique(np.stack((table.first_step[held], table.first_count[held])), axis=1)
        return set(zip(*pairs.tolist(), strict=True))

    def _low(self, group: tuple[int, str]) -> int | None:
        members = self.members[group]
        exhausted = self.folds.exhausted[self.folds.rows(members)].tolist()
        return min(
            [self._passed.get(key, -1) for key, one in zip(members, exhausted, strict=True) if not one],
            default=None,
        )

    def _taken(self) -> set[int]:
        waiting = {number for keys, *_ in (*self._columns, *self._several) for _, number in keys}
        return {number for number, _ in self.settled} | waiting | {key[1] for key, *_ in self._single}

    def sweep(self) -> None:
        result_of(self._sweeping())

    def _sweeping(self) -> Slices[None]:
        # Where all ranks have ended nothing will come any more.
        lows = [self._low(group) for group in self._groups]
        if lows == self._swept:
            return
        entries, self._swept = self._gathered(), lows
        yield
        low = np.array([1 << 62 if one is None else one for one in lows], np.int64)
        is_over = np.array([one is None for one in lows], bool)
        ready = ~self._is_held(entries) & ((entries.step < low[entries.group]) | is_over[entries.group])
        settled = entries.part(ready)
        last = np.append(np.flatnonzero(np.diff(settled.group)), len(settled) - 1) if len(settled) else []
        for at in last:
            self.settled[self._groups[settled.group[at]]] = int(settled.step[at])
        self._put_back(entries.part(~ready))
        self._new, self._left = 0, int((~ready).sum())
        yield from self._settling(settled)

    def _gathered(self) -> Entries:
        """All entries that wait, which then wait no more."""
        parts, group_of = [], np.array([self._place[self.group_of(key)] for key in self._keys], np.int64)
        single = ((keys, place, np.ones_like(place), own) for keys, place, own in self._columns)
        for keys, place, counts, own in (*single, *self._several):
            rank = np.array([self._rank[key] for key in keys])[place]
            parts.append((rank, own.step, counts, own.communication, *own[1:]))
        if self._single:
            single = [(self._rank[key], *rest) for key, *rest in self._single]
            parts.append(tuple(np.array(single, np.int64).T))
        self._columns, self._several, self._single = [], [], []
        if not parts:
            return Entries([np.zeros(0, np.int64)] * 8)
        rank, step, count, *rest = (np.concatenate(part) for part in zip(*parts, strict=True))
        columns = [group_of[rank], rank, step, count, *rest]
        order, is_repeated = _order(columns[0], step, count, rank)
        if is_repeated:
            # A rank that has repeated a step: in the order in which `Groups` compares them.
            order = np.lexsort([*rest[::-1], rank, count, step, columns[0]])
        return Entries([column[order] for column in columns])

    def _put_back(self, entries: Entries) -> None:
        if len(entries):
            own = Compared(entries.step, entries.communication, entries.own, entries.length)
            whole = (entries.count == 1) & (entries.within == entries.communication)
            self._columns.append((self._keys, entries.rank[whole], Compared(*(one[whole] for one in own))))
            rows = zip(*(column[~whole].tolist() for column in entries.columns[1:]), strict=True)
            self._single += [(self._keys[rank], *rest) for rank, *rest in rows]

    def _is_held(self, entries: Entries) -> np.ndarray:
        """Entries of steps that wait for a first step, which its fold holds back."""
        found = np.zeros(len(entries), bool)
        bounds = np.searchsorted(entries.group, np.arange(len(self._groups) + 1)).tolist()
        for group, low, high in zip(self._groups, bounds, bounds[1:], strict=False):
            steps = entries.step[low:high]
            for step, count in self._held_of(group) if low < high else ():
                if steps[0] <= step <= steps[-1]:
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
        rank, step, _, *rest = (column.tolist() for column in entries.columns[1:])
        members = list(zip([self._keys[one] for one in rank], *rest, strict=True))
        for (low, high), is_held in zip(pairwise(entries.begins.tolist()), held, strict=True):
            yield
            self._settle(step[low], members[low:high], not is_held)

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
        sums = np.zeros((3, len(self._keys)), np.int64)
        for own, values in zip(sums, (waited, caused, entries.length), strict=True):
            np.add.at(own, entries.rank, values)
        at = self.folds.rows(self._keys)
        self.folds.straggler_ns[at] += sums[0]
        self.folds.matched_ns[at] += sums[2]
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
        columns = (entries.rank, entries.step, *_hits(entries), entries.by_step(entries.sizes))
        rank, *rest = (column[order] for column in columns)
        yield
        self.onsets.note(self.folds.rows(self._keys)[rank], *rest)


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


def _hits(entries: Entries) -> tuple[np.ndarray, np.ndarray]:
    """Whether a rank was slow in a step: among the slowest few, and beside others."""
    of = np.repeat(np.arange(len(entries.sizes)), entries.sizes)
    ordered = entries.own[np.lexsort((entries.own, of))]
    begins, ends, sizes = entries.begins[:-1], entries.begins[1:], entries.sizes
    middle, fastest = ordered[begins + (sizes - 1) // 2], ordered[begins]
    least = HIT_RATIO_MIN * middle
    apart = np.maximum(least, middle + SPREADS_MIN * (middle - fastest))

    def over(level: np.ndarray, most: np.ndarray) -> np.ndarray:
        """The ranks at `level` or above; none if a tie at the border makes them more than `most`."""
        found = entries.own >= entries.by_step(level)
        usable = (middle > 0) & (np.add.reduceat(found.astype(np.int64), begins) <= most)
        return found & entries.by_step(usable)

    few, half = np.maximum(1, sizes // 8), np.maximum(1, sizes // 2)
    slowest = over(np.maximum(least, ordered[ends - few]), few)
    return slowest, over(np.maximum(apart, ordered[ends - half]), half)
