"""What the tools answer: small documents of bounded length. None is unknown; 0 is a measured zero.

Shares are of the GPU time in question, 0 to 1. Times are ISO 8601 in UTC. `omitted` counts what a list leaves out.
"""

from __future__ import annotations

from pydantic import BaseModel, Field


class Culprit(BaseModel):
    """What the others of a run wait for: a rank on a host, a whole host, or a stage of the pipeline."""

    rank: int | None
    host: str | None
    stage: int | None


class RunRow(BaseModel):
    run: str
    status: str
    start: str
    end: str = Field(description="of a running run the time up to which the row counts")
    ranks: int
    gpus: int = Field(description="of all its ranks; 0 where they are known to have none, or not counted yet")
    without_gpus: bool = Field(description="its ranks are known to have no GPU: hours are of processes")
    gpu_hours: float
    dollars: float | None = Field(description="of all hours; null without a price")
    goodput: float | None = Field(description="share of GPU time that was useful work")
    mfu: float | None
    restarts: int
    leading_cause: str | None = Field(description="the state to act on first")
    culprit: Culprit | None = Field(description="what the others wait for; null: nothing stands out")
    hangs: bool
    wasted_gpu_hours: float
    wasted_dollars: float | None


class Runs(BaseModel):
    runs: list[RunRow]
    total: int = Field(description="runs that match, of which `runs` is a page")
    next_offset: int | None = Field(description="null: these were the last")


class StateTime(BaseModel):
    state: str
    meaning: str
    gpu_hours: float
    share: float
    dollars: float | None


class Account(BaseModel):
    """GPU time by state, largest first; the states sum to `gpu_hours`."""

    run: str
    status: str
    start: str
    end: str
    ranks: int
    without_gpus: bool = Field(description="its ranks are known to have no GPU: hours are of processes")
    gpu_hours: float
    dollars: float | None = Field(description="of all hours; null without a price")
    states: list[StateTime]
    availability: float | None
    step_efficiency: float | None
    goodput: float | None = Field(description="availability x step_efficiency")
    compute_efficiency: float | None
    mfu: float | None = Field(description="goodput x compute_efficiency")
    mfu_unknown_because: str | None
    observed: float | None = Field(description="share of the expected GPU time that was reported")
    estimated: list[str] = Field(description="figures that are estimates rather than measurements")
    steps_kept: int = Field(description="summed over ranks")
    steps_lost: int = Field(description="had to be done again; summed over ranks")
    restarts: int
    restart_gpu_hours: float
    checkpoint_interval_seconds: float | None
    best_checkpoint_interval_seconds: float | None
    leading_cause: str | None
    failure: str | None = Field(description="why it failed, where that is known; null while it has not")
    failed_rank: int | None
    failed_step: int | None
    hangs: bool | None = Field(description="now; null for a window")
    errors: list[str]


class Cause(BaseModel):
    state: str
    meaning: str
    share: float
    gpu_hours: float
    avoidable_gpu_hours: float = Field(description="without what is paid once, or needed by the schedule")
    dollars: float | None
    speedup_without: float | None = Field(description="how many times faster the run would be without it")
    speedup_low: float | None = Field(description="bounds of its 95 % interval; null if by share")
    speedup_high: float | None
    speedup_basis: str = Field(
        description="replay: steps were replayed without it; share: 1 / (1 - share), too little where other ranks wait"
    )
    advice: str


class Causes(BaseModel):
    """What to change, in the order in which to act."""

    run: str
    start: str
    end: str
    goodput: float | None
    causes: list[Cause]
    omitted: int


class SlowRank(BaseModel):
    rank: int
    host: str
    share: float = Field(description="of all waiting for slower ranks, what this one caused")


class SlowHost(BaseModel):
    host: str
    share: float


class SlowStage(BaseModel):
    stage: int
    share: float


class SlowSteps(BaseModel):
    rank: int
    attempt: int
    first_step: int
    last_step: int | None = Field(description="null: it still is slow")
    from_start: bool


class SlowIssue(BaseModel):
    """A rank whose own calls of a collective take long to return: all others wait for it, and none looks late."""

    rank: int
    host: str
    group: str
    operation: str
    seconds: float = Field(description="per step")
    usual_seconds: float = Field(description="the median of its peers")


