"""The first pass of `scan.Scan`, in which blocks of ordinary lines are read as NumPy columns.

A block is read so if all its attempts are known and their lines in order, each step after the ones before. Then nothing
is wrong with any line, and what the pass keeps of an attempt depends on sums and the last line only.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from goodput.runlog.line_columns import LineColumns, PhaseLine, StepColumns, StepLine, columns_of, only_names
from goodput.runlog.scan import BEHIND_NS_MAX, Scan, has_rollout, spends_rollout
from goodput.runlog.scan_results import AttemptTrack, RunTrack


class Grouped(NamedTuple):
    """Rows by attempt, each attempt's in their order; `begins` has the first of each and, last, the number of rows."""

    rows: np.ndarray
    begins: np.ndarray

    @classmethod
    def of(cls, attempt: np.ndarray, attempts: int) -> Grouped:
        """Of rows with these numbers of attempts."""
        counts = np.bincount(attempt, minlength=attempts)
        return cls(np.argsort(attempt, kind="stable"), np.concatenate(([0], np.cumsum(counts))))

    def before(self, values: np.ndarray, firsts: list[int]) -> np.ndarray:
        """Of sorted values that before each; of an attempt's first row what `firsts` has."""
        found = np.empty_like(values)
        found[1:] = values[:-1]
        has_rows = np.diff(self.begins) > 0
        found[self.begins[:-1][has_rows]] = np.array(firsts, np.int64)[has_rows]
        return found


class BlockAttempts(NamedTuple):
    """The attempts of a block, and the number of each line's among them."""

    tracks: list[tuple[RunTrack, AttemptTrack]]
    attempt: np.ndarray
    last_run: RunTrack


class ColumnScan(Scan):
    def _read_block(self, number: int, block: bytes) -> None:
        lines = columns_of(number, block)
        if lines is None or not self._take(lines):
            super()._read_block(number, block)

    def _take(self, lines: LineColumns) -> bool:
        """Take the lines of a block, unless one of them is not in order."""
        found = attempts_of(self, lines)
        if found is None or any(track.suspect is not None for _, track in found.tracks):
            return False
        steps = lines.steps(lines.step_rows)
        by_line = Grouped.of(found.attempt, len(found.tracks))
        by_step = Grouped.of(found.attempt[lines.step_rows], len(found.tracks))
        new_numbers = _new_numbers(found, steps, by_step)
        if new_numbers is None or not _are_in_order(found, lines, by_line):
            return False
        for row, line in lines.others:
            run_track, track = found.tracks[found.attempt[row]]
            run_track.phases.add((*(line.phases or ()), *filter(None, (line.phase,))))
            track.attempt.has_rollout |= has_rollout(line, track.attempt.phase_states)
            self._take_other(lines.number + row, track, line)
        _note_times(found, lines, by_line)
        _note_phases(found, lines)
        _note_steps(found, steps, by_step, new_numbers)
        self.last_run = found.last_run.run.name
        self.problems.lines = lines.number + len(lines.lines) - 1
        self.problems.step_lines += len(steps.lines)
        return True


def attempts_of(scan: Scan, lines: LineColumns) -> BlockAttempts | None:
    """The attempts of a block, in either pass; None if one is unknown."""
    names = list(dict.fromkeys(lines.runs))
    if None in names and len(names) > 1:
        return None  # Which run some lines are of depends on their order.
    found = [scan.runs.get(scan.last_run or "run" if name is None else name) for name in names]
    runs = [run for run in found if run is not None]
    if len(runs) < len(found):
        return None
    run = np.zeros(len(lines.runs), np.int64)
    if len(names) > 1:
        at = {name: at for at, name in enumerate(names)}
        run[:] = [at[name] for name in lines.runs]
    numbers = lines.attempts
    if None in numbers:
        numbers = [
            runs[at].newest.get(rank, 1) if number is None else number
            for at, rank, number in zip(run.tolist(), lines.rank.tolist(), numbers, strict=True)
        ]
    keys = run << 40 | lines.rank << 21 | np.array(numbers, np.int64)
    distinct, attempt = np.unique(keys, return_inverse=True)
    tracks = []
    for key in distinct.tolist():
        run_track = runs[key >> 40]
        track = run_track.tracks.get((key >> 21 & (1 << 19) - 1, key & (1 << 21) - 1))
        if track is None:
            return None
        tracks.append((run_track, track))
    return BlockAttempts(tracks, attempt.reshape(-1), runs[int(run[-1])])


