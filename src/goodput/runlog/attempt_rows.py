"""The steps and phases of attempts as rows of cumulative totals, which the core folds: see goodput._core.ROW_COLUMNS.

All attempts of a table have the same phases, so that a block of lines becomes rows at once. Duplicate steps count once, a
step whose time overlaps the step before is cut, and so are phases that take longer than their step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from goodput.account.resume import KEEP_ALL
from goodput.account.states import STATES, share
from goodput.runlog.line_columns import Lines, nanoseconds, only_names
from goodput.runlog.lines import TIME_NS_MAX
from goodput.runlog.phase_layout import NONE, Layout
from goodput.runlog.scan_results import AttemptTrack, Problems

NUMBER, STEP, END, SAMPLES, DEVICE, TOTALS = range(6)
# Times written with few digits overlap by as much as was rounded off.
ROUNDING_NS = 1_000_000
# No sum over the phases of a step leaves int64 with these, nor one over the steps of an attempt.
_PHASE_NS_MAX, _SAMPLES_MAX = TIME_NS_MAX >> 8, 1 << 40


class Part(NamedTuple):
    """Rows of one attempt. It repeats steps beyond `again` itself."""

    at: int  # of the attempt in its table
    low: int
    high: int
    again: int = KEEP_ALL
    is_cut: bool = False  # one row that contradicts itself


class Rows(NamedTuple):
    """Rows of several attempts, one attempt after the other, and of each row the time since the row before, also by phase."""

    parts: list[Part]
    values: np.ndarray
    counts: np.ndarray
    samples: np.ndarray
    lengths: np.ndarray
    spent: np.ndarray


class Last(NamedTuple):
    """Where an attempt is after its last line: ns by phase since its last step, and the phase that it was in."""

    steps: int
    step: int
    end_ns: int
    tail: list[int]
    phase: str


class AttemptTable:
    """Attempts whose phases are the same. `add` takes their lines block by block, each attempt's in the order of their ends."""

    def __init__(self, tracks: Sequence[AttemptTrack], origin_ns: int, problems: Problems):
        self.tracks, self.layout, self._problems = tracks, Layout(tracks[0].attempt), problems
        self._origin_ns, self._width = origin_ns, len(self.layout)
        self._rows = np.zeros((len(tracks), TOTALS + 2 * self._width), np.int64)  # the newest of each
        self._rows[:, STEP] = -1
        self._rows[:, END] = [track.attempt.start_ns - origin_ns for track in tracks]
        self._gap = np.zeros((len(tracks), self._width), np.int64)  # phases since the last step
        self._gap_phase: dict[int, str] = {}  # the last of them
        self._ended_phases: dict[int, tuple[int, set]] = {}  # of each the last end, and which ended then
        self._unknown: set[tuple[int, str]] = set()
        self._rewinds = {at: sorted(track.rewinds) for at, track in enumerate(tracks) if track.rewinds}

    def add(self, lines: Lines) -> Rows | None:
        """The rows of these lines, in which `attempt` has places in this table; None without steps."""
        order = np.argsort(lines.attempt, kind="stable")
        steps = _Steps(lines, order[lines.is_step[order]], self._origin_ns)
        repeated = self._repeated(steps)
        if repeated is not None:
            self._problems.repeated += int(repeated.sum())
            steps = _Steps(lines, steps.rows[~repeated], self._origin_ns)
        batch = _Batch(steps, self._rows[steps.attempt], self.layout, self._problems)
        self._add_phases(lines, order, batch)
        if not len(steps.rows):
            return None
        batch.fit()
        self._note_unknown(batch)
        return self._as_rows(batch)

    def _repeated(self, steps: _Steps) -> np.ndarray | None:
        """Which steps are no later than one before, neither in time nor in number; None if none is."""
        before = self._rows[steps.attempt]
        ends, numbers = _before(steps, steps.end, before[:, END]), _before(steps, steps.step, before[:, STEP])
        ends = np.maximum(ends, before[:, END])
        if not ((steps.end <= ends) & (steps.step <= numbers)).any():
            return None
        found, last = np.zeros(len(steps.rows), bool), dict[int, tuple[int, int]]()
        for row, (at, end, step) in enumerate(
            zip(steps.attempt.tolist(), steps.end.tolist(), steps.step.tolist(), strict=True)
        ):
            known = last.get(at) or (int(self._rows[at, END]), int(self._rows[at, STEP]))
            found[row] = end <= known[0] and step <= known[1]
            if not found[row]:
                last[at] = max(end, known[0]), step
        return found

    def _add_phases(self, lines: Lines, order: np.ndarray, batch: _Batch) -> None:
        """Add phases outside steps to the step that follows, or to what follows the last one."""
        steps = batch.steps
        firsts = np.flatnonzero(steps.is_first)
        own = steps.attempt[firsts]
        waiting, batch.gap[firsts] = self._gap[own].copy(), self._gap[own]
        if waiting.any():
            self._gap[own] = 0
        phases = order[~lines.is_step[order]]
        if self._gap_phase and len(own):
            for at in own.tolist():
                self._gap_phase.pop(at, None)
        if not len(phases):
            return
        place = np.empty(len(lines.lines), np.int64)
        place[order] = np.arange(len(order))
        following = np.searchsorted(place[steps.rows], place[phases]).tolist()
        owners = steps.attempt.tolist()
        for row, at, step in zip(phases.tolist(), lines.attempt[phases].tolist(), following, strict=True):
            phase, ns = lines.lines[row].phase, int(lines.length[row])
            if self._is_repeated(at, int(lines.time_ns[row]), phase, ns):
                self._problems.repeated += 1
                continue
            column = self.layout.column(phase)
            if not self.layout.has_state(phase):
                self._unknown.add((at, phase))
            is_followed = step < len(owners) and owners[step] == at
            into = batch.gap[step] if is_followed else self._gap[at]
            into[column] = min(into[column] + ns, _PHASE_NS_MAX)
            if not is_followed:
                self._gap_phase[at] = phase

    def _is_repeated(self, at: int, end_ns: int, phase: str, ns: int) -> bool:
        known = self._ended_phases.get(at)
        if known is None or known[0] != end_ns:
            known = self._ended_phases[at] = end_ns, set()
        is_repeated = (phase, ns) in known[1]
        known[1].add((phase, ns))
        return is_repeated

    def _note_unknown(self, batch: _Batch) -> None:
        for name in batch.names:
            if not self.layout.has_state(name):
                having = (name in (line.phases or ()) for line in batch.steps.lines)
                owners = batch.steps.attempt[np.fromiter(having, bool, len(batch.steps.rows))]
                self._unknown.update((at, name) for at in np.unique(owners).tolist())

    def note_unknown_phases(self) -> None:
        """Tell of phases that are in no state, once of each attempt."""
        for _, phase in sorted(self._unknown):
            self._problems.ignore(f"phase {phase[:40]!r} without phase_states: unattributed")

    def _as_rows(self, batch: _Batch) -> Rows:
        """Add up the differences of each attempt."""
        steps, spent = batch.steps, batch.inside + batch.gap
        values = np.empty((len(steps.rows), self._rows.shape[1]), np.int64)
        values[:, NUMBER] = steps.count
        samples = np.minimum([line.samples for line in steps.lines], _SAMPLES_MAX)
        values[:, SAMPLES] = samples
        values[:, DEVICE] = np.minimum(steps.device, batch.inside.sum(axis=1))
        values[:, TOTALS : TOTALS + self._width] = spent
        values[:, TOTALS + self._width :] = batch.gap
        firsts = np.flatnonzero(steps.is_first)
        # A first row continues the one before it; what wraps around in between is undone by the difference.
        values[firsts] += self._rows[steps.attempt[firsts]]
        np.cumsum(values, axis=0, out=values)
        bounds = [*firsts.tolist(), len(values)]
        lengths = np.diff(bounds)
        earlier = np.vstack([np.zeros_like(values[:1]), values[firsts[1:] - 1]])
        values -= np.repeat(earlier, lengths, axis=0)
        values[:, STEP], values[:, END] = steps.step, batch.end
        self._rows[steps.attempt[firsts]] = values[[last - 1 for last in bounds[1:]]]
        owners = steps.attempt[firsts].tolist()
        parts = [Part(at, low, high) for at, (low, high) in zip(owners, pairwise(bounds), strict=True)]
        if self._rewinds or batch.is_cut.any():
            parts = [part for one in parts for part in self._divided(one, batch)]
        return Rows(parts, values, steps.count, samples, batch.lengths, spent)

    def _divided(self, part: Part, batch: _Batch) -> list[Part]:
        """Rows apart that contradict themselves, and where the attempt goes back in its steps, by how far it will."""
        rows, parts = slice(part.low, part.high), list[Part]()
        began = batch.end[rows] - batch.inside[rows].sum(axis=1) + self._origin_ns
        rewinds = self._rewinds.get(part.at, [])
        for row, (began_ns, is_cut) in enumerate(
            zip(began.tolist(), batch.is_cut[rows].tolist(), strict=True), part.low
        ):
            while rewinds and began_ns >= rewinds[0][0]:
                rewinds.pop(0)
            again = min((first - 1 for _, first in rewinds), default=KEEP_ALL)
            is_same = parts and not is_cut and parts[-1][3:] == (again, False)
            parts.append(Part(part.at, parts.pop().low if is_same else row, row + 1, again, is_cut))
        return parts

    def states(self, spent: np.ndarray) -> np.ndarray:
        """ns by state (states, rows) of ns by phase (rows, phases)."""
        found = np.zeros((len(STATES), len(spent)), np.int64)
        for column, state in enumerate(self.layout.states):
            found[state] += spent[:, column]
        return found

    def last(self, at: int) -> Last:
        track, row = self.tracks[at], self._rows[at].tolist()
        tail = self._gap[at].tolist()
        if track.tail is not None:
            tail = [0] * self._width
            for phase, seconds in track.tail.items():
                tail[self.layout.column(phase)] += int(_phase_ns(np.array([max(seconds, 0)]))[0])
        phase = track.attempt.phase
        if phase in ("", "none"):
            longest = max(track.tail, key=track.tail.__getitem__) if track.tail else None
            phase = longest or self._gap_phase.get(at, "none")
        return Last(row[NUMBER], row[STEP], row[END] + self._origin_ns, tail, phase)

    def totals(self, at: int) -> list[int]:
        """ns by phase up to the last line."""
        known = self._rows[at, TOTALS : TOTALS + self._width].tolist()
        return [min(ns + more, TIME_NS_MAX - 1) for ns, more in zip(known, self.last(at).tail, strict=True)]


