"""Second pass over a run log: the account of each run.

Steps are read one at a time; those out of order wait until nothing earlier can come. Duplicate steps count once, and a
step whose time overlaps the step before is cut. Cost: about 15 us per line.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from goodput.account import Account
from goodput.account.account import Engine
from goodput.account.facts import gather
from goodput.account.fold import fit, share, state_of
from goodput.account.hang import Hang
from goodput.account.resume import KEEP_ALL
from goodput.account.stall_threshold import StepLengths
from goodput.account.states import INDEX, PHASE_STATES, vector
from goodput.defaults import STALE_SECONDS, STALL_SECONDS
from goodput.runlog.last_moment import hang_at_end
from goodput.runlog.lines import TIME_NS_MAX, Line, LineError, parse
from goodput.runlog.log_file import LogError, LogFile
from goodput.runlog.scan import Scan
from goodput.runlog.scan_results import AttemptTrack, Problems, RunTrack

_UNATTRIBUTED = INDEX["unattributed"]
# Times written with few digits overlap by as much as was rounded off.
ROUNDING_NS = 1_000_000
SHOWN = 3


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
) -> list[Replayed]:
    """The accounts of the log at `path` ("-" is standard input), one per run, in the order of the file.

    `window` is as in account.compute. `progress` is called with the share that is read, 0 to 1. Raises LogError if the
    log has no attempt.
    """
    with LogFile(path) as log_file:
        most = max(log_file.size, 1)
        scan = Scan(log_file, stall_seconds, lambda at: progress(0.4 * at / most))
        if not any(found.tracks for found in scan.runs.values()):
            why = [f"; line {number}: {text}" for number, text in scan.problems.listed[:SHOWN]]
            why += ["; a run log has one JSON object per line, see docs/run-log.md"] * bool(why)
            why += [f"; {log_file.broken}"] if log_file.broken else []
            raise LogError(
                f"{log_file.name}: no attempt, step or beat of any rank in {scan.problems.lines} lines{''.join(why)}"
            )
        if any(track.disorder_ns for found in scan.runs.values() for track in found.tracks.values()):
            _measure(log_file, scan, stall_seconds)
        engines = {
            name: _engine(found, found.lengths.threshold_ns(stall_seconds, found.run.stepping()), window)
            for name, found in scan.runs.items()
            if found.tracks
        }
        walks = {
            track: _Walk(track, engine, scan.problems)
            for name, engine in engines.items()
            for track in scan.runs[name].tracks.values()
        }
        for track, number, line in _ordered(log_file, scan, lambda at: progress(0.4 + 0.6 * at / most)):
            walks[track].take(number, line)
        progress(1.0)
        return [
            _finished(
                scan, engine, {walk.key: walk for walk in walks.values() if walk.engine is engine}, window
            )
            for engine in engines.values()
        ]


def _finished(scan: Scan, engine: Engine, walks: dict[tuple[int, int], _Walk], window) -> Replayed:
    """The account of a run whose lines are all read; the hang only for the whole run."""
    account = engine.finish({key: walk.tail() for key, walk in walks.items()})
    account.step_lines = scan.problems.step_quality()
    found, hang = scan.runs[account.run], None
    if window is None:
        hang = hang_at_end(engine, account, walks, found.now_ns(), found.look_ns is not None)
    return Replayed(account, scan.problems, hang)


def _engine(found: RunTrack, threshold_ns: int, window) -> Engine:
    run = found.run
    known_only = found.look_ns is not None
    if run.start_ns is not None:
        run.start_ns = min(run.start_ns, min(a.start_ns for a in run.attempts.values()))
    stale_seconds = STALE_SECONDS if known_only else None
    return Engine(run, gather(run, found.now_ns(), threshold_ns, stale_seconds, known_only, window))


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
    log_file: LogFile, scan: Scan, progress=lambda _: None
) -> Iterator[tuple[AttemptTrack, int, Line]]:
    """Steps and phases of each attempt in the order of their ends: (attempt, line number, line)."""
    scan.rewind()
    high: dict[AttemptTrack, int] = {}
    waiting: dict[AttemptTrack, list[tuple]] = {}
    dropped = scan.problems.dropped
    for number, raw in log_file.lines():
        if number % 4096 == 0:
            progress(log_file.position)
        try:
            line = parse(raw)
        except LineError:
            continue
        track = scan.track_of(line)
        if track is None or number in dropped or (line.kind != "step" and line.kind != "phase"):
            continue
        late_ns = track.disorder_ns
        if not late_ns:
            yield track, number, line
            continue
        heap = waiting.setdefault(track, [])
        heapq.heappush(heap, (line.time_ns, line.step_number, number, line))
        high[track] = max(high.get(track, line.time_ns), line.time_ns)
        while heap[0][0] < high[track] - late_ns:
            yield track, *heapq.heappop(heap)[2:]
    for track, heap in waiting.items():
        while heap:
            yield track, *heapq.heappop(heap)[2:]


class _Walk:
    """Passes the steps and phases of one attempt to the account engine of its run."""

    def __init__(self, track: AttemptTrack, engine: Engine, problems: Problems):
        self.track, self.engine, self.problems = track, engine, problems
        self.key = (track.attempt.rank, track.attempt.attempt)
        self.fold = engine.folds[self.key]
        # State by phase. A log may have `launch` as a phase, measured by a trace or by counters.
        self.states = {"launch": INDEX["launch"]}
        self.end_ns, self.last_step = track.attempt.start_ns, -1
        self.gap, self.gap_ns = vector(), 0
        self.phase_ns: int | None = None  # of the last `phase` lines, which are in `phases`: (phase, length)
        self.phases: set[tuple[str | None, int]] = set()
        self.gap_phase = ""  # of the last `phase` line since the last step
        self.rewinds = sorted(track.rewinds)
        self.limit, self.restarts = (
            self.fold.limit,
            self.fold.restarts,
        )  # the fold's own, outside repeated steps

    def take(self, number: int, line: Line) -> None:
        if line.kind == "phase":
            if line.time_ns != self.phase_ns:
                self.phase_ns, self.phases = line.time_ns, set()
            if (line.phase, line.seconds_ns) in self.phases:
                self.problems.repeated += 1
                return
            self.phases.add((line.phase, line.seconds_ns))
            self.gap[self.state_of(line.phase or "")] += line.seconds_ns
            self.gap_phase = line.phase or ""
            self.gap_ns += line.seconds_ns
        elif line.time_ns <= self.end_ns and line.step_number <= self.last_step:
            self.problems.repeated += 1
        else:
            self._step(number, line)

    def _step(self, number: int, line: Line) -> None:
        step, length = line.step_number, line.seconds_ns
        inside = self._inside(number, line)
        end_ns = max(line.time_ns, self.end_ns)
        spent = end_ns - self.end_ns
        gap, self.gap = self.gap, vector()
        over = length + self.gap_ns - spent
        if over <= 0:
            gap[_UNATTRIBUTED] -= over
        elif not self.gap_ns and over <= ROUNDING_NS:
            _shrink(inside, over, spent)
        else:
            if over > ROUNDING_NS:
                self.problems.overlapping += 1
                self.problems.note(
                    number, f"it overlaps the step before by {over / 1e9:.3f} s, which is cut off"
                )
            fit(gap, inside, spent)
        self.gap_ns, self.gap_phase = 0, ""
        if self.rewinds:
            self._rewind(end_ns - sum(inside), step)
        if step <= self.last_step:
            self.problems.note(number, f"step {step} is repeated; the work from that step on is lost")
        self.end_ns, self.last_step = end_ns, step
        if line.device_ns > length + ROUNDING_NS:
            self.problems.note(number, f"its device_seconds exceed its {length / 1e9:.6f} s")
        self.engine.add(self.key, step, line.count, end_ns, gap, inside, line.samples, line.device_ns)

    def _inside(self, number: int, line: Line) -> list[int]:
        """The step's ns per state, which sum to its length."""
        inside, named, length, states = vector(), 0, line.seconds_ns, self.states
        for phase, seconds in (line.phases or {}).items():
            ns = _whole_ns(seconds)
            if ns < 0:
                self.problems.note(number, f"its phase {phase[:40]!r} is negative and counts as 0")
                continue
            state = states.get(phase)
            inside[self.state_of(phase) if state is None else state] += ns
            named += ns
        if named <= length:
            inside[_UNATTRIBUTED] += length - named
            return inside
        if named > length + ROUNDING_NS:
            self.problems.note(number, f"its phases take {named / 1e9:.6f} s, the step {length / 1e9:.6f} s")
        _shrink(inside, named - length, length)
        return inside

    def _rewind(self, began_ns: int, step: int) -> None:
        """Steps that the attempt itself repeats later are lost, and no restart is charged for them."""
        while self.rewinds and began_ns >= self.rewinds[0][0]:
            self.rewinds.pop(0)
        again = min((first - 1 for _, first in self.rewinds), default=KEEP_ALL)
        self.fold.limit = min(self.limit, again)
        self.fold.restarts = () if step > again else self.restarts

    def last_phase(self) -> str:
        """The phase in which the attempt was last: as its last beat or end has it, else the longest since its last step."""
        phase, tail = self.track.attempt.phase, self.track.tail
        if phase not in ("", "none"):
            return phase
        return max(tail, key=lambda name: tail[name]) if tail else self.gap_phase or "none"

    def state_of(self, phase: str) -> int:
        state = self.states.get(phase)
        if state is None:
            states = self.track.attempt.phase_states
            state = self.states[phase] = state_of(phase, states)
            if phase not in PHASE_STATES and phase not in states:
                self.problems.ignored[f"phase {phase[:40]!r} without phase_states: unattributed"] += 1
        return state

    def tail(self) -> list[int]:
        """The time after the last step, by state."""
        if self.track.tail is None:
            return self.gap
        tail = vector()
        for phase, seconds in self.track.tail.items():
            tail[self.state_of(phase)] += max(_whole_ns(seconds), 0)
        return tail


def _whole_ns(seconds: float) -> int:
    try:
        return round(seconds * 1e9)
    except OverflowError:
        return TIME_NS_MAX if seconds > 0 else -TIME_NS_MAX


def _shrink(inside: list[int], over: int, length: int) -> None:
    """Cut `over` from a step's phases, leaving `length`: from the longest if it is rounding, else in proportion."""
    longest = max(inside)
    if over <= min(longest, ROUNDING_NS):
        inside[inside.index(longest)] -= over
    else:
        inside[:] = share(inside, length, sum(inside))
