"""goodput / Rank: what one rank does, on both clocks, and how it differs from the ranks that it meets."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from dashboards.board_builder import address, build_board, rank_variable, run_variable
from dashboards.panels import (
    GREEN,
    RED,
    YELLOW,
    Panels,
    bars,
    buckets,
    colour_series,
    column,
    heat_map,
    lines,
    link_to,
    numbers,
    query,
    rows,
    series_options,
    stack,
    widths,
)
from dashboards.states import STATE_COLOURS

PANELS = Panels()

RANK = 'run="$run",rank="$rank"'
RATE = "$__rate_interval"
NO_RANK = "no node agent knows this rank"
NO_LOADER = "no DataLoader is measured"
GROUP = f"group by (run, group) (goodput_rank_info{{{RANK}}})"
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
PARTS = {
    "storage": "#e28c03",
    "decode": "#1261b0",
    "collate": "#4ba18c",
    "cpus": "#af2d11",
    "queue": "#97a9b8",
    "startup": "#a572c9",
    "idle": "#c9d2de",
    "unknown": "#78818c",
}


def _rate(series: str, by: str = "", more: str = "") -> str:
    return f"sum{f' by ({by}) ' if by else ''}(rate({series}{{{RANK}{more}}}[{RATE}]))"


# -- Who it is, and what it does now


@PANELS.add
def _identity():
    labels = "host, instance, device, gpu_uuid, group, stage, attempt"
    panel = rows(
        "Identity",
        "Where the rank runs, on which GPU, in which group and pipeline stage, and whose process it is. Two rows: an "
        "attempt that has ended beside the present one, for as long as its page is kept. No row: the number in the box "
        "is not a rank of the run, or its node has no agent. Host and GPU lead to the node's board.",
        place=(0, 0, 14, 5),
        unit="short",
        no_value=NO_RANK,
        first=[
            "host",
            "instance",
            "gpu_uuid",
            "device",
            "group",
            "stage",
            "attempt",
            "pid",
            "pod",
            "slurm_job",
        ],
        sort="attempt",
        columns=[
            column(f"group by ({labels}) (goodput_rank_info{{{RANK}}})", "info"),
            column(
                f"group by (host, instance, pid, pod, slurm_job) (goodput_rank_process_info{{{RANK}}})",
                "process",
            ),
            column(f"max by (instance) (goodput_rank_numa_node{{{RANK}}})", "NUMA node"),
            column(f"sum by (instance) (goodput_rank_cpus{{{RANK}}})", "CPUs allowed"),
        ],
        hide=("info", "process", "Value #A", "Value #B"),
    )
    widths(panel, device=170, attempt=75)
    to_gpu = {"run": "run", "instance": "field:instance", "gpu": "field:gpu_uuid"}
    link_to(panel, "gpu_uuid", "Open the GPU", address("goodput-node", to_gpu))
    to_node = {"run": "run", "instance": "field:instance"}
    link_to(panel, "instance", "Open the node", address("goodput-node", to_node))
    return link_to(panel, "host", "Open host and storage", address("goodput-host", to_node))


@PANELS.add
def _now():
    panel = numbers(
        "Now",
        "Whether the process lives, its last step, and how long ago it gave a sign of life, and for "
        "how long it has been in the phase it is in. Dead: its run waits, or has been started elsewhere. A sign of life older than a step takes, in "
        "communication: it waits for another rank; in any other phase: it is the one the others wait for.",
        place=(14, 0, 10, 5),
        unit="s",
        no_value=NO_RANK,
        queries=[
            query(f"max(goodput_rank_alive{{{RANK}}})", "alive"),
            query(f"max(goodput_rank_step{{{RANK}}})", "step"),
            query(f"min(goodput_rank_beat_age_seconds{{{RANK}}})", "last sign of life"),
            query(
                f"topk(1, max by (phase) (goodput_rank_phase_age_seconds{{{RANK}}}))",
                "in {{phase}} for",
                instant=True,
            ),
            query(f"min(goodput_deep_look_age_seconds{{{RANK}}})", "last traced step"),
        ],
        trend=False,
    )
    series_options(panel, "alive", unit="bool_yes_no", steps=[(None, RED), (1, GREEN)])
    series_options(panel, "step", unit="none")
    return series_options(
        panel, "last sign of life", unit="s", steps=[(None, GREEN), (60, YELLOW), (600, RED)]
    )


# -- Phases on both clocks


def _phases(clock: str, x: int, text: str):
    panel = stack(
        f"Phases on the {clock}'s clock",
        text,
        place=(x, 5, 8, 9),
        unit="percentunit",
        no_value=NO_RANK if clock == "host" else "no device clock: the host's stands in for it",
        queries=[query(_rate("goodput_phase_seconds_total", "phase", f',clock="{clock}"'), "{{phase}}")],
    )
    # A minute at least: a window shorter than a step would be in one phase alone.
    return colour_series(panel.interval("1m"), PHASE_COLOURS)


@PANELS.add
def _host():
    return _phases(
        "host",
        0,
        "Of each second, what the step thread spent in each phase; 'none' is time in no phase. A phase that grows: what "
        "the code waits for. Where there is a device, waiting that the GPU did not feel is among it: compare with the device's "
        "clock beside before you mend anything. The gap to 100 % is a phase that lasts longer than the window.",
    )


@PANELS.add
def _device():
    return _phases(
        "device",
        8,
        "The same as the GPU felt it: time between the phases' marks on its stream. Loader or h2d here is waiting that "
        "cost GPU time; on the host's clock alone it was hidden. Communication here is exposed: not overlapped with "
        "compute. Empty: no device, or the steps are measured by the host's clock.",
    )


@PANELS.add
def _against_phases():
    own = f"sum by (phase, clock) (rate(goodput_phase_seconds_total{{{RANK}}}[1m]))"
    usual = f'max by (phase, clock) (run_group_phase_clock:phase_seconds:p50_1m{{run="$run"}} and on (run, group) {GROUP})'
    return lines(
        "Phases against the group's median",
        "Seconds in each second that the rank spends in a phase beyond the median of its group. Above zero in loader, h2d "
        "or compute: that is why the others wait for it. Above zero in communication, below in the rest: it waits for "
        "others. All near zero: this rank is like the others.",
        place=(16, 5, 8, 9),
        unit="percentunit",
        no_value="no group, or no step in the last minute",
        queries=[query(f"{own} - on (phase, clock) {usual}", "{{phase}} ({{clock}})")],
    ).min(None)


# -- Steps


@PANELS.add
def _steps():
    return heat_map(
        "Step time: distribution",
        "How many steps took how long; buckets are two to a factor of ten. One narrow band is well. A second band above: "
        "steps that stall now and then (checkpoint, loader, evaluation). A band that climbs: it gets slower; see heat and "
        "clocks of its GPU. A wide band: work that differs from step to step.",
        place=(0, 14, 8, 8),
        unit="s",
        no_value="no step in this time",
        queries=[buckets(f"sum by (le) (increase(goodput_step_duration_seconds_bucket{{{RANK}}}[{RATE}]))")],
        scheme="Blues",
    )


@PANELS.add
def _against_median():
    def usual(series: str) -> str:
        return f'max({series}{{run="$run"}} and on (run, group) {GROUP})'

    panel = lines(
        "Step time against the group's median",
        "A step of this rank and of the median of its group, whole and less the collectives (own). In lock-step the whole "
        "ones are the same; own above the median's by more than a few percent: this rank makes the others wait. Own below: it "
        "waits for them.",
        place=(8, 14, 8, 8),
        unit="s",
        no_value="no step in the last minute",
        queries=[
            query(f"max(rank:step_seconds:mean_1m{{{RANK}}})", "step"),
            query(usual("run_group:step_seconds:p50_1m"), "step, median"),
            query(f"max(rank:own_step_seconds:mean_1m{{{RANK}}})", "own"),
            query(usual("run_group:own_step_seconds:p50_1m"), "own, median"),
            query(f"max(rank:slowness:ratio_5m{{{RANK}}}) - 1", "above the median"),
        ],
    ).min(None)
    colour_series(panel, {"step, median": STATE_COLOURS["down"], "own, median": STATE_COLOURS["queue"]})
    return series_options(panel, "above the median", unit="percentunit", axis_right=True)


@PANELS.add
def _lengths():
    phases = "goodput_phase_duration_seconds"
    mean = f"sum by (phase) (rate({phases}_sum{{{RANK}}}[5m])) / (sum by (phase) (rate({phases}_count{{{RANK}}}[5m])) > 0)"
    gathered = f"sum by (phase, le) (rate(goodput_phase_duration_seconds_bucket{{{RANK}}}[5m]))"
    panel = rows(
        "Phase durations",
        "How long each phase took in the last five minutes, and what threads beside the step loop spent in it, which is not "
        "in the account. Percentiles are known to a factor of three, the mean is exact. p99 far above p50: it stalls now and then. "
        "A mean above that of the run's table: this rank's own trouble.",
        place=(16, 14, 8, 8),
        unit="s",
        no_value="no phase in the last five minutes",
        first=["phase"],
        sort="p99",
        columns=[
            column(mean, "mean"),
            *(
                column(f"histogram_quantile({quantile / 100}, {gathered})", f"p{quantile}")
                for quantile in (50, 95, 99)
            ),
            column(
                f"sum by (phase) (rate(goodput_background_phase_seconds_total{{{RANK}}}[5m]))", "background"
            ),
        ],
    )
    series_options(panel, "background", unit="percentunit")
    return widths(panel, phase=115)


# -- The loader


@PANELS.add
def _loader_waits():
    panel = stack(
        "Loader waits by reason",
        "Of each second, what the step thread waited for a batch, by what its worker did meanwhile. storage: faster or "
        "nearer data. decode, collate: cheaper transforms or more workers. cpus: no core was free, fewer threads or more "
        "CPUs. queue: batches lay ready and their way here is slow. startup: keep workers (persistent_workers).",
        place=(0, 22, 8, 8),
        unit="percentunit",
        no_value=NO_LOADER,
        queries=[query(_rate("goodput_loader_wait_seconds_total", "reason"), "{{reason}}")],
    )
    return colour_series(panel, PARTS)


@PANELS.add
def _queue():
    taken = f"({_rate('goodput_loader_batches_total')} > 0)"
    panel = lines(
        "Batches: ready, starved",
        "Batches that lay ready when one was asked for (mean), workers, and on the right the share of batches that were asked "
        "for while none lay ready. Ready near zero and starved near 100 %: the workers cannot keep up. Ready high: the "
        "loader is not what is slow. Iterators made in a second above zero: each start costs.",
        place=(8, 22, 8, 8),
        unit="short",
        no_value=NO_LOADER,
        queries=[
            query(f"{_rate('goodput_loader_ready_batches_total')} / {taken}", "batches ready"),
            query(f"max(goodput_loader_workers{{{RANK}}})", "workers"),
            query(f"sum(goodput_loader_workers_unmeasured_total{{{RANK}}}) > 0", "workers not measured"),
            query(f"{_rate('goodput_loader_starved_batches_total')} / {taken}", "starved"),
            query(_rate("goodput_loader_iterator_seconds_total"), "making iterators"),
            query(f"{_rate('goodput_loader_iterators_total')} * 60", "iterators per minute"),
        ],
    )
    series_options(panel, "starved", unit="percentunit", axis_right=True)
    return series_options(panel, "making iterators", unit="percentunit", axis_right=True)


@PANELS.add
def _workers():
    seconds = f"goodput_loader_worker_seconds_total{{{RANK}"
    by = "loader, worker"

    def busy(parts: str) -> str:
        return f'sum by ({by}) (rate({seconds},part=~"{parts}"}}[5m]))'

    chosen = f"topk(16, sum by ({by}) (rate(goodput_loader_worker_waited_seconds_total{{{RANK}}}[5m])))"
    made = f"sum by ({by}) (rate(goodput_loader_worker_batches_total{{{RANK}}}[5m]))"
    panel = rows(
        "Loader workers",
        "The sixteen workers that were waited for most in the last five minutes: what part of their time they read, compute "
        "or idle, and batches in a second. One waited for far more than its peers: its shard or its files are slow. All busy: "
        "more workers. All idle while the rank waits: the queue.",
        place=(16, 22, 8, 8),
        unit="percentunit",
        no_value=NO_LOADER,
        first=["loader", "worker"],
        sort="wait",
        columns=[
            column(chosen, "wait"),
            column(f"{busy('storage')} and on ({by}) {chosen}", "storage"),
            column(f"{busy('decode|collate')} and on ({by}) {chosen}", "CPU"),
            column(f"{busy('cpus')} and on ({by}) {chosen}", "no core"),
            column(f"{busy('idle')} and on ({by}) {chosen}", "idle"),
            column(f"{made} and on ({by}) {chosen}", "per s"),
        ],
    )
    series_options(panel, "per s", unit="short")
    return widths(panel, loader=60, worker=60)


# -- Inside a step, and what measuring costs


@PANELS.add
def _traced_step():
    kinds = "compute|communication|copy|loader|host|idle"
    return bars(
        "The last traced step",
        "Where the time of the last step went that was traced, where deep looks are on; the parts add up to the step. Idle "
        "or host: the GPU had nothing to run (CUDA graphs, larger batches). Communication or copy: exposed, not hidden behind "
        "compute. Its age is among the numbers of the rank at the top; looks that fail are counted beside.",
        place=(0, 30, 8, 8),
        unit="s",
        no_value="no step has been traced (GOODPUT_DEEP_LOOK)",
        queries=[
            query(
                f'sort_desc(max by (kind) (goodput_deep_look_seconds{{{RANK},kind=~"{kinds}"}}))',
                "{{kind}}",
                instant=True,
            ),
        ],
    )


@PANELS.add
def _cost():
    panel = lines(
        "Measurement overhead",
        "Time of the SDK in this trainer by its own measure, over the rank's time, against its budget; on the right, whether "
        "phases are measured. Above the budget for long: fewer phases of your own, or tell the maintainers. A rank whose phases are "
        "off still counts and times every step.",
        place=(8, 30, 8, 8),
        unit="percentunit",
        no_value=NO_RANK,
        queries=[
            query(_rate("goodput_sdk_cost_seconds_total"), "cost"),
            query(_rate("goodput_deep_look_cost_seconds_total"), "of it deep looks"),
            query(f"max(goodput_sdk_budget_ratio{{{RANK}}})", "budget"),
            query(f"min(goodput_sdk_phases_every{{{RANK}}})", "phases measured"),
        ],
    ).decimals(3)
    colour_series(panel, {"budget": RED})
    return series_options(panel, "phases measured", unit="bool_yes_no", axis_right=True)


@PANELS.add
def _counts():
    batches = f"{_rate('goodput_micro_batches_total')} / ({_rate('goodput_steps_total')} > 0)"
    panel = lines(
        "Counters of the framework and the SDK",
        "In a minute: compilations, steps that mixed precision skipped, steps of which only the length was measured, deep looks, "
        "records dropped; micro-batches per step on the right. Compilations in mid-run: shapes change. Skipped steps in a row: "
        "the loss scale falls. Dropped records: goodput was called wrongly; its log says how.",
        place=(16, 30, 8, 8),
        unit="short",
        no_value=NO_RANK,
        queries=[
            query(f"{_rate('goodput_compilations_total')} * 60", "compilations"),
            query(f"{_rate('goodput_skipped_steps_total')} * 60", "skipped steps"),
            query(f"{_rate('goodput_sdk_unmeasured_steps_total')} * 60", "unmeasured steps"),
            query(f"{_rate('goodput_deep_looks_total', 'outcome')} * 60", "deep looks {{outcome}}"),
            query(f"{_rate('goodput_sdk_dropped_total', 'what')} * 60", "dropped {{what}}"),
            query(batches, "micro-batches per step"),
        ],
    )
    return series_options(panel, "micro-batches per step", unit="short", axis_right=True)


def board() -> builders.Dashboard:
    return build_board(
        "goodput-rank",
        "What does this rank spend its time on, what does its loader wait for, and is it slower than its group?",
        variables=[run_variable(), rank_variable()],
        panels=PANELS,
        time_from="now-30m",
    )