def _are_in_order(found: BlockAttempts, lines: LineColumns, by_line: Grouped) -> bool:
    """Whether no line is earlier than one before it of its attempt, or so much later that it may be wrong."""
    times = lines.time_ns[by_line.rows]
    firsts = times[by_line.begins[:-1]].tolist()
    highs = [
        first if track.high_ns is None else track.high_ns
        for first, (_, track) in zip(firsts, found.tracks, strict=True)
    ]
    later = times - by_line.before(times, highs)
    return bool(((later >= 0) & (later <= BEHIND_NS_MAX)).all())


def _new_numbers(
    found: BlockAttempts, steps: StepColumns, by_step: Grouped
) -> list[list[tuple[int, int]]] | None:
    """Of each attempt the ranges of step numbers, all beyond those that it has; None if they are not."""
    last = steps.step[by_step.rows]
    first = last - steps.count[by_step.rows] + 1
    highest = [max(track.last_step, track.numbers.highest()) for _, track in found.tracks]
    before = by_step.before(last, highest)
    if (first <= before).any():
        return None
    begins = first > before + 1
    begins[by_step.begins[:-1][np.diff(by_step.begins) > 0]] = True
    rows = np.flatnonzero(begins)
    ranges = list(zip(first[rows].tolist(), last[np.append(rows, len(last))[1:] - 1].tolist(), strict=True))
    edges = np.searchsorted(rows, by_step.begins).tolist()
    return [ranges[low:high] for low, high in pairwise(edges)]


def _note_times(found: BlockAttempts, lines: LineColumns, by_line: Grouped) -> None:
    lasts = lines.time_ns[by_line.rows[by_line.begins[1:] - 1]].tolist()
    starts = (lines.time_ns - lines.length)[by_line.rows]
    earliest = np.minimum.reduceat(starts, by_line.begins[:-1]).tolist()
    last_rows = by_line.rows[by_line.begins[1:] - 1].tolist()
    for (run_track, track), last_ns, start_ns, row in zip(
        found.tracks, lasts, earliest, last_rows, strict=True
    ):
        attempt = track.attempt
        track.last_number = lines.number + row
        track.high_ns = last_ns
        run_track.high_ns = max(run_track.high_ns, last_ns)
        attempt.last_ns = max(attempt.last_ns, last_ns)
        if attempt.seen_ns >= 0:
            attempt.start_ns = min(attempt.start_ns, start_ns)


def _note_phases(found: BlockAttempts, lines: LineColumns) -> None:
    """Note which phases occur, and which attempts have time of one that counts as a rollout."""
    names, runs = _names(lines.lines), {id(run): run for run, _ in found.tracks}
    of_run = np.array([id(run) for run, _ in found.tracks])[found.attempt]
    for at, run in runs.items():
        own = [] if len(runs) == 1 else np.flatnonzero(of_run == at).tolist()
        run.phases.add(_names([lines.lines[row] for row in own]) if own else names)
    for number, (_, track) in enumerate(found.tracks):
        attempt, states = track.attempt, track.attempt.phase_states
        if attempt.has_rollout or not any(states.get(name, name) == "rollout" for name in names):
            continue
        rows = np.flatnonzero(found.attempt == number).tolist()
        attempt.has_rollout = any(_has_rollout(lines, row, states) for row in rows)


def _names(lines: list) -> set[str]:
    phases = [line.phases for line in lines if type(line) is StepLine]
    names = only_names(phases) or chain.from_iterable(phases)
    return {*names, *(line.phase for line in lines if type(line) is PhaseLine)}


def _has_rollout(lines: LineColumns, row: int, states: dict[str, str]) -> bool:
    line = lines.lines[row]
    if type(line) is StepLine:
        return spends_rollout(line.phases, states)
    is_phase = type(line) is PhaseLine and lines.length[row] > 0
    return is_phase and states.get(line.phase, line.phase) == "rollout"


def _note_steps(
    found: BlockAttempts, steps: StepColumns, by_step: Grouped, new_numbers: list[list[tuple[int, int]]]
) -> None:
    """As AttemptTrack.step and the rest of Scan._add for each."""
    ends, numbers = steps.end[by_step.rows].tolist(), steps.step[by_step.rows].tolist()
    begins = by_step.begins.tolist()
    for (_, track), ranges, (low, high) in zip(found.tracks, new_numbers, pairwise(begins), strict=True):
        if low == high:
            continue
        attempt = track.attempt
        if attempt.first_step is None:
            attempt.first_number, attempt.first_step = ends[low], ranges[0][0]
        last = ends[high - 1], numbers[high - 1]
        track.step_ns, track.last_step = last
        attempt.rows_end_ns, attempt.end_step = max((attempt.rows_end_ns, attempt.end_step), last)
        for one in ranges:
            track.numbers.add(*one)
