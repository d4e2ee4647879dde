"""goodput / Rank: what one rank does, on both clocks, and how it differs from the ranks of its group."""

from __future__ import annotations

from dashboards import board_builder, panels, promql
from dashboards.board_builder import build_board
from dashboards.panels import GREEN, RED, YELLOW, series
from dashboards.promql import RATE
from dashboards.states import ONE_IS_GOOD, STATE_COLOURS

RANK = 'run="$run",rank="$rank"'
NO_RANK = "no node agent has this rank"
NO_LOADER = "no DataLoader is measured"
# The compute phases share the colour of productive time, in shades.
PHASE_COLOURS = {
    "forward": "#1261b0",
    "backward": "#3f86cf",
    "optimizer": "#7fb2e5",
    **{
        phase: STATE_COLOURS[phase]
        for phase in (
            "loader",
            "h2d",
            "communication",
            "checkpoint",
            "restore",
            "evaluation",
            "rollout",
            "compile",
        )
    },
    "none": STATE_COLOURS["unattributed"],
}
WAIT_COLOURS = {
    "storage": "#e28c03",
    "decode": "#1261b0",
    "collate": "#4ba18c",
    "cpus": "#af2d11",
    "queue": "#97a9b8",
    "startup": "#a572c9",
    "idle": "#c9d2de",
    "unknown": "#78818c",
}


def _rate(series: str, by: str = "", more: str = "", window: str = RATE) -> str:
    return promql.rate_of(series, by, RANK + more, window)


def _max(series: str) -> str:
    return f"max({series}{{{RANK}}})"


def _of_group(series: str) -> str:
    """A recorded series of the rank's group."""
    return f'{series}{{run="$run"}} and on (run, group) group by (run, group) (goodput_rank_info{{{RANK}}})'


HERE = {"run": "run", "instance": "field:instance"}
COLUMNS = ["host", "instance", "gpu_uuid", "device", "group", "stage", "attempt", "pid", "pod", "slurm_job"]
IDENTITY = "host, instance, device, gpu_uuid, group, stage, attempt"
PROCESS = "host, instance, pid, pod, slurm_job"
BATCHES = f"({_rate('goodput_loader_batches_total')} > 0)"
PHASE_RATE = f"sum by (phase, clock) (rate(goodput_phase_seconds_total{{{RANK}}}[1m]))"
PHASE_MEDIAN = f"max by (phase, clock) ({_of_group('run_group_phase_clock:phase_seconds:p50_1m')})"
PHASE_SUM, PHASE_COUNT = (
    _rate(f"goodput_phase_duration_seconds_{part}", "phase", window="5m") for part in ("sum", "count")
)
TRACED = f'goodput_deep_look_seconds{{{RANK},kind=~"compute|communication|copy|loader|host|idle"}}'

WORKER = "loader, worker"
WORKERS = f"topk(16, {_rate('goodput_loader_worker_waited_seconds_total', WORKER, window='5m')})"


def _of_workers(expr: str) -> str:
    return f"{expr} and on ({WORKER}) {WORKERS}"


def _busy(parts: str) -> str:
    return _of_workers(_rate("goodput_loader_worker_seconds_total", WORKER, f',part=~"{parts}"', "5m"))


def _phases(clock: str, description: str, no_value: str):
    """The step thread's time by phase."""
    return panels.areas(
        f"Phases on the {clock}'s clock",
        description,
        {"{{phase}}": _rate("goodput_phase_seconds_total", "phase", f',clock="{clock}"')},
        unit="percentunit",
        no_value=no_value,
        overrides=panels.colours(PHASE_COLOURS),
    ).interval("1m")  # A window shorter than a step would show one phase only.


