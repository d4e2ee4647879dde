"""The shape of the account document, declared once: what `document` builds and the API's schema is generated from.

GPU-seconds, seconds, dollars and joules are floats; what is unknown is None. Plain typed dictionaries, since the
trainer builds them with the standard library alone. Annotations are no strings here: from Python 3.14 on, those that
a class in another module inherits would be looked up there.
"""

from typing import NamedTuple, TypedDict

from goodput.account.collectives.document_types import CollectiveTime, CollectiveVerdict, RasFinding, SlowLink


class Factors(TypedDict):
    """goodput = availability x step_efficiency, mfu = goodput x compute_efficiency; null is unknown."""

    availability: float | None
    step_efficiency: float | None
    goodput: float | None
    compute_efficiency: float | None
    mfu: float | None
    hfu: float | None


class Coverage(TypedDict):
    """Shares that were observed: ranks and GPU time of those expected, time on the device clock, steps with phases.

    `compared` is the share of the time in kept steps that was compared between ranks, None for ranks without peers.
    """

    ranks: float | None
    time: float | None
    device_clock: float
    phases: float | None
    compared: float | None


class PhaseShare(TypedDict):
    """A compute phase: its share of the time in compute phases of whole kept steps without each attempt's first one."""

    phase: str
    share: float


class Steps(TypedDict):
    """Steps summed over ranks."""

    kept: int
    lost: int


class Restart(TypedDict):
    """A start after the first, and its cost. `down_seconds` is per GPU."""

    attempt: int
    time: float
    down_seconds: float | None
    lost_steps: int
    lost_gpu_seconds: float
    resume_step: int | None
    startup_gpu_seconds: float
    gpu_seconds: float
    cost: float | None


class Checkpoints(TypedDict):
    """Checkpoint cost, and the optimal interval sqrt(2 x save time x mean time between failures)."""

    committed: int
    unfinished: bool
    save_seconds: float | None
    interval_seconds: float | None
    failures: int
    seconds_between_failures: float | None
    best_interval_seconds: float | None
    source: str


class Throughput(TypedDict):
    """Kept samples against an ideal: `given` by the user, or the `best shown` by the run itself.

    `samples_basis` names which of the ranks that step report them: `each rank`, `one rank`, `some ranks`, or `same on each
    rank`; `whole batch on each rank` if the ideal shows that each one reports the whole batch, which then counts once.
    """

    samples: float
    samples_per_second: float | None
    ideal_samples_per_second: float | None
    ideal_basis: str | None
    goodput: float | None
    samples_basis: str | None
    samples_ranks: int


class PipelineWait(TypedDict):
    """How long a rank of a stage waits in its sends or its receives, in the mean of its kept steps.

    `microbatch_seconds` is null where the number of microbatches is not known.
    """

    stage: int
    operation: str
    step_seconds: float
    microbatch_seconds: float | None


class Bubble(TypedDict):
    """The share of kept steps spent waiting for other stages, and the part that the schedule cannot avoid."""

    stages: int
    microbatches: int | None
    bubble: float | None
    ideal_bubble: float | None
    excess: float | None


class Pipeline(Bubble):
    """`waits` are by stage and operation; [] where no sends and receives are recorded."""

    waits: list[PipelineWait]


class Total(TypedDict):
    """Dollars or joules by state; `total` leaves out states whose joules are unknown (null)."""

    total: float
    states: dict[str, float | None]


class PerUnit(TypedDict):
    """Useful work per dollar or per joule."""

    productive_gpu_seconds: float
    samples: float | None
    flops: float | None


class HostShare(TypedDict):
    host: str
    share: float


class Share(HostShare):
    rank: int


class StageShare(TypedDict):
    stage: int
    share: float


class Onset(TypedDict):
    """Steps in which a rank was slow; `last_step` is null while it still is.

    With `from_start` it was slow in the first step that was compared, so perhaps before.
    """

    rank: int
    attempt: int
    first_step: int
    last_step: int | None
    from_start: bool


class SlowIssue(TypedDict):
    """A rank whose calls of a collective take long to return, for which all ranks of the group wait.

    `seconds` is that time per step, `usual_seconds` the median of the group's ranks.
    """

    rank: int
    host: str
    group: str
    operation: str
    seconds: float
    usual_seconds: float


