"""goodput / Rank: what one rank does, on both clocks, and how it differs from the ranks of its group."""

from __future__ import annotations

from dashboards import board_builder, panels, promql
from dashboards.board_builder import build_board
from dashboards.panels import GREEN, RED, YELLOW, series
from dashboards.promql import RATE, gpu_names
from dashboards.states import ONE_IS_GOOD, PHASE_COLOURS

RUN = 'run="$run"'
RANK = f'{RUN},rank="$rank"'
OPERATION = "group, operation"
NO_RANK = "no node agent has this rank"
NO_LOADER = "no DataLoader is measured"
NO_NCCL = "no calls by the profiler plugin (docs/nccl.md)"
STEP_COLOURS = {
    "p50, this rank": "#7cc4f0",
    "p95, this rank": "#1261b0",
    "p99, this rank": "#a572c9",
    "p50, all ranks": "#c9d2de",
    "p95, all ranks": "#97a9b8",
    "p99, all ranks": "#78818c",
    "longest, this rank": "#e28c03",
    "mean, this rank": "#4ba18c",
    "mean, median rank": "#d3c58c",
    "mean, all ranks": "text",
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


def _gained(series: str, by: str = "") -> str:
    """How many in a quarter of an hour: rates of what happens once in minutes would be spikes."""
    return f"round({_rate(series, by, window='15m')} * 900)"


def _max(series: str) -> str:
    return f"max({series}{{{RANK}}})"


def _of_group(series: str, more: str = "") -> str:
    """A recorded series of the rank's group."""
    return f'{series}{{run="$run"{more}}} and on (run, group) group by (run, group) (goodput_rank_info{{{RANK}}})'


HERE = {"run": "run", "instance": "field:instance"}
COLUMNS = [
    "host",
    "instance",
    "index",
    "pci",
    "uuid",
    "gpu_uuid",
    "device",
    "group",
    "stage",
    "attempt",
    "pid",
    "pod",
    "slurm_job",
]
IDENTITY = "host, instance, device, gpu_uuid, group, stage, attempt"
# In the labels of the rank's own rows.
GPU_OF_RANK = (
    f"group by (instance, index, pci, uuid, gpu_uuid) (label_replace({gpu_names('')}, "
    f'"gpu_uuid", "$1", "gpu", "(.*)") and on (instance, gpu_uuid) group by (instance, gpu_uuid) '
    f"(goodput_rank_info{{{RANK}}}))"
)
PROCESS = "host, instance, pid, pod, slurm_job"
BATCHES = f"({_rate('goodput_loader_batches_total')} > 0)"
PHASE_SUM, PHASE_COUNT = (
    _rate(f"goodput_phase_duration_seconds_{part}", "phase", window="5m") for part in ("sum", "count")
)
ALL_STEPS = {
    part: promql.rate_of(f"goodput_run_step_duration_seconds_{part}", "", RUN, "5m")
    for part in ("sum", "count")
}
TRACED = f'goodput_deep_look_seconds{{{RANK},kind=~"compute|communication|copy|loader|host|idle"}}'

WORKER = "loader, worker"
WORKERS = f"topk(16, {_rate('goodput_loader_worker_waited_seconds_total', WORKER, window='5m')})"


def _of_workers(expr: str) -> str:
    return f"{expr} and on ({WORKER}) {WORKERS}"


def _busy(parts: str) -> str:
    return _of_workers(_rate("goodput_loader_worker_seconds_total", WORKER, f',part=~"{parts}"', "5m"))


def _clock(name: str) -> str:
    """The step thread's time by phase on one clock."""
    return _rate("goodput_phase_seconds_total", "phase", f',clock="{name}"')


def _excess(clock: str) -> str:
    """What the rank spends in each phase beyond the median of its group."""
    own = _rate("goodput_phase_seconds_total", "phase", f',clock="{clock}"', "1m")
    median = _of_group("run_group_phase_clock:phase_seconds:p50_1m", f',clock="{clock}"')
    return f"{own} - on (phase) max by (phase) ({median})"


HAS_DEVICE_CLOCK = f'group (goodput_phase_seconds_total{{{RANK},clock="device"}})'
PHASE_EXCESS = f"{_excess('device')} or ({_excess('host')} unless on () {HAS_DEVICE_CLOCK})"

PANELS = [
    # Identity and present state.
    panels.table(
        "Identity",
        "Where the rank runs, on which GPU, in which group and pipeline stage, and its process. Two rows: an "
        "attempt that has ended beside the present one, for as long as its page is kept. No row: the run has no "
        "rank of this number, or its node has no agent. The links of host and GPU open the board of the node.",
        {
            "info": f"group by ({IDENTITY}) (goodput_rank_info{{{RANK}}})",
            "GPU": GPU_OF_RANK,
            "process": f"group by ({PROCESS}) (goodput_rank_process_info{{{RANK}}})",
            "NUMA node": f"max by (instance) (goodput_rank_numa_node{{{RANK}}})",
            "CPUs": f"sum by (instance) (goodput_rank_cpus{{{RANK}}})",
        },
        unit="short",
        no_value=NO_RANK,
        first=COLUMNS,
        sort="attempt",
        pages=False,
        hide=("info", "GPU", "process", "gpu"),
        overrides=[
            *panels.widths(host=80, instance=100, index=55, pci=115, uuid=85, attempt=70, pid=60),
            *panels.widths(NUMA_node=90, CPUs=55),
            ("slurm_job", {"custom.width": 80}),
            (
                "gpu_uuid",
                {"custom.hidden": True, "custom.hideFrom": {"viz": True, "legend": False, "tooltip": False}},
            ),
            panels.link("uuid", "Open the GPU", "goodput-node", **HERE, gpu="field:gpu_uuid"),
            panels.link("instance", "Open the node", "goodput-node", **HERE),
            panels.link("host", "Open host and storage", "goodput-host", **HERE),
        ],
    ),
    panels.stats(
        "Now",
        "Whether the process is alive, its last step, the age of its last sign of life, and how long it has been "
        "in its phase. Dead: its run waits, or was restarted elsewhere. A sign of life older than a step, in "
        "communication: it waits for another rank; in any other phase: the others wait for it. Copies to the device far "
        "below what the node can do (goodput probe): pin memory, copy larger pieces.",
        {
            "alive": _max("goodput_rank_alive"),
            "step": _max("goodput_rank_step"),
            "last sign of life": f"min(goodput_rank_beat_age_seconds{{{RANK}}})",
            "in {{phase}} for": panels.Instant(
                f"topk(1, max by (phase) (goodput_rank_phase_age_seconds{{{RANK}}}))"
            ),
            "last traced step": f"min(goodput_deep_look_age_seconds{{{RANK}}})",
            "its copies to the device": _max("goodput_deep_look_h2d_bytes_per_second"),
            "of what the node can do": _max("goodput_deep_look_h2d_reached_ratio"),
        },
        unit="s",
        no_value=NO_RANK,
        overrides=[
            series("alive", "bool_yes_no", ONE_IS_GOOD),
            series("step", "none"),
            series("its copies to the device", "Bps"),
            series("of what the node can do", "percentunit"),
            series("last sign of life", "s", [(None, GREEN), (60, YELLOW), (600, RED)]),
        ],
    ),
    # Phases on both clocks. A window shorter than a step would show one phase only.
    panels.areas(
        "Phases on the host's clock",
        "Share of the step thread's time in each phase; 'none' is time in no phase, and all add up to 100 %. A phase that "
        "grows: the code waits for it. With a device, some of this waiting did not delay the GPU: compare with the clock "
        "of the device beside before you change anything. A phase is counted when it ends.",
        {"{{phase}}": f"{_clock('host')} / on () group_left () (sum({_clock('host')}) > 0)"},
        unit="percentunit",
        shares=True,
        no_value=NO_RANK,
        overrides=panels.colours(PHASE_COLOURS),
    ).interval("1m"),
    panels.lines(
        "Device's clock less the host's",
        "How much more of its time the GPU spent in each phase than the step thread. Below zero in loader or h2d: so "
        "much of that waiting was hidden, since the GPU still computed; only the rest is worth a change. Above zero in "
        "a compute phase: that is where it was hidden. All at zero: the GPU waits whenever the code does.",
        {"{{phase}}": f"{_clock('device')} - on (phase) {_clock('host')}"},
        unit="percentunit",
        no_value="no device clock: the host's clock is used instead",
        overrides=panels.colours(PHASE_COLOURS),
    )
    .interval("1m")
    .min(None)
    .axis_soft_min(-0.05)
    .axis_soft_max(0.05),
    panels.lines(
        "Phases against the group's median",
        "Seconds per second that the rank spends in a phase beyond the median of its group, on the clock of the device "
        "where there is one. Above zero in loader, h2d or compute: that is why the others wait for it. Above zero in "
        "communication, below in the rest: it waits for others. All near zero: this rank is like the others.",
        {"{{phase}}": PHASE_EXCESS},
        unit="percentunit",
        no_value="no group, or no step in the last minute",
        overrides=panels.colours(PHASE_COLOURS),
    )
    .min(None)
    .axis_soft_min(-0.05)
    .axis_soft_max(0.05),
    # Steps.
    panels.lines(
        "Own step time against the group's median",
        "Steps without collectives: of this rank, of the median of its group, and by how much it is above (right). In "
        "lock-step full steps are equal; own above the median by more than a few percent: this rank delays the others. "
        "Below: it waits for them. Both rise: the whole group got slower.",
        {
            "own": _max("rank:own_step_seconds:mean_1m"),
            "own, median": f"max({_of_group('run_group:own_step_seconds:p50_1m')})",
            "above the median": f"{_max('rank:slowness:ratio_5m')} - 1",
        },
        unit="s",
        no_value="no step in the last minute",
        overrides=[
            *panels.colours({"own": "#1261b0", "own, median": "text", "above the median": "#e28c03"}),
            series("above the median", "percentunit", right=""),
        ],
    ),
    panels.lines(
        "Step time: this rank and all ranks",
        "Whole steps: exact percentiles of this rank's last 512 at most, and of all ranks' in five minutes; means of "
        "the last minute (of all ranks: five); the longest, rounded up to a bucket. A diamond is a traced step, a deep "
        "look. p99 far above p50: steps stall now and then (checkpoint, loader, evaluation). Only this rank's: its loader, GPU or host. All alike: look at the run's board.",
        {
            **{f"{q}, this rank": e for q, e in promql.quantiles("goodput_rank_step_seconds", RANK).items()},
            **{f"{q}, all ranks": e for q, e in promql.quantiles("goodput_run_step_seconds", RUN).items()},
            "longest, this rank": f"histogram_quantile(1, sum by (le) (rate({panels.WITH_EXEMPLARS}{{{RANK}}}[{promql.RATE}])))",
            "mean, this rank": _max("rank:step_seconds:mean_1m"),
            "mean, median rank": f"max({_of_group('run_group:step_seconds:p50_1m')})",
            "mean, all ranks": f"{ALL_STEPS['sum']} / ({ALL_STEPS['count']} > 0)",
        },
        unit="s",
        no_value="no step in the last minute",
        overrides=panels.colours(STEP_COLOURS),
    ),
    panels.table(
        "Phase durations",
        "Of each phase in a step: exact percentiles over the last 512 steps at most, the mean over five minutes; the "
        "share of time in it on each clock, and of threads beside the step loop, which is not in the account. p99 far "
        "above p50: the phase stalls now and then. Above the run's table: the problem is this rank's own.",
        {
            "mean": f"{PHASE_SUM} / ({PHASE_COUNT} > 0)",
            **promql.quantiles("goodput_rank_phase_seconds", RANK, "phase"),
            **{
                clock: _rate("goodput_phase_seconds_total", "phase", f',clock="{clock}"', "5m")
                for clock in ("host", "device")
            },
            "background": _rate("goodput_background_phase_seconds_total", "phase", window="5m"),
        },
        unit="s",
        no_value="no phase in the last five minutes",
        first=["phase"],
        sort="host",
        overrides=[
            *(series(name, "percentunit") for name in ("host", "device", "background")),
            *panels.widths(phase=115),
        ],
    ),
    panels.table(
        "Collectives in the last five minutes",
        "What each operation of each process group costs this rank: its share of the step thread's time, calls per "
        "second, and the bytes of this rank's part. Much time in many small calls: larger buckets. Much time in few large "
        "ones: overlap, or a faster link. Little data and much time: it waits for another rank.",
        {
            "time": _rate("goodput_collective_exposed_seconds_total", OPERATION, window="5m"),
            "calls": _rate("goodput_collective_calls_total", OPERATION, window="5m"),
            "bytes": _rate("goodput_collective_bytes_total", OPERATION, window="5m"),
        },
        unit="percentunit",
        no_value="no collectives are recorded",
        first=["group", "operation"],
        sort="time",
        overrides=[series("calls", "cps"), series("bytes", "Bps")],
    ),
    # The loader.
    panels.areas(
        "Loader waits by reason",
        "Milliseconds of each second that the step thread waited for a batch, by what the worker did meanwhile. storage: "
        "faster or nearer data. decode, collate: cheaper transforms or more workers. cpus: no free core; fewer "
        "threads or more CPUs. queue: the batch was ready and its transfer is slow. startup: keep workers "
        "(persistent_workers).",
        {"{{reason}}": f"{_rate('goodput_loader_wait_seconds_total', 'reason')} * 1000"},
        unit="suffix: ms/s",
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
        axis="batches, workers",
        no_value=NO_LOADER,
        overrides=[series(name, "percentunit", right="") for name in ("starved", "creating iterators")],
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
        "Time of the SDK in this trainer by its own measure, over the rank's time, in the last fifteen minutes, against "
        "its budget; on the right, whether phases are measured. Above the budget: declare fewer phases, or report it "
        "as a bug. A rank whose phases are off still counts and times every step.",
        {
            "cost": _rate("goodput_sdk_cost_seconds_total", window="15m"),
            "deep looks": _rate("goodput_deep_look_cost_seconds_total", window="15m"),
            "budget": _max("goodput_sdk_budget_ratio"),
            "phases measured": f"min(goodput_sdk_phases_every{{{RANK}}})",
        },
        unit="percentunit",
        no_value=NO_RANK,
        overrides=[
            *panels.colours(
                {"cost": "#1261b0", "deep looks": "#a572c9", "budget": RED, "phases measured": "text"}
            ),
            series("phases measured", "bool_yes_no", right=""),
        ],
    ).decimals(3),
    panels.lines(
        "Events of the framework and the SDK",
        "In the last fifteen minutes: compilations, steps that mixed precision skipped, steps without measured phases, deep looks, "
        "dropped records; micro-batches per step on the right. Compilations in mid-run: shapes change. Skipped "
        "steps in a row: the loss scale falls. Dropped records: goodput is called wrongly; its log explains how.",
        {
            "compilations": _gained("goodput_compilations_total"),
            "skipped steps": _gained("goodput_skipped_steps_total"),
            "unmeasured steps": _gained("goodput_sdk_unmeasured_steps_total"),
            "deep looks {{outcome}}": _gained("goodput_deep_looks_total", "outcome"),
            "dropped {{what}}": _gained("goodput_sdk_dropped_total", "what"),
            "micro-batches per step": f"{_rate('goodput_micro_batches_total')} / "
            f"({_rate('goodput_steps_total')} > 0)",
        },
        unit="short",
        axis="in 15 minutes",
        no_value=NO_RANK,
        overrides=[series("micro-batches per step", "short", right="micro-batches")],
    ),
    # What NCCL's profiler plugin has recorded.
    panels.lines(
        "NCCL on the device",
        "Share of time with a call of NCCL on the device, by operation, and on the right calls per second and the rate "
        "while they run (this rank's bytes over device time). A rate far below the link's: messages that are too small, a "
        "slow link, or waiting for a rank that comes late.",
        {
            "{{operation}}": _rate("goodput_nccl_device_seconds_total", "operation"),
            "rate, {{operation}}": f"{_rate('goodput_nccl_bytes_total', 'operation')} / "
            f"({_rate('goodput_nccl_device_seconds_total', 'operation')} > 0)",
            "calls, {{operation}}": _rate("goodput_nccl_calls_total", "operation"),
        },
        unit="percentunit",
        no_value=NO_NCCL,
        overrides=[
            series("/^rate, /", "Bps", right=""),
            series("/^calls, /", "cps", right=""),
        ],
    ),
    panels.lines(
        "NCCL transfers",
        "Transfers that wait, on average: sends for the GPU (it has nothing to send yet), the peer (a slow receiver) or the "
        "network; receives for the network (a slow link, or a sender that comes late) or the GPU. On the right bytes per "
        "second, and records that the plugin dropped.",
        {
            "{{direction}}: {{reason}}": _rate(
                "goodput_nccl_network_wait_seconds_total", "direction, reason"
            ),
            "bytes, {{direction}}": _rate("goodput_nccl_network_bytes_total", "direction"),
            "dropped, {{what}}": _gained("goodput_nccl_dropped_total", "what"),
        },
        unit="short",
        axis="transfers that wait",
        no_value=NO_NCCL,
        overrides=[
            series("/^bytes, /", "Bps", right=""),
            series("/^dropped, /", "short", right="records in 15 min"),
        ],
    ),
]

BOARD = build_board(
    "goodput-rank",
    "What does this rank spend its time on, what does its loader wait for, and is it slower than its group?",
    PANELS,
    [(5, 24), (4, 24), (9, 8, 8, 8), (10, 8, 8, 8), (7, 24), (8, 8, 8, 8), (8, 8, 8, 8), (9, 12, 12)],
    variables=[board_builder.RUN, board_builder.RANK],
    time_from="now-30m",
)