PANELS = [
    # Identity and present state.
    panels.table(
        "Identity",
        "Where the rank runs, on which GPU, in which group and pipeline stage, and its process. Two rows: an "
        "attempt that has ended beside the present one, for as long as its page is kept. No row: the run has no "
        "rank of this number, or its node has no agent. The links of host and GPU open the board of the node.",
        {
            "info": f"group by ({IDENTITY}) (goodput_rank_info{{{RANK}}})",
            "process": f"group by ({PROCESS}) (goodput_rank_process_info{{{RANK}}})",
            "NUMA node": f"max by (instance) (goodput_rank_numa_node{{{RANK}}})",
            "CPUs": f"sum by (instance) (goodput_rank_cpus{{{RANK}}})",
        },
        unit="short",
        no_value=NO_RANK,
        first=COLUMNS,
        sort="attempt",
        hide=("info", "process"),
        overrides=[
            *panels.widths(device=170, attempt=75),
            panels.link("gpu_uuid", "Open the GPU", "goodput-node", **HERE, gpu="field:gpu_uuid"),
            panels.link("instance", "Open the node", "goodput-node", **HERE),
            panels.link("host", "Open host and storage", "goodput-host", **HERE),
        ],
    ),
    panels.stats(
        "Now",
        "Whether the process is alive, its last step, the age of its last sign of life, and how long it has been "
        "in its phase. Dead: its run waits, or was restarted elsewhere. A sign of life older than a step, in "
        "communication: it waits for another rank; in any other phase: the others wait for it.",
        {
            "alive": _max("goodput_rank_alive"),
            "step": _max("goodput_rank_step"),
            "last sign of life": f"min(goodput_rank_beat_age_seconds{{{RANK}}})",
            "in {{phase}} for": panels.Instant(
                f"topk(1, max by (phase) (goodput_rank_phase_age_seconds{{{RANK}}}))"
            ),
            "last traced step": f"min(goodput_deep_look_age_seconds{{{RANK}}})",
        },
        unit="s",
        no_value=NO_RANK,
        overrides=[
            series("alive", "bool_yes_no", ONE_IS_GOOD),
            series("step", "none"),
            series("last sign of life", "s", [(None, GREEN), (60, YELLOW), (600, RED)]),
        ],
    ),
    # Phases on both clocks.
    _phases(
        "host",
        "Time of the step thread in each phase, per second; 'none' is time in no phase. A phase that grows: the "
        "code waits for it. With a device, some of this waiting did not delay the GPU: compare with the clock of "
        "the device beside before you change anything. The gap to 100 % is a phase longer than the window.",
        NO_RANK,
    ),
    _phases(
        "device",
        "The same on the GPU: time between the marks of the phases on its stream. Loader or h2d here is waiting "
        "that cost GPU time; on the host's clock alone it was hidden. Communication here is exposed: not "
        "overlapped with compute. Empty: no device, or the steps are measured by the host's clock.",
        "no device clock: the host's clock is used instead",
    ),
    panels.lines(
        "Phases against the group's median",
        "Seconds per second that the rank spends in a phase beyond the median of its group. Above zero in loader, "
        "h2d or compute: that is why the others wait for it. Above zero in communication, below in the rest: it "
        "waits for others. All near zero: this rank is like the others.",
        {"{{phase}} ({{clock}})": f"{PHASE_RATE} - on (phase, clock) {PHASE_MEDIAN}"},
        unit="percentunit",
        no_value="no group, or no step in the last minute",
    ).min(None),
    # Steps.
    panels.heat_map(
        "Step time: distribution",
        "Number of steps by duration; six buckets to a factor of ten. One narrow band is normal. A second band "
        "above: steps that stall now and then (checkpoint, loader, evaluation). A rising band: the rank gets "
        "slower; see temperature and clocks of its GPU. A wide band: the work differs from step to step.",
        {"{{le}}": f"sum by (le) (increase(goodput_step_duration_seconds_bucket{{{RANK}}}[{RATE}]))"},
        unit="s",
        no_value="no step in this time",
        buckets=True,
    ),
    panels.heat_map(
        "Step time: distribution, all ranks",
        "The same of all ranks of the run together, ten buckets to a factor of ten, from the aggregator. Like this "
        "rank's: the whole run does this, look at the run's board. Narrower than this rank's: the others' steps do "
        "not stall, look at this rank's loader, GPU and host.",
        {"{{le}}": f'sum by (le) (increase(goodput_run_step_duration_seconds_bucket{{run="$run"}}[{RATE}]))'},
        unit="s",
        no_value="no step in this time",
        buckets=True,
    ),
    panels.lines(
        "Step time against the group's median",
        "A step of this rank and of the median of its group, in full and without collectives (own). In lock-step "
        "full steps are equal; own above the median by more than a few percent: this rank delays the others. Own "
        "below: it waits for them. The percentiles are of its last 512 steps at most, exact.",
        {
            "step": _max("rank:step_seconds:mean_1m"),
            "step, median": f"max({_of_group('run_group:step_seconds:p50_1m')})",
            "own": _max("rank:own_step_seconds:mean_1m"),
            "own, median": f"max({_of_group('run_group:own_step_seconds:p50_1m')})",
            "above the median": f"{_max('rank:slowness:ratio_5m')} - 1",
            **promql.quantiles("goodput_rank_step_seconds", RANK),
        },
        unit="s",
        no_value="no step in the last minute",
        overrides=[
            *panels.colours({"step, median": STATE_COLOURS["down"], "own, median": STATE_COLOURS["queue"]}),
            series("above the median", "percentunit", axis="right"),
        ],
    ).min(None),
    panels.table(
        "Phase durations",
        "Duration of each phase in the last five minutes, and time that threads beside the step loop spent in it, "
        "which is not in the account. Percentiles are exact, of the time within a step that has the phase, over the "
        "last 512 steps at most; the mean is of each time that the phase was entered. p99 far "
        "above p50: the phase stalls now and then. A mean above that of the run's table: the problem is this "
        "rank's own.",
        {
            "mean": f"{PHASE_SUM} / ({PHASE_COUNT} > 0)",
            **promql.quantiles("goodput_rank_phase_seconds", RANK, "phase"),
            "background": _rate("goodput_background_phase_seconds_total", "phase", window="5m"),
        },
        unit="s",
        no_value="no phase in the last five minutes",
        first=["phase"],
        sort="p99",
        overrides=[series("background", "percentunit"), *panels.widths(phase=115)],
    ),
    # The loader.
    panels.areas(
        "Loader waits by reason",
        "Time that the step thread waited for a batch, per second, by what the worker did meanwhile. storage: "
        "faster or nearer data. decode, collate: cheaper transforms or more workers. cpus: no free core; fewer "
        "threads or more CPUs. queue: the batch was ready and its transfer is slow. startup: keep workers "
        "(persistent_workers).",
        {"{{reason}}": _rate("goodput_loader_wait_seconds_total", "reason")},
        unit="percentunit",
        no_value=NO_LOADER,
        overrides=panels.colours(WAIT_COLOURS),
    ),
    panels.lines(
        "Batches: ready, starved",
        "Mean number of batches that were ready at a request, workers, and on the right the share of requests "
        "with no batch ready (starved). Ready near zero and starved near 100 %: the workers cannot keep up. Many "
        "ready: the loader is not the cause. Iterators made more than once an epoch: each start costs time.",
        {
            "batches ready": f"{_rate('goodput_loader_ready_batches_total')} / {BATCHES}",
            "workers": _max("goodput_loader_workers"),
            "workers not measured": f"sum(goodput_loader_workers_unmeasured_total{{{RANK}}}) > 0",
            "starved": f"{_rate('goodput_loader_starved_batches_total')} / {BATCHES}",
            "creating iterators": _rate("goodput_loader_iterator_seconds_total"),
            "iterators per minute": f"{_rate('goodput_loader_iterators_total')} * 60",
        },
        unit="short",
        no_value=NO_LOADER,
        overrides=[series(name, "percentunit", axis="right") for name in ("starved", "creating iterators")],
    ),
    panels.table(
        "Loader workers",
        "The sixteen workers with the longest waits in the last five minutes: the share of their time spent "
        "reading, computing or idle, and batches per second. One waited for far more than its peers: its shard "
        "or its files are slow. All busy: more workers. All idle while the rank waits: the queue.",
        {
            "wait": WORKERS,
            "storage": _busy("storage"),
            "CPU": _busy("decode|collate"),
            "no core": _busy("cpus"),
            "idle": _busy("idle"),
            "per s": _of_workers(_rate("goodput_loader_worker_batches_total", WORKER, window="5m")),
        },
        unit="percentunit",
        no_value=NO_LOADER,
        first=["loader", "worker"],
        sort="wait",
        overrides=[series("per s", "short"), *panels.widths(loader=60, worker=60)],
    ),
    # Inside a step, and the cost of measuring.
    panels.bars(
        "The last traced step",
        "Where the time of the last traced step went, if deep looks are enabled; the parts add up to the step. "
        "Idle or host: the GPU had nothing to run (CUDA graphs, larger batches). Communication or copy: exposed, "
        "not overlapped with compute. Its age is among the numbers at the top; failed looks are counted beside.",
        {"{{kind}}": f"sort_desc(max by (kind) ({TRACED}))"},
        unit="s",
        no_value="no step has been traced (GOODPUT_DEEP_LOOK)",
    ),
    panels.lines(
        "Measurement overhead",
        "Time of the SDK in this trainer by its own measure, over the rank's time, against its budget; on the "
        "right, whether phases are measured. Above the budget for long: declare fewer phases, or report it as a "
        "bug. A rank whose phases are off still counts and times every step.",
        {
            "cost": _rate("goodput_sdk_cost_seconds_total"),
            "deep looks": _rate("goodput_deep_look_cost_seconds_total"),
            "budget": _max("goodput_sdk_budget_ratio"),
            "phases measured": f"min(goodput_sdk_phases_every{{{RANK}}})",
        },
        unit="percentunit",
        no_value=NO_RANK,
        overrides=[
            *panels.colours({"budget": RED}),
            series("phases measured", "bool_yes_no", axis="right"),
        ],
    ).decimals(3),
    panels.lines(
        "Counters of the framework and the SDK",
        "Per minute: compilations, steps that mixed precision skipped, steps without measured phases, deep looks, "
        "dropped records; micro-batches per step on the right. Compilations in mid-run: shapes change. Skipped "
        "steps in a row: the loss scale falls. Dropped records: goodput is called wrongly; its log explains how.",
        {
            "compilations": f"{_rate('goodput_compilations_total')} * 60",
            "skipped steps": f"{_rate('goodput_skipped_steps_total')} * 60",
            "unmeasured steps": f"{_rate('goodput_sdk_unmeasured_steps_total')} * 60",
            "deep looks {{outcome}}": f"{_rate('goodput_deep_looks_total', 'outcome')} * 60",
            "dropped {{what}}": f"{_rate('goodput_sdk_dropped_total', 'what')} * 60",
            "micro-batches per step": f"{_rate('goodput_micro_batches_total')} / "
            f"({_rate('goodput_steps_total')} > 0)",
        },
        unit="short",
        no_value=NO_RANK,
        overrides=[series("micro-batches per step", "short", axis="right")],
    ),
]

BOARD = build_board(
    "goodput-rank",
    "What does this rank spend its time on, what does its loader wait for, and is it slower than its group?",
    PANELS,
    [(5, 14, 10), (9, 8, 8, 8), (8, 12, 12), (8, 12, 12), (8, 8, 8, 8), (8, 8, 8, 8)],
    variables=[board_builder.RUN, board_builder.RANK],
    time_from="now-30m",
)
