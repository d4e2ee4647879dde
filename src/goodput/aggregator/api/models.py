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
    """How much was seen: ranks and GPU time observed over expected, and the parts of it
    timed on the device and, of steps, those whose phases were measured."""

    ranks: float | None
    time: float | None
    device_clock: float
    phases: float | None


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
    startup_gpu_seconds: float
    gpu_seconds: float
    cost: float | None


class Share(Model):
    rank: int
    host: str
    share: float


class HostShare(Model):
    host: str
    share: float


class StageShare(Model):
    stage: int
    share: float


class Onset(Model):
    """Steps in which a rank was slow; `last_step` is null while it still is."""

    rank: int
    attempt: int
    first_step: int
    last_step: int | None


class Straggler(Model):
    """Who was waited for. `because` is the state in which the culprit exceeds the median of its group.

    `since_step` is the step at which the culprit became slow, null if none stands out.
    """

    slowdown: float | None
    culprit: int | None
    because: str | None
    shares: list[Share]
    hosts: list[HostShare]
    stages: list[StageShare]
    since_step: int | None
    onsets: list[Onset]


class Checkpoints(Model):
    """What saving costs, and the interval that would have been best, sqrt(2 x save time x time between failures)."""

    committed: int
    unfinished: bool
    save_seconds: float | None
    interval_seconds: float | None
    failures: int
    seconds_between_failures: float | None
    best_interval_seconds: float | None
    source: str


class Throughput(Model):
    """Kept samples against an ideal, which was `given` or is the `best shown` by the run itself."""

    samples: float
    samples_per_second: float | None
    ideal_samples_per_second: float | None
    ideal_basis: str | None
    goodput: float | None


class Pipeline(Model):
    """The part of kept steps spent waiting for other stages, and what of it cannot be avoided."""

    stages: int
    microbatches: int | None
    bubble: float | None
    ideal_bubble: float | None
    excess: float | None


class Total(Model):
    """Dollars or joules by state; null where joules are unknown, which `total` is without."""

    total: float
    states: dict[str, float | None]


class PerUnit(Model):
    """What was useful, for each dollar or joule."""

    productive_gpu_seconds: float
    samples: float | None
    flops: float | None


class Suspect(Model):
    """A rank that may be why the others wait. `seconds` is how long it has been in `phase`.

    `kind` is dead, elsewhere, silent (its node stopped reporting), finished, behind (in another collective than
    the others), dead before or silent before (while the others still went on).
    """

    rank: int
    host: str
    phase: str
    seconds: float
    step: int | None
    kind: str


class Hang(Model):
    """No rank completes a step, and not by plan. Without a culprit `reason` says why; `victims` wait for it.

    `stack` is where the process of `stack_rank` was at `stack_time`, where its agent may tell.
    """

    since: float
    seconds: float
    culprit: int | None
    host: str | None
    phase: str | None
    phase_seconds: float | None
    attempt: int | None
    step: int | None
    reason: str
    suspects: list[Suspect]
    victims: int
    stack: str | None
    stack_rank: int | None
    stack_time: float | None


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
    stall_threshold_seconds: float
    errors: list[str]
    basis: dict[str, str]
    restarts: list[Restart]
    checkpoints: Checkpoints
    throughput: Throughput
    pipeline: Pipeline | None
    cost: Total | None
    energy: Total | None
    per_dollar: PerUnit | None
    per_joule: PerUnit | None
    straggler: Straggler
    hang: Hang | None
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

    live: list[Live]
    windows: Windows


class Rolling(Model):
    """The account of a window that ends now, in short."""

    name: str
    seconds: float
    start: float
    end: float
    gpu_seconds: float
    states: dict[str, float]
    factors: Factors
    steps: Steps
    leading_cause: str | None


class RollingWindows(Model):
    """The last 5 minutes, hour and day, and the run's lifetime."""

    run: str
    windows: list[Rolling]


class Hit(Model):
    """A rank whose process was on the device when it happened."""

    run: str
    rank: int


class HealthEvent(Model):
    """Something that happened to a node's hardware; `device` is a GPU's uuid or a link, `code` such as the XID.

    `gpu_seconds` is what restarts cost (down, lost and startup GPU time) that are put down to this event: those after
    an attempt of a rank that it hit ended by failure, from 60 s before it, since drivers report late, to 10 minutes
    after it. Each restart counts to one event: the earliest critical one, else the earliest. Null where there is none;
    `cost` is that in dollars, null without a price.
    """

    node: str
    number: int
    time: float
    kind: str
    device: str
    code: int
    name: str
    severity: str
    text: str
    hits: list[Hit]
    gpu_seconds: float | None
    cost: float | None


class Health(Model):
    """Health events of all nodes, newest first."""

    events: list[HealthEvent]


class RunHealth(Model):
    """Health events that hit a run, newest first, with this run's ranks and cost."""

    run: str
    events: list[HealthEvent]
