"""Steps of many attempts, collected and folded as NumPy columns into the same account as `Walk` makes one by one.

Nearly all steps are ordinary: later than the one before, with phases that fill no more than their time. Their time by
state is computed for all attempts at once. Every other step goes through its attempt's Walk at its place. A step costs
some 2 us, memory is bounded by LINES_AT_ONCE.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise

import numpy as np

from goodput.account.account import Engine
from goodput.account.fold import UNATTRIBUTED, Fold
from goodput.account.resume import KEEP_ALL
from goodput.account.states import INDEX, PLANNED, STATES
from goodput.columns.engine import ColumnEngine
from goodput.columns.fold import fold_columns
from goodput.runlog.lines import TIME_NS_MAX, Line
from goodput.runlog.scan_results import Problems
from goodput.runlog.walk import ROUNDING_NS, Gap, Walk, phases_of
from goodput.wire.step_blocks import DEVICE, END, NUMBER, SAMPLES, STEP, TOTALS

__all__ = ["ColumnEngine", "StepBatches"]

LINES_AT_ONCE = 2048
# With these, no sum over the steps of a batch can leave int64.
_SAMPLES_MAX = 1 << 40
_GAP_NS_MAX = TIME_NS_MAX // 2
_NAMES_MAX = 256
_PLANNED = [INDEX[state] for state in PLANNED]


# A step that waits for its batch: its place in the order of reading, line number, line, and the phases before it.
_Waiting = tuple[int, int, Line, Gap | None]


class StepBatches:
    """Takes the steps and phases of all attempts as `Walk.take` does; `flush` folds what was taken."""

    def __init__(self, walks: Iterable[Walk], problems: Problems, take_steps=None):
        """`take_steps` (replay.TakesSteps) gets the steps too."""
        self._problems, self._take_steps = problems, take_steps
        self._waiting: dict[Walk, list[_Waiting]] = {}
        self._ranks: set[tuple[Engine, int]] = set()  # of the attempts that wait
        self._place = 0
        self._notes: list[tuple[int, int, str]] = []
        for walk in walks:
            walk.note = self._note

    def take(self, walk: Walk, number: int, line: Line) -> None:
        self._place += 1
        if line.kind == "phase" or not isinstance(walk.engine, ColumnEngine):
            walk.take(number, line)
        else:
            own = self._waiting.get(walk)
            if own is None:
                own = self._begin(walk)
            gap = walk.take_gap() if walk.has_gap() else None
            own.append((self._place, number, line, gap))
        if self._place >= LINES_AT_ONCE:
            self.flush()

    def _begin(self, walk: Walk) -> list[_Waiting]:
        """Begin a walk. A second attempt of a rank is walked after the first one, which sets limits for it."""
        rank = (walk.engine, walk.key[0])
        if rank in self._ranks:
            self.flush()
            self._place = 1
        self._ranks.add(rank)
        return self._waiting.setdefault(walk, [])

    def flush(self) -> None:
        """Fold all steps that wait, and record the problems of all lines in the order of reading."""
        alike: dict[tuple, list[Walk]] = {}
        for walk in self._waiting:
            states = tuple(sorted(walk.track.attempt.phase_states.items()))
            alike.setdefault((walk.engine, states), []).append(walk)
        for (engine, _), walks in alike.items():
            self._fold(engine, walks)
        for _, number, text in sorted(self._notes, key=lambda note: note[0]):
            self._problems.note(number, text)
        self._waiting, self._ranks, self._notes, self._place = {}, set(), [], 0

    def _note(self, number: int, text: str) -> None:
        self._notes.append((self._place, number, text))

    def _fold(self, engine: Engine, walks: list[Walk]) -> None:
        """Fold the steps of attempts whose phases map to the same states."""
        # What follows the last step stays apart.
        gaps = [walk.take_gap() for walk in walks]
        waiting = [self._waiting[walk] for walk in walks]
        batch = _Batch(walks, waiting) if _is_bounded(waiting) else None
        if batch is None:
            for walk, own in zip(walks, waiting, strict=True):
                for one in own:
                    self._take_at_place(walk, one)
        else:
            self._take_others(batch)
            batch.add_phases()
            fold_columns(engine, batch.columns())
            if self._take_steps is not None:
                for walk, part in zip(batch.walks, batch.steps(), strict=True):
                    self._take_steps.add_columns(engine.run.name, walk.track.attempt, *part)
        for walk, gap in zip(walks, gaps, strict=True):
            walk.add_gap(gap)

    def _take_at_place(self, walk: Walk, one: _Waiting) -> None:
        self._place, number, line, gap = one
        walk.add_gap(gap)
        walk.take(number, line)

    def _take_others(self, batch: _Batch) -> None:
        """Pass the steps that are not ordinary through their walks, each after the steps before it."""
        for walk, own, (low, high) in zip(batch.walks, batch.waiting, pairwise(batch.begins), strict=True):
            is_ordinary = batch.is_ordinary[low:high].tolist()
            for at, one in enumerate(own):
                if is_ordinary[at]:
                    continue
                line = one[2]
                if at and is_ordinary[at - 1]:
                    before = own[at - 1][2]
                    walk.end_ns, walk.last_step = before.time_ns, before.step_number
                emitted: list[tuple] = []
                emit, walk.emit = walk.emit, lambda _, *step, to=emitted: to.append(step)
                self._take_at_place(walk, one)
                walk.emit = emit
                batch.put(low + at, line, emitted)
                # The next step is ordinary only after one that ends where its line says.
                follows = (walk.end_ns, walk.last_step) == (line.time_ns, line.step_number)
                if at + 1 < len(own) and (not emitted or not follows or walk.has_gap()):
                    is_ordinary[at + 1] = False
            if is_ordinary[-1]:
                last = own[-1][2]
                walk.end_ns, walk.last_step = last.time_ns, last.step_number


def _is_bounded(waiting: list[list[_Waiting]]) -> bool:
    """Whether no sum can leave int64, and phases are few enough for a column each."""
    names: set[str] = set()
    for own in waiting:
        for _, _, line, gap in own:
            if line.samples > _SAMPLES_MAX or (gap is not None and gap.ns > _GAP_NS_MAX):
                return False
            if line.phases:
                names.update(line.phases)
    return len(names) <= _NAMES_MAX


class _Batch:
    """Steps of several attempts as arrays by step; `begins` has the first of each attempt and, last, their number."""

    def __init__(self, walks: list[Walk], waiting: list[list[_Waiting]]):
        self.walks, self.waiting = walks, waiting
        self.begins = [0, *accumulate(map(len, waiting))]
        lines = [line for own in waiting for _, _, line, _ in own]

        def column(values: Iterable[int]) -> np.ndarray:
            return np.fromiter(values, np.int64, len(lines))

        self.end = column(line.time_ns for line in lines)
        self.step = column(line.step_number for line in lines)
        self.count = column(line.count for line in lines)
        self.samples = column(line.samples for line in lines)
        self.device = column(line.device_ns for line in lines)
        length = column(line.seconds_ns for line in lines)
        before_ns = self._before(self.end, [walk.end_ns for walk in walks])
        before_step = self._before(self.step, [walk.last_step for walk in walks])
        self.is_ordinary = (self.end > before_ns) & (self.step > before_step)
        self.is_ordinary &= self.device <= length + ROUNDING_NS
        self.is_kept = np.ones(len(lines), bool)
        # Which agree with the step's time.
        self.has_phases = np.fromiter((not line.cut for line in lines), bool, len(lines))
        self.phases: dict[str, np.ndarray] = {}
        self.inside = np.zeros((len(STATES), len(lines)), np.int64)
        self.gap = np.zeros_like(self.inside)
        self._charge_phases([line.phases or {} for line in lines], length)
        self._fit_time(length, self.end - before_ns)

    def _before(self, values: np.ndarray, first: list[int]) -> np.ndarray:
        """The value of the step before each."""
        found = np.empty_like(values)
        found[1:] = values[:-1]
        found[self.begins[:-1]] = first
        return found

    def _charge_phases(self, phases: list[dict[str, float]], length: np.ndarray) -> None:
        """Time by state within each step, which sums to its length."""
        named = np.zeros_like(length)
        most = length + ROUNDING_NS
        names = dict.fromkeys(name for own in set(map(tuple, phases)) for name in own)
        for name in names:
            seconds = np.array([own.get(name, np.nan) for own in phases])
            is_there = ~np.isnan(seconds)
            with np.errstate(over="ignore"):
                exact = np.rint(np.where(is_there, seconds, 0) * 1e9)
            fits = (exact >= 0) & (exact < TIME_NS_MAX)
            ns = np.where(fits, exact, 0).astype(np.int64)
            fits &= ns <= most - named
            ns[~fits] = 0
            self.is_ordinary &= fits
            named += ns
            self._charge_phase(name, ns, is_there)
            self.phases[name] = ns
        self.inside[UNATTRIBUTED] += np.maximum(length - named, 0)
        self._shorten(np.maximum(named - length, 0))

    def _charge_phase(self, name: str, ns: np.ndarray, is_there: np.ndarray) -> None:
        """Look the phase up for each attempt that has it, as its Walk does, and charge it to its state."""
        counted = np.add.reduceat(is_there & self.is_ordinary, self.begins[:-1]).tolist()
        states = {walk.state_of(name) for walk, steps in zip(self.walks, counted, strict=True) if steps}
        for state in states:
            self.inside[state] += ns

    def _fit_time(self, length: np.ndarray, spent: np.ndarray) -> None:
        """Time by state between steps; with the steps' own it sums to the time since the step before."""
        gaps = [gap for own in self.waiting for *_, gap in own]
        rows = [row for row, gap in enumerate(gaps) if gap is not None]
        if rows:
            self.gap[:, rows] = np.array([gap.states for gap in gaps if gap is not None]).T
        gap_ns = self.gap.sum(axis=0)
        over = length + gap_ns - spent
        fits = (over <= 0) | ((gap_ns == 0) & (over <= ROUNDING_NS))
        self.is_ordinary &= fits
        self.gap[UNATTRIBUTED] += np.maximum(-over, 0)
        self._shorten(np.where(fits, np.maximum(over, 0), 0))

    def _shorten(self, over: np.ndarray) -> None:
        """Cut what was rounded up from each step's longest state."""
        rows = np.flatnonzero(over)
        if len(rows):
            longest = self.inside[:, rows].argmax(axis=0)
            self.is_ordinary[rows] &= over[rows] <= self.inside[longest, rows]
            self.inside[longest, rows] -= over[rows]

    def put(self, row: int, line: Line, emitted: list[tuple]) -> None:
        """What a Walk made of a step: nothing of a duplicate."""
        self.is_kept[row] = bool(emitted)
        for step, count, end_ns, gap, inside, samples, device_ns in emitted:
            self.step[row], self.count[row], self.end[row] = step, count, end_ns
            self.samples[row], self.device[row] = samples, device_ns
            self.gap[:, row], self.inside[:, row] = gap, inside
            named = phases_of(line, inside)
            self.has_phases[row] = named is not None
            for phase, ns in (named or {}).items():
                self.phases[phase][row] = ns

    def add_phases(self) -> None:
        """Add to each walk the time in phases of the steps that count, see Fold.is_typical; they are not folded yet."""
        length = self.inside.sum(axis=0)
        unplanned = length - self.inside[_PLANNED].sum(axis=0)
        counts = self.is_kept & self.has_phases
        named = sum(self.phases.values(), np.zeros_like(length))
        phases = [*self.phases.items(), ("none", np.maximum(length - named, 0))]
        for walk, (low, high) in zip(self.walks, pairwise(self.begins), strict=True):
            fold, bound, part = walk.fold, walk.fold.bound, slice(low, high)
            end, threshold = self.end[part], min(fold.threshold_ns, KEEP_ALL)
            chosen = counts[part] & (self.step[part] <= fold.limit) & (end <= bound.to_ns)
            chosen &= end - length[part] >= bound.from_ns
            chosen &= (self.count[part] > 1) | (unplanned[part] <= threshold)
            if not fold.steps:
                chosen[np.flatnonzero(self.is_kept[part])[:1]] = False
            walk.phase_steps += int(self.count[part][chosen].sum())
            for phase, ns in phases:
                if total := int(ns[part][chosen].sum()):
                    walk.phase_sums[phase] += total

    def steps(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each attempt: indices, counts, and ns by state since the step before."""
        for low, high in pairwise(self.begins):
            rows = low + np.flatnonzero(self.is_kept[low:high])
            yield self.step[rows], self.count[rows], self.inside[:, rows] + self.gap[:, rows]

    def columns(self) -> dict[tuple[int, int], np.ndarray]:
        """The steps as rows of cumulative totals by state, which each attempt's fold begins anew."""
        states = np.flatnonzero(self.inside.any(axis=1) | self.gap.any(axis=1))
        kept = np.flatnonzero(self.is_kept)
        values = np.zeros((TOTALS + 2 * len(states), len(self.end) + 1), np.int64)
        # The step before the first is 0.
        own = values[:, 1:]
        own[NUMBER], own[SAMPLES] = self.count, self.samples
        own[DEVICE] = np.minimum(self.device, self.inside.sum(axis=0))
        own[TOTALS::2] = self.inside[states] + self.gap[states]
        own[TOTALS + 1 :: 2] = self.gap[states]
        own[:, ~self.is_kept] = 0
        values = np.cumsum(values, axis=1)
        found = {}
        for walk, low, high in zip(self.walks, self.begins, self.begins[1:], strict=False):
            rows = kept[np.searchsorted(kept, low) : np.searchsorted(kept, high)]
            part = values[:, rows + 1] - values[:, low, None]
            part[STEP], part[END] = self.step[rows], self.end[rows]
            _begin_anew(walk.fold, tuple(states.tolist()))
            found[walk.key] = part
        return found


def _begin_anew(fold: Fold, states: tuple[int, ...]) -> None:
    """Count totals from 0 in columns for these states."""
    fold.to_state = states
    fold.totals = fold.outside = (0,) * len(states)
    fold.number = fold.last_samples = fold.last_device_ns = 0
