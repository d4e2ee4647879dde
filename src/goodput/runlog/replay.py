"""Second pass over a run log: the account of each run, added up by the core.

Blocks of ordinary lines are decoded at once as NumPy columns (`line_columns`). Other lines are read one at a time; those
out of order wait until nothing earlier can come. Either way they become rows of cumulative totals (`attempt_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from goodput.account import Account, Attempt
from goodput.account.by_core.compute import finishing
from goodput.account.by_core.engine import CoreEngine
from goodput.account.facts import Facts, Key, gather
from goodput.account.hang import Hang
from goodput.defaults import STALE_SECONDS, STALL_SECONDS
from goodput.runlog.attempt_rows import END, STEP, AttemptTable, Rows
from goodput.runlog.column_scan import ColumnScan, attempts_of
from goodput.runlog.core_folding import CoreFolding
from goodput.runlog.last_moment import hang_at_end
from goodput.runlog.line_columns import LineColumns, Lines, columns_of
from goodput.runlog.lines import TIME_NS_MAX, Line
from goodput.runlog.log_file import LogError, LogFile
from goodput.runlog.ordered_lines import OrderedLines, Placed, ordered_lines
from goodput.runlog.scan import Scan
from goodput.runlog.scan_results import AttemptTrack, Problems, RunTrack
from goodput.slices import result_of

Window = tuple[int | None, int | None]
SHOWN = 3
LINES_AT_ONCE = 2048  # that are read one at a time


class Step(NamedTuple):
    """A line of a step: its time and the time since the step before, which is in no step, in ns by state."""

    run: str
    attempt: Attempt
    step: int  # the last one, where the line stands for `count` steps
    count: int
    end_ns: int
    states: list[int]
    samples: int


class TakesSteps(Protocol):
    """What wants the steps of a log besides its account."""

    def add_columns(
        self, run: str, attempt: Attempt, steps: np.ndarray, counts: np.ndarray, states: np.ndarray
    ) -> None:
        """Several steps of an attempt: their indices, how many each stands for, and ns by state (states, steps)."""


@dataclass
class Replayed:
    account: Account
    problems: Problems
    hang: Hang | None = None  # with which the log ends
    stalls: dict[Key, set[int]] = field(default_factory=dict)  # ends of steps that stalled, or after a stall


def replay(
    path: str,
    *,
    stall_seconds: float = STALL_SECONDS,
    window: Window | None = None,
    progress: Callable[[float], None] = lambda _: None,
    take_steps: TakesSteps | None = None,
) -> list[Replayed]:
    """The accounts of the log at `path` ("-" is standard input), one per run, in the order of the file.

    `window` is as in account.compute. `progress` is called with the share that is read, 0 to 1. `take_steps` gets
    every step too, each attempt's in their order. Raises LogError if the log has no attempt.
    """
    with LogFile(path) as log_file:
        most = max(log_file.size, 1)
        scan = _scanned(log_file, lambda at: progress(0.4 * at / most))
        runs = {
            name: _Replay(found, scan.problems, stall_seconds, window)
            for name, found in scan.runs.items()
            if found.tracks
        }

        def take(run: str, table: AttemptTable, rows: Rows) -> None:
            runs[run].take(table, rows)
            if take_steps is not None:
                _pass_on(take_steps, run, table, rows)

        walk = _Walk(scan, {name: one.tables for name, one in runs.items()}, take)
        walk.on_end = lambda name, track: runs[name].folding.end((track.attempt.rank, track.attempt.attempt))
        for _ in walk.read(log_file, lambda at: progress(0.4 + 0.6 * at / most)):
            pass
        progress(1.0)
        return [one.finished() for one in runs.values()]


def read_steps(
    path: str,
    *,
    progress: Callable[[float], None] = lambda _: None,
    take_problems: Callable[[Problems], None] = lambda _: None,
) -> Iterator[Step]:
    """The steps of all runs of the log at `path`, each attempt's in their order; arguments and errors as of `replay`.

    `take_problems` gets the log's problems after the last step.
    """
    with LogFile(path) as log_file:
        most = max(log_file.size, 1)
        scan = _scanned(log_file, lambda at: progress(0.4 * at / most))
        done: list[Step] = []
        tables = {name: _tables(found, 0, scan.problems) for name, found in scan.runs.items()}
        walk = _Walk(scan, tables, lambda *taken: done.extend(_steps(*taken)))
        for _ in walk.read(log_file, lambda at: progress(0.4 + 0.6 * at / most)):
            yield from done
            done.clear()
        progress(1.0)
        take_problems(scan.problems)


def _pass_on(take_steps: TakesSteps, run: str, table: AttemptTable, rows: Rows) -> None:
    states = table.states(rows.spent)
    for at, low, high, *_ in rows.parts:
        own = slice(low, high)
        attempt = table.tracks[at].attempt
        take_steps.add_columns(run, attempt, rows.values[own, STEP], rows.counts[own], states[:, own])


def _steps(run: str, table: AttemptTable, rows: Rows) -> Iterator[Step]:
    states = table.states(rows.spent).T.tolist()
    samples, counts = rows.samples.tolist(), rows.counts.tolist()
    steps, ends = rows.values[:, STEP].tolist(), rows.values[:, END].tolist()
    for at, low, high, *_ in rows.parts:
        attempt = table.tracks[at].attempt
        for row in range(low, high):
            yield Step(run, attempt, steps[row], counts[row], ends[row], states[row], samples[row])


class OrderedLog:
    """The lines of one run of a log, to be read several times; `facts` has its attempts, limits and bounds.

    A context manager. Raises LogError if the log has no such run.
    """

    def __init__(self, path: str, run: str):
        self._log_file = LogFile(path)
        try:
            self._scan = _scanned(self._log_file, lambda _: None)
            found = self._scan.runs.get(run)
            if found is None or not found.tracks:
                raise LogError(f"{self._log_file.name}: no attempt of a run {run!r}")
        except BaseException:
            self._log_file.close()
            raise
        self._tracks = set(found.tracks.values())
        self.facts = _facts(found, None)

    def __enter__(self) -> OrderedLog:
        return self

    def __exit__(self, *_) -> None:
        self._log_file.close()

    def lines(
        self, others: frozenset[str] = frozenset(), progress: Callable[[float], None] = lambda _: None
    ) -> Iterator[tuple[AttemptTrack, Line]]:
        """Steps and phases, each attempt's in the order of their ends, without repetitions; `others` as they come."""
        most, last = max(self._log_file.size, 1), dict[AttemptTrack, tuple]()
        for track, _, line in ordered_lines(
            self._log_file, self._scan, lambda at: progress(at / most), others
        ):
            if track not in self._tracks:
                continue
            if line.kind == "step":
                end_ns, step = last.get(track, (-TIME_NS_MAX, -1))
                if line.time_ns <= end_ns and line.step_number <= step:
                    continue
                last[track] = max(line.time_ns, end_ns), line.step_number
            yield track, line


