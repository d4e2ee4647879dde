"""Second pass over a run log: the account of each run.

Blocks of ordinary lines are decoded and folded at once as NumPy columns (`step_batches`). Other lines are read one at a
time; those out of order wait until nothing earlier can come. Where there are few steps or NumPy is missing, they are
folded one by one (`walk`): the account is the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import add
from typing import TYPE_CHECKING, NamedTuple, Protocol

from goodput.account import Account, Attempt
from goodput.account.account import Engine
from goodput.account.facts import gather
from goodput.account.hang import Hang
from goodput.account.stall_threshold import StepLengths
from goodput.defaults import STALE_SECONDS, STALL_SECONDS
from goodput.runlog.last_moment import hang_at_end
from goodput.runlog.lines import TIME_NS_MAX, Line, LineError, parse
from goodput.runlog.log_file import LogError, LogFile, lines_of
from goodput.runlog.scan import Scan
from goodput.runlog.scan_results import AttemptTrack, Problems, RunTrack
from goodput.runlog.walk import Walk

if TYPE_CHECKING:
    import numpy as np

SHOWN = 3
# Importing NumPy takes as long as some thousands of steps.
COLUMN_STEPS_MIN, COLUMN_BYTES_MIN = 8192, 1 << 20


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

    def add(self, step: Step) -> None: ...

    def add_columns(
        self, run: str, attempt: Attempt, steps: np.ndarray, counts: np.ndarray, states: np.ndarray
    ) -> None:
        """Several steps of an attempt: their indices, how many each stands for, and ns by state (states, steps)."""


@dataclass
class Replayed:
    account: Account
    problems: Problems
    hang: Hang | None = None  # with which the log ends


def replay(
    path: str,
    *,
    stall_seconds: float = STALL_SECONDS,
    window: tuple[int | None, int | None] | None = None,
    progress: Callable[[float], None] = lambda _: None,
    take_steps: TakesSteps | None = None,
) -> list[Replayed]:
    """The accounts of the log at `path` ("-" is standard input), one per run, in the order of the file.

    `window` is as in account.compute. `progress` is called with the share that is read, 0 to 1. `take_steps` gets
    every step too, each attempt's in their order. Raises LogError if the log has no attempt.
    """
    with LogFile(path) as log_file:
        most = max(log_file.size, 1)
        scan = _scanned(log_file, stall_seconds, lambda at: progress(0.4 * at / most))
        columns = _columns(scan)
        engines = {
            name: _engine(found, stall_seconds, window, columns)
            for name, found in scan.runs.items()
            if found.tracks
        }
        walks = {
            track: Walk(track, engine, scan.problems)
            for name, engine in engines.items()
            for track in scan.runs[name].tracks.values()
        }
        if take_steps is not None:
            for walk in walks.values():
                name, attempt = walk.engine.run.name, walk.track.attempt
                walk.emit = partial(_fold_and_pass, walk.emit, take_steps, name, attempt)
        batches = columns and columns.StepBatches(walks, scan, take_steps)
        take = batches.take if batches else Walk.take
        order = _Order(scan)
        for first, block in log_file.blocks():
            progress(0.4 + 0.6 * log_file.position / most)
            if batches and batches.take_block(first, block):
                continue
            for track, number, line in order.lines(first, block):
                take(walks[track], number, line)
        for track, number, line in order.rest():
            take(walks[track], number, line)
        if batches:
            batches.flush()
        progress(1.0)
        return [
            _finished(
                scan, engine, {walk.key: walk for walk in walks.values() if walk.engine is engine}, window
            )
            for engine in engines.values()
        ]


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
        scan = _scanned(log_file, STALL_SECONDS, lambda at: progress(0.4 * at / most))
        done: list[Step] = []
        walks = {}
        for found in scan.runs.values():
            if not found.tracks:
                continue
            engine = _engine(found, STALL_SECONDS, None, None)
            for track in found.tracks.values():
                walks[track] = Walk(track, engine, scan.problems)
                walks[track].emit = partial(_emit, done, found.run.name, track.attempt)
        for track, number, line in _ordered(log_file, scan, lambda at: progress(0.4 + 0.6 * at / most)):
            walks[track].take(number, line)
            yield from done
            done.clear()
        progress(1.0)
        take_problems(scan.problems)


class OrderedLog:
    """The lines of one run of a log, to be read several times; `engine.facts` has its attempts, limits and bounds.

    A context manager. Raises LogError if the log has no such run.
    """

    def __init__(self, path: str, run: str, stall_seconds: float = STALL_SECONDS):
        self._log_file = LogFile(path)
        try:
            self._scan = _scanned(self._log_file, stall_seconds, lambda _: None)
            found = self._scan.runs.get(run)
            if found is None or not found.tracks:
                raise LogError(f"{self._log_file.name}: no attempt of a run {run!r}")
        except BaseException:
            self._log_file.close()
            raise
        self._tracks = set(found.tracks.values())
        self.engine = _engine(found, stall_seconds, None, None)

    def __enter__(self) -> OrderedLog:
        return self

    def __exit__(self, *_) -> None:
        self._log_file.close()

    def lines(
        self, others: frozenset[str] = frozenset(), progress: Callable[[float], None] = lambda _: None
    ) -> Iterator[tuple[AttemptTrack, Line]]:
        """Steps and phases, each attempt's in the order of their ends, without repetitions; `others` as they come."""
        most, last = max(self._log_file.size, 1), dict[AttemptTrack, tuple]()
        for track, _, line in _ordered(self._log_file, self._scan, lambda at: progress(at / most), others):
            if track not in self._tracks:
                continue
            if line.kind == "step":
                end_ns, step = last.get(track, (-TIME_NS_MAX, -1))
                if line.time_ns <= end_ns and line.step_number <= step:
                    continue
                last[track] = max(line.time_ns, end_ns), line.step_number
            yield track, line


