"""What a simulation is made of: nodes, runs, and everything that happens to them on one time line, in seconds from 0."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from msgspec import Struct

# Second 0 of a scenario: Monday 2026-01-05 00:00 UTC.
EPOCH_SECONDS = 1_767_571_200
DEVICE = "NVIDIA H100 80GB HBM3"

Place = tuple[str, int]  # node, index of the GPU on it
Span = tuple[float, float]  # from, until


@dataclass
class AttemptPlan:
    """One attempt of a run, from `start` to `end`: finished, failed, killed or preempted. `places` is by rank."""

    start: float
    end: float
    places: list[Place]
    outcome: str = "killed"
    startup: float = 40.0
    restore: float = 30.0
    compile: float = 45.0
    world_size: int | None = None  # when more ranks are expected than are there
    lost_nodes: tuple[str, ...] = ()  # nodes that die with it: what their pages had not reported is lost
    submit: float | None = None  # when it was submitted to a scheduler
    skew: float = 0.0  # a launcher starts the last rank so much after the first


class Workload(Struct, forbid_unknown_fields=True):
    """What a run usually does, in seconds. Checkpoint lengths vary log-normally, step lengths normally."""

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
    sdk_share: float = 0.002
    samples: int = 512  # per step


class RunFault(Struct, forbid_unknown_fields=True):
    """What goes wrong in a run from `start` to `end`; without rank and stage in all ranks. By kind:

    forward, backward  the phase takes `amount` times as long; compute: both
    loader             `amount` of a step more; communication: the collective of all ranks
    hang               one step lasts until `end`, since the rank stays in `phase`
    death, silence     the rank's process, or its node with the agent, dies; the others wait for it until `end`
    desync             the rank waits in the collective of a step that the others have left, until `end`
    network            all wait in a collective that does not complete until `end`
    save, unsaved      each checkpoint takes `amount` seconds more; none is saved
    sdk                measuring takes this share of the time
    """

    kind: str
    start: float
    end: float
    amount: float = 1.0
    rank: int | None = None
    phase: str = "loader"
    stage: int | None = None


SLOW_KINDS = ("forward", "backward", "compute", "loader")
HANG_KINDS = ("hang", "death", "silence", "desync", "network")
FAULT_KINDS = (*SLOW_KINDS, "communication", *HANG_KINDS, "save", "unsaved", "sdk")


@dataclass
class RunPlan:
    """`stages` above 1 make a pipeline of as many blocks of ranks, each step `microbatches` microbatches.

    Without `thinned`, agents report every step.
    """

    run: str
    attempts: list[AttemptPlan]
    workload: Workload
    seed: int = 0
    faults: list[RunFault] = field(default_factory=list)
    flops_per_step: float = 2.0e15
    peak_flops_per_second: float | None = None  # None: by the name of the device
    stages: int = 1
    microbatches: int = 1
    thinned: bool = True


@dataclass(frozen=True)
class HardwareChange:
    """From `start` to `end` all series of a node with this name and these labels are different.

    how: set (a gauge has this value), rate (a counter grows by so much more per second), jump (it grows by `value` at
    once, at `start`), born (it exists from then on only, with `value`).
    """

    node: str
    name: str
    labels: tuple[tuple[str, str], ...]
    start: float
    end: float
    how: str
    value: float


@dataclass
class Scenario:
    """`nodes` is the number of GPUs by name. An agent that is away neither pushes nor answers."""

    nodes: dict[str, int]
    runs: list[RunPlan]
    changes: list[HardwareChange] = field(default_factory=list)
    agent_outages: dict[str, list[Span]] = field(default_factory=dict)
    push_outages: dict[str, list[Span]] = field(default_factory=dict)


def gpu_uuid(node: str, index: int) -> str:
    """As long as a driver's, and always the same for a GPU."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{index}.{node}')}"


def within(at: float, spans: list[Span]) -> bool:
    return any(start <= at < end for start, end in spans)


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def unix_ns(at_ns: int) -> int:
    return at_ns + EPOCH_SECONDS * 10**9