class _Walk:
    """The second pass: gives `take` the rows of each run's tables, and tells `on_end` of attempts without further lines."""

    def __init__(
        self,
        scan: Scan,
        tables: dict[str, list[AttemptTable]],
        take: Callable[[str, AttemptTable, Rows], None],
    ):
        self._scan, self._take = scan, take
        self.on_end: Callable[[str, AttemptTrack], None] = lambda *_: None
        self._places: dict[AttemptTrack, tuple[int, int]] = {}  # table, and place in it
        self._tables: list[tuple[str, AttemptTable]] = []
        for name, own in tables.items():
            for table in own:
                self._places |= {track: (len(self._tables), at) for at, track in enumerate(table.tracks)}
                self._tables.append((name, table))
        # Those with lines, the last to end first.
        self._open = sorted(self._places, key=lambda track: -track.last_number)

    def read(self, log_file: LogFile, progress: Callable[[int], None]) -> Iterator[None]:
        """Read the whole log; yields now and then."""
        order, waiting = OrderedLines(self._scan), list[Placed]()
        for first, block in log_file.blocks():
            progress(log_file.position)
            self._end(first, order, waiting)
            if not self._take_block(first, block, waiting):
                for placed in order.of_block(first, block):
                    waiting.append(placed)
                    if len(waiting) >= LINES_AT_ONCE:
                        self._take_lines(waiting)
            yield
        waiting += order.rest()
        self._take_lines(waiting)
        self._end(None, order, waiting)
        for _, table in self._tables:
            table.note_unknown_phases()
        yield

    def _end(self, number: int | None, order: OrderedLines, waiting: list[Placed]) -> None:
        """Take what still waits of the attempts whose lines all come before this one."""
        over: list[AttemptTrack] = []
        while self._open and (number is None or self._open[-1].last_number < number):
            over.append(self._open.pop())
            waiting += order.rest_of(over[-1])
        if over:
            self._take_lines(waiting)
        for track in over:
            self.on_end(self._tables[self._places[track][0]][0], track)

    def _take_block(self, number: int, block: bytes, waiting: list[Placed]) -> bool:
        """Take the lines of a block at once; False, and nothing is taken, if they have to be taken one by one."""
        columns = columns_of(number, block)
        found = None if columns is None else attempts_of(self._scan, columns)
        if columns is None or found is None or any(track.disorder_ns for _, track in found.tracks):
            return False
        dropped = self._scan.problems.dropped
        if dropped and not dropped.isdisjoint(range(number, number + len(columns.lines))):
            return False
        self._take_lines(waiting)
        self._scan.last_run = found.last_run.run.name
        self._take_of_tables(_lines_of(columns, found.attempt), [track for _, track in found.tracks])
        return True

    def _take_lines(self, waiting: list[Placed]) -> None:
        """Take lines that were read one at a time."""
        if not waiting:
            return
        places: dict[AttemptTrack, int] = {}
        attempt = [places.setdefault(track, len(places)) for track, _, _ in waiting]
        lines = [line for _, _, line in waiting]
        given = Lines(
            lines,
            np.array([number for _, number, _ in waiting], np.int64),
            np.array([line.time_ns for line in lines], np.int64),
            np.array([line.seconds_ns for line in lines], np.int64),
            np.array([line.kind == "step" for line in lines], bool),
            np.array(attempt, np.int64),
        )
        waiting.clear()
        self._take_of_tables(given, list(places))

    def _take_of_tables(self, lines: Lines, tracks: list[AttemptTrack]) -> None:
        """Give each table the lines of its attempts, of which `attempt` has the places among `tracks`."""
        places = np.array([self._places[track] for track in tracks]).reshape(-1, 2)
        tables = np.unique(places[:, 0]).tolist()
        for at in tables:
            own = lines._replace(attempt=places[lines.attempt, 1])
            if len(tables) > 1:
                own = own.chosen(np.flatnonzero(places[lines.attempt, 0] == at))
            run, table = self._tables[at]
            rows = table.add(own)
            if rows is not None:
                self._take(run, table, rows)


