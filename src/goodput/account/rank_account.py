"""The account of one rank: its sums and its declared fields. An unreported rank takes about 300 bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from goodput.account.states import vector


@dataclass(slots=True)
class RankAccount:
    """One expected rank. `states` is in ns of wall time, not yet weighed by `devices`."""

    rank: int
    wall_ns: int = 0
    host: str = ""
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
    ideal_samples_per_second: float | None = None
    best_samples_per_second: float | None = None
    microbatches: int | None = None
    dtype: str = ""
    gpu_hour_cost: float | None = None
    gpu_power_watts: float | None = None
    observed: bool = False
    sampled: bool = False  # samples say how much of its compute the device was idle
    energy_mj: int = 0  # measured, by all its devices
    metered: list[int] = field(default_factory=vector)  # the part of `states` that this energy covers

    def for_rank(self, rank: int) -> RankAccount:
        """The same account for another unreported rank, expected at the same times.

        The sums are shared and no longer change, so a world of 262 144 ranks costs little.
        """
        return RankAccount(
            rank,
            self.wall_ns,
            devices=self.devices,
            states=self.states,
            flops=self.flops,
            hardware_flops=self.hardware_flops,
            peak=self.peak,
            metered=self.metered,
        )