class _Steps:
    """Steps in these rows of a block, as arrays; ends are on the core's clock."""

    def __init__(self, lines: Lines, rows: np.ndarray, origin_ns: int):
        self.rows, self.lines = rows, [lines.lines[row] for row in rows.tolist()]
        self.numbers, self.attempt = lines.numbers[rows], lines.attempt[rows]
        self.end, self.length = lines.time_ns[rows] - origin_ns, lines.length[rows]
        self.step = np.array([line.step for line in self.lines], np.int64)
        self.count = np.array([line.count for line in self.lines], np.int64)
        self.is_first = np.ones(len(rows), bool)  # of its attempt in this block
        self.is_first[1:] = self.attempt[1:] != self.attempt[:-1]
        self.device = nanoseconds([line.device_seconds or 0.0 for line in self.lines])


def _before(steps: _Steps, values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The value of the step before each; of an attempt's first one what is known."""
    found = np.empty_like(values)
    found[1:] = values[:-1]
    found[steps.is_first] = known[steps.is_first]
    return found


class _Batch:
    """Steps with their ns by phase inside each and before it, made to fit the time since the step before."""

    def __init__(self, steps: _Steps, before: np.ndarray, layout: Layout, problems: Problems):
        """`before` has the newest row of each step's attempt."""
        self.steps, self._problems = steps, problems
        self.end = np.maximum(steps.end, before[:, END])
        self.lengths = np.maximum(
            self.end - np.maximum(_before(steps, steps.end, before[:, END]), before[:, END]), 0
        )
        self._step_before = _before(steps, steps.step, before[:, STEP])
        self.gap = np.zeros((len(steps.rows), len(layout)), np.int64)
        self.inside = np.zeros_like(self.gap)
        self.is_cut = np.array([line.cut for line in steps.lines], bool)
        self.names: set[str] = set()  # of phases in steps
        self._notes: list[tuple[int, str]] = []
        self._charge(layout)

    def _note(self, row: int, text: str) -> None:
        self._notes.append((int(self.steps.numbers[row]), text))

    def _charge(self, layout: Layout) -> None:
        """Put the phases of each step into their columns, those with the same names at a time."""
        phases = [line.phases or {} for line in self.steps.lines]
        names = only_names(phases)
        if names is not None:
            self._charge_alike(names, phases, np.arange(len(phases)), layout)
            return
        patterns: dict[tuple[str, ...], list[int]] = {}
        for row, names in enumerate(map(tuple, phases)):
            patterns.setdefault(names, []).append(row)
        for names, rows in patterns.items():
            self._charge_alike(names, [phases[row] for row in rows], np.array(rows), layout)

    def _charge_alike(
        self, names: tuple[str, ...], phases: list[dict[str, float]], rows: np.ndarray, layout: Layout
    ) -> None:
        """Charge phases with these names to these rows."""
        self.names.update(names)
        seconds = np.array(list(chain.from_iterable(map(dict.values, phases))), float)
        ns = _phase_ns(seconds).reshape(len(rows), len(names))
        if ns.size and ns.min() < 0:
            for row, column in np.argwhere(ns < 0).tolist():
                self._note(int(rows[row]), f"its phase {names[column][:40]!r} is negative and counts as 0")
                self.is_cut[rows[row]] = True
            ns = np.maximum(ns, 0)
        columns = [layout.column(name) for name in names]
        own = slice(None) if len(rows) == len(self.inside) else rows
        for at, column in enumerate(columns):
            self.inside[own, column] += ns[:, at]

    def fit(self) -> None:
        """Make both parts sum to the time since the step before."""
        length, named = self.steps.length, self.inside.sum(axis=1)
        for row in np.flatnonzero(named > length + ROUNDING_NS).tolist():
            self._note(row, f"its phases take {named[row] / 1e9:.6f} s, the step {length[row] / 1e9:.6f} s")
            self.is_cut[row] = True
        self.inside[:, NONE] += np.maximum(length - named, 0)
        self._shorten(np.flatnonzero(named > length), named - length, length)
        gap_ns = self.gap.sum(axis=1)
        over = length + gap_ns - self.lengths
        self.gap[:, NONE] += np.maximum(-over, 0)
        is_rounding = (over > 0) & (gap_ns == 0) & (over <= ROUNDING_NS)
        self._shorten(np.flatnonzero(is_rounding), over, self.lengths)
        for row in np.flatnonzero((over > 0) & ~is_rounding).tolist():
            self._cut(row, int(over[row]))
        for row in np.flatnonzero(self.steps.step <= self._step_before).tolist():
            self._note(row, f"step {self.steps.step[row]} is repeated; the work from that step on is lost")
        for row in np.flatnonzero(self.steps.device > length + ROUNDING_NS).tolist():
            self._note(row, f"its device_seconds exceed its {length[row] / 1e9:.6f} s")
        for number, text in sorted(self._notes, key=lambda note: note[0]):
            self._problems.note(number, text)

    def _shorten(self, rows: np.ndarray, over: np.ndarray, wanted: np.ndarray) -> None:
        """Shorten these steps to what is wanted: the longest phase if it is rounding, else all in proportion."""
        longest = self.inside[rows].argmax(axis=1)
        is_little = over[rows] <= np.minimum(self.inside[rows, longest], ROUNDING_NS)
        few = rows[is_little]
        self.inside[few, longest[is_little]] -= over[few]
        for row in rows[~is_little].tolist():
            known = self.inside[row].tolist()
            self.inside[row] = share(known, int(wanted[row]), sum(known))

    def _cut(self, row: int, over: int) -> None:
        if over > ROUNDING_NS:
            self._problems.overlapping += 1
            self._note(row, f"it overlaps the step before by {over / 1e9:.3f} s, which is cut off")
            self.is_cut[row] = True
        known = [*self.gap[row].tolist(), *self.inside[row].tolist()]
        fitted = share(known, int(self.lengths[row]), sum(known))
        self.gap[row], self.inside[row] = fitted[: self.gap.shape[1]], fitted[self.gap.shape[1] :]


def _phase_ns(seconds: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.clip(np.rint(seconds * 1e9), -_PHASE_NS_MAX, _PHASE_NS_MAX).astype(np.int64)
