"""Scenarios made from a seed: a cluster on which everything goes wrong in turn, or one without a fault.

What slows single ranks or a stage down comes one after the other, since only the worst of several is named at a time.
A slow rank or stage makes steps at least 12 % longer. Innocent scenarios have restarts, elastic worlds, slow storage
and networks that concern all ranks, clocks that are off and lost reports, but no culprit and no hang.
"""

from __future__ import annotations

from random import Random

from goodput.simulate.scenario import HANG_KINDS, RunFault, Workload
from goodput.simulate.scenario_file import (
    AttemptEntry,
    ClockEntry,
    Delivery,
    HealthEntry,
    OutageEntry,
    Outcome,
    RunEntry,
    ScenarioFile,
)
from goodput.simulate.steps import SHARES

GPUS_PER_NODE, STAGES = 8, 4
SECONDS_MIN = 600.0
FAULTS = ("slow", "slow", "slow", "wait", "kill", "hang")
INNOCENT_FAULTS = ("wait", "wait", "kill")
# Of an attempt, until its first usual step.
BEGINNING_SECONDS = 60.0


def random_scenario(
    seed: int, ranks: int = 256, seconds: float = 1500.0, innocent: bool = False
) -> ScenarioFile:
    """A scenario; equal arguments give an equal one on every machine."""
    random = Random(f"{seed} {ranks} {seconds:g} {innocent}")
    parts = [ranks]
    if ranks >= 4 * GPUS_PER_NODE and random.random() < 0.5:
        first = random.randrange(1, ranks // GPUS_PER_NODE // 2 + 1) * GPUS_PER_NODE
        parts = [ranks - first, first]
    found = ScenarioFile(seconds, [], seed, innocent=innocent)
    for at, part in enumerate(parts):
        found.runs.append(_Timeline(f"run-{seed}-{at}", part, found, random).run)
    nodes = [run.node(rank) for run in found.runs for rank in range(0, run.ranks, GPUS_PER_NODE)]
    found.clocks = [
        ClockEntry(node, random.uniform(-0.5, 0.5)) for node in random.sample(nodes, len(nodes) // 8)
    ]
    found.clocks.append(
        ClockEntry(random.choice(nodes), random.choice((-3, 3)), random.uniform(0.3, 0.6) * seconds)
    )
    begin = random.uniform(0.2, 0.8) * seconds
    found.outages = [OutageEntry(random.choice(nodes), begin, begin + random.uniform(20, 90))]
    found.delivery = Delivery(lost=0.02, unanswered=0.01, repeated=0.02, late=0.02)
    return found


class _Timeline:
    """Fills a run's time with one event after the other."""

    def __init__(self, name: str, ranks: int, scenario: ScenarioFile, random: Random):
        self._random, self._scenario, self._seconds = random, scenario, scenario.seconds
        stages = STAGES if ranks % STAGES == 0 and ranks >= 2 * STAGES and random.random() < 0.4 else 1
        step = random.uniform(1.6, 2.4)
        workload = Workload(
            step=step,
            checkpoint_every=random.uniform(80, 160),
            checkpoint=random.uniform(2, 6),
            evaluation_every=random.uniform(250, 500),
            evaluation=random.uniform(8, 20),
            epoch_every=self._seconds / 2,
            epoch_pause=random.uniform(1, 4),
        )
        self.run = RunEntry(
            name,
            ranks,
            [],
            workload=workload,
            stages=stages,
            microbatches=random.choice((8, 16)),
            seed=random.randrange(1 << 31),
        )
        self._start, self._ranks, self._submit = random.uniform(0, 15), ranks, None
        self._fill()

    def _fill(self) -> None:
        at, left = self._start + BEGINNING_SECONDS + 40, []
        while at < self._seconds - 300:
            if not left:
                left = list(INNOCENT_FAULTS if self._scenario.innocent else FAULTS)
                self._random.shuffle(left)
            at = getattr(self, f"_{left.pop()}")(at) + self._random.uniform(30, 70)
        self._attempt(self._seconds - self._random.uniform(1, 15), "finished")

    def _attempt(self, end: float, outcome: Outcome) -> None:
        """The attempt that has begun last ends."""
        self.run.attempts.append(
            AttemptEntry(
                *(self._start, end, outcome, self._ranks),
                startup=self._random.uniform(8, 20),
                restore=self._random.uniform(4, 10),
                compile=self._random.uniform(5, 15),
                submit=self._submit,
                skew=self._random.uniform(0, 2),
            )
        )

    def _restart(self, end: float) -> float:
        """Kill the attempt, perhaps go on with fewer ranks; returns when the next one trains."""
        self._attempt(end, "killed" if self._random.random() < 0.5 else "failed")
        self._start = end + self._random.uniform(15, 60)
        self._submit = end + 5 if self._random.random() < 0.3 else None
        fewer = self.run.ranks - GPUS_PER_NODE
        is_elastic = fewer >= GPUS_PER_NODE and fewer % self.run.stages == 0
        self._ranks = (
            self._random.choice((self.run.ranks, self.run.ranks, fewer)) if is_elastic else self.run.ranks
        )
        return self._start + BEGINNING_SECONDS

    def _rank(self) -> int:
        """One of those that every attempt has."""
        return self._random.randrange(max(self.run.ranks - GPUS_PER_NODE, 1))

    def _slow(self, at: float) -> float:
        """A rank or a stage whose work takes longer, by 12 to 50 % of a usual step."""
        kind, slower = self._random.choice(("forward", "backward", "loader")), self._random.uniform(0.12, 0.5)
        fault = RunFault(kind, at, at + self._random.uniform(200, 300), slower)
        if self.run.stages > 1:
            # Of a pipeline's step, which takes (m + p - 1) ÷ m as long.
            fault.amount *= 1 + (self.run.stages - 1) / self.run.microbatches
        if kind != "loader":
            fault.amount = 1 + fault.amount / SHARES[kind]
        if self.run.stages > 1 and kind != "loader" and self._random.random() < 0.5:
            fault.stage = self._random.randrange(self.run.stages)
        else:
            fault.rank = self._rank()
        self.run.faults.append(fault)
        return fault.end

    def _wait(self, at: float) -> float:
        """The storage or the network is slow for all."""
        kind, end = self._random.choice(("loader", "communication")), at + self._random.uniform(80, 160)
        self.run.faults.append(RunFault(kind, at, end, self._random.uniform(0.1, 0.5)))
        if kind == "communication":
            node = self.run.node(self._rank())
            self._scenario.health.append(HealthEntry(node, at, "link_down", link="mlx5_0"))
        return end

    def _kill(self, at: float) -> float:
        rank = self._rank()
        event = HealthEntry(self.run.node(rank), at - 1, "xid", "critical", rank % GPUS_PER_NODE, code=79)
        self._scenario.health.append(event)
        return self._restart(at)

    def _hang(self, at: float) -> float:
        kinds = HANG_KINDS
        if self._ranks <= GPUS_PER_NODE:
            # A hang is not known while a run's only node reports nothing: the run is unobserved.
            kinds = tuple(kind for kind in HANG_KINDS if kind != "silence")
        kind, end = self._random.choice(kinds), at + self._random.uniform(120, 180)
        rank = None if kind == "network" else self._rank()
        phase = self._random.choice(("loader", "forward", "backward"))
        self.run.faults.append(RunFault(kind, at, end, rank=rank, phase=phase))
        is_over = kind in ("hang", "network") and self._random.random() < 0.5
        return end + 20 if is_over else self._restart(end)
