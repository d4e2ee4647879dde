"""Cut one attempt's time into states: each step, each gap between steps, and the tail after the last one.

In: an Attempt and the moment its time ends. Out: a Cut whose step, gap and tail vectors sum to the attempt's
length exactly. A step's time in no phase is `unattributed`; a gap's is `startup` before the first step, `stall`
when it is too long, else `unattributed`. Rows that contradict their neighbours are cut to fit and counted in
`clamped`. It does not know other ranks or attempts: lost and straggler time is decided elsewhere, from here.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from statistics import median

from goodput.account.states import INDEX, PHASE_STATES, PLANNED, STATES, USER_STATES, vector
from goodput.account.timeline import Attempt

_PRODUCTIVE, _UNATTRIBUTED, _STARTUP = INDEX["productive"], INDEX["unattributed"], INDEX["startup"]
_STALL, _LOST, _COMPILE = INDEX["stall"], INDEX["lost"], INDEX["compile"]
_WAITS = tuple(INDEX[state] for state in ("loader", "h2d", "communication", "unattributed"))
_PLANNED = tuple(INDEX[state] for state in PLANNED)
COMMUNICATION = INDEX["communication"]


@dataclass(slots=True)
class Step:
    """A step, or `count` steps whose single rows are not known, ending with index `step`."""

    step: int
    count: int
    length_ns: int
    states: list[int]
    end_ns: int


@dataclass
class Cut:
    """An attempt's time. `gaps` holds what lies between and before steps, `tail` what follows the last one."""

    start_ns: int
    end_ns: int
    steps: list[Step]
    gaps: list[int]
    tail: list[int]
    unfinished: bool  # the tail is a running step: its compute counts for now
    samples: int = 0
    clamped: int = 0


@dataclass
class _Walk:
    """The part that only depends on rows, kept between calls: everything up to the last row."""

    steps: list[Step]
    gaps: list[list[int]]  # per step, the gap before it
    last_end_ns: int
    last_totals: tuple[int, ...]
    samples: int
    clamped: int


def walk(attempt: Attempt) -> _Walk:
    """Steps and gaps of an attempt from its rows, before any rule that needs a threshold."""
    to_state = [_state_of(name, attempt.phase_states) for name in attempt.phases]
    result = _Walk([], [], attempt.start_ns, (), 0, 0)
    number = 0
    totals = outside = (0,) * len(to_state)
    for row in attempt.ordered_rows():
        spent = row.end_ns - result.last_end_ns
        row_totals, row_outside = _padded(row.totals, len(to_state)), _padded(row.outside, len(to_state))
        gap, inside = vector(), vector()
        for state, total, before, out, out_before in zip(
            to_state, row_totals, totals, row_outside, outside, strict=True
        ):
            beyond = out - out_before
            gap[state] += beyond
            inside[state] += total - before - beyond
        if spent < 0 or min(gap) < 0 or min(inside) < 0 or sum(gap) + sum(inside) != spent:
            result.clamped += 1
            _fit(gap, inside, max(spent, 0))
        # Compute outside steps belongs to no step that was kept.
        gap[_UNATTRIBUTED] += gap[_PRODUCTIVE]
        gap[_PRODUCTIVE] = 0
        result.steps.append(Step(row.step, row.number - number, sum(inside), inside, row.end_ns))
        result.gaps.append(gap)
        result.last_end_ns = max(row.end_ns, result.last_end_ns)
        number, totals, outside = row.number, row_totals, row_outside
        result.samples = row.samples
    result.last_totals = totals
    return result


def cut(
    attempt: Attempt,
    walked: _Walk,
    end_ns: int,
    died: bool,
    threshold_ns: int,
    horizon_ns: int | None = None,
) -> Cut:
    """Apply the rules for startup, stall, compile and the tail.

    `end_ns` is where the attempt's time ends: its end, or now while `attempt.alive`. `died` says that it ended
    without finishing. Rows beyond `end_ns` cannot be, but for those beyond `horizon_ns`, up to which the account
    goes: they are left for later, and the step that crosses it counts in proportion.
    """
    whole = horizon_ns is None or walked.last_end_ns <= horizon_ns
    count = (
        len(walked.steps) if whole else bisect_right(walked.steps, horizon_ns, key=lambda step: step.end_ns)
    )
    steps = [Step(s.step, s.count, s.length_ns, list(s.states), s.end_ns) for s in walked.steps[:count]]
    gaps = vector()
    for i, gap in enumerate(walked.gaps[:count]):
        _add(gaps, _settled_gap(gap, i == 0, walked.steps[i].count == 1, threshold_ns))
    # First, so that a long compilation in no phase is not taken for a stall.
    _move_first_step_excess(steps)
    for step in steps:
        if step.count == 1 and step.length_ns > threshold_ns and _unplanned(step.states) > threshold_ns:
            _move(step.states, _WAITS, _STALL)
    if whole:
        end_ns = max(end_ns, walked.last_end_ns)
        if horizon_ns is not None and end_ns > horizon_ns:
            end_ns, died = horizon_ns, False
        tail, unfinished = _tail(attempt, walked, end_ns, died, threshold_ns)
    else:
        end_ns = horizon_ns
        tail, unfinished = _crossing(attempt, walked, count, end_ns, threshold_ns), True
    return Cut(attempt.start_ns, end_ns, steps, gaps, tail, unfinished, walked.samples, walked.clamped)


