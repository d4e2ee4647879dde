"""A run as its rank processes live it: starts, steps, checkpoints, evaluations, deaths, and what their pages would say.

In: a Job: its starts (places, from when to when, how it ends), its habits, its troubles; then moments, in order. Out: at
each moment what is new of each rank as schema.RankReport, and its live part. All ranks of a start step together: a
step is as long as its slowest rank's own part and the collective. Times are simulated seconds from 0.
Rows are thinned as an agent may do: the first of each start, some pairs later, and the newest of each moment; they are
cumulative, so no time is lost. Cost: some 40 us a step and 15 us a rank and moment. It knows no aggregator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from goodput.wire import schema

PHASES = (
    *("none", "loader", "h2d", "forward", "backward", "optimizer"),
    *("communication", "checkpoint", "restore", "evaluation", "compile"),
)
COLUMN = {phase: i for i, phase in enumerate(PHASES)}
# A step's parts in order; the collective comes before the optimizer.
ORDER = ("loader", "h2d", "forward", "backward", "communication", "optimizer", "none")
SHARES = {"loader": 0.02, "h2d": 0.01, "forward": 0.29, "backward": 0.55, "optimizer": 0.04, "none": 0.005}
COLLECTIVE = 0.085
BATCH = 512
SDK_SHARE = 0.002
# Simulated second 0: Monday 2026-01-05 00:00 UTC.
EPOCH_SECONDS = 1_767_571_200
PAGE_KEPT_SECONDS = 60.0

Place = tuple[str, int]  # node, index of the GPU on it


@dataclass
class Start:
    """One start of a run: `places` by rank. It ends at `until` as `how` says: finished, failed, killed, preempted."""

    at: float
    until: float
    places: list[Place]
    how: str = "killed"
    startup: float = 40.0
    restore: float = 30.0
    compile: float = 45.0
    world: int | None = None  # when more ranks are expected than are there
    lost: tuple[str, ...] = ()  # nodes that die with it: what their pages had to tell is gone


@dataclass
class Habits:
    """What a run usually does, in seconds."""

    step: float = 12.0
    checkpoint_every: float = 1800.0
    checkpoint: float = 45.0
    checkpoint_noise: float = 0.2
    evaluation_every: float = 4 * 3600.0
    evaluation: float = 240.0
    epoch_every: float = 6 * 3600.0
    epoch_pause: float = 25.0
    noise: float = 0.01
    hiccup_every: int = 400  # steps between long ones: garbage collection, a slow batch
    sdk_share: float = SDK_SHARE


@dataclass
class Trouble:
    """From `at` to `until`, `value` more of `kind`; see Job._step and Job._life. No rank means all."""

    kind: str  # compute, loader, communication, hang, save, unsaved, sdk, lost
    at: float
    until: float
    value: float = 1.0
    rank: int | None = None
    phase: str = "loader"


@dataclass
class _Piece:
    """Something that takes time: (phase, ns by rank) in order, all ranks of the same sum."""

    parts: list[tuple[str, np.ndarray]]
    step: bool = False
    event: str = ""


@dataclass
class _Row:
    row: tuple  # number, step, start_ns, end_ns, samples
    totals: list[list[int]]
    outside: list[list[int]]
    kept: bool


class Life:
    """The processes of one start."""

    def __init__(self, number: int, start: Start, step: int):
        ranks = len(start.places)
        self.number, self.start, self.ranks = number, start, ranks
        self.now_ns = self.begin_ns = ns(start.at)
        self.totals = np.zeros((ranks, len(PHASES)), np.int64)
        self.outside = np.zeros((ranks, len(PHASES)), np.int64)
        self.step = self.resumed = step
        self.done = self.samples = self.cost_ns = 0
        self.rows: list[_Row] = []
        self.events: list[schema.EventRow] = []
        self.sent_rows, self.sent_events = [0] * ranks, [0] * ranks
        self.told_end = [False] * ranks
        self.ended, self.end_ns, self.alive = "", 0, True
        self.piece: _Piece | None = None
        self.pieces: Iterator[_Piece] | None = None
        self.live: list[tuple[str, int, list[int]]] = []  # by rank: phase, last boundary, totals

    def event(self, kind: str, at_ns: int) -> None:
        self.events.append(schema.EventRow(len(self.events) + 1, kind, absolute(at_ns), self.step - 1))


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


def absolute(at_ns: int) -> int:
    return at_ns + EPOCH_SECONDS * 10**9


@dataclass
class Job:
    """One run. `advance(seconds)` moves it on; `life` is its newest start, None before the first."""

    run: str
    starts: list[Start]
    habits: Habits
    seed: int = 0
    troubles: list[Trouble] = field(default_factory=list)
    flops_per_step: float = 2.0e15
    life: Life | None = None
    over: list[Life] = field(default_factory=list)  # ended lives of which not all was told

    def __post_init__(self):
        self._rng = np.random.default_rng(self.seed)
        self._next = self._committed = 0

    def advance(self, to: float) -> None:
        """Live up to `to`: starts that are due begin, those that are over end."""
        while True:
            life = self.life
            if life is not None and life.alive:
                self._live(life, min(to, life.start.until))
                if life.start.until > to:
                    return
                self._end(life)
            if self._next >= len(self.starts) or self.starts[self._next].at > to:
                return
            start, self._next = self.starts[self._next], self._next + 1
            self.life = Life(self._next, start, self._committed)
            self.life.pieces = self._life(self.life)
            self.over.append(self.life)

    def finished(self) -> bool:
        return self._next == len(self.starts) and self.life is not None and not self.life.alive

    def trouble(self, kind: str, at: float) -> list[Trouble]:
        return [one for one in self.troubles if one.kind == kind and one.at <= at < one.until]

    def _live(self, life: Life, to: float) -> None:
        until_ns = ns(to)
        while True:
            if life.piece is None:
                life.piece = next(life.pieces)
            length_ns = sum(int(own[0]) for _, own in life.piece.parts)
            if life.now_ns + length_ns > until_ns:
                self._look(life, until_ns)
                return
            self._done(life, life.piece, length_ns)
            life.piece = None

    def _done(self, life: Life, piece: _Piece, length_ns: int) -> None:
        began_ns, life.now_ns = life.now_ns, life.now_ns + length_ns
        for phase, own in piece.parts:
            life.totals[:, COLUMN[phase]] += own
            if not piece.step:
                life.outside[:, COLUMN[phase]] += own
        if piece.event:
            life.event(piece.event, life.now_ns)
            self._committed = life.step
        if not piece.step:
            return
        life.done, life.samples = life.done + 1, life.samples + BATCH
        share = sum(one.value for one in self.trouble("sdk", began_ns / 1e9)) or self.habits.sdk_share
        life.cost_ns += int(length_ns * share)
        row = (life.done, life.step, absolute(began_ns), absolute(life.now_ns), life.samples)
        kept = life.done <= 12 or life.done % 40 in (0, 1)
        if life.rows and not life.rows[-1].kept and max(life.sent_rows) < len(life.rows):
            life.rows.pop()
        life.rows.append(_Row(row, life.totals.tolist(), life.outside.tolist(), kept))
        life.step += 1

    def _look(self, life: Life, at_ns: int) -> None:
        """What pages say amid a piece: whole parts are in the totals, the one that goes on is not."""
        totals = life.totals.copy()
        phases, lasts = ["none"] * life.ranks, [life.now_ns] * life.ranks
        for rank in range(life.ranks):
            at = life.now_ns
            for phase, own in life.piece.parts:
                phases[rank], lasts[rank] = phase, at
                at += int(own[rank])
                if at > at_ns:
                    break
                totals[rank, COLUMN[phase]] += own[rank]
        life.live = list(zip(phases, lasts, totals.tolist(), strict=True))

    def _end(self, life: Life) -> None:
        life.alive, life.end_ns = False, ns(life.start.until)
        life.ended = {"finished": "finished", "failed": "failed"}.get(life.start.how, "")
        life.told_end = [node in life.start.lost for node, _ in life.start.places]
        if life.ended:
            life.live = [("none", life.end_ns, totals) for _, _, totals in life.live]

    def _life(self, life: Life) -> Iterator[_Piece]:
        """Everything that a start does, without end."""
        yield _even(life, "none", life.start.startup)
        if life.step:
            yield _even(life, "restore", life.start.restore)
            life.events.append(
                schema.EventRow(len(life.events) + 1, "resumed", absolute(life.now_ns), life.step - 1)
            )
        habits, begin = self.habits, life.now_ns / 1e9
        due = {what: begin + every for what, every in self._every().items()}
        first = True
        while True:
            at = life.now_ns / 1e9
            if at >= due["checkpoint"] and not self.trouble("unsaved", at):
                due["checkpoint"] = at + habits.checkpoint_every
                longer = sum(one.value for one in self.trouble("save", at))
                spread = float(self._rng.lognormal(0, habits.checkpoint_noise))
                life.event("checkpoint_begun", life.now_ns)
                yield _even(life, "checkpoint", habits.checkpoint * spread + longer, "checkpoint_committed")
            elif at >= due["evaluation"]:
                due["evaluation"] = at + habits.evaluation_every
                yield _even(life, "evaluation", habits.evaluation)
            else:
                pause = habits.epoch_pause if at >= due["epoch"] else 0.0
                due["epoch"] += habits.epoch_every if pause else 0.0
                yield self._step(life, at, pause, life.start.compile if first else 0.0)
                first = False

    def _every(self) -> dict[str, float]:
        habits = self.habits
        return {
            "checkpoint": habits.checkpoint_every,
            "evaluation": habits.evaluation_every,
            "epoch": habits.epoch_every,
        }

    def _step(self, life: Life, at: float, pause: float, compiling: float) -> _Piece:
        habits, ranks = self.habits, life.ranks
        base = habits.step * (1 + habits.noise * self._rng.standard_normal())
        if habits.hiccup_every and self._rng.random() < 1 / habits.hiccup_every:
            base *= 1.5 + self._rng.random()
        own = {phase: np.full(ranks, base * share) for phase, share in SHARES.items()}
        for phase in ("forward", "backward"):
            own[phase] *= 1 + 0.004 * self._rng.standard_normal(ranks)
        own["loader"] = own["loader"] * self._rng.lognormal(0, 0.3, ranks) + pause
        own["forward"] += compiling
        collective = COLLECTIVE * base
        for one in self.troubles:
            if not one.at <= at < one.until:
                continue
            where = slice(None) if one.rank is None else slice(one.rank, one.rank + 1)
            if one.kind == "compute":
                own["forward"][where] *= one.value
                own["backward"][where] *= one.value
            elif one.kind == "loader":
                own["loader"][where] += one.value * base
            elif one.kind == "communication":
                collective += one.value * base
            elif one.kind == "hang":
                own[one.phase][where] += one.until - at
        alone = sum(own.values())
        own["communication"] = alone.max() - alone + collective
        parts = [(phase, np.rint(own[phase] * 1e9).astype(np.int64)) for phase in ORDER]
        # All ranks end together, to the nanosecond: the collective takes up what rounding left.
        sums = sum(part for _, part in parts)
        dict(parts)["communication"] += sums.max() - sums
        return _Piece(parts, step=True)


def _even(life: Life, phase: str, seconds: float, event: str = "") -> _Piece:
    return _Piece([(phase, np.full(life.ranks, ns(seconds), np.int64))], event=event)