def _emit(done: list[Step], run: str, attempt: Attempt, line: Line, *taken) -> None:
    step, count, end_ns, gap, inside, samples, _ = taken
    done.append(Step(run, attempt, step, count, end_ns, list(map(add, gap, inside)), samples))


def _fold_and_pass(
    fold: Callable[..., None], take_steps: TakesSteps, run: str, attempt: Attempt, line: Line, *taken
) -> None:
    step, count, end_ns, gap, inside, samples, _ = taken
    take_steps.add(Step(run, attempt, step, count, end_ns, list(map(add, gap, inside)), samples))
    fold(line, *taken)


def _scanned(log_file: LogFile, stall_seconds: float, progress: Callable[[int], None]) -> Scan:
    """The first pass. Raises LogError if the log has no attempt."""
    scan = _scan_type(log_file)(log_file, stall_seconds, progress)
    if not any(found.tracks for found in scan.runs.values()):
        why = [f"; line {number}: {text}" for number, text in scan.problems.listed[:SHOWN]]
        why += ["; a run log has one JSON object per line, see docs/run-log.md"] * bool(why)
        why += [f"; {log_file.broken}"] if log_file.broken else []
        raise LogError(
            f"{log_file.name}: no attempt, step or beat of any rank in {scan.problems.lines} lines{''.join(why)}"
        )
    if any(track.disorder_ns for found in scan.runs.values() for track in found.tracks.values()):
        _measure(log_file, scan, stall_seconds)
    return scan


def _scan_type(log_file: LogFile) -> type[Scan]:
    """What reads ordinary lines as columns; not without NumPy, and not for a short log."""
    if log_file.size < COLUMN_BYTES_MIN:
        return Scan
    try:
        from goodput.runlog.column_scan import ColumnScan
    except ModuleNotFoundError:
        return Scan
    return ColumnScan


