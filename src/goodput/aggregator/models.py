"""The shapes of the JSON API, for its OpenAPI schema; a test holds real answers against them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Factors(Model):
    """The chain: goodput = availability x step_efficiency, mfu = goodput x compute_efficiency; null is unknown."""

    availability: float | None
    step_efficiency: float | None
    goodput: float | None
    compute_efficiency: float | None
    mfu: float | None
    hfu: float | None


class Coverage(Model):
    """How much was seen: GPU time observed over expected, and the part of it timed on the device."""

    ranks: float | None
    device_clock: float


class Steps(Model):
    """Steps of all ranks together."""

    kept: int
    lost: int


class Restart(Model):
    """A start after the first: what it cost. `down_seconds` is per GPU."""

    attempt: int
    time: float
    down_seconds: float | None
    lost_steps: int
    lost_gpu_seconds: float
    resume_step: int | None


class Share(Model):
    rank: int
    host: str
    share: float


class Straggler(Model):
    """Who was waited for. `because` is the state in which the culprit exceeds the median of its group."""

    slowdown: float | None
    culprit: int | None
    because: str | None
    shares: list[Share]


class Cause(Model):
    """An idle cause; `gain` is how many times faster the run would be without it, `cost` is in dollars."""

    state: str
    share: float
    gpu_seconds: float
    gain: float | None
    cost: float | None
    advice: str


class Rank(Model):
    rank: int
    host: str
    devices: int
    states: dict[str, float]
    steps: Steps


class Account(Model):
    """The account of a run: GPU-seconds by state, which sum to `gpu_seconds`."""

    run: str
    status: str
    start: float
    end: float
    world_size: int
    gpu_seconds: float
    states: dict[str, float]
    factors: Factors
    coverage: Coverage
    steps: Steps
    samples: int
    restarts: list[Restart]
    straggler: Straggler
    hang: None
    causes: list[Cause]
    ranks: list[Rank]


class Live(Model):
    """What a rank was doing when its node's agent last looked."""

    rank: int
    host: str
    attempt: int
    alive: bool
    ended: str
    phase: str
    phase_seconds: float
    step: int | None
    step_seconds: float | None
    report_age_seconds: float


class Quantiles(Model):
    """Seconds; null where there was no step, or one beyond 18 hours."""

    p50: float | None
    p95: float | None
    p99: float | None
    p999: float | None


class Window(Model):
    """Steps of all ranks that ended within it; rates over the part that was observed."""

    start: float
    end: float
    steps: int
    steps_per_second: float | None
    samples_per_second: float | None
    busy_ratio: float | None
    step_seconds: Quantiles


class Windows(Model):
    """The last five minutes as one window, and in windows of ten seconds; `burst` is most over mean steps of those."""

    sliding: Window
    discrete: list[Window]
    burst: float | None


class Run(Account):
    """A run's account with what its ranks are doing now, and step time lately."""

    stall_threshold_seconds: float
    live: list[Live]
    windows: Windows


class Summary(Model):
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


class Runs(Model):
    """Runs, newest first."""

    runs: list[Summary]
