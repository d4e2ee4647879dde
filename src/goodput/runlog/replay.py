"""Second pass over a run log: the account of each run.

Steps are read one at a time; those out of order wait until nothing earlier can come. Duplicate steps count once, and a
step whose time overlaps the step before is cut. Cost: about 15 us per line.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from goodput.account import Account
from goodput.account.account import Engine
from goodput.account.facts import gather
from goodput.account.fold import Fold, fit, share, state_of
from goodput.account.resume import KEEP_ALL
from goodput.account.stall_threshold import StepLengths
from goodput.account.states import INDEX, PHASE_STATES, vector
from goodput.runlog.lines import TIME_NS_MAX, Line, LineError, parse
from goodput.runlog.scan import Scan
from goodput.runlog.source import LogError, Source
from goodput.runlog.tracks import AttemptTrack, Key, Problems, RunTrack

_UNATTRIBUTED = INDEX["unattributed"]
# Times written with few digits overlap by as much as was rounded off.
ROUNDING_NS = 1_000_000
STALE_SECONDS = 30.0
SHOWN = 3


@dataclass
class Replayed:
    account: Account
    problems: Problems


@dataclass
class _Walk:
    """One attempt in the second pass."""

    track: AttemptTrack
    # State by phase. A log may have `launch` as a phase, measured by a trace or by counters.
    states: dict[str, int] = field(default_factory=lambda: {"launch": INDEX["launch"]})
    end_ns: int = 0
    last_step: int = -1
    gap: list[int] = field(default_factory=vector)
    gap_ns: int = 0
    phase_ns: int | None = None  # the last `phase` lines, all of one time: (phase, length)
    phases: set[tuple[str, int]] = field(default_factory=set)
    rewinds: list[tuple[int, int]] = field(default_factory=list)
    limit: int = KEEP_ALL  # the fold's own, outside repeated steps
    blame: tuple | list = ()


def replay(
    path: str,
    *,
    stall_seconds: float = 60.0,
    window: tuple[int | None, int | None] | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> list[Replayed]:
    """The accounts of the log at `path` ("-" is standard input), one per run, in the order of the file.

    `window` is as in account.compute. `progress` is called with the share that is read, 0 to 1. Raises LogError if the
    log has no attempt.
    """
    with Source(path) as source:
        most = max(source.size, 1)
        scan = Scan(source, stall_seconds, lambda at: progress(0.4 * at / most))
        if not any(found.tracks for found in scan.runs.values()):
            why = [f"; line {number}: {text}" for number, text in scan.problems.listed[:SHOWN]]
            why += ["; a run log has one JSON object per line, see docs/run-log.md"] * bool(why)
            why += [f"; {source.broken}"] if source.broken else []
            raise LogError(
                f"{source.name}: no attempt, step or beat of any rank in {scan.problems.lines} lines{''.join(why)}"
            )
        if scan.disordered:
            _measure(source, scan, stall_seconds)
        engines = {
            name: _engine(found, found.lengths.threshold_ns(stall_seconds, found.run.stepping()), window)
            for name, found in scan.runs.items()
            if found.tracks
        }
        feed = _Feed(scan, engines)
        for key, entry in _ordered(source, scan, lambda at: progress(0.4 + 0.6 * at / most)):
            feed.take(key, entry)
        progress(1.0)
        return [Replayed(feed.finish(name), scan.problems) for name in engines]


def _engine(found: RunTrack, threshold_ns: int, window) -> Engine:
    run = found.run
    known_only = found.look_ns is not None
    now_ns = found.high_ns if found.look_ns is None else found.look_ns
    if run.start_ns is not None:
        run.start_ns = min(run.start_ns, min(a.start_ns for a in run.attempts.values()))
    for track in found.tracks.values():
        track.rewinds.sort()
    stale_seconds = STALE_SECONDS if known_only else None
    return Engine(run, gather(run, now_ns, threshold_ns, stale_seconds, known_only, window))


def _measure(source: Source, scan: Scan, stall_seconds: float) -> None:
    """Find step lengths and repeated steps, which the first pass gets right only if lines are in order."""
    for found in scan.runs.values():
        found.lengths = StepLengths(int(stall_seconds * 1e8))
        for track in found.tracks.values():
            track.rewinds, track.step_ns, track.last_step = [], None, -1
    for key, (*_, line) in _ordered(source, scan):
        if line.kind == "step":
            scan.runs[key[0]].tracks[key].step(line, scan.runs[key[0]].lengths)


def _ordered(source: Source, scan: Scan, progress=lambda _: None) -> Iterator[tuple[Key, tuple]]:
    """Steps and phases of each attempt in the order of their ends: (key, (end ns, step, line number, line))."""
    scan.rewind()
    high: dict[Key, int] = {}
    waiting: dict[Key, list[tuple]] = {}
    dropped = scan.problems.dropped
    for number, raw in source.lines():
        if number % 4096 == 0:
            progress(source.position)
        try:
            line = parse(raw)
        except LineError:
            continue
        scan.follow(line)
        if number in dropped or (line.kind != "step" and line.kind != "phase"):
            continue
        key = scan.key_of(line)
        late_ns = scan.runs[key[0]].tracks[key].disorder_ns
        entry = (line.time_ns, line.step_number, number, line)
        if not late_ns:
            yield key, entry
            continue
        heap = waiting.setdefault(key, [])
        heapq.heappush(heap, entry)
        high[key] = max(high.get(key, entry[0]), entry[0])
        while heap[0][0] < high[key] - late_ns:
            yield key, heapq.heappop(heap)
    for key, heap in waiting.items():
        while heap:
            yield key, heapq.heappop(heap)


class _Feed:
    """Passes steps and phases to the account engines."""

    def __init__(self, scan: Scan, engines: dict[str, Engine]):
        self.problems, self.engines = scan.problems, engines
        self.walks = {}
        for found in scan.runs.values():
            for key, track in found.tracks.items():
                fold = engines[key[0]].folds[key[1:]]
                walk = _Walk(track, end_ns=track.attempt.start_ns, rewinds=track.rewinds)
                walk.limit, walk.blame = fold.limit, fold.blame
                self.walks[key] = walk

    def take(self, key: Key, entry: tuple) -> None:
        *_, number, line = entry
        walk = self.walks[key]
        if line.kind == "phase":
            if line.time_ns != walk.phase_ns:
                walk.phase_ns, walk.phases = line.time_ns, set()
            if (line.phase, line.seconds_ns) in walk.phases:
                self.problems.repeated += 1
                return
            walk.phases.add((line.phase, line.seconds_ns))
            walk.gap[self._state(walk, line.phase)] += line.seconds_ns
            walk.gap_ns += line.seconds_ns
            return
        if line.time_ns <= walk.end_ns and line.step_number <= walk.last_step:
            self.problems.repeated += 1
            return
        self._step(key, walk, number, line)

    def _step(self, key: Key, walk: _Walk, number: int, line: Line) -> None:
        engine, place, step = self.engines[key[0]], key[1:], line.step_number
        inside, length, states = vector(), line.seconds_ns, walk.states
        named = 0
        for phase, seconds in (line.phases or {}).items():
            ns = _whole_ns(seconds)
            if ns < 0:
                self.problems.note(number, f"its phase {phase[:40]!r} is negative and counts as 0")
                continue
            state = states.get(phase)
            inside[self._state(walk, phase) if state is None else state] += ns
            named += ns
        if named > length:
            if named > length + ROUNDING_NS:
                self.problems.note(
                    number, f"its phases take {named / 1e9:.6f} s, the step {length / 1e9:.6f} s"
                )
            _shrink(inside, named - length, length)
        else:
            inside[_UNATTRIBUTED] += length - named
        end_ns = max(line.time_ns, walk.end_ns)
        spent = end_ns - walk.end_ns
        gap, walk.gap = walk.gap, vector()
        over = length + walk.gap_ns - spent
        if over <= 0:
            gap[_UNATTRIBUTED] -= over
        elif not walk.gap_ns and over <= ROUNDING_NS:
            _shrink(inside, over, spent)
        else:
            if over > ROUNDING_NS:
                self.problems.overlapping += 1
                self.problems.note(
                    number, f"it overlaps the step before by {over / 1e9:.3f} s, which is cut off"
                )
            fit(gap, inside, spent)
        walk.gap_ns = 0
        if walk.rewinds:
            self._rewind(engine.folds[place], walk, end_ns - sum(inside), step)
        if step <= walk.last_step:
            self.problems.note(number, f"step {step} is repeated; the work from that step on is lost")
        walk.end_ns, walk.last_step = end_ns, step
        if line.device_ns > length + ROUNDING_NS:
            self.problems.note(number, f"its device_seconds exceed its {length / 1e9:.6f} s")
        engine.add(place, step, line.count, end_ns, gap, inside, line.samples, line.device_ns)

    def _rewind(self, fold: Fold, walk: _Walk, began_ns: int, step: int) -> None:
        """Steps that the attempt itself repeats later are lost, and no restart is charged for them."""
        while walk.rewinds and began_ns >= walk.rewinds[0][0]:
            walk.rewinds.pop(0)
        again = min((first - 1 for _, first in walk.rewinds), default=KEEP_ALL)
        fold.limit = min(walk.limit, again)
        fold.blame = () if step > again else walk.blame

    def _state(self, walk: _Walk, phase: str) -> int:
        state = walk.states.get(phase)
        if state is None:
            states = walk.track.attempt.phase_states
            state = walk.states[phase] = state_of(phase, states)
            if phase not in PHASE_STATES and phase not in states:
                self.problems.ignored[f"phase {phase[:40]!r} without phase_states: unattributed"] += 1
        return state

    def finish(self, name: str) -> Account:
        tails = {}
        for key, walk in self.walks.items():
            if key[0] != name:
                continue
            tail = walk.gap
            if walk.track.tail is not None:
                tail = vector()
                for phase, seconds in walk.track.tail.items():
                    tail[self._state(walk, phase)] += max(_whole_ns(seconds), 0)
            tails[key[1:]] = tail
        return self.engines[name].finish(tails)


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
