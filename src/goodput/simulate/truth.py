"""What a simulated run truly did, from the generator's own bookkeeping and nothing of the account's code.

Time is booked as it is made: by rank and state, in ns, in segments that end where a checkpoint is committed, so that
what a restart makes lost are whole segments. What only the end of the run can decide (whether a long wait was a stall)
is kept apart until `document`.

    truth = RunTruth(plan); run = SimulatedRun(plan, on_span=truth.on_span, on_end=truth.on_end)
    ...
    truth.document(run, end_ns)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from goodput.simulate.run import COLUMN, Attempt, Hang, SimulatedRun
from goodput.simulate.scenario import RunFault, RunPlan, nanoseconds
from goodput.simulate.steps import Span

STATES = (
    *("productive", "loader", "h2d", "communication", "straggler", "bubble", "checkpoint", "evaluation"),
    *("compile", "startup", "restore", "stall", "lost", "down", "queue", "unattributed", "unobserved"),
)
AT = {state: i for i, state in enumerate(STATES)}
PLANNED = [AT[state] for state in ("checkpoint", "evaluation", "restore", "compile")]
UNPLANNED = [i for i in range(len(STATES)) if i not in PLANNED]
OF_PHASE = {
    **dict.fromkeys(("forward", "backward", "optimizer"), "productive"),
    **{state: state for state in ("loader", "h2d", "communication", "checkpoint", "restore", "evaluation")},
    "none": "unattributed",
}
# docs/definitions.md, "Stall": 60 s or 10 x the 99th percentile of the step lengths before; no shorter wait can be one.
STALL_NS, STALL_TIMES, STALL_STEPS = 60 * 10**9, 10, 1024
UNKNOWN_STALL_NS = 1800 * 10**9  # before any step length is known


@dataclass
class _Segment:
    """Steps from `first` on, up to a committed checkpoint."""

    first: int
    states: np.ndarray

    def total(self) -> np.ndarray:
        """By rank, all states together."""
        return self.states.sum(axis=1)


@dataclass
class Culprit:
    """A fault that slowed single ranks or a stage down: in which steps, how long these took, and would have without it."""

    fault: RunFault
    begin_ns: int
    first_step: int
    end_ns: int = 0
    last_step: int = 0
    length_ns: int = 0
    even_ns: int = 0

    def document(self) -> dict:
        return {
            "kind": self.fault.kind,
            "rank": self.fault.rank,
            "stage": self.fault.stage,
            "begin_seconds": self.begin_ns / 1e9,
            "end_seconds": self.end_ns / 1e9,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "slowdown": self.length_ns / self.even_ns,
        }


class RunTruth:
    def __init__(self, plan: RunPlan):
        self.plan, self.ranks = plan, max(len(one.places) for one in plan.attempts)
        self.attempts: list[Attempt] = []
        self.culprits: dict[int, Culprit] = {}
        self._outside = self._zeros()  # steps and what they lose apart
        self._segments: list[_Segment] = []
        self._pending = self._zeros()  # of the newest attempt, since its last step
        self._tails: list[tuple[Attempt, np.ndarray, int]] = []  # with the stall threshold then
        self._lengths_ns: list[int] = []  # of the last steps, but each attempt's first

    # ---- While the run is simulated

    def on_span(self, attempt: Attempt, span: Span) -> None:
        self._open(attempt)
        if span.is_step:
            self._add_step(attempt, span)
            return
        for phase, by_rank in span.parts:
            state = "startup" if phase == "none" else OF_PHASE[phase]
            self._pending[: attempt.ranks, AT[state]] += by_rank
        if span.event == "checkpoint_committed":
            self._segments.append(_Segment(attempt.step, self._zeros()))

    def on_end(self, attempt: Attempt) -> None:
        """Its time after its last step, whose end the attempt has not seen."""
        self._open(attempt)
        tail, self._pending = self._pending, self._zeros()
        for rank, (phase, _, totals) in enumerate(attempt.live):
            known = 0
            for name, column in COLUMN.items():
                ns = max(totals[column] - int(attempt.totals[rank, column]), 0) if name in OF_PHASE else 0
                tail[rank, AT[OF_PHASE.get(name, "unattributed")]] += ns
                known += ns
            begin_ns = max(attempt.now_ns, int(attempt.begins_ns[rank]))
            rest = attempt.rank_end_ns(rank) - begin_ns - known
            tail[rank, AT[OF_PHASE.get(phase, "unattributed")]] += rest
        if not attempt.steps_done:
            begins = [AT["restore"], AT["compile"]]
            others = [i for i in range(len(STATES)) if i not in begins]
            self._outside += _moved(tail, others, "startup")
        else:
            self._tails.append((attempt, tail, self._threshold_ns()))

    def _open(self, attempt: Attempt) -> None:
        """The first that is seen of an attempt: what it resumes before is lost."""
        if self.attempts and self.attempts[-1] is attempt:
            return
        self.attempts.append(attempt)
        for segment in [one for one in self._segments if one.first >= attempt.first_step]:
            self._outside[:, AT["lost"]] += segment.total()
            self._segments.remove(segment)
        self._segments.append(_Segment(attempt.first_step, self._zeros()))

    def _add_step(self, attempt: Attempt, span: Span) -> None:
        states, parts = self._zeros(), dict(span.parts)
        here = slice(attempt.ranks)
        for phase, by_rank in span.parts:
            states[here, AT[OF_PHASE[phase]]] += by_rank
        assert span.waited is not None and span.bubble is not None
        for state, ns in (("straggler", span.waited), ("bubble", span.bubble)):
            ns = np.minimum(ns, states[here, AT["communication"]])
            states[here, AT[state]] += ns
            states[here, AT["communication"]] -= ns
        states[here, AT["productive"]] -= span.compile_ns
        states[here, AT["compile"]] += span.compile_ns
        assert (parts["communication"] >= 0).all()
        self._outside += self._pending
        self._pending = self._zeros()
        behind = attempt.behind
        if behind is not None and attempt.steps_done >= behind.number:
            # It never completes this step.
            self._pending[behind.rank], states[behind.rank] = states[behind.rank], 0
        length_ns, segment = span.length_ns(), self._segments[-1]
        if length_ns > STALL_NS:
            states = _stalled(states, self._threshold_ns())
        if attempt.steps_done > 1:
            self._lengths_ns = [*self._lengths_ns[1 - STALL_STEPS :], length_ns]
        segment.states += states
        self._note_culprits(attempt, span, length_ns)

    def _note_culprits(self, attempt: Attempt, span: Span, length_ns: int) -> None:
        step = attempt.step - 1
        for fault in span.slow:
            found = self.culprits.setdefault(id(fault), Culprit(fault, attempt.now_ns - length_ns, step))
            found.end_ns, found.last_step = attempt.now_ns, step
            found.length_ns += length_ns
            found.even_ns += span.even_ns

    def _zeros(self) -> np.ndarray:
        return np.zeros((self.ranks, len(STATES)), np.int64)

    def threshold_ns(self) -> int:
        """From how long on a run hangs."""
        return self._threshold_ns() if self._lengths_ns else STALL_NS

    def _threshold_ns(self) -> int:
        """After the steps so far, of which every rank has made the same; of fewer than eight by the longest."""
        lengths = sorted(self._lengths_ns)
        if not lengths:
            return UNKNOWN_STALL_NS
        usual = lengths[-1] if len(lengths) < 8 else lengths[99 * (len(lengths) - 1) // 100]
        return max(STALL_NS, STALL_TIMES * usual)

    # ---- Afterwards

    def states(self, end_ns: int, unseen: frozenset[str] = frozenset()) -> np.ndarray:
        """ns by rank and state up to `end_ns`; ranks on unseen nodes are unobserved."""
        found = self._outside.copy()
        for segment in self._segments:
            found += segment.states
        for attempt, tail, threshold_ns in self._tails:
            found += _ended(tail, threshold_ns, attempt.ended == "finished")
        for rank in range(self.ranks):
            for state, ns in self._gaps(rank, end_ns):
                found[rank, AT[state]] += ns
        for attempt in self.attempts:
            for rank, (node, _) in enumerate(attempt.plan.places):
                if node in unseen:
                    found[rank, AT["unobserved"]], found[rank, : AT["unobserved"]] = found[rank].sum(), 0
        return found

    def _gaps(self, rank: int, end_ns: int) -> Iterator[tuple[str, int]]:
        """Times in which the rank is expected and has no process."""
        at, before = self.begin_ns(), "unobserved"
        for attempt in self.attempts:
            if rank >= attempt.ranks:
                # Expected until this attempt begins, and not in it.
                if before == "down":
                    yield "down", attempt.begin_ns - at
                before = "not expected"
                continue
            if before == "not expected" or (before == "unobserved" and attempt is not self.attempts[0]):
                at = attempt.begin_ns
            submit = attempt.plan.submit
            queued_ns = attempt.begin_ns if submit is None else max(nanoseconds(submit), at)
            yield "down", max(min(queued_ns, attempt.begin_ns) - at, 0)
            yield "queue", max(attempt.begin_ns - max(queued_ns, at), 0)
            yield "startup", int(attempt.begins_ns[rank]) - attempt.begin_ns
            at, before = attempt.rank_end_ns(rank), "down"
        if before == "down":
            finished = self.attempts[-1].ended == "finished"
            yield "unattributed" if finished else "down", end_ns - at

    def begin_ns(self) -> int:
        first = self.attempts[0]
        submit = first.plan.submit
        return first.begin_ns if submit is None else min(first.begin_ns, nanoseconds(submit))

    def end_ns(self) -> int | None:
        """None of a run that goes on, as far as anyone can know: ranks that ended with their node report no end."""
        last = self.attempts[-1]
        is_known = not last.alive and not last.plan.lost_nodes and not last.silent
        return last.end_ns if is_known or last.ended == "finished" else None

    def document(self, run: SimulatedRun, end_ns: int, unseen: frozenset[str] = frozenset()) -> dict:
        """The truth of one run, for JSON: seconds from the scenario's beginning; ns by rank and state."""
        states = self.states(end_ns, unseen)
        threshold_ns = self.threshold_ns()
        return {
            "run": run.name,
            "begin_seconds": self.begin_ns() / 1e9,
            "end_seconds": end_ns / 1e9,
            "stall_threshold_seconds": threshold_ns / 1e9,
            "gpu_seconds": int(states.sum()) / 1e9,
            "states": {state: int(states[:, i].sum()) / 1e9 for state, i in AT.items()},
            "restarts": [one.begin_ns / 1e9 for one in self.attempts[1:]],
            "culprits": [one.document() for one in self.culprits.values()],
            "hangs": [_hang_document(one, self.attempts[one.attempt - 1], threshold_ns) for one in run.hangs],
            "ranks": [
                {"rank": rank, "states_ns": {state: int(row[i]) for state, i in AT.items() if row[i]}}
                for rank, row in enumerate(states)
            ],
        }