def _lines_of(columns: LineColumns, attempt: np.ndarray) -> Lines:
    """The steps and phases of a block."""
    is_step = np.zeros(len(columns.lines), bool)
    is_step[columns.step_rows] = True
    numbers = columns.number + np.arange(len(columns.lines))
    lines = Lines(columns.lines, numbers, columns.time_ns, columns.length, is_step, attempt)
    if not columns.others:
        return lines
    is_step[columns.phase_rows] = True
    chosen = np.flatnonzero(is_step)
    is_step[columns.phase_rows] = False
    return lines.chosen(chosen)


class _Replay:
    """One run in the core."""

    def __init__(self, found: RunTrack, problems: Problems, stall_seconds: float, window: Window | None):
        self._found, self._problems, self._is_whole = found, problems, window is None
        start_ns, end_ns = window or (None, None)
        engine = self._engine(None if end_ns is None else (None, end_ns), stall_seconds)
        self._facts = engine.facts if start_ns is None else _facts(found, window)
        # An account of a window is the one up to its end less the one up to its start.
        is_later = self._facts.start_ns > engine.facts.start_ns
        before = self._engine((None, start_ns), stall_seconds) if is_later else None
        self.engine, self._before = engine, before
        self.folding = CoreFolding([engine] if before is None else [engine, before])
        self.tables = _tables(found, engine.origin_ns, problems)
        self._places = {
            table: np.array([engine.places.get(_key(track), -1) for track in table.tracks])
            for table in self.tables
        }

    def _engine(self, window: Window | None, stall_seconds: float) -> CoreEngine:
        return CoreEngine(self._found.run, _facts(self._found, window), stall_seconds)

    def take(self, table: AttemptTable, rows: Rows) -> None:
        self.folding.fold(self._places[table][[part.at for part in rows.parts]], rows)

    def finished(self) -> Replayed:
        """The account once all lines are read; the hang only for the whole run."""
        lasts = {}
        for table in self.tables:
            for at, track in enumerate(table.tracks):
                lasts[_key(track)] = table.last(at)
                track.attempt.totals = table.totals(at)
        account = result_of(finishing(self.engine, self._facts, self._before))
        account.straggler.phases = self.folding.without_cut(account.straggler.phases)
        account.step_lines = self._problems.step_quality()
        hang = None
        if self._is_whole:
            is_known_only = self._found.look_ns is not None
            hang = hang_at_end(self._facts, account, self._found, lasts, is_known_only)
        return Replayed(account, self._problems, hang, self.folding.stalls)