class Straggler(TypedDict):
    """The ranks that others waited for. `because` is the state in which the culprit exceeds its group's median.

    `because_phase` is the phase of that state in which it does so most, null where its phases were not measured.
    `culprit_stage` is the pipeline stage that has more work than the others, null if none stands out, and
    `stage_because_phase` the phase in which it exceeds them most. `since_step` is the step at which the culprit became
    slow, null if none stands out. `slow_issue` is null if no rank's calls of collectives are slow, or they are not known.
    `slow_link` is null if no rank's link is slow now, or that is not known.
    """

    slowdown: float | None
    culprit: int | None
    because: str | None
    because_phase: str | None
    culprit_stage: int | None
    stage_because_phase: str | None
    shares: list[Share]
    hosts: list[HostShare]
    stages: list[StageShare]
    since_step: int | None
    since_start: bool
    onsets: list[Onset]
    slow_issue: SlowIssue | None
    slow_link: SlowLink | None


class Suspect(TypedDict):
    """A rank that may have caused a hang. `seconds` is how long it has been in `phase`; `kind` is one of hang.KINDS:

    dead, elsewhere, silent (its node stopped reporting), finished, behind (in another collective than the others),
    dead before or silent before (it went while others still completed steps).
    """

    rank: int
    host: str
    phase: str
    seconds: float
    step: int | None
    kind: str


class HangVerdict(TypedDict):
    """No rank completes a step, and no planned phase explains it. Without a culprit, `reason` says why.

    `host_ranks` is how many ranks the culprit's host has, where all of them are dead or silent as it is; else 0.
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
    host_ranks: int
    suspects: list[Suspect]
    victims: int
    collective: CollectiveVerdict | None
    ras: RasFinding | None


class Hang(HangVerdict):
    """A hang, with the Python stack of `stack_rank` at `stack_time` if its agent could take it."""

    stack: str | None
    stack_rank: int | None
    stack_time: float | None


class Gain(NamedTuple):
    """How many times as fast a run would be, with the bounds of the 95 % interval."""

    value: float
    low: float
    high: float


class Cause(TypedDict):
    """An idle cause; `gain` is how many times faster the run would be without it, `cost` is in dollars.

    `gain_basis` is "replay" where its steps were replayed without the cause, and `gain_low` and `gain_high` are the bounds
    of its 95 % interval; else "share": it is 1 / (1 - share), too little where others wait for ranks
    in this state, and they are null.

    `once_gpu_seconds` is the part that does not grow with the steps: that of the first start and of the run's end, and
    `avoidable_gpu_seconds` the rest, or 0 where the schedule of the pipeline needs it. The figures of the whole run are
    estimates over the steps of `whole_run`, null where that is null.
    """

    state: str
    share: float
    gpu_seconds: float
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    gain_basis: str
    cost: float | None
    advice: str
    once_gpu_seconds: float
    avoidable_gpu_seconds: float
    whole_run_gpu_seconds: float | None
    whole_run_share: float | None


class Failure(TypedDict):
    """The process that failed first, in which step, and its exception's text, "" where that is not known.

    `steps_since_checkpoint` were made since the last committed checkpoint of the run, whose last step is `committed_step`;
    null where none was committed.
    """

    rank: int
    host: str
    step: int | None
    text: str
    committed_step: int | None
    steps_since_checkpoint: int | None


class Answer(TypedDict):
    """What a reader wants to know first: `lines` has it as text, of three lines, or one where nothing was lost.

    `state` is the loss to act on first, null where nothing was lost: the largest that is avoidable, where one is worth 1 % of
    the run, else the largest of all. Its culprit, where there is one, is a rank with its host, a host alone or a stage;
    `since_step` is when that became slow, `since_start` that it always was.
    """

    lost_gpu_seconds: float
    lost_cost: float | None
    state: str | None
    is_avoidable: bool
    share: float | None
    gpu_seconds: float | None
    cost: float | None
    rank: int | None
    host: str | None
    stage: int | None
    since_step: int | None
    since_start: bool
    lines: list[str]


class WholeRun(TypedDict):
    """The run at its full length, an estimate: what is paid once, and all else in proportion to its steps.

    `done` of `steps` are made, counting those before a resume. `basis` says where `steps` is from: `declared` by the
    trainer or the user, or `typical`. `seconds` is wall time.
    """

    steps: int
    basis: str
    done: int
    seconds: float
    gpu_seconds: float


class Workers(TypedDict):
    """Processes of a run without ranks: the number that the account counts, and that without a step."""

    counted: int
    left_out: int


class Role(TypedDict):
    """The ranks of one role; the roles' states sum to those of the run. Only where the run has several."""

    role: str
    ranks: int
    gpu_seconds: float
    states: dict[str, float]
    steps: Steps
    goodput: float | None


