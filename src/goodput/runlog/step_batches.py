"""Steps of many attempts, collected and folded as NumPy columns into the same account as `Walk` makes one by one.

Nearly all steps are ordinary: later than the one before, with phases that fill no more than their time. Their time by
state is computed for all attempts at once. Every other step goes through its attempt's Walk at its place. Memory is
bounded by LINES_AT_ONCE, and by the lines of a block where they are decoded as columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise

import numpy as np

from goodput.account.account import Engine
from goodput.account.fold import Fold
from goodput.account.resume import KEEP_ALL
from goodput.account.states import INDEX, PLANNED, STATES, UNATTRIBUTED
from goodput.columns.engine import ColumnEngine
from goodput.columns.fold import fold_columns
from goodput.runlog.column_scan import BlockAttempts, attempts_of
from goodput.runlog.line_columns import LineColumns, StepLine, columns_of
from goodput.runlog.lines import TIME_NS_MAX, Line
from goodput.runlog.scan import Scan
from goodput.runlog.scan_results import AttemptTrack
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

    def __init__(self, walks: Mapping[AttemptTrack, Walk], scan: Scan, take_steps=None):
        """`take_steps` (replay.TakesSteps) gets the steps too."""
        self._walks, self._scan, self._take_steps = walks, scan, take_steps
        self._waiting: dict[Walk, list[_Waiting]] = {}
        self._ranks: set[tuple[Engine, int]] = set()  # of the attempts that wait
        self._place = 0
        self._notes: list[tuple[int, int, str]] = []
        for walk in walks.values():
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

    def take_block(self, number: int, block: bytes) -> bool:
        """Take the lines of a block at once; False, and nothing is taken, if they have to be taken one by one."""
        lines = columns_of(number, block)
        found = None if lines is None else attempts_of(self._scan, lines)
        if lines is None or found is None or not self._are_plain(lines, found):
            return False
        self.flush()
        self._scan.last_run = found.last_run.run.name
        walks = [self._walks[track] for _, track in found.tracks]
        alike: dict[tuple, list[int]] = {}
        for number, walk in enumerate(walks):
            states = tuple(sorted(walk.track.attempt.phase_states.items()))
            alike.setdefault((walk.engine, states), []).append(number)
        for (engine, _), numbers in alike.items():
            if len(alike) == 1:
                own, rows = found.attempt, np.arange(len(lines.lines))
            else:
                place = np.full(len(walks), -1)
                place[numbers] = np.arange(len(numbers))
                rows = np.flatnonzero(place[found.attempt] >= 0)
                own = place[found.attempt[rows]]
            self._fold_rows(engine, [walks[number] for number in numbers], lines, rows, own)
        self._end_batch()
        return True

    def _are_plain(self, lines: LineColumns, found: BlockAttempts) -> bool:
        """Whether each attempt's steps can be taken in the order of their lines, and those of one after another's."""
        dropped = self._scan.problems.dropped
        if dropped and not dropped.isdisjoint(range(lines.number, lines.number + len(lines.lines))):
            return False
        walks = [self._walks[track] for _, track in found.tracks]
        if not all(isinstance(walk.engine, ColumnEngine) and not walk.track.disorder_ns for walk in walks):
            return False
        # Of a rank one attempt after the other, see _begin.
        if len({(walk.engine, walk.key[0]) for walk in walks}) < len(walks):
            return False
        gaps_ns = lines.length[lines.phase_rows].sum(dtype=float) + max(walk.gap_ns for walk in walks)
        return gaps_ns <= _GAP_NS_MAX and _are_bounded([lines.lines[row] for row in lines.step_rows.tolist()])

    def _fold_rows(
        self, engine: Engine, walks: list[Walk], lines: LineColumns, rows: np.ndarray, attempt: np.ndarray
    ) -> None:
        """Fold the steps in these rows, of attempts whose phases map to the same states."""
        order = np.argsort(attempt, kind="stable")
        rows, attempt = rows[order], attempt[order]
        is_step = np.zeros(len(lines.lines), bool)
        is_step[lines.step_rows] = True
        are_steps = is_step[rows]
        begins = np.searchsorted(attempt[are_steps], np.arange(len(walks) + 1)).tolist()
        gaps = _take_phases(walks, lines, rows, attempt, are_steps, begins)
        own = [number for number, (low, high) in enumerate(pairwise(begins)) if low < high]
        if own:
            step_rows = rows[are_steps]
            steps = _Steps.of_columns(lines, step_rows, gaps)
            self._fold(engine, _Batch([walks[one] for one in own], [begins[one] for one in own], steps))

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
            self._fold_waiting(engine, walks)
        self._end_batch()

    def _end_batch(self) -> None:
        for _, number, text in sorted(self._notes, key=lambda note: note[0]):
            self._scan.problems.note(number, text)
        self._waiting, self._ranks, self._notes, self._place = {}, set(), [], 0

    def _note(self, number: int, text: str) -> None:
        self._notes.append((self._place, number, text))

    def _fold_waiting(self, engine: Engine, walks: list[Walk]) -> None:
        """Fold the steps of attempts whose phases map to the same states."""
        waiting = [self._waiting[walk] for walk in walks]
        every = [one for own in waiting for one in own]
        is_bounded = all(gap is None or gap.ns <= _GAP_NS_MAX for *_, gap in every)
        if is_bounded and _are_bounded([line for _, _, line, _ in every]):
            begins = [0, *accumulate(map(len, waiting))][:-1]
            return self._fold(engine, _Batch(walks, begins, _Steps.of_waiting(every)))
        # What follows the last step stays apart.
        tails = [walk.take_gap() for walk in walks]
        for walk, own, tail in zip(walks, waiting, tails, strict=True):
            for one in own:
                self._take_at_place(walk, one)
            walk.add_gap(tail)

    def _fold(self, engine: Engine, batch: _Batch) -> None:
        tails = [walk.take_gap() for walk in batch.walks]
        self._take_others(batch)
        batch.add_phases()
        fold_columns(engine, batch.columns())
        if self._take_steps is not None:
            for walk, part in zip(batch.walks, batch.by_attempt(), strict=True):
                self._take_steps.add_columns(engine.run.name, walk.track.attempt, *part)
        for walk, tail in zip(batch.walks, tails, strict=True):
            walk.add_gap(tail)

    def _take_at_place(self, walk: Walk, one: _Waiting) -> None:
        self._place, number, line, gap = one
        walk.add_gap(gap)
        walk.take(number, line)

    def _take_others(self, batch: _Batch) -> None:
        """Pass the steps that are not ordinary through their walks, each after the steps before it."""
        is_ordinary = batch.is_ordinary.tolist()
        ends, numbers = batch.steps.end, batch.steps.step
        for walk, (low, high) in zip(batch.walks, pairwise(batch.begins), strict=True):
            for row in range(low, high):
                if is_ordinary[row]:
                    continue
                if row > low and is_ordinary[row - 1]:
                    walk.end_ns, walk.last_step = int(ends[row - 1]), int(numbers[row - 1])
                emitted: list[tuple] = []
                emit, walk.emit = walk.emit, lambda _, *step, to=emitted: to.append(step)
                one = batch.steps.waiting(row)
                self._take_at_place(walk, one)
                walk.emit = emit
                line = one[2]
                batch.put(row, line, emitted)
                # The next step is ordinary only after one that ends where its line says.
                follows = (walk.end_ns, walk.last_step) == (line.time_ns, line.step_number)
                if row + 1 < high and (not emitted or not follows or walk.has_gap()):
                    is_ordinary[row + 1] = False
            if is_ordinary[high - 1]:
                walk.end_ns, walk.last_step = int(ends[high - 1]), int(numbers[high - 1])


def _are_bounded(lines: Sequence[Line | StepLine]) -> bool:
    """Whether no sum over these steps can leave int64, and their phases are few enough for a column each."""
    names = set[str]().union(*(line.phases for line in lines if line.phases))
    return len(names) <= _NAMES_MAX and all(line.samples <= _SAMPLES_MAX for line in lines)


def _take_phases(
    walks: list[Walk],
    lines: LineColumns,
    rows: np.ndarray,
    attempt: np.ndarray,
    are_steps: np.ndarray,
    begins: list[int],
) -> dict[int, Gap]:
    """Pass phases to their walks; returns those before each step. All is by attempt, each one's in the order of reading."""
    phases: dict[int, list[tuple[int, int]]] = {}  # of each attempt: the step that follows, and the row
    if lines.phase_rows:
        is_phase = np.zeros(len(lines.lines), bool)
        is_phase[lines.phase_rows] = True
        places = np.flatnonzero(is_phase[rows])
        following = (np.cumsum(are_steps) - are_steps)[places]
        for number, step, row in zip(
            attempt[places].tolist(), following.tolist(), rows[places].tolist(), strict=True
        ):
            phases.setdefault(number, []).append((step, row))
    gaps: dict[int, Gap] = {}
    for number, (walk, (low, high)) in enumerate(zip(walks, pairwise(begins), strict=True)):
        own = phases.get(number, ())
        for step, row in own:
            if step > low:
                if walk.has_gap():
                    gaps[low] = walk.take_gap()
                low = step
            walk.take_phase(int(lines.time_ns[row]), lines.lines[row].phase, int(lines.length[row]))
        if low < high and walk.has_gap():
            gaps[low] = walk.take_gap()
    return gaps