def _key(track: AttemptTrack) -> Key:
    return track.attempt.rank, track.attempt.attempt


def _tables(found: RunTrack, origin_ns: int, problems: Problems) -> list[AttemptTable]:
    """A table for each set of phases; attempts with the same share the objects."""
    alike: dict[int, list[AttemptTrack]] = {}
    for track in found.tracks.values():
        alike.setdefault(id(track.attempt.phase_states), []).append(track)
    return [AttemptTable(tracks, origin_ns, problems) for tracks in alike.values()]


def _facts(found: RunTrack, window: Window | None) -> Facts:
    run, known_only = found.run, found.look_ns is not None
    if run.start_ns is not None:
        run.start_ns = min(run.start_ns, min(a.start_ns for a in run.attempts.values()))
    stale_seconds = STALE_SECONDS if known_only else None
    return gather(run, found.now_ns(), 0, stale_seconds, known_only, window)


def _scanned(log_file: LogFile, progress: Callable[[int], None]) -> Scan:
    """The first pass. Raises LogError if the log has no attempt."""
    scan = ColumnScan(log_file, progress)
    if not any(found.tracks for found in scan.runs.values()):
        why = [f"; line {number}: {text}" for number, text in scan.problems.listed[:SHOWN]]
        why += ["; a run log has one JSON object per line, see docs/run-log.md"] * bool(why)
        why += [f"; {log_file.broken}"] if log_file.broken else []
        raise LogError(
            f"{log_file.name}: no attempt, step or beat of any rank in {scan.problems.lines} lines{''.join(why)}"
        )
    for found in scan.runs.values():
        if found.tracks and found.span_ns() >= TIME_NS_MAX:
            raise LogError(
                f"{log_file.name}: run {found.run.name!r}: its times are more than 146 years apart"
            )
    if any(track.disorder_ns for found in scan.runs.values() for track in found.tracks.values()):
        _find_rewinds(log_file, scan)
    return scan


def _find_rewinds(log_file: LogFile, scan: Scan) -> None:
    """Find repeated steps, which the first pass gets right only if lines are in order."""
    for found in scan.runs.values():
        for track in found.tracks.values():
            track.rewinds, track.step_ns, track.last_step = [], None, -1
    for track, _, line in ordered_lines(log_file, scan):
        if line.kind == "step":
            track.step(line)
