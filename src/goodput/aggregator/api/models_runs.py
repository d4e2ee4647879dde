"""The shapes of the list of runs and of a run over time, for the OpenAPI schema; the others are in models.py."""

from __future__ import annotations

from goodput.aggregator.api.models import Model


class Summary(Model):
    """A run in one row. `states` are those with time, in GPU-seconds; what is not productive is `waste`, in dollars
    null without a price."""

    run: str
    status: str
    start: float
    end: float
    world_size: int
    gpu_seconds: float
    goodput: float | None
    mfu: float | None
    restarts: int
    leading_cause: str | None
    hang: bool
    states: dict[str, float]
    waste_gpu_seconds: float
    cost: float | None
    waste_cost: float | None


class Runs(Model):
    """Runs, newest first; `total` counts those that match, `truncated` says that more follow the last one here."""

    runs: list[Summary]
    total: int
    truncated: bool


class Bucket(Model):
    """A part of a run's time: GPU-seconds by state, those with time, which sum to `gpu_seconds`."""

    start: float
    end: float
    gpu_seconds: float
    states: dict[str, float]


class Mark(Model):
    """A restart, a committed checkpoint (of one bucket the last) or a stall, which alone has an `end`.

    `step` is that of the checkpoint, or the one that a restart goes on from.
    """

    kind: str
    time: float
    end: float | None
    step: int | None
    attempt: int | None


class Sampled(Model):
    """So many ranks stand for all `of`; without `all_steps` rows between the buckets' borders were not read."""

    ranks: int
    of: int
    all_steps: bool


class HeatRank(Model):
    rank: int
    host: str
    own_seconds: list[float | None]


class HeatOthers(Model):
    """Quantiles over the ranks that are not shown by themselves, per column."""

    ranks: int
    p10: list[float | None]
    p50: list[float | None]
    p90: list[float | None]
    p100: list[float | None]


class Heat(Model):
    """Own seconds per kept step (without waiting for other ranks), in `columns` equal parts of the time from `start`
    to `end`; null where a rank did no step. `ranks` are those that deviate, `median` is over all that were read."""

    start: float
    end: float
    columns: int
    median: list[float | None]
    ranks: list[HeatRank]
    others: HeatOthers | None


class Timeline(Model):
    """A run over time, in equal buckets. `sampled` is null where every row was read."""

    run: str
    status: str
    start: float
    end: float
    buckets: list[Bucket]
    marks: list[Mark]
    sampled: Sampled | None
    heat: Heat | None
