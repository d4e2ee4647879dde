"""What the account has of each expected rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from goodput.account.collectives.operation_sums import Exposed
from goodput.account.states import INDEX, NOTHING, vector


@dataclass(slots=True)
class RankAccount:
    """One expected rank: its sums and declared fields. `states` is in ns of wall time, not yet weighed by `devices`.

    Where `count` is more than one it stands for so many ranks from `rank` on, each with these sums: none reported.
    """

    rank: int
    wall_ns: int = 0
    host: str = ""
    role: str = ""
    worker: str = ""
    stage: int | None = None
    devices: int = 1
    states: list[int] = field(default_factory=vector)
    kept_steps: int = 0
    lost_steps: int = 0
    kept_ns: int = 0
    saved_ns: int = 0  # spent in saving checkpoints, kept or lost
    device_ns: int = 0  # length of steps that the device clock divided into phases, kept or lost
    kept_samples: float = 0.0
    flops: float | None = None
    hardware_flops: float | None = None
    peak: float | None = None
    reached_flops_per_second: float | None = None
    reached_bus_bytes_per_second: float | None = None
    h2d_bytes_per_second: float | None = None
    reached_h2d_bytes_per_second: float | None = None
    core_wait_ratio: float | None = None
    ideal_samples_per_second: float | None = None
    best_samples_per_second: float | None = None
    microbatches: int | None = None
    dtype: str = ""
    flops_unknown: str = ""
    gpu_hour_cost: float | None = None
    gpu_power_watts: float | None = None
    observed: bool = False
    guessed_loader: bool = False  # part of `loader` is estimated: no loader was known
    guessed_update: bool = False  # part of `productive` is estimated: there was no optimizer
    sampled: bool = False  # samples say how much of its compute the device was idle
    energy_mj: int = 0  # measured, by all its devices
    # The part of `states` that this energy covers.
    metered: list[int] = field(default_factory=lambda: NOTHING)
    exposed: list[Exposed] = field(default_factory=list)  # communication of each attempt, by operation
    count: int = 1

    @property
    def all_devices(self) -> int:
        """The devices of all ranks that it stands for."""
        return self.devices * self.count

    @property
    def has_operations(self) -> bool:
        """Whether any collective of it was recorded."""
        return any(one.sums.keys for one in self.exposed)

    @property
    def productive_ns(self) -> int:
        return self.states[INDEX["productive"]]

    @property
    def role_name(self) -> str:
        """The declared role, else whether it trains or generates, as far as that is seen."""
        if self.role or not self.observed:
            return self.role or "unobserved"
        makes_steps = self.kept_steps + self.lost_steps > 0
        return "generator" if self.states[INDEX["rollout"]] and not makes_steps else "trainer"


def values(ranks: Sequence[RankAccount], name: str) -> list[Any]:
    """An attribute of each rank."""
    return [getattr(rank, name) for rank in ranks]


def chosen(ranks: Sequence[RankAccount], at: Sequence[int]) -> Sequence[RankAccount]:
    """The ranks in these places."""
    return [ranks[place] for place in at]


def sum_gpu_ns(ranks: Sequence[RankAccount]) -> list[int]:
    """GPU-ns per state: the ranks' sums, weighed by their devices."""
    by_devices: dict[int, list[list[int]]] = {}
    for rank in ranks:
        by_devices.setdefault(rank.all_devices, []).append(rank.states)
    total = vector()
    for devices, states in by_devices.items():
        for i, ns in enumerate(map(sum, zip(*states, strict=True))):
            total[i] += ns * devices
    return total
