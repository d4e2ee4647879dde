"""A run log as a Perfetto trace: a group of tracks per rank, and one of the whole run.

A rank has `steps` (a slice per step with its phases in it, and the phases between steps), `states` (attempts, and in them
startup, stall and lost steps; between them down), `events` (checkpoints and notes) and counters. A log has how long each
phase of a step took in all, not when: within a step they are drawn one after the other in the order in which training
loops have them, so their lengths are measured and their places are not. The run has restarts and its last hang.

The log is read four times and never held: two scans for its facts, one for the alignment, one for the slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from goodput.account import Attempt
from goodput.account.facts import Bound
from goodput.perfetto.alignment import Alignment, Residual
from goodput.perfetto.trace_file import File, TraceWriter, Value
from goodput.runlog.lines import Line
from goodput.runlog.replay import OrderedLog, Replayed
from goodput.runlog.scan_results import AttemptTrack

_EXCHANGE, _LAST = "communication", ("optimizer", "checkpoint", "evaluation")
_FIRST = ("loader", "h2d", "rollout", "restore", "compile", "forward", "backward")
UNIX_NS_MIN = 10**18  # September 2001; logs with earlier times have another origin.
AHEAD_NS = 1_000_000_000  # Time 0 of the trace lies so far before the first attempt.
Progress = Callable[[float], None]


class Exported(NamedTuple):
    """What was written: steps, and how well the clocks of `aligned` processes agree; `alone` keep their own clocks."""

    steps: int
    ranks: int
    aligned: int
    alone: int
    offset_low_ns: int
    offset_high_ns: int
    residual: Residual
    moved: int


def write_trace(file: File, path: str, replayed: Replayed, progress: Progress = lambda _: None) -> Exported:
    """Write the run of `replayed`, whose log is at `path`, to `file`."""
    with OrderedLog(path, replayed.account.run) as log:
        alignment = align(log, lambda at: progress(at / 2))
        return _Timeline(file, log, alignment, replayed).write(lambda at: progress(0.5 + at / 2))


def align(log: OrderedLog, progress: Progress = lambda _: None) -> Alignment:
    alignment = Alignment()
    for track, line in log.lines(progress=progress):
        if line.kind == "step":
            attempt, end_ns = track.attempt, line.time_ns
            last_ns = sum(ns for phase, ns in phases_of(line) if phase in _LAST)
            rest_ns = max(line.seconds_ns - sum(ns for _, ns in phases_of(line)), 0)
            ends_ns = end_ns, end_ns - last_ns, end_ns - last_ns - rest_ns
            alignment.add(attempt.role, (attempt.rank, attempt.attempt), line.step_number, ends_ns)
    alignment.solve()
    return alignment


def phases_of(line: Line) -> list[tuple[str, int]]:
    """Phases of a step with their ns, in the order in which they are drawn."""
    phases = line.phases or {}
    order = {phase: n for n, phase in enumerate((*_FIRST, None, _EXCHANGE, *_LAST))}
    named = sorted(phases, key=lambda phase: order.get(phase, order[None]))
    return [(phase, round(phases[phase] * 1e9)) for phase in named if phases[phase] > 0]


@dataclass
class _Rank:
    """The tracks of a rank, and up to where they are written."""

    group: int
    steps: int
    states: int
    events: int
    length: int  # counter
    samples: int  # counter, 0 until the first step with samples
    attempt: Attempt | None = None
    end_ns: int = 0  # of the last step, on the process's own clock
    # First and last step, begin and end, of lost steps in a row.
    lost: tuple[int, int, int, int] | None = None
    has_step: bool = False
    done: set[int] = field(default_factory=set)


class _Timeline:
    def __init__(self, file: File, log: OrderedLog, alignment: Alignment, replayed: Replayed):
        self._log, self._alignment, self._replayed = log, alignment, replayed
        self._facts, self._steps = log.facts, 0
        own = [one for attempts in self._facts.by_rank.values() for one in attempts]
        first_ns = min(alignment.shift((one.rank, one.attempt), one.start_ns) for one in own)
        self._origin_ns = min(first_ns, self._facts.start_ns) - AHEAD_NS
        is_unix = self._origin_ns >= UNIX_NS_MIN
        self._writer = TraceWriter(file, self._origin_ns if is_unix else None)
        self._run = self._writer.process(f"run {replayed.account.run}", 1, 0)
        self._ranks = {
            rank: self._add_rank(rank, attempts) for rank, attempts in sorted(self._facts.by_rank.items())
        }

    def _add_rank(self, rank: int, attempts: list[Attempt]) -> _Rank:
        add, first = self._writer, attempts[0]
        hosts = list(dict.fromkeys(one.host for one in attempts if one.host))
        place = f" on {', '.join(hosts[:3])}" if hosts else ""
        group = add.process(
            f"rank {rank}{place}{f' ({first.role})' if first.role else ''}", rank + 2, rank + 1
        )
        tracks = [add.track(group, name, n) for n, name in enumerate(("states", "steps", "events"))]
        length = add.counter(group, "step length", "ms", 3)
        return _Rank(group, steps=tracks[1], states=tracks[0], events=tracks[2], length=length, samples=0)

    def _at(self, attempt: Attempt, ns: int) -> int:
        """A time of a process in the trace."""
        return self._alignment.shift((attempt.rank, attempt.attempt), ns) - self._origin_ns

    def write(self, progress: Progress) -> Exported:
        others = frozenset(("checkpoint", "mark"))
        # Attempts of a rank may overlap in the log, and their slices must not: those of a later one follow.
        for track, line in self._log.lines(others, progress):
            rank = self._ranks.get(track.attempt.rank)
            if rank is None:
                continue
            if line.kind in others:
                self._event(rank, track.attempt, line)
                continue
            if rank.attempt is not track.attempt and not self._enter(rank, track.attempt):
                continue
            if line.kind == "phase":
                self._phase(rank, track.attempt, line)
            else:
                self._step(rank, track, line)
        for rank, attempts in self._facts.by_rank.items():
            self._close_all(self._ranks[rank], attempts)
        self._run_events()
        found = self._alignment
        return Exported(
            self._steps,
            len(self._ranks),
            found.aligned,
            found.alone,
            found.low_ns,
            found.high_ns,
            found.residual,
            self._writer.moved,
        )

    def _enter(self, rank: _Rank, attempt: Attempt) -> bool:
        """Close the open attempt and open this one, after those before it without lines; False if it is closed."""
        if attempt.attempt in rank.done:
            return False
        before = [one for one in self._facts.by_rank[attempt.rank] if one.attempt < attempt.attempt]
        self._close_all(rank, before)
        self._open(rank, attempt)
        return True

    def _close_all(self, rank: _Rank, attempts: list[Attempt]) -> None:
        if rank.attempt is not None:
            self._close(rank, rank.attempt)
        for one in attempts:
            if one.attempt not in rank.done:
                self._open(rank, one)
                self._close(rank, one)

    def _open(self, rank: _Rank, attempt: Attempt) -> None:
        begin_ns = self._at(attempt, attempt.start_ns)
        if rank.done:
            before = self._facts.by_rank[attempt.rank]
            last = max((one for one in before if one.attempt in rank.done), key=lambda one: one.attempt)
            down_ns = self._at(last, self._bound(last).end_ns)
            if begin_ns > down_ns:
                self._writer.slice(rank.states, down_ns, begin_ns, "down")
        notes: dict[str, Value] = {
            "attempt": attempt.attempt,
            "host": attempt.host,
            "device": attempt.device or "",
        }
        self._writer.begin(rank.states, begin_ns, f"attempt {attempt.attempt}", notes)
        rank.attempt, rank.end_ns, rank.has_step = attempt, attempt.start_ns, False

    def _bound(self, attempt: Attempt) -> Bound:
        return self._facts.bounds[attempt.rank, attempt.attempt]

    def _close(self, rank: _Rank, attempt: Attempt) -> None:
        self._end_lost(rank, attempt)
        bound = self._bound(attempt)
        end_ns = max(bound.end_ns, rank.end_ns)
        if end_ns > rank.end_ns:
            is_stall = end_ns - rank.end_ns > self._replayed.account.threshold_ns
            name = (
                "stall"
                if is_stall and rank.has_step
                else "after the last step"
                if rank.has_step
                else "startup"
            )
            begin_ns = self._at(attempt, rank.end_ns)
            self._writer.slice(rank.states, begin_ns, self._at(attempt, end_ns), name, {"died": bound.died})
        self._writer.end(rank.states, self._at(attempt, end_ns))
        rank.done.add(attempt.attempt)
        rank.attempt = None

    def _phase(self, rank: _Rank, attempt: Attempt, line: Line) -> None:
        begin_ns = max(line.time_ns - line.seconds_ns, rank.end_ns)
        if line.time_ns > begin_ns:
            begin, end = self._at(attempt, begin_ns), self._at(attempt, line.time_ns)
            self._writer.slice(rank.steps, begin, end, line.phase or "", {"between steps": True})

    def _step(self, rank: _Rank, track: AttemptTrack, line: Line) -> None:
        attempt = track.attempt
        end_ns = max(line.time_ns, rank.end_ns)
        begin_ns = max(end_ns - line.seconds_ns, rank.end_ns)
        is_lost = self._is_lost(track, line)
        self._states(rank, attempt, line, begin_ns, end_ns, is_lost)
        notes: dict[str, Value] = {"step": line.step_number, "attempt": attempt.attempt}
        notes |= {"steps": line.count} if line.count > 1 else {}
        notes |= {"samples": line.samples} if line.samples else {}
        notes |= {"lost": True} if is_lost else {}
        notes |= {"order of phases": "as usual, not measured"} if line.phases else {}
        self._writer.begin(
            rank.steps, self._at(attempt, begin_ns), "step (lost)" if is_lost else "step", notes
        )
        at_ns = begin_ns
        for phase, ns in phases_of(line):
            until_ns = min(at_ns + ns, end_ns)
            if until_ns > at_ns:
                self._writer.slice(rank.steps, self._at(attempt, at_ns), self._at(attempt, until_ns), phase)
            at_ns = until_ns
        end = self._at(attempt, end_ns)
        self._writer.end(rank.steps, end)
        self._count(rank, line, end, end_ns - rank.end_ns)
        rank.end_ns, rank.has_step = end_ns, True
        self._steps += line.count

    def _count(self, rank: _Rank, line: Line, at_ns: int, spent_ns: int) -> None:
        self._writer.count(rank.length, at_ns, line.seconds_ns / line.count / 1e6)
        if line.samples and spent_ns > 0:
            rank.samples = rank.samples or self._writer.counter(rank.group, "throughput", "samples/s", 4)
            self._writer.count(rank.samples, at_ns, line.samples / spent_ns * 1e9)

    def _states(
        self, rank: _Rank, attempt: Attempt, line: Line, begin_ns: int, end_ns: int, is_lost: bool
    ) -> None:
        """Slices of `states` that the step begins or ends: the startup before it, a stall, lost steps in a row."""
        stalls = self._replayed.stalls.get((attempt.rank, attempt.attempt), ())
        if not rank.has_step and begin_ns > rank.end_ns:
            self._slice_state(rank, attempt, rank.end_ns, begin_ns, "startup")
        elif rank.has_step and end_ns in stalls:
            self._end_lost(rank, attempt)
            self._slice_state(rank, attempt, rank.end_ns, end_ns, "stall")
            return
        if not is_lost:
            self._end_lost(rank, attempt)
        elif rank.lost is None:
            rank.lost = line.step_number - line.count + 1, line.step_number, begin_ns, end_ns
        else:
            rank.lost = rank.lost[0], line.step_number, rank.lost[2], end_ns

    def _end_lost(self, rank: _Rank, attempt: Attempt) -> None:
        if rank.lost is not None:
            first, last, begin_ns, end_ns = rank.lost
            rank.lost = None
            self._slice_state(
                rank, attempt, begin_ns, end_ns, "lost", {"first step": first, "last step": last}
            )

    def _slice_state(
        self, rank: _Rank, attempt: Attempt, begin_ns: int, end_ns: int, name: str, notes=None
    ) -> None:
        begin, end = self._at(attempt, begin_ns), self._at(attempt, end_ns)
        self._writer.slice(rank.states, begin, end, name, notes)

    def _is_lost(self, track: AttemptTrack, line: Line) -> bool:
        """Whether the step was made again, by a later attempt or by its own."""
        limit = self._facts.limits[track.attempt.rank, track.attempt.attempt]
        again = any(line.time_ns <= at_ns and line.step_number >= step for at_ns, step in track.rewinds)
        return line.step_number > limit or again

    def _event(self, rank: _Rank, attempt: Attempt, line: Line) -> None:
        at_ns = self._at(attempt, line.time_ns)
        if line.kind == "mark":
            self._writer.instant(rank.events, at_ns, line.text or "mark")
        else:
            name = "checkpoint" if line.committed else "checkpoint begun"
            self._writer.instant(rank.events, at_ns, name, {"step": line.step_number})

    def _run_events(self) -> None:
        account, hang = self._replayed.account, self._replayed.hang
        restarts = self._writer.track(self._run, "restarts", 0)
        for one in account.restarts:
            notes: dict[str, Value] = {"lost steps": one.lost_steps, "GPU seconds": one.gpu_ns() / 1e9}
            notes |= {} if one.resume_step is None else {"resumes after step": one.resume_step}
            first = next(
                mine
                for attempts in self._facts.by_rank.values()
                for mine in attempts
                if mine.attempt == one.attempt
            )
            self._writer.instant(restarts, self._at(first, first.start_ns), f"restart {one.attempt}", notes)
        if hang is not None:
            self._hang(hang)
        notes = dict(self._alignment_notes())
        summary = self._writer.track(self._run, "clocks", 2)
        self._writer.instant(summary, AHEAD_NS, "alignment of clocks", notes)

    def _hang(self, hang) -> None:
        found = hang.document()
        notes: dict[str, Value] = {"reason": found["reason"], "waiting ranks": found["victims"]}
        notes |= (
            {"culprit": found["culprit"], "phase": found["phase"]} if found["culprit"] is not None else {}
        )
        begin_ns = hang.since_ns - self._origin_ns
        track = self._writer.track(self._run, "hang", 1)
        self._writer.slice(track, begin_ns, begin_ns + round(hang.seconds * 1e9), "hang", notes)

    def _alignment_notes(self) -> Iterator[tuple[str, Value]]:
        found = self._alignment
        yield "aligned processes", found.aligned
        yield "processes on their own clock", found.alone
        yield "least offset (ms)", found.low_ns / 1e6
        yield "largest offset (ms)", found.high_ns / 1e6
        for name in ("p50_ns", "p95_ns", "max_ns"):
            yield f"residual {name[:-3]} (ms)", getattr(found.residual, name) / 1e6
