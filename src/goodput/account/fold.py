"""One attempt's steps folded, one after the other, into sums per state.

The sums fill the attempt's bound exactly whatever the input: kept steps, gaps, the tail, and what is lost. A step's
time in no phase is `unattributed`; a gap's is `startup` before the first step, `stall` when it is too long, else
`unattributed`. Rows that contradict their neighbours are cut to fit and counted in `clamped`; a step that crosses the
bound counts in proportion. Memory does not grow with steps; a step costs about 5 us. `straggler` compares ranks.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from operator import add, sub

from goodput.account.attempts import Attempt, Row, has_time, padded, states_of_phases
from goodput.account.facts import Bound
from goodput.account.peak_throughput import PeakThroughput
from goodput.account.slow_ranks.slow_phase import PhaseTimes
from goodput.account.stall_threshold import NOTED_NS, PLANNED_LEAST_NS, PlannedLimits
from goodput.account.states import (
    CHECKPOINT,
    COMMUNICATION,
    COMPILE,
    INDEX,
    NOTHING,
    PLANNED,
    PRODUCTIVE,
    ROLLOUT,
    STALL,
    STATES,
    UNATTRIBUTED,
    fit,
    move,
    share,
    state_of,
    vector,
)

_STARTUP, _LOST = INDEX["startup"], INDEX["lost"]
_PLANNED = tuple(INDEX[state] for state in PLANNED)
_UNPLANNED = tuple(i for i in range(len(STATES)) if i not in _PLANNED)
_BEFORE_STEPS = tuple(
    i for i in range(len(STATES)) if STATES[i] not in ("restore", "compile", "rollout", "stall")
)
# Steps after the first that its excess is measured against: more would hardly change the median, and they take 8 bytes each
# until there are so many.
OTHERS_MAX = 64


class Fold:
    """The sums of one attempt. Feed `row` or `add` in order, then `finish` once.

    Lists and dictionaries of its own are replaced, never changed: in a columns.fold_table they are made anew whenever they
    are read.
    """

    def __init__(
        self,
        attempt: Attempt,
        bound: Bound,
        limit: int,
        threshold_ns: int,
        restarts=(),
        planned: PlannedLimits | None = None,
    ):
        """`limit` is the last step that counts; `restarts` lists (resume step, number) of later attempts, in order.

        `planned` is shared by the folds of a run.
        """
        self.attempt, self.bound, self.limit, self.threshold_ns = attempt, bound, limit, threshold_ns
        self.restarts = restarts
        self.planned = PlannedLimits() if planned is None else planned
        self._judged: list[tuple[int, int, int]] = []  # (state, began, limit) of long planned phases
        self.to_state = states_of_phases(attempt)
        self.number, self.last_end_ns, self.samples, self.last_samples = 0, attempt.start_ns, 0, 0
        self.compute_ns = 0  # all compute of the attempt, whatever its state
        self.device_ns = self.last_device_ns = 0  # length of steps that the device clock divided into phases
        self.totals = self.outside = self.left_out = (0,) * len(self.to_state)
        self.left_out_steps = 0  # steps whose time in phases is in `left_out`, see slow_phase
        self.steps = self.clamped = 0
        self.last_count = 1
        self.exhausted = False  # no further step will come
        self.final = True  # no further rows will be reported
        self.top_step = -1
        # The longest wait that is no stall and the shortest that is one: the threshold may move between them.
        self.calm_ns, self.stall_ns = 0, inf
        self.kept = self.rest = NOTHING  # of kept steps, and of everything else
        self.ending = NOTHING  # the part of `rest` that follows the last step
        self.kept_steps = self.lost_steps = self.kept_ns = self.saved_ns = 0
        self.work = 0.0  # kept steps, those that cross the bound in part
        self.cut, self.cut_work = NOTHING, 0.0  # the part of `kept` and of `work` that is of those
        self.kept_samples = 0.0
        self.lost_by: dict[int, list[int]] = {}  # restart: [steps, ns]
        self.straggler_ns = self.bubble_ns = self.matched_ns = 0
        self.caused_ns = self.caused_in_group_ns = 0  # waiting of others for this rank
        self.compared_steps = self.last_steps = 0  # and those of them in which others waited for it
        self.throughput = PeakThroughput()
        self._first: tuple | None = None
        # Of the steps after the first: their lengths and works, each ascending, until there are enough of them.
        self._others = array("I"), array("I")
        self._usual: tuple[int, int] | None = None  # their medians, once there are enough

    def held_back(self) -> tuple[int, int]:
        """Index and count of the first step if `finish` will return it for comparison; (-1, 0) if not."""
        if self._first is None:
            return (-1, 0)
        step, count, end_ns, length = self._first[:4]
        return (step, count) if end_ns - bool(length) >= self.bound.from_ns else (-1, 0)

    def go_on_with_others_of(self, later: Fold) -> None:
        """Compare the first step with those after it that `later`, which has folded more rows, knows."""
        self._others, self._usual = later._others, later._usual

    def fits(self, bound: Bound, limit: int, threshold_ns: int, restarts) -> bool:
        """Whether the folded sums would be the same under these facts."""
        mine = self.bound
        if not self.steps:
            return True
        if (bound.from_ns, bound.first) != (mine.from_ns, mine.first) or bound.to_ns < self.last_end_ns:
            return False
        if limit != self.limit and min(limit, self.limit) < self.top_step:
            return False
        # The first step is held back, so it may be lost without being counted yet.
        if self.top_step > self.limit and list(restarts) != list(self.restarts):
            return False
        if not self.calm_ns <= threshold_ns < self.stall_ns:
            return False
        if any(self._planned_limit(state, at, threshold_ns) != ns for state, at, ns in self._judged):
            return False
        now = states_of_phases(self.attempt)
        return now is self.to_state or now[: len(self.to_state)] == self.to_state

    def follow(self, bound: Bound, limit: int, threshold_ns: int, restarts) -> None:
        """Continue under these facts, for which `fits` holds."""
        self.bound, self.limit, self.threshold_ns, self.restarts = bound, limit, threshold_ns, restarts
        # Phases may change their state before the first step; later there may only be more of them.
        self.to_state = states_of_phases(self.attempt)
        self.totals, self.outside, self.left_out = (
            padded(t, len(self.to_state)) for t in (self.totals, self.outside, self.left_out)
        )

    def begin(self, row: Row) -> None:
        """Start after this row, the last one before the bound."""
        width = len(self.to_state)
        self.totals, self.outside = padded(row.totals, width), padded(row.outside, width)
        self.number, self.last_samples, self.last_device_ns = row.number, row.samples, row.device_ns
        self.left_out, self.left_out_steps = tuple(map(sub, self.totals, self.outside)), row.number
        self.last_end_ns, self.steps = max(row.end_ns, self.last_end_ns), 1
        self.compute_ns = sum(
            ns for state, ns in zip(self.to_state, self.totals, strict=True) if state == PRODUCTIVE
        )

    def row(self, row: Row):
        """Fold a row of cumulative totals; returns what `add` returns."""
        spent = row.end_ns - self.last_end_ns
        width = len(self.to_state)
        totals, outside = padded(row.totals, width), padded(row.outside, width)
        gap, inside = vector(), vector()
        if outside == self.outside:
            for state, ns in zip(self.to_state, map(sub, totals, self.totals), strict=True):
                inside[state] += ns
        else:
            beyonds = list(map(sub, outside, self.outside))
            for state, ns, beyond in zip(self.to_state, map(sub, totals, self.totals), beyonds, strict=True):
                gap[state] += beyond
                inside[state] += ns - beyond
        count, self.number = row.number - self.number, row.number
        self.last_count = count
        samples, self.last_samples = row.samples - self.last_samples, row.samples
        device_ns, self.last_device_ns = row.device_ns - self.last_device_ns, row.device_ns
        before, (self.totals, self.outside) = (self.totals, self.outside), (totals, outside)
        end_ns = max(row.end_ns, self.last_end_ns)
        is_cut = spent < 0 or min(gap) < 0 or min(inside) < 0 or sum(gap) + sum(inside) != spent
        if is_cut:
            self.clamped += 1
            fit(gap, inside, max(spent, 0))
        if is_cut or not self.is_typical(row.step, count, end_ns, inside):
            self.leave_out(count, *before)
        return self.add(row.step, count, end_ns, gap, inside, max(samples, 0), device_ns)

    def add(
        self, step: int, count: int, end_ns: int, gap: list[int], inside: list[int], samples: int, device_ns=0
    ):
        """Fold `count` steps up to index `step`; `gap` and `inside` sum to the time since the last one.

        Returns (communication, the same within the bound, own time, length) in ns if the step is to be compared with its
        group's, else None. The first step is held back until its excess is known, see `finish`.
        """
        began, self.last_end_ns = self.last_end_ns, end_ns
        if step > self.top_step:
            self.top_step = step
        if end_ns - began > NOTED_NS:
            self._limit_planned(count, began, end_ns, gap, inside)
        # The first step is settled in `finish`, by the threshold then.
        if count == 1 and self.steps and end_ns - began > self.calm_ns:
            self._note_wait(_unplanned(gap))
            self._note_wait(_unplanned(inside))
        self.note_exhausted(step)
        length = sum(inside)
        self.samples += samples
        self.compute_ns += inside[PRODUCTIVE] + gap[PRODUCTIVE]
        self._count_device(min(max(device_ns, 0), length), length, end_ns)
        first, self.steps = self.steps == 0, self.steps + 1
        if first or end_ns - began != length:
            # Compute outside steps belongs to no kept step.
            gap[UNATTRIBUTED] += gap[PRODUCTIVE]
            gap[PRODUCTIVE] = 0
            self.saved_ns += gap[CHECKPOINT]
            self._rest(_settled_gap(gap, first, count == 1, self.threshold_ns), began, end_ns - length)
        self.saved_ns += inside[CHECKPOINT]
        # An attempt's first step is no measure of its throughput, unless the row has several steps.
        if samples and (count > 1 or not first):
            throughput = self.throughput
            throughput.add(count, samples, length)
            self.throughput = throughput
        if first:
            # Kept with its limit and restarts, which a run log may change where steps are repeated.
            self._first = (step, count, end_ns, length, inside, samples, self.limit, self.restarts)
            return None
        if count == 1:
            self.note_usual([length], [inside[PRODUCTIVE] + inside[UNATTRIBUTED]])
        return self._settle(step, count, end_ns, length, inside, samples)

    def best_rate(self) -> float | None:
        """Samples per second of its fastest steps."""
        return self.throughput.rate()

    def is_typical(self, step: int, count: int, end_ns: int, inside: list[int]) -> bool:
        """Whether the next step counts for `phase_times`: it is whole, kept, no stall, and not the first."""
        if not self.steps or step > self.limit or end_ns > self.bound.to_ns:
            return False
        length, threshold = sum(inside), self.threshold_ns
        if end_ns - length < self.bound.from_ns:
            return False
        return count > 1 or length <= threshold or _unplanned(inside) <= threshold

    def phase_times(self) -> PhaseTimes:
        """Time in phases of the steps that count, where rows have phases: not in a run log."""
        steps = self.number - self.left_out_steps
        ns = tuple(map(sub, map(sub, self.totals, self.outside), self.left_out))
        return PhaseTimes(self.attempt.phases, self.attempt.phase_states, steps, ns)

    def is_first_step_only(self) -> bool:
        """Whether what is kept is an attempt's first step, of which it is not known yet how much of it was compiling."""
        is_alone = self._first is not None and self.steps == 1 and self._first[1] == 1
        return is_alone and self._usual is None and not self._others[0]

    def leave_out(self, count: int, totals: tuple[int, ...], outside: tuple[int, ...]) -> None:
        """`count` steps do not count for `phase_times`: those since a row with these `totals` and `outside`."""
        grown = map(sub, map(sub, self.totals, totals), map(sub, self.outside, outside))
        self.left_out = tuple(map(add, padded(self.left_out, len(self.totals)), grown))
        self.left_out_steps += count

    def finish(self, tail: list[int] | None = None):
        """Settle the first step and the time after the last one.

        Returns the first step as `add` does, preceded by its index and count, or None. `tail` is the time after the
        last step by state, where there are no totals.
        """
        result = None
        if self._first is not None:
            step, count, end_ns, length, inside, samples, *criteria = self._first
            if count == 1:
                inside = list(inside)
                self._move_excess(length, inside)
            last, (self.limit, self.restarts) = (self.limit, self.restarts), criteria
            compared = self._settle(step, count, end_ns, length, inside, samples)
            self.limit, self.restarts = last
            result = None if compared is None else (step, count, *compared)
        end_ns = max(self.bound.end_ns, self.last_end_ns)
        self._tail(end_ns, tail)
        return result

    # -- steps

    def _settle(self, step: int, count: int, end_ns: int, length: int, inside: list[int], samples: int):
        threshold = self.threshold_ns
        if length > threshold and count == 1 and _unplanned(inside) > threshold:
            move(inside, _UNPLANNED, STALL)
        bound, began = self.bound, end_ns - length
        communication = inside[COMMUNICATION]
        own = length - communication - inside[COMPILE] - inside[STALL]
        part = length
        if began < bound.from_ns or end_ns > bound.to_ns:
            part = max(0, min(end_ns, bound.to_ns) - max(began, bound.from_ns))
            inside = share(inside, part, length)
        counted = end_ns <= bound.to_ns and (end_ns > bound.from_ns or (bound.first and not length))
        if step > self.limit:
            self._lose(step, count, length, part, inside, counted, samples)
            return None
        self._keep(count, inside, part / length if length else 1.0 * counted, counted, samples)
        # In a window, steps are compared among the ranks for which they lie in it.
        lies = part or (not length and bound.from_ns <= end_ns <= bound.to_ns)
        return (communication, inside[COMMUNICATION], own, part) if lies else None

    def _keep(self, count: int, inside: list[int], ratio: float, counted: bool, samples: float) -> None:
        self.kept = list(map(add, self.kept, inside))
        self.kept_ns += sum(inside) - inside[COMPILE] - inside[STALL]
        self.kept_steps += count if counted else 0
        self.work += count * ratio
        if 0.0 < ratio < 1.0:
            self.cut = list(map(add, self.cut, inside))
            self.cut_work += count * ratio
        self.kept_samples += samples * ratio

    def _lose(
        self, step, count, length: int, part: int, inside: list[int], counted: bool, samples: int
    ) -> None:
        """Count steps as lost; a row of several steps that is lost in part is divided by their number."""
        kept = max(0, count - (step - self.limit))
        lost = part * (count - kept) // count
        if kept:
            ratio = part / length if length else 1.0 * counted
            self._keep(kept, share(inside, part - lost, part), ratio, counted, samples * kept / count)
        self._add_rest(_LOST, lost)
        steps = count - kept if counted else 0
        self.lost_steps += steps
        for point, restart in self.restarts:
            if point is not None and point < step:
                self.add_cost(restart, steps, lost)
                break

    def _add_rest(self, state: int, ns: int) -> None:
        rest = list(self.rest)
        rest[state] += ns
        self.rest = rest

    def add_cost(self, restart: int, steps: int, ns: int) -> None:
        before = self.lost_by.get(restart, (0, 0))
        self.lost_by = {**self.lost_by, restart: [before[0] + steps, before[1] + ns]}

    def _move_excess(self, length: int, inside: list[int]) -> None:
        """Move to `compile` the first step's excess over the median of the others.

        Only compute and unattributed time are moved: a first step that was long because the loader's workers were
        starting stays `loader`.
        """
        if self._usual is None and not self._others[0]:
            return
        usual, work = self._usual or map(median, self._others)
        excess = min(length - usual, inside[PRODUCTIVE] + inside[UNATTRIBUTED] - work)
        if excess > 0:
            from_compute = min(excess, inside[PRODUCTIVE])
            inside[PRODUCTIVE] -= from_compute
            inside[UNATTRIBUTED] -= excess - from_compute
            inside[COMPILE] += excess

    def _count_device(self, device_ns: int, length: int, end_ns: int) -> None:
        """Add device time, in proportion for a step that crosses the bound."""
        if device_ns:
            part = min(end_ns, self.bound.to_ns) - max(end_ns - length, self.bound.from_ns)
            self.device_ns += device_ns * max(part, 0) // length

    def _note_wait(self, ns: int) -> None:
        if ns > self.threshold_ns:
            self.stall_ns = min(ns, self.stall_ns)
        elif ns > self.calm_ns:
            self.calm_ns = ns

    def _planned_limit(self, state: int, began: int, threshold_ns: int) -> int:
        return max(self.planned.limit_ns(self.attempt.rank, state, began), threshold_ns)

    def _limit_planned(self, count: int, began: int, end_ns: int, *parts: list[int]) -> None:
        """Move planned time beyond its limit to `stall`; in a row of several steps it is unknown how long each was."""
        rank = self.attempt.rank
        for states in parts:
            for state in _PLANNED:
                if states[state] <= NOTED_NS:
                    continue
                limit_ns = self._planned_limit(state, began, self.threshold_ns)
                if count == 1:
                    self._judged = [*self._judged, (state, began, limit_ns)]
                    _limit(states, state, limit_ns)
                self.planned.note(rank, state, end_ns, states[state])

    def note_exhausted(self, step: int) -> None:
        """Note whether `step`, the last one that was folded, is the attempt's last."""
        # Rows are ordered by number, lines of a log by time and step, since steps may take no time.
        mine = self.attempt
        is_last = self.number >= mine.top_number
        is_last = is_last and (self.last_end_ns, step) >= (mine.rows_end_ns, mine.end_step)
        self.exhausted |= self.final and is_last

    def note_usual(self, lengths: list[int], works: list[int]) -> None:
        """Note steps after the first: each one's length, and its compute and unattributed time."""
        if self._usual is not None:
            return
        usual, work = self._others
        lacking = max(OTHERS_MAX - len(usual), 0)  # a state that an earlier version stored may have more
        self._others = usual, work = ascending(lengths[:lacking], usual), ascending(works[:lacking], work)
        if len(lengths) >= lacking:
            self._usual, self._others = (median(usual), median(work)), (array("I"), array("I"))

    # -- gaps and the tail

    def has_time(self, attempt: Attempt, phase: str) -> bool:
        """See the function."""
        return has_time(attempt, phase, self.totals)

    def _rest(self, states: list[int], began: int, end_ns: int) -> list[int]:
        """Add time outside kept steps, cut to the bound in proportion; returns what was added."""
        bound = self.bound
        if began < bound.from_ns or end_ns > bound.to_ns:
            states = share(states, max(0, min(end_ns, bound.to_ns) - max(began, bound.from_ns)), sum(states))
        self.rest = list(map(add, self.rest, states))
        return states

    def _tail(self, end_ns: int, named: list[int] | None) -> None:
        """Settle the time after the last completed step, from the live totals and the last phase."""
        attempt, bound = self.attempt, self.bound
        began, length = self.last_end_ns, end_ns - self.last_end_ns
        tail = vector() if named is None else list(named)
        if named is None:
            known = padded(attempt.totals, len(self.to_state))
            for state, total, last in zip(self.to_state, known, self.totals, strict=True):
                if total > last:
                    tail[state] += total - last
        left = length - sum(tail)
        if left >= 0:
            tail[state_of(attempt.phase, attempt.phase_states)] += left
        else:
            fit(tail, vector(), length)
            tail[UNATTRIBUTED] += length - sum(tail)
        # No limit is shorter.
        if length > PLANNED_LEAST_NS:
            self._limit_tail(tail, began, max(left, 0))
        self.saved_ns += tail[CHECKPOINT]
        self.compute_ns += tail[PRODUCTIVE]
        unfinished = False
        if not self.steps:
            tail = _settled_gap(tail, True, True, self.threshold_ns)
        elif length > self.threshold_ns and _unplanned(tail) > self.threshold_ns:
            move(tail, _UNPLANNED, STALL)
        elif bound.died:
            move(tail, range(len(STATES)), _LOST)
        elif bound.running:
            unfinished = True
        else:
            move(tail, (PRODUCTIVE,), UNATTRIBUTED)
        counted = self._rest(tail, began, end_ns)
        self.ending = counted if self.steps else NOTHING
        if unfinished:
            self.kept_ns += sum(counted)
        if counted[_LOST] and self.restarts:
            self.add_cost(self.restarts[0][1], 0, counted[_LOST])

    def _limit_tail(self, tail: list[int], began: int, running_ns: int) -> None:
        """Move planned time beyond its limit to `stall`; `running_ns` is how long the last phase has been running.

        A process that makes rollouts and no steps may make any number of them, so only the running one is limited.
        """
        for state in _PLANNED:
            if tail[state] <= PLANNED_LEAST_NS:
                continue
            limit_ns = self._planned_limit(state, began, self.threshold_ns)
            if state == ROLLOUT and not self.steps:
                is_running = state_of(self.attempt.phase, self.attempt.phase_states) == ROLLOUT
                limit_ns = max(tail[ROLLOUT] - max(running_ns - limit_ns, 0) * is_running, 0)
            _limit(tail, state, limit_ns)


