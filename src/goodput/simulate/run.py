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

import numpy as np

from goodput.histograms.histogram import LATENCY_BOUNDS, STEP_BOUNDS
from goodput.simulate.scenario import AttemptPlan, RunFault, RunPlan, nanoseconds, unix_ns
from goodput.wire import schema

PHASES = (
    *("none", "loader", "h2d", "forward", "backward", "optimizer"),
    *("communication", "checkpoint", "restore", "evaluation", "compile"),
)
COLUMN = {phase: i for i, phase in enumerate(PHASES)}
# A step's parts in order; the collective comes before the optimizer.
ORDER = ("loader", "h2d", "forward", "backward", "communication", "optimizer", "none")
SHARES = {"loader": 0.02, "h2d": 0.01, "forward": 0.29, "backward": 0.55, "optimizer": 0.04, "none": 0.005}
COLLECTIVE_SHARE = 0.085
HISTOGRAMS = ("loader", "h2d", "forward", "backward", "optimizer", "communication")
RECENT_STEPS = 64  # whose exact lengths are kept


@dataclass
class Span:
    """Work of all ranks that ends for all at the same moment: (phase, ns by rank), in order."""

    parts: list[tuple[str, np.ndarray]]
    is_step: bool = False
    event: str = ""

    def length_ns(self) -> int:
        return sum(int(by_rank[0]) for _, by_rank in self.parts)


@dataclass
class Row:
    fields: tuple[int, int, int, int, int]  # number, step, start_ns, end_ns, samples
    totals: list[list[int]]
    outside: list[list[int]]
    kept: bool


class Attempt:
    """The rank processes of one attempt. `live` is by rank: the phase, its last boundary, totals."""

    def __init__(self, number: int, plan: AttemptPlan, step: int):
        ranks = len(plan.places)
        self.number, self.plan, self.ranks = number, plan, ranks
        self.now_ns = self.begin_ns = nanoseconds(plan.start)
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
    step or other span of work. `committed_step` is the step after the checkpoint that the first attempt resumes from.
    """

    def __init__(
        self, plan: RunPlan, committed_step: int = 0, on_span: Callable[[Attempt, Span], None] | None = None
    ):
        self.plan, self.name = plan, plan.run
        self.attempt: Attempt | None = None
        self.unreported: list[Attempt] = []
        self._spans: Iterator[Span] = iter(())
        self._random = np.random.default_rng(plan.seed)
        self._next, self._committed_step, self._on_span = 0, committed_step, on_span

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
        kept = attempt.steps_done <= 12 or attempt.steps_done % 40 in (0, 1)
        if attempt.rows and not attempt.rows[-1].kept and max(attempt.sent_rows) < len(attempt.rows):
            attempt.rows.pop()
        fields = (attempt.steps_done, attempt.step, *times, attempt.samples)
        attempt.rows.append(Row(fields, attempt.totals.tolist(), attempt.outside.tolist(), kept))
        attempt.step += 1
        by_phase = dict(span.parts)
        attempt.recent.append((length_ns, by_phase))
        attempt.step_counts[bisect_left(STEP_BOUNDS, length_ns / 1e9)] += 1
        for at, phase in enumerate(HISTOGRAMS):
            buckets = np.searchsorted(LATENCY_BOUNDS, by_phase[phase] / 1e9)
            attempt.phase_counts[np.arange(attempt.ranks), at, buckets] += 1
        usual_ns = SHARES["loader"] * self.plan.workload.step * 1e9
        attempt.starved_batches += by_phase["loader"] > 3 * usual_ns

    def _end(self, attempt: Attempt) -> None:
        plan = attempt.plan
        attempt.alive, attempt.end_ns = False, nanoseconds(plan.end)
        attempt.ended = plan.outcome if plan.outcome in ("finished", "failed") else ""
        attempt.end_reported = [node in plan.lost_nodes for node, _ in plan.places]
        if attempt.ended:
            attempt.live = [("none", attempt.end_ns, totals) for _, _, totals in attempt.live]

    def _spans_of(self, attempt: Attempt) -> Iterator[Span]:
        """Everything that an attempt does, without end."""
        yield _uniform(attempt, "none", attempt.plan.startup)
        if attempt.step:
            yield _uniform(attempt, "restore", attempt.plan.restore)
            attempt.event("resumed")
        workload, begin = self.plan.workload, attempt.now_ns / 1e9
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
                yield self._step(attempt, now, pause, compiling)
                compiling = 0.0

    def _step(self, attempt: Attempt, now: float, pause: float, compiling: float) -> Span:
        workload, ranks = self.plan.workload, attempt.ranks
        base = workload.step * (1 + workload.noise * self._random.standard_normal())
        if workload.hiccup_every and self._random.random() < 1 / workload.hiccup_every:
            base *= 1.5 + self._random.random()
        own = {phase: np.full(ranks, base * share) for phase, share in SHARES.items()}
        for phase in ("forward", "backward"):
            own[phase] *= 1 + 0.004 * self._random.standard_normal(ranks)
        own["loader"] = own["loader"] * self._random.lognormal(0, 0.3, ranks) + pause
        own["forward"] += compiling
        collective = COLLECTIVE_SHARE * base
        for fault in self.plan.faults:
            if not fault.start <= now < fault.end:
                continue
            where = slice(None) if fault.rank is None else slice(fault.rank, fault.rank + 1)
            if fault.kind == "compute":
                own["forward"][where] *= fault.amount
                own["backward"][where] *= fault.amount
            elif fault.kind == "loader":
                own["loader"][where] += fault.amount * base
            elif fault.kind == "communication":
                collective += fault.amount * base
            elif fault.kind == "hang":
                own[fault.phase][where] += fault.end - now
        alone = sum(own.values(), np.zeros(ranks))
        own["communication"] = alone.max() - alone + collective
        parts = [(phase, np.rint(own[phase] * 1e9).astype(np.int64)) for phase in ORDER]
        # All ranks end together, to the nanosecond: the collective takes up what rounding left.
        sums = sum((part for _, part in parts), np.zeros(ranks, np.int64))
        dict(parts)["communication"] += sums.max() - sums
        return Span(parts, is_step=True)


def _uniform(attempt: Attempt, phase: str, seconds: float, event: str = "") -> Span:
    return Span([(phase, np.full(attempt.ranks, nanoseconds(seconds), np.int64))], event=event)


def _update_live(attempt: Attempt, span: Span, at_ns: int) -> None:
    """What pages show in the middle of a span: its parts that are over are in the totals, the current one is not."""
    totals = attempt.totals.copy()
    phases, boundaries = ["none"] * attempt.ranks, [attempt.now_ns] * attempt.ranks
    for rank in range(attempt.ranks):
        at = attempt.now_ns
        for phase, by_rank in span.parts:
            phases[rank], boundaries[rank] = phase, at
            at += int(by_rank[rank])
            if at > at_ns:
                break
            totals[rank, COLUMN[phase]] += by_rank[rank]
    attempt.live = list(zip(phases, boundaries, totals.tolist(), strict=True))