class Stragglers(BaseModel):
    run: str
    start: str
    end: str
    slowdown: float | None = Field(
        description="step time divided by what it would be with the work spread evenly"
    )
    waiting_share: float = Field(description="share of GPU time spent waiting for slower ranks")
    culprit: int | None = Field(description="the rank to look at; null: none stands out")
    culprit_host: str | None
    because: str | None = Field(description="the state in which the culprit takes longer than its peers")
    because_phase: str | None
    since_step: int | None
    since_start: bool
    culprit_stage: int | None = Field(description="of a pipeline, the stage with more work than the others")
    ranks: list[SlowRank]
    hosts: list[SlowHost]
    stages: list[SlowStage]
    slow_steps: list[SlowSteps]
    slow_issue: SlowIssue | None = Field(description="null: no rank's calls are slow, or it is not known")
    omitted: int = Field(description="ranks and steps that are not listed")


class Suspect(BaseModel):
    rank: int
    host: str
    phase: str
    seconds: float = Field(description="how long it has been in the phase")
    step: int | None
    kind: str


class Hang(BaseModel):
    since: str
    seconds: float
    culprit: int | None
    host: str | None
    phase: str | None
    step: int | None
    reason: str
    suspects: list[Suspect]
    waiting_ranks: int
    stack: str | None = Field(description="Python stack of rank `stack_rank`, shortened")
    stack_rank: int | None


class PhaseCount(BaseModel):
    phase: str
    ranks: int
    longest_seconds: float
    longest_rank: int


class Hangs(BaseModel):
    """Whether the run hangs, and what its ranks are doing now."""

    run: str
    status: str
    hang: Hang | None = Field(description="null: it does not hang")
    alive_ranks: int
    dead_ranks: list[int]
    phases: list[PhaseCount]
    oldest_report_seconds: float | None
    omitted: int


class StateChange(BaseModel):
    state: str
    base_seconds: float
    new_seconds: float
    change_seconds: float
    change_share: float | None = Field(description="of the base's seconds per step")


class Comparison(BaseModel):
    """Seconds of the run's time for each kept step, by state; the states' changes sum to the whole change."""

    base: str
    new: str
    base_seconds_per_step: float
    new_seconds_per_step: float
    change_share: float | None
    states: list[StateChange] = Field(description="largest change first")
    base_goodput: float | None
    new_goodput: float | None
    base_mfu: float | None
    new_mfu: float | None
    base_dollars_per_1000_steps: float | None
    new_dollars_per_1000_steps: float | None
    notes: list[str] = Field(description="what makes the comparison weak")


class Bucket(BaseModel):
    start: str
    goodput: float | None
    largest_loss: str | None
    largest_loss_share: float | None


class Mark(BaseModel):
    kind: str = Field(description="restart, checkpoint or stall")
    time: str
    end: str | None
    step: int | None
    attempt: int | None


class Timeline(BaseModel):
    """A run over time, in equal parts of `bucket_seconds`."""

    run: str
    status: str
    start: str
    end: str
    bucket_seconds: float
    buckets: list[Bucket]
    marks: list[Mark]
    marks_omitted: int
    is_sample: bool = Field(description="a sample of the ranks stands for all")


class RankAnswer(BaseModel):
    run: str
    rank: int
    host: str
    gpus: int
    role: str
    states: list[StateTime]
    steps_kept: int
    steps_lost: int
    alive: bool | None
    ended: str | None
    phase: str | None = Field(description="what it is doing now")
    phase_seconds: float | None
    step: int | None
    last_step_seconds: float | None


class HealthEvent(BaseModel):
    time: str
    node: str
    device: str
    kind: str
    name: str
    severity: str
    text: str
    ranks_hit: list[str] = Field(description="RUN rank N")
    gpu_hours: float | None = Field(description="of the restarts attributed to it; null: none")
    dollars: float | None


class HealthEvents(BaseModel):
    """Errors of GPUs and links, newest first."""

    events: list[HealthEvent]
    omitted: int


class Claim(BaseModel):
    basis: str = Field(description="measured, estimated, or coincident: at the same time, no known cause")
    text: str


class StoryEvent(BaseModel):
    time: str
    end: str | None = Field(description="null: at once, or still going on")
    kind: str
    title: str
    step: int | None
    gpu_hours: float | None = Field(description="what it cost; null: unknown")
    dollars: float | None
    cost_basis: str | None = Field(description="measured or estimated")
    claims: list[Claim]


class Story(BaseModel):
    """What happened to a run, in order; costs may overlap. Of many events those that cost most."""

    run: str
    status: str
    start: str
    end: str
    gpu_hours: float
    told_gpu_hours: float = Field(description="cost of all events together")
    pace: str = Field(description="from what changes of pace are known, or why they are not")
    events: list[StoryEvent]
    omitted: int