def ascending(values: Sequence[int], before: array) -> array:
    """`values` and `before`, which is ascending, as an ascending array of its own: of four bytes each, if they fit."""
    if 8 * len(values) <= len(before):
        with suppress(OverflowError):
            found = before[:]
            for value in values:
                insort(found, value)
            return found
    both = sorted([*before, *values])
    return array("I" if not both or (both[0] >= 0 and both[-1] < 1 << 32) else "q", both)


def median(ordered: array) -> int:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else int((ordered[half - 1] + ordered[half]) / 2)


def states_of_all(attempts: Iterable[Attempt]) -> list[tuple[int, ...]]:
    """`states_of_phases` of each."""
    shared: dict[int, tuple[int, ...]] = {}  # by the phases that attempts without states of their own share
    found = []
    for one in attempts:
        states = None if one.phase_states else shared.get(id(one.phases))
        if states is None:
            states = states_of_phases(one)
            if not one.phase_states:
                shared[id(one.phases)] = states
        found.append(states)
    return found


def _settled_gap(gap: list[int], first: bool, single: bool, threshold: int) -> list[int]:
    """A gap's states: before the first step all is startup except restore, compile and rollout; a long one is a stall.

    For a first row of many steps it is unknown where the time outside them lies, so named phases keep it.
    """
    settled = list(gap)
    if first and not single:
        move(settled, (UNATTRIBUTED,), _STARTUP)
    elif first:
        move(settled, _BEFORE_STEPS, _STARTUP)
    elif single and _unplanned(gap) > threshold:
        move(settled, _UNPLANNED, STALL)
    return settled


def _unplanned(states: list[int]) -> int:
    """Time that can be a stall: planned phases do not count."""
    return sum(states) - sum(states[i] for i in _PLANNED)


def _limit(states: list[int], state: int, limit_ns: int) -> None:
    """Move what exceeds the limit of a planned state to `stall`."""
    excess = states[state] - limit_ns
    if excess > 0:
        states[state] -= excess
        states[STALL] += excess