class Rank(TypedDict):
    """`worker` is the name of a process without a rank, whose `rank` is a number; "" for others.

    `role` is one of the account's `roles` where there are several, else what the rank declares. `stage` is its stage of
    the pipeline, null where it declares none.
    """

    rank: int
    host: str
    worker: str
    role: str
    stage: int | None
    devices: int
    states: dict[str, float]
    steps: Steps


class UnseenRanks(TypedDict):
    """Ranks `first` to `last`, none of which was ever reported; `states` are the sums of them all."""

    first: int
    last: int
    ranks: int
    devices: int
    states: dict[str, float]


class SampledPlace(TypedDict):
    """A line of code, as "FILE:FUNCTION, line N", and its share of the samples."""

    place: str
    samples: int
    share: float


class SampledRank(TypedDict):
    """A rank that was sampled, with its most frequent lines; `reason` says why there are no samples."""

    rank: int
    host: str
    samples: int
    places: list[SampledPlace]
    reason: str | None


class StackSamples(TypedDict):
    """Where main threads were while their ranks were in no phase, sampled by the agent or `goodput run` with py-spy.

    `reason` says why there are none.
    """

    samples: int
    places: list[SampledPlace]
    reason: str | None
    ranks: list[SampledRank]


class StepLines(TypedDict):
    """Step lines of a run log of which some could not be used; `incomplete` above 1 %. `first` says why."""

    read: int
    unusable: int
    share: float
    incomplete: bool
    first: str


class Reachable(TypedDict):
    """Against what the devices reached in `goodput probe`, instead of the peak of their data sheet."""

    compute_efficiency: float


class DeviceCopies(TypedDict):
    """Copies from host memory to the device in the last traced steps (deep looks) of `ranks` ranks, bytes a second.

    Of the one that is farthest below what `goodput probe` reached there with pinned memory, where that is known of one
    (`reached_ratio`), else of the slowest.
    """

    ranks: int
    rank: int
    host: str
    h2d_bytes_per_second: float
    reached_bytes_per_second: float | None
    reached_ratio: float | None


class MovedClock(TypedDict):
    """A host whose clock was off when its ranks were first reported: the aggregator has moved their times by so much."""

    host: str
    seconds: float


class AccountDocument(TypedDict):
    """The account of a run: GPU-seconds by state, which sum to `gpu_seconds`.

    Where `is_on_cpu` no rank has a GPU, and they are seconds of processes; false where that is not known. `phases` divides
    compute, largest share first; [] where rows do not have phases, and beyond 4096 ranks. `startup_evaluation_gpu_seconds` is
    the part of `startup` in which ranks evaluated before their first step, of accounts of pages; null elsewhere.
    `errors` say which declared values cannot be right, `wrong_figures` which figures that makes wrong: "mfu",
    "compute_efficiency", "hfu" and "throughput".
    `ranks_elsewhere` counts ranks of the run that an account of pages does not have; 0 in all others.

    `causes` are largest first; `advice_order` names their states in the order in which to act: what recurs with the
    steps and can be avoided before what is paid once or needed by the schedule. `ranks` has the reported ranks and the
    first 256 others; `unseen_ranks` has the rest.
    `collectives` sum to the states `communication`, `straggler` and `bubble`; [] where no collectives are recorded.
    """

    run: str
    status: str
    start: float
    end: float
    world_size: int
    is_on_cpu: bool
    ranks_elsewhere: int
    gpu_seconds: float
    states: dict[str, float]
    factors: Factors
    reachable: Reachable | None
    device_copies: DeviceCopies | None
    coverage: Coverage
    steps: Steps
    phases: list[PhaseShare]
    startup_evaluation_gpu_seconds: float | None
    samples: int
    stall_threshold_seconds: float
    errors: list[str]
    wrong_figures: list[str]
    step_lines: StepLines | None
    moved_clocks: list[MovedClock]
    mfu_unknown: str | None
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
    workers: Workers | None
    roles: list[Role]
    failure: Failure | None
    hang: Hang | None
    causes: list[Cause]
    advice_order: list[str]
    answer: Answer
    whole_run: WholeRun | None
    stack_samples: StackSamples | None
    collectives: list[CollectiveTime]
    ranks: list[Rank]
    unseen_ranks: list[UnseenRanks]
