"""A small cluster's last hours, written down as a story: three runs, and what befalls them.

In: simulated time, moved on by the caller. Out: rank reports as node agents would push them (goodput.wire.schema), and
for each rank what its page would hold. The figures are made up but hang together: a step is as long as its slowest
rank, who is early waits in communication, a run that is killed goes on from its last checkpoint. Everything comes
from one seed, so that the same story gives the same pictures. It knows nothing of Prometheus.

    llama-70b    24 ranks on gpu-01 to gpu-03: checkpoints, evaluations, a lost GPU with a restart, a throttled GPU
    vit-22b      8 ranks on gpu-04: its data loader falls behind
    whisper-ft   8 ranks on gpu-05: short, and finished before the end
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from goodput.histograms.histogram import LATENCY_BOUNDS
from goodput.wire import schema

PHASES = (
    *("none", "loader", "h2d", "forward", "backward", "optimizer", "communication", "checkpoint"),
    *("restore", "evaluation", "compile"),
)
COLUMN = {name: column for column, name in enumerate(PHASES)}
DEVICE = "NVIDIA H100 80GB HBM3"
GPUS_PER_NODE = 8
PEAK_FLOPS_PER_SECOND = 989e12
GPU_HOUR_COST = 2.5


@dataclass(frozen=True)
class Plan:
    """A run as it was meant, and what goes wrong; times in seconds since the story's beginning."""

    run: str
    nodes: tuple[str, ...]
    start: float
    end: float
    compute: float  # seconds of a step in forward, backward and optimizer
    loader: float
    communication: float
    mfu: float  # while it computes
    samples: int
    checkpoint_every: float = 1200.0
    checkpoint_seconds: float = 14.0
    evaluate_every: float = 3000.0
    evaluate_seconds: float = 70.0
    kill: float | None = None  # when a GPU of its second node is lost
    slow: tuple[int, float, float, float] | None = None  # rank, from, to, factor
    starve: tuple[float, float] | None = None  # since when, by what factor the loader slows


def plans(length: float) -> tuple[Plan, ...]:
    """The runs of a story of so many seconds, whose last hour is the interesting one."""
    end = length
    return (
        Plan("llama-70b", ("gpu-01", "gpu-02", "gpu-03"), 240, end + 1e6, 5.2, 0.05, 0.55, 0.52, 1024,
             kill=max(end - 2580, 1500), slow=(13, end - 1500, end - 720, 1.14)),
        Plan("vit-22b", ("gpu-04",), 900, end + 1e6, 1.9, 0.06, 0.16, 0.44, 512,
             checkpoint_every=900, checkpoint_seconds=6, evaluate_every=2400, evaluate_seconds=35,
             starve=(end - 1900, 14.0)),
        Plan("whisper-ft", ("gpu-05",), max(300, end - 3000), end - 660, 0.8, 0.05, 0.07, 0.31, 256,
             checkpoint_every=600, checkpoint_seconds=3, evaluate_every=1000, evaluate_seconds=20),
    )  # fmt: skip