class _Steps:
    """Steps of several attempts, one attempt after the other, as arrays by step.

    `places` are their places in the order of reading, `gaps` the phases before some of them.
    """

    def __init__(self, lines: Sequence[Line | StepLine], columns: Sequence[np.ndarray], gaps: dict[int, Gap]):
        self.lines, self.gaps = lines, gaps
        self.places, self.numbers, self.end, self.step, self.length, self.device = columns
        self.count = _column([line.count for line in lines])
        self.samples = _column([line.samples for line in lines])
        self.is_cut = np.fromiter((line.cut for line in lines), bool, len(lines))

    @classmethod
    def of_columns(cls, lines: LineColumns, rows: np.ndarray, gaps: dict[int, Gap]) -> _Steps:
        """The steps in these rows of a block."""
        steps, numbers = lines.steps(rows), lines.number + rows
        return cls(steps.lines, (numbers, numbers, steps.end, steps.step, steps.length, steps.device()), gaps)

    @classmethod
    def of_waiting(cls, waiting: list[_Waiting]) -> _Steps:
        lines = [line for _, _, line, _ in waiting]
        columns = (
            _column([place for place, *_ in waiting]),
            _column([number for _, number, *_ in waiting]),
            _column([line.time_ns for line in lines]),
            _column([line.step_number for line in lines]),
            _column([line.seconds_ns for line in lines]),
            _column([line.device_ns for line in lines]),
        )
        return cls(lines, columns, {row: gap for row, (*_, gap) in enumerate(waiting) if gap is not None})

    def waiting(self, row: int) -> _Waiting:
        """A step as it is taken alone."""
        found = self.lines[row]
        if isinstance(found, StepLine):
            line = Line("step", step=found.step, count=found.count, samples=found.samples)
            line.seconds, line.phases, line.cut = found.seconds, found.phases, found.cut
            line.time_ns, line.step_number = int(self.end[row]), found.step
            line.seconds_ns, line.device_ns = int(self.length[row]), int(self.device[row])
        else:
            line = found
        return int(self.places[row]), int(self.numbers[row]), line, self.gaps.get(row)