def _hang_document(hang: Hang, attempt: Attempt, threshold_ns: int) -> dict:
    """`ranks` are those of which one is to be named; none where that cannot be known."""
    fault, ranks = hang.fault, []
    if fault.kind == "silence":
        node = attempt.plan.places[fault.rank or 0][0]
        ranks = [rank for rank, (host, _) in enumerate(attempt.plan.places) if host == node]
    elif fault.rank is not None:
        ranks = [fault.rank]
    end_ns = nanoseconds(fault.end) if attempt.alive else min(nanoseconds(fault.end), attempt.end_ns)
    return {
        "kind": fault.kind,
        "phase": fault.phase if fault.kind == "hang" else None,
        "ranks": ranks,
        "begin_seconds": hang.begin_ns / 1e9,
        "end_seconds": end_ns / 1e9,
        "is_stall": end_ns - hang.begin_ns > threshold_ns,
    }


def _moved(states: np.ndarray, sources: list[int], target: str) -> np.ndarray:
    """By rank, all time of the source states in the target state."""
    found, moved = states.copy(), states[:, sources].sum(axis=1)
    found[:, sources] = 0
    found[:, AT[target]] += moved
    return found


def _stalled(states: np.ndarray, threshold_ns: int) -> np.ndarray:
    """States by rank, with the unplanned time of ranks where it is longer than the threshold as stall."""
    is_long = (states[:, UNPLANNED].sum(axis=1) > threshold_ns)[:, None]
    return np.where(is_long, _moved(states, UNPLANNED, "stall"), states)


def _ended(tail: np.ndarray, threshold_ns: int, finished: bool) -> np.ndarray:
    """The time after an attempt's last step: a stall, else lost, or unattributed where the run had finished."""
    is_long = (tail[:, UNPLANNED].sum(axis=1) > threshold_ns)[:, None]
    if finished:
        short = _moved(tail, [AT["productive"]], "unattributed")
    else:
        short = _moved(tail, list(range(len(STATES))), "lost")
    return np.where(is_long, _moved(tail, UNPLANNED, "stall"), short)
