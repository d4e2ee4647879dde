"""One run of a scenario: attempts, steps, checkpoints, evaluations, deaths, and what the ranks' pages would hold.

All ranks of an attempt step together: a step is as long as its slowest rank's own part and the collective. Step rows
are thinned as a node agent may do: the first of an attempt, some pairs later, and the newest of each moment are kept;
rows are cumulative, so no time is lost. Cost: 40 us a step and 15 us a rank and moment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from goodput.histograms.histogram import LATENCY_BOUNDS, STEP_BOUNDS
from goodput.simulate.scenario import HANG_KINDS, AttemptPlan, RunFault, RunPlan, nanoseconds, unix_ns
from goodput.simulate.steps import SHARES, Span, StepModel
from goodput.wire import schema

PHASES = (
    *("none", "loader", "h2d", "forward", "backward", "optimizer"),
    *("communication", "checkpoint", "restore", "evaluation", "compile"),
)
COLUMN = {phase: i for i, phase in enumerate(PHASES)}
HISTOGRAMS = ("loader", "h2d", "forward", "backward", "optimizer", "communication")
_PHASES = np.arange(len(HISTOGRAMS))[:, None]
_LATENCIES = np.array(LATENCY_BOUNDS)
RECENT_STEPS = 64  # whose exact lengths are kept


@dataclass
class Row:
    """A completed step; totals and outside are by rank and phase."""

    fields: tuple[int, int, int, int, int]  # number, step, start_ns, end_ns, samples
    totals: np.ndarray
    outside: np.ndarray
    kept: bool


@dataclass
class Behind:
    """A rank that has not completed the step with this number, while the others have; `live` is what its page shows."""

    rank: int
    number: int
    step: int
    samples: int
    live: tuple[str, int, list[int]] = ("", 0, [])


class Hang(NamedTuple):
    """All ranks stand still because of this fault since the end of their last step."""

    fault: RunFault
    begin_ns: int
    step: int  # the last completed one
    attempt: int


class Attempt:
    """The rank processes of one attempt. `live` is by rank: the phase, its last boundary, totals."""

    def __init__(self, number: int, plan: AttemptPlan, step: int):
        ranks = len(plan.places)
        self.number, self.plan, self.ranks = number, plan, ranks
        self.now_ns = self.begin_ns = nanoseconds(plan.start)
        # When each rank's process began: a launcher starts them one after the other.
        late = np.linspace(0, plan.skew, ranks) if ranks > 1 else np.zeros(1)
        self.begins_ns = self.begin_ns + np.rint(late * 1e9).astype(np.int64)
        self.first_step = step
        self.dead: dict[int, int] = {}  # rank: ns, of those that died while the others go on to wait
        self.silent: set[str] = set()  # nodes that died
        self.behind: Behind | None = None
        self.totals = np.zeros((ranks, len(PHASES)), np.int64)
        self.outside = np.zeros((ranks, len(PHASES)), np.int64)
        self.step = step
        self.steps_done = self.samples = self.cost_ns = 0
        self.rows: list[Row] = []
        self.events: list[schema.EventRow] = []
        self.sent_rows, self.sent_events = [0] * ranks, [0] * ranks
        self.end_reported = [False] * ranks
        self.ended, self.end_ns, self.alive = "", 0, True
        self.span: Span | None = None
        self.live: list[tuple[str, int, list[int]]] = []
        # By bucket: lengths of the steps, the same for all ranks, and of the phases in HISTOGRAMS.
        self.step_counts = np.zeros(len(STEP_BOUNDS) + 1, np.int64)
        self.phase_counts = np.zeros((ranks, len(HISTOGRAMS), len(LATENCY_BOUNDS) + 1), np.int64)
        self.starved_batches = np.zeros(ranks, np.int64)
        # Of the newest steps: the length, the same for all ranks, and the time in each phase by rank.
        self.recent: deque[tuple[int, dict[str, np.ndarray]]] = deque(maxlen=RECENT_STEPS)

    def is_alive(self, rank: int, now_ns: int) -> bool:
        return self.alive and self.dead.get(rank, now_ns + 1) > now_ns

    def rank_end_ns(self, rank: int) -> int:
        """When a rank ended that is not alive."""
        return self.dead.get(rank, self.end_ns)

    def lengthen_step(self, rank: int, phase: str, length_ns: int) -> None:
        """In the current step this rank spends so much longer in `phase`, and all others wait for it."""
        assert self.span is not None and self.span.is_step
        parts = dict(self.span.parts)
        parts["communication"] += length_ns
        parts["communication"][rank] -= length_ns
        parts[phase][rank] += length_ns

    def event(self, kind: str) -> None:
        number = len(self.events) + 1
        self.events.append(schema.EventRow(number, kind, unix_ns(self.now_ns), self.step - 1))


class SimulatedRun:
    """`advance(seconds)` moves it on; `attempt` is its newest attempt, None before the first.

    `unreported` has the attempts that still have something to push, the newest last. `on_span` is called after each
    step or other span of work, `on_end` after each attempt. `committed_step` is the step after the checkpoint that the
    first attempt resumes from. `hangs` has those that have begun.
    """

    def __init__(
        self,
        plan: RunPlan,
        committed_step: int = 0,
        on_span: Callable[[Attempt, Span], None] | None = None,
        on_end: Callable[[Attempt], None] | None = None,
    ):
        self.plan, self.name = plan, plan.run
        self.attempt: Attempt | None = None
        self.unreported: list[Attempt] = []
        self._spans: Iterator[Span] = iter(())
        self._random = np.random.default_rng(plan.seed)
        self._next, self._committed_step, self._on_span = 0, committed_step, on_span
        self._on_end = on_end
        self.hangs: list[Hang] = []

    def advance(self, to: float) -> None:
        """Simulate up to `to`: attempts that are due begin, those that are over end."""
        while True:
            attempt = self.attempt
            if attempt is not None and attempt.alive:
                self._train(attempt, min(to, attempt.plan.end))
                if attempt.plan.end > to:
                    return
                self._end(attempt)
            plans = self.plan.attempts
            if self._next >= len(plans) or plans[self._next].start > to:
                return
            self._next += 1
            self.attempt = Attempt(self._next, plans[self._next - 1], self._committed_step)
            self._spans = self._spans_of(self.attempt)
            self.unreported.append(self.attempt)

    def finished(self) -> bool:
        attempt = self.attempt
        return self._next == len(self.plan.attempts) and attempt is not None and not attempt.alive

    def _faults(self, kind: str, at: float) -> list[RunFault]:
        return [one for one in self.plan.faults if one.kind == kind and one.start <= at < one.end]

    def _train(self, attempt: Attempt, to: float) -> None:
        until_ns = nanoseconds(to)
        while True:
            if attempt.span is None:
                attempt.span = next(self._spans)
            length_ns = attempt.span.length_ns()
            if attempt.now_ns + length_ns > until_ns:
                _update_live(attempt, attempt.span, until_ns)
                return
            self._complete(attempt, attempt.span, length_ns)
            attempt.span = None

    def _complete(self, attempt: Attempt, span: Span, length_ns: int) -> None:
        began_ns, attempt.now_ns = attempt.now_ns, attempt.now_ns + length_ns
        for phase, by_rank in span.parts:
            attempt.totals[:, COLUMN[phase]] += by_rank
            if not span.is_step:
                attempt.outside[:, COLUMN[phase]] += by_rank
        if span.event:
            attempt.event(span.event)
            self._committed_step = attempt.step
        if span.is_step:
            self._complete_step(attempt, span, began_ns, length_ns)
        if self._on_span is not None:
            self._on_span(attempt, span)

    def _complete_step(self, attempt: Attempt, span: Span, began_ns: int, length_ns: int) -> None:
        attempt.steps_done += 1
        attempt.samples += self.plan.workload.samples
        share = sum(one.amount for one in self._faults("sdk", began_ns / 1e9)) or self.plan.workload.sdk_share
        attempt.cost_ns += int(length_ns * share)
        times = unix_ns(began_ns), unix_ns(attempt.now_ns)
        kept = not self.plan.thinned or attempt.steps_done <= 12 or attempt.steps_done % 40 in (0, 1)
        if attempt.rows and not attempt.rows[-1].kept and max(attempt.sent_rows) < len(attempt.rows):
            attempt.rows.pop()
        if attempt.behind is not None and attempt.behind.number == attempt.steps_done:
            attempt.behind.live = _waiting(attempt, attempt.behind.rank, span)
        fields = (attempt.steps_done, attempt.step, *times, attempt.samples)
        attempt.rows.append(Row(fields, attempt.totals.copy(), attempt.outside.copy(), kept))
        attempt.step += 1
        by_phase = dict(span.parts)
        attempt.recent.append((length_ns, by_phase))
        attempt.step_counts[bisect_left(STEP_BOUNDS, length_ns / 1e9)] += 1
        buckets = np.searchsorted(_LATENCIES, np.array([by_phase[phase] for phase in HISTOGRAMS]) / 1e9)
        attempt.phase_counts[np.arange(attempt.ranks), _PHASES, buckets] += 1
        usual_ns = SHARES["loader"] * self.plan.workload.step * 1e9
        attempt.starved_batches += by_phase["loader"] > 3 * usual_ns

    def _end(self, attempt: Attempt) -> None:
        plan = attempt.plan
        attempt.alive, attempt.end_ns = False, nanoseconds(plan.end)
        attempt.ended = plan.outcome if plan.outcome in ("finished", "failed") else ""
        lost = {*plan.lost_nodes, *attempt.silent}
        for rank, (node, _) in enumerate(plan.places):
            attempt.end_reported[rank] |= node in lost
        if attempt.ended:
            attempt.live = [("none", attempt.end_ns, totals) for _, _, totals in attempt.live]
        if self._on_end is not None:
            self._on_end(attempt)

    def _spans_of(self, attempt: Attempt) -> Iterator[Span]:
        """Everything that an attempt does, without end."""
        yield _uniform(attempt, "none", attempt.plan.startup)
        if attempt.step:
            yield _uniform(attempt, "restore", attempt.plan.restore)
            attempt.event("resumed")
        workload, begin = self.plan.workload, attempt.now_ns / 1e9
        steps = StepModel(self.plan, attempt.ranks, self._random)
        checkpoint_due = begin + workload.checkpoint_every
        evaluation_due = begin + workload.evaluation_every
        epoch_due = begin + workload.epoch_every
        compiling = attempt.plan.compile
        while True:
            now = attempt.now_ns / 1e9
            if now >= checkpoint_due and not self._faults("unsaved", now):
                checkpoint_due = now + workload.checkpoint_every
                longer = sum(one.amount for one in self._faults("save", now))
                spread = float(self._random.lognormal(0, workload.checkpoint_noise))
                attempt.event("checkpoint_begun")
                seconds = workload.checkpoint * spread + longer
                yield _uniform(attempt, "checkpoint", seconds, "checkpoint_committed")
            elif now >= evaluation_due:
                evaluation_due = now + workload.evaluation_every
                yield _uniform(attempt, "evaluation", workload.evaluation)
            else:
                pause = workload.epoch_pause if now >= epoch_due else 0.0
                epoch_due += workload.epoch_every if pause else 0.0
                yield steps.step(now, pause, compiling, self._stuck_seconds(attempt, now))
                compiling = 0.0

    def _stuck_seconds(self, attempt: Attempt, now: float) -> float:
        """How long all wait in the next step's collective, since the run hangs."""
        stuck = 0.0
        for fault in self.plan.faults:
            if fault.kind not in HANG_KINDS or not fault.start <= now < fault.end:
                continue
            if fault.kind == "desync" and attempt.behind is None and fault.rank is not None:
                # The others complete one step more.
                row = attempt.steps_done, attempt.step - 1, attempt.samples
                attempt.behind = Behind(fault.rank, row[0] + 1, *row[1:])
                continue
            self.hangs.append(Hang(fault, attempt.now_ns, attempt.step - 1, attempt.number))
            stuck = max(stuck, 0.0 if fault.kind == "hang" else fault.end - now)
            if fault.kind in ("death", "silence") and fault.rank is not None:
                self._die(attempt, fault.rank, with_node=fault.kind == "silence")
        return stuck

    def _die(self, attempt: Attempt, rank: int, with_node: bool) -> None:
        """In the middle of the forward pass of the next step."""
        node = attempt.plan.places[rank][0]
        at_ns = attempt.now_ns + nanoseconds(0.2 * self.plan.workload.step)
        for other, (host, _) in enumerate(attempt.plan.places):
            if other == rank or (with_node and host == node):
                attempt.dead[other] = at_ns
        if with_node:
            attempt.silent.add(node)