def _finished(scan: Scan, engine: Engine, walks: dict[tuple[int, int], Walk], window) -> Replayed:
    """The account of a run whose lines are all read; the hang only for the whole run."""
    account = engine.finish({key: walk.tail() for key, walk in walks.items()})
    account.step_lines = scan.problems.step_quality()
    account.straggler.phases = {key: walk.phase_times() for key, walk in sorted(walks.items())}
    found, hang = scan.runs[account.run], None
    if window is None:
        hang = hang_at_end(engine, account, walks, found.now_ns(), found.look_ns is not None)
    return Replayed(account, scan.problems, hang)


def _columns(scan: Scan):
    """The module that folds steps as columns; None without NumPy, or for few steps, which fold sooner without."""
    if scan.problems.step_lines < COLUMN_STEPS_MIN:
        return None
    try:
        from goodput.runlog import step_batches
    except ModuleNotFoundError:
        return None
    return step_batches


def _engine(found: RunTrack, stall_seconds: float, window, columns) -> Engine:
    run = found.run
    threshold_ns = found.lengths.threshold_ns(stall_seconds, run.stepping())
    known_only = found.look_ns is not None
    if run.start_ns is not None:
        run.start_ns = min(run.start_ns, min(a.start_ns for a in run.attempts.values()))
    stale_seconds = STALE_SECONDS if known_only else None
    # Repeated steps change what counts from step to step, and columns are bounded to int64.
    is_columns = columns and not any(
        track.rewinds or track.attempt.start_ns <= -TIME_NS_MAX for track in found.tracks.values()
    )
    facts = gather(run, found.now_ns(), threshold_ns, stale_seconds, known_only, window)
    return columns.ColumnEngine(run, facts) if is_columns else Engine(run, facts)


def _measure(log_file: LogFile, scan: Scan, stall_seconds: float) -> None:
    """Find step lengths and repeated steps, which the first pass gets right only if lines are in order."""
    for found in scan.runs.values():
        found.lengths = StepLengths.for_threshold(stall_seconds)
        for track in found.tracks.values():
            track.lengths, track.rewinds, track.step_ns, track.last_step = found.lengths, [], None, -1
    for track, _, line in _ordered(log_file, scan):
        if line.kind == "step":
            track.step(line)


def _ordered(
    log_file: LogFile, scan: Scan, progress=lambda _: None, others: frozenset[str] = frozenset()
) -> Iterator[tuple[AttemptTrack, int, Line]]:
    """Steps and phases of each attempt in the order of their ends: (attempt, line number, line).

    Lines of the kinds `others` are not put in order.
    """
    order = _Order(scan, others)
    for first, block in log_file.blocks():
        progress(log_file.position)
        yield from order.lines(first, block)
    yield from order.rest()


class _Order:
    """A second pass, see _ordered: `lines` for each block, then `rest`."""

    def __init__(self, scan: Scan, others: frozenset[str] = frozenset()):
        self._scan, self._others = scan, others
        self._high: dict[AttemptTrack, int] = {}
        self._waiting: dict[AttemptTrack, list[tuple]] = {}
        scan.rewind()

    def lines(self, first: int, block: bytes) -> Iterator[tuple[AttemptTrack, int, Line]]:
        high, dropped = self._high, self._scan.problems.dropped
        for number, raw in enumerate(lines_of(block), first):
            try:
                line = parse(raw)
            except LineError:
                continue
            track = self._scan.track_of(line)
            if track is None or number in dropped:
                continue
            is_ordered = line.kind in ("step", "phase")
            if not is_ordered and line.kind not in self._others:
                continue
            late_ns = track.disorder_ns
            if not late_ns or not is_ordered:
                yield track, number, line
                continue
            heap = self._waiting.setdefault(track, [])
            heapq.heappush(heap, (line.time_ns, line.step_number, number, line))
            high[track] = max(high.get(track, line.time_ns), line.time_ns)
            while heap[0][0] < high[track] - late_ns:
                yield track, *heapq.heappop(heap)[2:]

    def rest(self) -> Iterator[tuple[AttemptTrack, int, Line]]:
        for track, heap in self._waiting.items():
            while heap:
                yield track, *heapq.heappop(heap)[2:]
