"""goodput / Rank: what one rank does, on both clocks, and how it differs from the ranks of its group."""

from __future__ import annotations

from dashboards import board_builder, panels, promql
from dashboards.board_builder import build_board
from dashboards.panels import GREEN, RED, YELLOW, series
from dashboards.promql import RATE
from dashboards.states import ONE_IS_GOOD, STATE_COLOURS

RANK = 'run="$run",rank="$rank"'
NO_RANK = "no node agent knows this rank"
NO_LOADER = "no DataLoader is measured"
# The compute phases share the colour of productive time, in shades.
PHASE_COLOURS = {
    "forward": "#1261b0",
    "backward": "#3f86cf",
    "optimizer": "#7fb2e5",
    **{
        phase: STATE_COLOURS[phase]
        for phase in ("loader", "h2d", "communication", "checkpoint", "restore", "evaluation", "compile")
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
PHASE_BUCKETS = _rate("goodput_phase_duration_seconds_bucket", "phase, le", window="5m")
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
        "Where the rank runs, on which GPU, in which group and pipeline stage, and whose process it is. "
        "Two rows: an attempt that has ended beside the present one, for as long as its page is kept. No "
        "row: the number in the box is not a rank of the run, or its node has no agent. Host and GPU lead"
        " to the node's board.",
        {
            "info": f"group by ({IDENTITY}) (goodput_rank_info{{{RANK}}})",
            "process": f"group by ({PROCESS}) (goodput_rank_process_info{{{RANK}}})",
            "NUMA node": f"max by (instance) (goodput_rank_numa_node{{{RANK}}})",
            "CPUs allowed": f"sum by (instance) (goodput_rank_cpus{{{RANK}}})",
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
        "Whether the process lives, its last step, and how long ago it gave a sign of life, and for how "
        "long it has been in the phase it is in. Dead: its run waits, or has been started elsewhere. A "
        "sign of life older than a step takes, in communication: it waits for another rank; in any other "
        "phase: it is the one the others wait for.",
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
        "Of each second, what the step thread spent in each phase; 'none' is time in no phase. A phase "
        "that grows: what the code waits for. Where there is a device, waiting that the GPU did not feel "
        "is among it: compare with the device's clock beside before you mend anything. The gap to 100 % "
        "is a phase that lasts longer than the window.",
        NO_RANK,
    ),
    _phases(
        "device",
        "The same as the GPU felt it: time between the phases' marks on its stream. Loader or h2d here is"
        " waiting that cost GPU time; on the host's clock alone it was hidden. Communication here is "
        "exposed: not overlapped with compute. Empty: no device, or the steps are measured by the host's "
        "clock.",
        "no device clock: the host's stands in for it",
    ),
    panels.lines(
        "Phases against the group's median",
        "Seconds in each second that the rank spends in a phase beyond the median of its group. Above "
        "zero in loader, h2d or compute: that is why the others wait for it. Above zero in communication,"
        " below in the rest: it waits for others. All near zero: this rank is like the others.",
        {"{{phase}} ({{clock}})": f"{PHASE_RATE} - on (phase, clock) {PHASE_MEDIAN}"},
        unit="percentunit",
        no_value="no group, or no step in the last minute",
    ).min(None),
    # Steps.
    panels.heat_map(
        "Step time: distribution",
        "How many steps took how long; buckets are two to a factor of ten. One narrow band is well. A "
        "second band above: steps that stall now and then (checkpoint, loader, evaluation). A band that "
        "climbs: it gets slower; see heat and clocks of its GPU. A wide band: work that differs from step"
        " to step.",
        {"{{le}}": f"sum by (le) (increase(goodput_step_duration_seconds_bucket{{{RANK}}}[{RATE}]))"},
        unit="s",
        no_value="no step in this time",
        buckets=True,
    ),
    panels.lines(
        "Step time against the group's median",
        "A step of this rank and of the median of its group, whole and less the collectives (own). In "
        "lock-step the whole ones are the same; own above the median's by more than a few percent: this "
        "rank makes the others wait. Own below: it waits for them.",
        {
            "step": _max("rank:step_seconds:mean_1m"),
            "step, median": f"max({_of_group('run_group:step_seconds:p50_1m')})",
            "own": _max("rank:own_step_seconds:mean_1m"),
            "own, median": f"max({_of_group('run_group:own_step_seconds:p50_1m')})",
            "above the median": f"{_max('rank:slowness:ratio_5m')} - 1",
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
        "How long each phase took in the last five minutes, and what threads beside the step loop spent "
        "in it, which is not in the account. Percentiles are known to a factor of three, the mean is "
        "exact. p99 far above p50: it stalls now and then. A mean above that of the run's table: this "
        "rank's own trouble.",
        {
            "mean": f"{PHASE_SUM} / ({PHASE_COUNT} > 0)",
            **promql.quantiles(PHASE_BUCKETS),
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
        "Of each second, what the step thread waited for a batch, by what its worker did meanwhile. "
        "storage: faster or nearer data. decode, collate: cheaper transforms or more workers. cpus: no "
        "core was free, fewer threads or more CPUs. queue: batches lay ready and their way here is slow. "
        "startup: keep workers (persistent_workers).",
        {"{{reason}}": _rate("goodput_loader_wait_seconds_total", "reason")},
        unit="percentunit",
        no_value=NO_LOADER,
        overrides=panels.colours(WAIT_COLOURS),
    ),
    panels.lines(
        "Batches: ready, starved",
        "Batches that lay ready when one was asked for (mean), workers, and on the right the share of "
        "batches that were asked for while none lay ready. Ready near zero and starved near 100 %: the "
        "workers cannot keep up. Ready high: the loader is not what is slow. Iterators made in a second "
        "above zero: each start costs.",
        {
            "batches ready": f"{_rate('goodput_loader_ready_batches_total')} / {BATCHES}",
            "workers": _max("goodput_loader_workers"),
            "workers not measured": f"sum(goodput_loader_workers_unmeasured_total{{{RANK}}}) > 0",
            "starved": f"{_rate('goodput_loader_starved_batches_total')} / {BATCHES}",
            "making iterators": _rate("goodput_loader_iterator_seconds_total"),
            "iterators per minute": f"{_rate('goodput_loader_iterators_total')} * 60",
        },
        unit="short",
        no_value=NO_LOADER,
        overrides=[series(name, "percentunit", axis="right") for name in ("starved", "making iterators")],
    ),
    panels.table(
        "Loader workers",
        "The sixteen workers that were waited for most in the last five minutes: what part of their time "
        "they read, compute or idle, and batches in a second. One waited for far more than its peers: its"
        " shard or its files are slow. All busy: more workers. All idle while the rank waits: the queue.",
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
        "Where the time of the last step went that was traced, where deep looks are on; the parts add up "
        "to the step. Idle or host: the GPU had nothing to run (CUDA graphs, larger batches). "
        "Communication or copy: exposed, not hidden behind compute. Its age is among the numbers of the "
        "rank at the top; looks that fail are counted beside.",
        {"{{kind}}": f"sort_desc(max by (kind) ({TRACED}))"},
        unit="s",
        no_value="no step has been traced (GOODPUT_DEEP_LOOK)",
    ),
    panels.lines(
        "Measurement overhead",
        "Time of the SDK in this trainer by its own measure, over the rank's time, against its budget; on"
        " the right, whether phases are measured. Above the budget for long: fewer phases of your own, or"
        " tell the maintainers. A rank whose phases are off still counts and times every step.",
        {
            "cost": _rate("goodput_sdk_cost_seconds_total"),
            "of it deep looks": _rate("goodput_deep_look_cost_seconds_total"),
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
        "In a minute: compilations, steps that mixed precision skipped, steps of which only the length "
        "was measured, deep looks, records dropped; micro-batches per step on the right. Compilations in "
        "mid-run: shapes change. Skipped steps in a row: the loss scale falls. Dropped records: goodput "
        "was called wrongly; its log says how.",
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
    [(5, 14, 10), (9, 8, 8, 8), (8, 8, 8, 8), (8, 8, 8, 8), (8, 8, 8, 8)],
    variables=[board_builder.RUN, board_builder.RANK],
    time_from="now-30m",
)