def threshold_ns(lengths_ns: list[int], least_seconds: float = 60.0) -> int:
    """No step progress for longer than this is a stall: max(60 s, 10 × p99 of step length)."""
    least = int(least_seconds * 1e9)
    if not lengths_ns:
        return least
    ordered = sorted(lengths_ns)
    return max(least, 10 * ordered[-(-99 * len(ordered) // 100) - 1])


def _state_of(phase: str, user_states: dict[str, str]) -> int:
    state = PHASE_STATES.get(phase) or user_states.get(phase)
    return INDEX[state] if state in USER_STATES else _UNATTRIBUTED


def _padded(values: tuple[int, ...], width: int) -> tuple[int, ...]:
    """A row written before the user defined further phases has fewer columns; those were zero."""
    return tuple(values[:width]) + (0,) * (width - len(values))


def _fit(gap: list[int], inside: list[int], spent_ns: int) -> None:
    """Make the two vectors non-negative and sum to `spent_ns`: cut from the end, fill with unattributed."""
    left = spent_ns
    for part in (inside, gap):
        for i in range(len(STATES)):
            part[i] = min(max(part[i], 0), left)
            left -= part[i]
    gap[_UNATTRIBUTED] += left


def _settled_gap(gap: list[int], first: bool, single: bool, threshold: int) -> list[int]:
    """A gap's states: before the first step all is startup but restore and compile; a long silence is a stall.

    Of a first row that stands for many steps the time outside them is known by phase alone, not by place: what
    has a name keeps it.
    """
    if first and not single:
        settled = list(gap)
        _move(settled, (_UNATTRIBUTED,), _STARTUP)
        return settled
    if first:
        keep = (INDEX["restore"], _COMPILE)
        settled = [ns if i in keep else 0 for i, ns in enumerate(gap)]
        settled[_STARTUP] = sum(gap) - sum(settled)
        return settled
    settled = list(gap)
    if single and _unplanned(gap) > threshold:
        _move(settled, _WAITS, _STALL)
    return settled


def _crossing(attempt: Attempt, walked: _Walk, index: int, end_ns: int, threshold: int) -> list[int]:
    """The part before `end_ns` of the gap and step with this index, each cut in proportion."""
    began = walked.steps[index - 1].end_ns if index else attempt.start_ns
    step = walked.steps[index]
    gap = _settled_gap(walked.gaps[index], index == 0, step.count == 1, threshold)
    in_gap = min(end_ns - began, sum(gap))
    tail = share(gap, in_gap, sum(gap))
    _add(tail, share(step.states, min(end_ns - began - in_gap, step.length_ns), step.length_ns))
    tail[_UNATTRIBUTED] += end_ns - began - sum(tail)
    return tail


def _tail(attempt: Attempt, walked: _Walk, end_ns: int, died: bool, threshold: int) -> tuple[list[int], bool]:
    """What follows the last completed step, from the live totals and the phase the rank was last in."""
    length = end_ns - walked.last_end_ns
    tail = vector()
    known = _padded(attempt.totals, len(attempt.phases))
    before = _padded(walked.last_totals, len(attempt.phases))
    for name, total, last in zip(attempt.phases, known, before, strict=True):
        tail[_state_of(name, attempt.phase_states)] += max(total - last, 0)
    left = length - sum(tail)
    if left >= 0:
        tail[_state_of(attempt.phase, attempt.phase_states)] += left
    else:
        _fit(tail, vector(), length)
        tail[_UNATTRIBUTED] += length - sum(tail)
    if not walked.steps:
        return _settled_gap(tail, True, True, threshold), False
    if _unplanned(tail) > threshold:
        others = [i for i in range(len(STATES)) if i not in _PLANNED]
        _move(tail, others, _STALL)
        return tail, False
    if died:
        _move(tail, range(len(STATES)), _LOST)
        return tail, False
    running = attempt.alive and not attempt.ended
    if not running:
        _move(tail, (_PRODUCTIVE,), _UNATTRIBUTED)
    return tail, running


def _move_first_step_excess(steps: list[Step]) -> None:
    """Move to `compile` the excess of the first step over the median of the others.

    It is taken as far as compute and unnamed time explain it: a first step that was long because the loader's workers were starting stays the loader's.
    """
    if len(steps) < 2 or steps[0].count != 1:
        return
    first, others = steps[0], [s for s in steps[1:] if s.count == 1]
    if not others:
        return
    excess = first.length_ns - int(median(s.length_ns for s in others))
    work = lambda s: s.states[_PRODUCTIVE] + s.states[_UNATTRIBUTED]  # noqa: E731
    excess = min(excess, work(first) - int(median(map(work, others))))
    if excess <= 0:
        return
    from_compute = min(excess, first.states[_PRODUCTIVE])
    first.states[_PRODUCTIVE] -= from_compute
    first.states[_UNATTRIBUTED] -= excess - from_compute
    first.states[_COMPILE] += excess


def _unplanned(states: list[int]) -> int:
    """Time that can be a stall: a long evaluation does not make the short wait beside it one."""
    return sum(states) - sum(states[i] for i in _PLANNED)


def share(states: list[int], part_ns: int, whole_ns: int) -> list[int]:
    """`states` scaled from sum `whole_ns` to sum `part_ns`, exactly."""
    if not whole_ns or not part_ns:
        return vector()
    scaled = [ns * part_ns // whole_ns for ns in states]
    scaled[states.index(max(states))] += part_ns - sum(scaled)
    return scaled


def _add(into: list[int], values: list[int]) -> None:
    for i, value in enumerate(values):
        into[i] += value


def _move(states: list[int], sources, target: int) -> None:
    """Move all time of the source states into the target state."""
    moved = 0
    for i in sources:
        if i != target:
            moved += states[i]
            states[i] = 0
    states[target] += moved
