"""The steps and phases of one attempt of a run log, as time by state.

Duplicate steps count once, and a step whose time overlaps the step before is cut. A step costs about 5 us.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import add
from typing import NamedTuple

from goodput.account.account import Engine
from goodput.account.resume import KEEP_ALL
from goodput.account.slow_ranks.slow_phase import PhaseTimes
from goodput.account.states import INDEX, PHASE_STATES, UNATTRIBUTED, fit, share, state_of, vector
from goodput.runlog.lines import TIME_NS_MAX, Line
from goodput.runlog.scan_results import AttemptTrack, Problems

# Times written with few digits overlap by as much as was rounded off.
ROUNDING_NS = 1_000_000
# Of phases whose state is kept; a log may name any number.
_NAMES_MAX = 256


class Gap(NamedTuple):
    """Time in `phase` lines since the last step: ns by state, their sum, the last phase."""

    states: list[int]
    ns: int
    phase: str


class Walk:
    """Passes the steps and phases of one attempt to the account engine of its run.

    `emit` takes each step's line and what account.Engine.add takes after the key, `note` a problem of a line.
    """

    def __init__(self, track: AttemptTrack, engine: Engine, problems: Problems):
        self.track, self.engine, self.problems = track, engine, problems
        self.key = (track.attempt.rank, track.attempt.attempt)
        self.emit: Callable[..., None] = self._add
        self.note: Callable[[int, str], None] = problems.note
        self.fold = engine.folds[self.key]
        self.phase_sums: Counter[str] = Counter()  # ns, of the steps that count for slow_phase
        self.phase_steps = 0
        # State by phase. A log may have `launch` as a phase, measured by a trace or by counters.
        self.states = {"launch": INDEX["launch"]}
        self.end_ns, self.last_step = track.attempt.start_ns, -1
        self.gap, self.gap_ns = vector(), 0
        self.phase_ns: int | None = None  # of the last `phase` lines, which are in `phases`: (phase, length)
        self.phases: set[tuple[str, int]] = set()
        self.gap_phase = ""  # of the last `phase` line since the last step
        self.rewinds = sorted(track.rewinds)
        # The fold's own, outside repeated steps.
        self.limit, self.restarts = self.fold.limit, self.fold.restarts

    def take(self, number: int, line: Line) -> None:
        if line.kind == "phase":
            self.take_phase(line.time_ns, line.phase or "", line.seconds_ns)
        elif line.time_ns <= self.end_ns and line.step_number <= self.last_step:
            self.problems.repeated += 1
        else:
            self._step(number, line)

    def take_phase(self, end_ns: int, phase: str, ns: int) -> None:
        if end_ns != self.phase_ns:
            self.phase_ns, self.phases = end_ns, set()
        if (phase, ns) in self.phases:
            self.problems.repeated += 1
            return
        self.phases.add((phase, ns))
        self.gap[self.state_of(phase)] += ns
        self.gap_phase = phase
        self.gap_ns += ns

    def has_gap(self) -> bool:
        """Whether there were phases since the last step."""
        return self.gap_ns > 0 or self.gap_phase != ""

    def take_gap(self) -> Gap:
        """The phases since the last step, which then are no longer here."""
        gap = Gap(self.gap, self.gap_ns, self.gap_phase)
        self.gap, self.gap_ns, self.gap_phase = vector(), 0, ""
        return gap

    def add_gap(self, gap: Gap | None) -> None:
        if gap is not None:
            self.gap = list(map(add, self.gap, gap.states))
            self.gap_ns, self.gap_phase = self.gap_ns + gap.ns, gap.phase or self.gap_phase

    def _step(self, number: int, line: Line) -> None:
        step, length = line.step_number, line.seconds_ns
        inside = self._inside(number, line)
        end_ns = max(line.time_ns, self.end_ns)
        spent = end_ns - self.end_ns
        gap, self.gap = self.gap, vector()
        over = length + self.gap_ns - spent
        if over <= 0:
            gap[UNATTRIBUTED] -= over
        elif not self.gap_ns and over <= ROUNDING_NS:
            _shrink(inside, over, spent)
        else:
            if over > ROUNDING_NS:
                self.problems.overlapping += 1
                self.note(number, f"it overlaps the step before by {over / 1e9:.3f} s, which is cut off")
            fit(gap, inside, spent)
        self.gap_ns, self.gap_phase = 0, ""
        if self.rewinds:
            self._rewind(end_ns - sum(inside), step)
        if step <= self.last_step:
            self.note(number, f"step {step} is repeated; the work from that step on is lost")
        self.end_ns, self.last_step = end_ns, step
        if line.device_ns > length + ROUNDING_NS:
            self.note(number, f"its device_seconds exceed its {length / 1e9:.6f} s")
        self.emit(line, step, line.count, end_ns, gap, inside, line.samples, line.device_ns)

    def _add(self, line: Line, step: int, count: int, end_ns: int, gap, inside: list[int], *rest) -> None:
        named = phases_of(line, inside)
        if named is not None and self.fold.is_typical(step, count, end_ns, inside):
            self.phase_sums.update(named)
            self.phase_sums["none"] += max(sum(inside) - sum(named.values()), 0)
            self.phase_steps += count
        self.engine.add(self.key, step, count, end_ns, gap, inside, *rest)

    def phase_times(self) -> PhaseTimes:
        """As Fold.phase_times, which has none of a log."""
        states = {**self.track.attempt.phase_states, "launch": "launch"}
        named = sorted((name, ns) for name, ns in self.phase_sums.items() if ns)
        names, sums = tuple(name for name, _ in named), tuple(ns for _, ns in named)
        return PhaseTimes(names, states, self.phase_steps, sums)

    def _inside(self, number: int, line: Line) -> list[int]:
        """The step's ns per state, which sum to its length."""
        inside, named, length, states = vector(), 0, line.seconds_ns, self.states
        for phase, seconds in (line.phases or {}).items():
            ns = _whole_ns(seconds)
            if ns < 0:
                self.note(number, f"its phase {phase[:40]!r} is negative and counts as 0")
                continue
            state = states.get(phase)
            inside[self.state_of(phase) if state is None else state] += ns
            named += ns
        if named <= length:
            inside[UNATTRIBUTED] += length - named
            return inside
        if named > length + ROUNDING_NS:
            self.note(number, f"its phases take {named / 1e9:.6f} s, the step {length / 1e9:.6f} s")
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
            state = state_of(phase, states)
            if len(self.states) < _NAMES_MAX:
                self.states[phase] = state
            if phase not in PHASE_STATES and phase not in states:
                self.problems.ignore(f"phase {phase[:40]!r} without phase_states: unattributed")
        return state

    def tail(self) -> list[int]:
        """The time after the last step, by state."""
        if self.track.tail is None:
            return self.gap
        tail = vector()
        for phase, seconds in self.track.tail.items():
            tail[self.state_of(phase)] += max(_whole_ns(seconds), 0)
        return tail


def phases_of(line: Line, inside: list[int]) -> dict[str, int] | None:
    """A step's ns by phase; None where they contradict the time that it got, or did before the log was written."""
    if line.cut:
        return None
    named = {phase: _whole_ns(seconds) for phase, seconds in (line.phases or {}).items() if seconds}
    if sum(named.values()) > line.seconds_ns + ROUNDING_NS or min(named.values(), default=0) < 0:
        return None
    return named if sum(inside) >= line.seconds_ns - ROUNDING_NS else None


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
