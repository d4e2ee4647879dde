"""Rows of a run's attempts into the core, in the order in which it can take them, whatever the order of the log.

The core takes the rows of a rank attempt by attempt, and compares ranks that are at most some thousand rows apart. Rows
that are too early wait here; of a log in order of time these are none.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import sub
from typing import NamedTuple

import numpy as np

from goodput.account.by_core.engine import CoreEngine
from goodput.account.facts import Key
from goodput.account.resume import KEEP_ALL
from goodput.account.slow_ranks.slow_phase import PhaseTimes
from goodput.runlog.attempt_rows import END, STEP, Rows

# That a rank may be before the slowest of its group; the core keeps 4096.
AHEAD_ROWS = 2048
_NO_LIMIT = 1 << 62


class _Waiting(NamedTuple):
    """Rows of one attempt, and which step the slowest of its group must have reached for each."""

    values: np.ndarray
    needed: np.ndarray
    again: int  # as of Part
    is_cut: bool
    is_long: bool  # one row, which may be a stall


class CoreFolding:
    """Folds the rows of a run into its engines, which have the same attempts; `end` once an attempt has no more lines."""

    def __init__(self, engines: Sequence[CoreEngine]):
        self._engines, self.places = engines, engines[0].places
        run, facts, count = engines[0].run, engines[0].facts, len(self.places)
        self._newest = np.full(count, -1, np.int64)  # the last step of each that was folded
        self._group = np.zeros(count, np.int64)
        self._is_over = np.zeros(count, bool)
        self._before = np.full(count, -1, np.int64)  # the rank's attempt before
        self._keys: dict[int, Key] = {}
        groups: dict[tuple[int, str], int] = {}
        for own in facts.by_rank.values():
            before = -1
            for attempt in own:
                key = attempt.rank, attempt.attempt
                place = self.places.get(key)
                if place is not None and attempt.first_step is not None:
                    self._keys[place], self._before[place], before = key, before, place
                    self._newest[place] = attempt.first_step - 1
                    name = engines[0].group_name(run.attempts[key])
                    self._group[place] = groups.setdefault(name, len(groups))
        self._members = np.bincount(self._group, minlength=1)
        self._waiting: dict[int, list[_Waiting]] = {}
        self._again: dict[int, int] = {}
        self.stalls: dict[Key, set[int]] = {}  # ends of steps that stalled, or before which an attempt did
        # Of each engine, steps (at None) and ns by phase of rows that contradict themselves.
        self._left_out: list[dict[Key, Counter]] = [{} for _ in engines]
        self._slowest = self._find_slowest()

    def _find_slowest(self) -> np.ndarray:
        """Of each group with several members, the last step that none lacks."""
        slowest = np.full(len(self._members), _NO_LIMIT)
        is_lacking = ~self._is_over
        is_lacking[list(self._waiting)] = True
        is_lacking &= self._members[self._group] > 1
        np.minimum.at(slowest, self._group[is_lacking], self._newest[is_lacking])
        return slowest

    def fold(self, places: np.ndarray, rows: Rows) -> None:
        """Fold rows, whose parts are of the attempts with these places in the core."""
        counts = np.array([part.high - part.low for part in rows.parts])
        needed = rows.values[:, STEP] - AHEAD_ROWS * rows.counts
        is_long = (rows.lengths > self._engines[0].least_threshold_ns) & (rows.counts == 1)
        is_plain = not self._waiting and not self._again and not is_long.any()
        is_plain = is_plain and all(one.again == KEEP_ALL and not one.is_cut for one in rows.parts)
        if is_plain and self._are_open(places).all():
            self._slowest = self._find_slowest()
            if (needed <= np.repeat(self._slowest[self._group[places]], counts)).all():
                self._fold(places, counts, rows.values)
                return
        for place, part in zip(places.tolist(), rows.parts, strict=True):
            waiting = self._waiting.setdefault(place, [])
            for low, high in _divided(part.low, part.high, is_long):
                values, needs = rows.values[low:high].copy(), needed[low:high].copy()
                waiting.append(_Waiting(values, needs, part.again, part.is_cut, bool(is_long[low])))
        self._fold_waiting(places.tolist())

    def end(self, key: Key) -> None:
        """No more rows of this attempt will come."""
        place = self.places.get(key)
        if place is None:
            return
        self._is_over[place] = True
        self._leave(place)
        if self._waiting:
            self._fold_waiting(list(self._waiting))

    def _leave(self, place: int) -> None:
        """Let its group go on without an attempt that has ended and of which nothing waits."""
        if self._is_over[place] and place not in self._waiting:
            key = self._keys[place]
            for engine in self._engines:
                if not engine.facts.bounds[key].running:
                    engine.leave(key)

    def _are_open(self, places: np.ndarray) -> np.ndarray:
        """Of which attempts those of the rank before have ended."""
        before = self._before[places]
        return (before < 0) | self._is_over[before]

    def _fold_waiting(self, places: Iterable[int]) -> None:
        """Fold what can be of these attempts, and then of all, as long as something can."""
        has_folded = True
        while has_folded:
            slowest, has_folded = self._find_slowest(), False
            if (slowest != self._slowest).any():
                self._slowest, places = slowest, list(self._waiting)
            for place in places:
                before = int(self._before[place])
                if place in self._waiting and (
                    before < 0 or (self._is_over[before] and before not in self._waiting)
                ):
                    has_folded |= self._fold_part(place)

    def _fold_part(self, place: int) -> bool:
        """Fold rows of an attempt up to the first that is too far before others; returns whether there were some."""
        waiting, has_folded = self._waiting[place], False
        slowest = int(self._slowest[self._group[place]])
        while waiting:
            values, needed, again, *_ = waiting[0]
            early = np.flatnonzero(needed > slowest)
            count = int(early[0]) if len(early) else len(values)
            if not count and self._newest[place] <= slowest:
                count = 1  # All are as far; there is a gap in their steps.
            if not count:
                return has_folded
            if again != self._again.get(place, KEEP_ALL):
                self._set_again(place, again)
            self._fold_of(place, waiting[0]._replace(values=values[:count]))
            has_folded = True
            if count < len(values):
                waiting[0] = waiting[0]._replace(values=values[count:], needed=needed[count:])
                return has_folded
            waiting.pop(0)
        del self._waiting[place]
        self._leave(place)
        return True

    def _fold_of(self, place: int, rows: _Waiting) -> None:
        """Fold rows of one attempt."""
        engines = self._engines
        before = [engine.core.phase_times(place) for engine in engines] if rows.is_cut else []
        stalled_ns = self._stalled_ns(place) if rows.is_long else 0
        self._fold(np.array([place]), np.array([len(rows.values)]), rows.values)
        if rows.is_long and self._stalled_ns(place) > stalled_ns:
            end_ns = int(rows.values[0, END]) + engines[0].origin_ns
            self.stalls.setdefault(self._keys[place], set()).add(end_ns)
        for (steps, ns), engine, left_out in zip(before, engines, self._left_out, strict=False):
            new_steps, new_ns = engine.core.phase_times(place)
            known = left_out.setdefault(self._keys[place], Counter())
            known.update({None: new_steps - steps} | dict(enumerate(map(sub, new_ns, ns))))

    def _stalled_ns(self, place: int) -> int:
        values = self._engines[0].core.read(place)
        return values["stall"] + values["outside_stall"]

    def without_cut(self, phases: Mapping[Key, PhaseTimes]) -> dict[Key, PhaseTimes]:
        """What the phases took without steps that contradict themselves."""
        found = dict(phases)
        for sign, left_out in zip((1, -1), self._left_out, strict=False):
            for key, sums in left_out.items():
                times = found[key]
                totals = tuple(ns - sign * sums[at] for at, ns in enumerate(times.totals))
                found[key] = times._replace(steps=times.steps - sign * sums[None], totals=totals)
        return found

    def _set_again(self, place: int, again: int) -> None:
        for engine in self._engines:
            engine.core.again(place, None if again == KEEP_ALL else again)
        self._again[place] = again

    def _fold(self, places: np.ndarray, counts: np.ndarray, values: np.ndarray) -> None:
        self._newest[places] = values[np.cumsum(counts) - 1, STEP]
        blocks, rows, flat = array("i"), array("q"), array("q")
        blocks.frombytes(places.astype(np.int32).tobytes())
        rows.frombytes(counts.astype(np.int64).tobytes())
        flat.frombytes(values.tobytes())
        for engine in self._engines:
            engine.wrong += engine.core.fold_blocks(blocks, rows, flat).wrong


def _divided(low: int, high: int, is_alone: np.ndarray) -> list[tuple[int, int]]:
    """From `low` to `high`, with some rows alone."""
    alone = (low + np.flatnonzero(is_alone[low:high])).tolist()
    bounds = sorted({low, high, *alone, *(row + 1 for row in alone)})
    return list(pairwise(bounds))