class _Batch:
    """Steps of several attempts; `begins` has the first of each attempt and, last, their number.

    `inside` and `gap` are ns by state within each step and before it, and columns change as `put` sets.
    """

    def __init__(self, walks: list[Walk], begins: list[int], steps: _Steps):
        self.walks, self.steps, count = walks, steps, len(steps.lines)
        self.begins = [*begins, count]
        self.end, self.step = steps.end.copy(), steps.step.copy()
        self.count, self.samples, self.device = steps.count, steps.samples, steps.device.copy()
        length = steps.length
        before_ns = self._before(self.end, [walk.end_ns for walk in walks])
        before_step = self._before(self.step, [walk.last_step for walk in walks])
        self.is_ordinary = (self.end > before_ns) & (self.step > before_step)
        self.is_ordinary &= self.device <= length + ROUNDING_NS
        self.is_kept = np.ones(count, bool)
        # Which agree with the step's time.
        self.has_phases = ~steps.is_cut
        self.phases: dict[str, np.ndarray] = {}
        self.inside = np.zeros((len(STATES), count), np.int64)
        self.gap = np.zeros_like(self.inside)
        self._charge_phases([line.phases or {} for line in steps.lines], length)
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
        for name, seconds in _seconds_by_phase(phases).items():
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
        gaps = self.steps.gaps
        if gaps:
            self.gap[:, list(gaps)] = np.array([gap.states for gap in gaps.values()]).T
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

    def by_attempt(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
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


def _seconds_by_phase(phases: list[dict[str, float]]) -> dict[str, np.ndarray]:
    """The seconds of each step in each phase, NaN for a step without it."""
    patterns = set(map(tuple, phases))
    if len(patterns) == 1:
        (names,) = patterns
        seconds = np.fromiter(
            chain.from_iterable(map(dict.values, phases)), np.float64, len(names) * len(phases)
        )
        return dict(zip(names, seconds.reshape(len(phases), len(names)).T, strict=True))
    every = dict.fromkeys(chain.from_iterable(patterns))
    return {name: np.array([own.get(name, np.nan) for own in phases]) for name in every}


def _column(values: list[int]) -> np.ndarray:
    return np.fromiter(values, np.int64, len(values))


def _begin_anew(fold: Fold, states: tuple[int, ...]) -> None:
    """Count totals from 0 in columns for these states."""
    fold.to_state = states
    fold.totals = fold.outside = (0,) * len(states)
    fold.number = fold.last_samples = fold.last_device_ns = 0