@dataclass
class Histogram:
    """A Prometheus histogram with the SDK's bounds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self.total += seconds


class Rank:
    """One process: cumulative ns by phase, and what of it was not reported yet."""

    def __init__(self, number: int, node: str, gpu: int):
        self.number, self.node, self.gpu = number, node, f"GPU-{node[-2:]}{gpu}c4f1"
        self.totals, self.outside = [0] * len(PHASES), [0] * len(PHASES)
        self.device_ns = 0
        self.rows: list[schema.StepRow] = []
        self.events: list[schema.EventRow] = []
        self.rows_made = self.events_made = 0
        # Where the process will stand at moments that the caller has not reached: (moment, totals, phase until then).
        self.coming: deque[tuple[float, tuple[int, ...], str]] = deque()
        self.stands: tuple[float, tuple[int, ...]] = (0.0, tuple(self.totals))
        self.told = 0
        self.histograms = {
            name: Histogram() for name in ("step", "loader", "forward", "backward", "communication")
        }
        self.loader_waits = {"storage": 0.0, "decode": 0.0, "collate": 0.0, "cpus": 0.0, "queue": 0.0}
        self.batches = self.starved = 0
        self.recent: dict[str, float] = {}  # of the last step: seconds by phase

    def spend(self, phase: str, seconds: float, outside: bool) -> None:
        spent_ns = int(seconds * 1e9)
        self.totals[COLUMN[phase]] += spent_ns
        if outside:
            self.outside[COLUMN[phase]] += spent_ns

    def until(self, moment: float, phase: str) -> None:
        """What was spent is over at that moment; `phase` is what the process is seen in before."""
        self.coming.append((moment, tuple(self.totals), phase))

    def at(self, now: float) -> tuple[list[int], str]:
        """Totals and phase as the page shows them now; within a step its phases grow side by side."""
        while self.coming and self.coming[0][0] <= now:
            self.stands = self.coming.popleft()[:2]
        since, totals = self.stands
        if not self.coming or now <= since:
            return list(totals), "none"
        until, later, phase = self.coming[0]
        share = (now - since) / (until - since)
        return [one + int((other - one) * share) for one, other in zip(totals, later, strict=True)], phase


class Job:
    """One run that trains; `advance` moves it on to a moment, attempt by attempt."""

    def __init__(self, plan: Plan, epoch: float):
        self.plan, self.epoch = plan, epoch
        self.random = random.Random(plan.run)
        self.now, self.attempt = plan.start, 0
        self.step = self.done = self.samples = self.saved = 0
        self.alive, self.ended, self.end = False, "", 0.0
        self.restart_at: float | None = plan.start
        self.next_save = self.next_evaluation = 0.0
        self.ranks: list[Rank] = []
        self.begin = plan.start
        self.killed = False

    def advance(self, now: float) -> None:
        """Do all that is over by then; what is not stands in the live part."""
        while not self.ended and (self.alive or self.restart_at is not None):
            moment = self.now if self.alive else self.restart_at
            if moment > now:
                return
            if not self.alive:
                self._begin(moment)
            elif self.plan.kill is not None and not self.killed and self.now >= self.plan.kill:
                self._kill()
            elif self.now >= self.plan.end:
                self.ended, self.end = "finished", self.now
            else:
                self._step()

    def _begin(self, now: float) -> None:
        self.attempt += 1
        self.begin = self.now = now
        self.alive = True
        self.restart_at = None
        places = [(node, gpu) for node in self.plan.nodes for gpu in range(GPUS_PER_NODE)]
        self.ranks = [Rank(number, node, gpu) for number, (node, gpu) in enumerate(places)]
        for rank in self.ranks:
            rank.stands = (now, rank.stands[1])
        self.done = self.samples = 0
        self._together("none", 25 + 5 * self.random.random())
        if self.attempt > 1:
            self._together("restore", 38.0)
            self.step = self.saved + 1
            self._event("resumed", self.saved)
        self.next_save = self.now + self.plan.checkpoint_every
        self.next_evaluation = self.now + self.plan.evaluate_every

    def _kill(self) -> None:
        """A GPU falls off the bus: all die with it, and the scheduler begins again after a while."""
        self.killed, self.alive = True, False
        self.end = self.now
        self.restart_at = self.now + 95

    def _together(self, phase: str, seconds: float) -> None:
        """What all ranks do outside steps."""
        for rank in self.ranks:
            rank.spend(phase, seconds, True)
            rank.until(self.now + seconds, phase)
        self.now += seconds

    def _event(self, kind: str, step: int) -> None:
        at = self.absolute(self.now)
        for rank in self.ranks:
            rank.events_made += 1
            rank.events.append(schema.EventRow(rank.events_made, kind, at, step))

    def _step(self) -> None:
        if self.now >= self.next_save and self.done:
            self._save()
        if self.now >= self.next_evaluation:
            self._together("evaluation", self.plan.evaluate_seconds * self.random.uniform(0.95, 1.05))
            self.next_evaluation = self.now + self.plan.evaluate_every
        began = self.now
        own = [self._own(rank) for rank in self.ranks]
        slowest = max(sum(parts.values()) for parts in own)
        intrinsic = self.plan.communication * self.random.uniform(0.92, 1.1)
        length = slowest + intrinsic
        if not self.done:
            length += 22.0
        self.now += length
        self.samples += self.plan.samples
        for rank, parts in zip(self.ranks, own, strict=True):
            if not self.done:
                parts["compile"] = 22.0
            parts["communication"] = length - sum(parts.values())
            self._write(rank, parts, began, length)
        self.step += 1
        self.done += 1

    def _save(self) -> None:
        self._event("checkpoint_begun", self.step - 1)
        self._together("checkpoint", self.plan.checkpoint_seconds * self.random.uniform(0.9, 1.25))
        self._event("checkpoint_committed", self.step - 1)
        self.saved = self.step - 1
        self.next_save = self.now + self.plan.checkpoint_every

    def _own(self, rank: Rank) -> dict[str, float]:
        """What a rank does before it meets the others; in seconds."""
        plan, noise = self.plan, self.random.lognormvariate(0, 0.012)
        compute = plan.compute * noise * self.slowness(rank)
        loader = plan.loader * self.random.lognormvariate(0, 0.3)
        if plan.starve and self.now > plan.starve[0]:
            loader *= 1 + plan.starve[1] * min(1.0, (self.now - plan.starve[0]) / 400)
        share = {"storage": 0.72, "decode": 0.16, "collate": 0.04, "cpus": 0.03, "queue": 0.05}
        for reason, part in share.items():
            rank.loader_waits[reason] += loader * part
        rank.batches += 1
        rank.starved += loader > 3 * plan.loader
        return {
            "loader": loader,
            "h2d": 0.012 * noise,
            "forward": compute * 0.31,
            "backward": compute * 0.63,
            "optimizer": compute * 0.06,
        }

    def slowness(self, rank: Rank) -> float:
        if self.plan.slow:
            number, since, until, factor = self.plan.slow
            if rank.number == number and since <= self.now < until:
                return factor
        return 1.0

    def _write(self, rank: Rank, parts: dict[str, float], began: float, length: float) -> None:
        for phase, seconds in parts.items():
            rank.spend(phase, seconds, False)
            if phase in rank.histograms:
                rank.histograms[phase].add(seconds)
        # To the nanosecond: what is in no phase is what is left of the time since the last row.
        rest = self.absolute(self.now) - self.absolute(self.begin) - sum(rank.totals)
        rank.totals[COLUMN["none" if rest >= 0 else "communication"]] += rest
        rank.histograms["step"].add(length)
        rank.recent = {**parts, "step": length}
        rank.until(self.now, "forward")
        rank.device_ns = sum(rank.totals) - sum(rank.outside)
        rank.rows_made += 1
        times = (self.absolute(began), self.absolute(self.now))
        row = (rank.rows_made, self.step, *times, self.samples, tuple(rank.totals), tuple(rank.outside))
        rank.rows.append(schema.StepRow(*row, rank.device_ns))

    # -- What is told of it

    def absolute(self, now: float) -> int:
        return round(now * 1e9) + round(self.epoch) * 10**9

    def reports(self, now: float) -> Iterator[schema.RankReport]:
        """What the agents push now; rows and events are handed over once."""
        over = bool(self.ended) or not self.alive
        for rank in self.ranks:
            rows = [row for row in rank.rows if row.end_ns <= self.absolute(now)]
            events = [event for event in rank.events if event.time_ns <= self.absolute(now)]
            rank.rows, rank.events = rank.rows[len(rows) :], rank.events[len(events) :]
            rank.told += len(rows)
            totals, phase = rank.at(now)
            live = schema.Live(
                now_ns=self.absolute(self.end if over else now),
                last_ns=self.absolute(rank.stands[0]),
                phase="none" if over else phase,
                step_next=self.step,
                steps_done=rank.told,
                samples=rank.told * self.plan.samples,
                alive=not over,
                ended=self.ended,
                end_ns=self.absolute(self.end) if over else 0,
                totals=tuple(totals),
                cost_ns=rank.told * 40_000,
            )
            yield schema.RankReport(
                identity=self._identity(rank),
                sequence=2 * self.absolute(now) + over,
                phases=PHASES,
                live=live,
                steps=rows,
                events=events,
            )

    def _identity(self, rank: Rank) -> schema.Identity:
        plan = self.plan
        return schema.Identity(
            run=plan.run,
            rank=rank.number,
            attempt=self.attempt,
            world_size=len(self.ranks),
            host=rank.node,
            pid=4000 + 100 * self.attempt + rank.number,
            start_ns=self.absolute(self.begin),
            device=DEVICE,
            device_uuid=rank.gpu,
            dtype="bfloat16",
            flops_per_step=plan.mfu * PEAK_FLOPS_PER_SECOND * plan.compute,
            peak_flops_per_second=PEAK_FLOPS_PER_SECOND,
            gpu_hour_cost=GPU_HOUR_COST,
            gpu_power_watts=620.0,
        )