def _uniform(attempt: Attempt, phase: str, seconds: float, event: str = "") -> Span:
    by_rank = np.full(attempt.ranks, nanoseconds(seconds), np.int64)
    if attempt.now_ns == attempt.begin_ns:
        by_rank -= attempt.begins_ns - attempt.begin_ns
    return Span([(phase, by_rank)], event=event)


def _waiting(attempt: Attempt, rank: int, span: Span) -> tuple[str, int, list[int]]:
    """What the page of a rank shows that does not leave the collective of the step that all have completed."""
    parts = {phase: int(by_rank[rank]) for phase, by_rank in span.parts}
    totals = attempt.totals[rank].tolist()
    for phase in ("communication", "optimizer", "none"):
        totals[COLUMN[phase]] -= parts[phase]
    return (
        "communication",
        attempt.now_ns - sum(parts[p] for p in ("communication", "optimizer", "none")),
        totals,
    )


def _update_live(attempt: Attempt, span: Span, at_ns: int) -> None:
    """What pages show in the middle of a span: its parts that are over are in the totals, the current one is not."""
    totals = attempt.totals.copy()
    phases, boundaries = ["none"] * attempt.ranks, [attempt.now_ns] * attempt.ranks
    for rank in range(attempt.ranks):
        at = max(attempt.now_ns, int(attempt.begins_ns[rank]))
        until = min(at_ns, attempt.dead.get(rank, at_ns))
        for phase, by_rank in span.parts:
            phases[rank], boundaries[rank] = phase, at
            at += int(by_rank[rank])
            if at > until:
                break
            totals[rank, COLUMN[phase]] += by_rank[rank]
    attempt.live = list(zip(phases, boundaries, totals.tolist(), strict=True))
    behind = attempt.behind
    if behind is not None and behind.live[0]:
        attempt.live[behind.rank] = behind.live
