"""goodput / Run: where the GPU time of one run goes, and why."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from dashboards.board_builder import address, build_board, run_variable
from dashboards.panels import (
    GREEN,
    RED,
    YELLOW,
    Panels,
    annotation,
    colour_series,
    column,
    heat_map,
    lines,
    link_to,
    numbers,
    override,
    query,
    rows,
    series_options,
    stack,
    value_texts,
    waterfall,
    widths,
)
from dashboards.states import COVERAGE_STEPS, GOOD_IS_HIGH, MFU_STEPS, STATE_COLOURS, account_share
from goodput.causes import general

PANELS = Panels()

RUN = 'run="$run"'
SLOWEST = f"topk(10, max by (rank, host) (goodput_straggler_share_ratio{{{RUN}}}))"
RANK_LINK = address("goodput-rank", {"run": "run", "rank": "field:rank"})
NODE_LINK = address("goodput-node", {"run": "run", "instance": "field:instance"})


def of(series: str, by: str = "") -> str:
    """The run's value; aggregators that share a run say the same, so the largest is the newest."""
    return f"max{f' by ({by}) ' if by else ''}({series}{{{RUN}}})"


# -- Which rank


def _padded(expr: str) -> str:
    """With ranks of three digits or more, so that they lie in the order of their numbers."""
    for digits, zeros in ((1, "00"), (2, "0")):
        pattern = "([0-9]{" + str(digits) + "})"
        expr = f'label_replace({expr}, "rank", "{zeros}$1", "rank", "{pattern}")'
    return expr


@PANELS.add
def _rank_heatmap():
    own = f"max by (rank) (rank:own_step_seconds:mean_1m{{{RUN}}})"
    mean = (
        f"max by (rank) (avg_over_time(rank:own_step_seconds:mean_1m{{{RUN}}}[$__range:$__interval] @ end()))"
    )
    # First steps, which compile, would else leave one colour to all others.
    shown = f"clamp_max({own} and on (rank) topk(40, {mean}), 1.5 * scalar(quantile(0.5, {mean})))"
    return heat_map(
        "Own step time by rank",
        "What each step takes of a rank itself, collectives left out: in lock-step all steps are equally long, and it is "
        "this that tells ranks apart. The forty ranks that take most; red is half as long again as usual, or more. "
        "One warm line: that rank, see the table. Warm columns: all ranks at once. Changing lines: uneven batches.",
        place=(0, 29, 12, 9),
        unit="s",
        no_value="no step in this time",
        queries=[query(_padded(shown), "{{rank}}")],
    )


@PANELS.add
def _stragglers():
    node = "on (host) group_left (instance) topk by (host) (1, group by (host, instance) (goodput_node_info))"
    named = f"({SLOWEST} * {node} or on (rank) {SLOWEST})"
    slower = f"max by (rank) (rank:slowness:ratio_5m{{{RUN}}}) - 1"
    panel = rows(
        "Stragglers and hang culprits",
        "Ranks by the share of the waiting that they explain, with their node's share and how much more time than the median "
        "they take; and the rank that a hang is blamed on. One far ahead: look at its host (throttling, a slow NIC, a "
        "noisy neighbour) or take it out. Even shares: the work is uneven, not a machine.",
        place=(12, 29, 12, 9),
        unit="percentunit",
        no_value="no rank is slower than the others",
        first=["rank", "host", "instance", "phase"],
        sort="share",
        columns=[
            column(named, "share"),
            column(
                f"{SLOWEST} * 0 + on (host) group_left () {of('goodput_straggler_host_share_ratio', 'host')}",
                "node's share",
            ),
            column(f"{slower} and on (rank) {SLOWEST}", "above the median"),
            column(of("goodput_hang_culprit_seconds", "rank, host, phase"), "hangs since"),
        ],
        steps=[(None, GREEN), (0.3, YELLOW), (0.6, RED)],
    )
    override(panel, "share", {"custom.cellOptions": {"type": "gauge", "mode": "basic"}, "min": 0, "max": 1})
    series_options(panel, "hangs since", unit="s", steps=[(None, RED)])
    widths(panel, rank=65, share=150)
    for name in ("rank", "host", "instance"):
        link_to(
            panel, name, *(("Open the rank", RANK_LINK) if name == "rank" else ("Open the node", NODE_LINK))
        )
    return panel


FACTORS = {
    "goodput": ("goodput_goodput_ratio", GOOD_IS_HIGH),
    "availability": ("goodput_availability_ratio", [(None, RED), (0.85, YELLOW), (0.95, GREEN)]),
    "step efficiency": ("goodput_step_efficiency_ratio", GOOD_IS_HIGH),
    "compute efficiency": ("goodput_compute_efficiency_ratio", MFU_STEPS),
    "MFU": ("goodput_mfu_ratio", MFU_STEPS),
    "HFU": ("goodput_hfu_ratio", MFU_STEPS),
}
# -- What became of the GPU time since the run's start: goodput = availability x step efficiency


@PANELS.add
def _factors():
    panel = numbers(
        "Goodput = availability × step efficiency; MFU = goodput × compute efficiency",
        "Since the run's start. Availability low: restarts, lost steps, long startups, stalls. Step efficiency low: "
        "steps wait for data, copies, collectives or a slow rank; the causes below say for which. Compute efficiency "
        "low: the kernels are slow (small batches, wrong precision); profile a step.",
        place=(0, 0, 14, 4),
        unit="percentunit",
        no_value="no account yet",
        queries=[query(of(series), name) for name, (series, _) in FACTORS.items()],
    ).decimals(1)
    for name, (_, steps) in FACTORS.items():
        series_options(panel, name, unit="percentunit", steps=steps)
    return panel


@PANELS.add
def _coverage():
    panel = numbers(
        "Ranks and telemetry coverage",
        "Ranks that should be there and that live, GPUs allocated, the share of GPU time that was observed, and inputs "
        "that cannot be right. Alive below expected: processes have died. Coverage below 100 %: a node without an "
        "agent, or ranks without goodput; every figure is blind by as much. Wrong inputs: check the FLOPs per step.",
        place=(14, 0, 10, 4),
        unit="short",
        no_value="no rank has reported",
        queries=[
            query(f'max(goodput_ranks{{{RUN},kind="expected"}})', "expected"),
            query(f'max(goodput_ranks{{{RUN},kind="alive"}})', "alive"),
            query(of("goodput_run_gpus"), "GPUs"),
            query(of("goodput_coverage_ratio"), "coverage"),
            query(of("goodput_input_errors"), "wrong inputs"),
        ],
        trend=False,
    )
    series_options(panel, "coverage", unit="percentunit", steps=COVERAGE_STEPS)
    return series_options(panel, "wrong inputs", unit="short", steps=[(None, GREEN), (1, RED)])


@PANELS.add
def _chain():
    useful, kept, model = (of(f"goodput_{name}_ratio") for name in ("goodput", "availability", "mfu"))
    return waterfall(
        "From peak to useful work",
        "What of the peak of all allocated GPUs is left after each step of the chain; what is left at the end is MFU. "
        "The longest bar that goes is where to begin: outside of kept steps (restarts, startups, stalls), waiting in "
        "steps (data, collectives, slow ranks), or slow kernels. The two last need the FLOPs of a step.",
        place=(0, 4, 10, 9),
        unit="percentunit",
        no_value="no account yet",
        bars_of=[
            ("peak", "left", None, f"{kept} * 0 + 1"),
            ("not in kept steps", "availability", kept, f"1 - {kept}"),
            ("in kept steps", "left", None, kept),
            ("waiting in steps", "step efficiency", useful, f"clamp_min({kept} - {useful}, 0)"),
            ("productive", "left", None, useful),
            ("slow kernels", "compute efficiency", model, f"clamp_min({useful} - {model}, 0)"),
            ("model FLOPs", "left", None, model),
        ],
        colours={
            "left": STATE_COLOURS["productive"],
            "availability": STATE_COLOURS["lost"],
            "step efficiency": STATE_COLOURS["loader"],
            "compute efficiency": STATE_COLOURS["startup"],
        },
    ).decimals(1)


# -- Where the GPU time goes, lately and in total


@PANELS.add
def _account():
    panel = stack(
        "Where the GPU time goes",
        "Share of GPU time in each state, over the interval of a pixel. Dark blue is useful. Right after a restart "
        "'lost' is large, because the steps since the last checkpoint are booked as lost at that moment; the shares "
        "still add up to 100 %. A lasting other colour is the thing to remove.",
        place=(10, 4, 14, 9),
        unit="percentunit",
        no_value="no account in this time",
        queries=[query(account_share(RUN, "$__rate_interval"), "{{state}}")],
        percent=True,
    )
    return colour_series(panel, STATE_COLOURS)


@PANELS.add
def _causes():
    gain = f"topk(5, {of('goodput_cause_gain_ratio', 'state')} - 1 > 0)"
    panel = rows(
        "Leading causes, and what to do",
        "The five causes without which the run would gain most, by how much faster it would be without each. Begin at the "
        "top. Below 2 % nothing is worth the work. `goodput report` and the aggregator's page say the same with the "
        "ranks, workers and intervals of this run.",
        place=(0, 13, 14, 8),
        unit="percentunit",
        no_value="no cause above the noise",
        first=["state"],
        last=["advice"],
        sort="faster by",
        tall=True,
        columns=[
            column(gain, "faster by"),
            column(
                f"label_replace({of('goodput_gpu_seconds', 'state')} / 3600 and on (state) {gain}, "
                '"advice", "$1", "state", "(.*)")',
                "GPU hours",
            ),
        ],
        steps=[(None, GREEN), (0.05, YELLOW), (0.2, RED)],
    )
    series_options(panel, "GPU hours", unit="suffix: GPU h")
    widths(panel, GPU_hours=100, faster_by=85, state=115)
    override(panel, "GPU hours", {"decimals": 2})
    override(panel, "faster by", {"custom.cellOptions": {"type": "color-text"}, "decimals": 1})
    value_texts(panel, "state", {state: (state, colour) for state, colour in STATE_COLOURS.items()})
    return value_texts(panel, "advice", general(), wrap=True)


@PANELS.add
def _total():
    seconds = of("goodput_gpu_seconds", "state")
    panel = rows(
        "Account by state",
        "GPU time since the run's start by state: hours, share, money and energy. What is not productive, the largest "
        "first, was paid for and not used. 'unattributed' is time in no phase: name it with goodput.phase(); "
        "'unobserved' is time of ranks that nobody saw. Money and energy need a price and a meter.",
        place=(14, 13, 10, 8),
        unit="short",
        no_value="no account yet",
        first=["state"],
        sort="GPU hours",
        columns=[
            column(f"{seconds} / 3600 > 0", "GPU hours"),
            column(f"{seconds} / on () group_left () sum({seconds}) > 0", "share"),
            column(f"{of('goodput_cost_dollars', 'state')} > 0", "cost"),
            column(f"{of('goodput_energy_joules', 'state')} > 0", "energy"),
        ],
    )
    override(panel, "GPU hours", {"decimals": 2})
    series_options(panel, "share", unit="percentunit")
    override(panel, "share", {"custom.cellOptions": {"type": "gauge", "mode": "basic"}, "min": 0, "max": 1})
    series_options(panel, "cost", unit="currencyUSD")
    series_options(panel, "energy", unit="joule")
    return value_texts(panel, "state", {state: (state, colour) for state, colour in STATE_COLOURS.items()})


# -- How it went, and what the steps are made of


@PANELS.add
def _history():
    panel = lines(
        "MFU, goodput and idle causes",
        "Over five minutes: goodput, MFU, the three largest causes of idle time; samples kept over those of the ideal "
        "rate. A cause that rises as goodput falls is the reason. MFU that falls alone: slower kernels. Throughput "
        "below goodput: steps got slower without waiting.",
        place=(0, 21, 8, 8),
        unit="percentunit",
        no_value="no account in this time",
        queries=[
            query(f"run:goodput:ratio_5m{{{RUN}}}", "goodput"),
            query(f"run:mfu:ratio_5m{{{RUN}}}", "MFU"),
            query(f"topk(3, max by (state) (run:idle:share_5m{{{RUN}}}))", "{{state}}"),
            query(of("goodput_throughput_goodput_ratio"), "throughput"),
        ],
    ).max(1)
    return colour_series(panel, {"goodput": GREEN, "MFU": "purple", "throughput": "text", **STATE_COLOURS})


@PANELS.add
def _step_time():
    panel = lines(
        "Step time, all ranks",
        "Length of a step over the last minute, from the histograms of all ranks merged, and samples of all ranks in a "
        "second (right). The mean is exact; percentiles are known to a factor of three, as their buckets are (goodput report has "
        "them exactly). p99 far above p50: single steps stall. The mean up with them: every step got slower.",
        place=(8, 21, 8, 8),
        unit="s",
        no_value="no step in the last minute",
        queries=[
            *(
                query(
                    f"histogram_quantile({quantile / 100}, run_le:step_seconds_bucket:rate_1m{{{RUN}}})",
                    f"p{quantile}",
                )
                for quantile in (50, 95, 99)
            ),
            query(f"run:step_seconds:mean_1m{{{RUN}}}", "mean"),
            query(f"run:samples:rate_1m{{{RUN}}}", "samples"),
        ],
    )
    colour_series(panel, {"mean": "#3f86cf"})
    return series_options(panel, "samples", unit="suffix: samples/s", axis_right=True)


@PANELS.add
def _phases():
    buckets = f"run_phase_le:phase_seconds_bucket:rate_5m{{{RUN}}}"
    panel = rows(
        "Phases: percentiles and share of time",
        "Length of each phase in the last five minutes, all ranks merged, and its share of a rank's time on either clock; "
        "'none' is time in no phase. Percentiles are known to a factor of three, as their buckets are; the mean is exact. p99 far above "
        "p50: it stalls now and then (storage, network). A large share of loader or communication: the GPU waits.",
        place=(16, 21, 8, 8),
        unit="s",
        no_value="no node agent is scraped",
        first=["phase"],
        sort="host",
        columns=[
            column(f"max by (phase) (run_phase:phase_seconds:mean_5m{{{RUN}}})", "mean"),
            *(
                column(f"histogram_quantile({quantile / 100}, {buckets})", f"p{quantile}")
                for quantile in (50, 95, 99)
            ),
            *(
                column(
                    f'max by (phase) (run_phase_clock:phase_seconds:rate_1m{{{RUN},clock="{clock}"}})',
                    clock,
                )
                for clock in ("host", "device")
            ),
        ],
        hide=("run",),
    )
    for name in ("host", "device"):
        series_options(panel, name, unit="percentunit")
    return widths(panel, phase=115)


# -- Does it move, and what do restarts cost?


@PANELS.add
def _progress():
    panel = lines(
        "Time since the last step",
        "Time since any rank completed a step, the threshold from which it is a stall, and for how long it hangs; steps of "
        "the median rank in a second (right). Above the threshold outside of a checkpoint, an evaluation or a start: find the "
        "culprit above, save its stack, restart from the last checkpoint.",
        place=(0, 38, 6, 8),
        unit="s",
        no_value="no step yet",
        queries=[
            query(of("goodput_progress_age_seconds"), "since the last step"),
            query(of("goodput_stall_threshold_seconds"), "stall threshold"),
            query(f"{of('goodput_hang_seconds')} > 0", "hangs"),
            query(f"run:steps:rate_1m{{{RUN}}}", "steps"),
        ],
    )
    colour_series(panel, {"stall threshold": RED, "hangs": STATE_COLOURS["stall"]})
    return series_options(panel, "steps", unit="suffix: steps/s", axis_right=True)


@PANELS.add
def _checkpoints():
    return lines(
        "Checkpoints",
        "Age of the last committed checkpoint, the usual interval, the interval that would cost least given the failures "
        "seen, and how long saving takes. Age far above the interval: saving fails, and a restart now loses that much. "
        "Interval far from the best: save less or more often. Saving that gets slower: the storage.",
        place=(6, 38, 6, 8),
        unit="s",
        no_value="no checkpoint has been reported",
        queries=[
            query(of("goodput_checkpoint_age_seconds"), "age"),
            query(of("goodput_checkpoint_interval_seconds"), "interval"),
            query(of("goodput_checkpoint_best_interval_seconds"), "best interval"),
            query(of("goodput_checkpoint_save_seconds"), "saving, mean"),
            query(of("goodput_checkpoint_last_save_seconds"), "saving, last"),
        ],
    )


@PANELS.add
def _restarts():
    panel = rows(
        "Work lost per restart",
        "The newest restarts: when, how much GPU time of steps had to be done again, and how long no rank lived. Much "
        "lost each time: save checkpoints more often. Long down: keep a spare node and a warm image. Restarts in a row: "
        "read the log of the rank that ended first, and look for one host in all of them.",
        place=(12, 38, 6, 8),
        unit="s",
        no_value="no restart",
        first=["attempt"],
        sort="when",
        columns=[
            column(f"{of('goodput_restart_timestamp_seconds', 'attempt')} * 1000", "when"),
            column(f"{of('goodput_restart_lost_gpu_seconds', 'attempt')} / 3600", "lost"),
            column(of("goodput_restart_down_seconds", "attempt"), "down"),
        ],
    )
    series_options(panel, "when", unit="dateTimeFromNow")
    widths(panel, attempt=65, when=125)
    series_options(panel, "lost", unit="suffix: GPU h", steps=[(None, GREEN), (1, YELLOW), (10, RED)])
    override(panel, "lost", {"custom.cellOptions": {"type": "color-text"}, "decimals": 2})
    return panel


@PANELS.add
def _counts():
    panel = numbers(
        "Other counts of the run",
        "How much longer steps are than with the same work spread evenly; the part of kept steps spent waiting for other "
        "pipeline stages, and what of it cannot be avoided; restarts; steps and samples lost; GPU-hours and events of the hardware. "
        "Slowdown above 1.05: see the stragglers. Bubble far above the ideal: the stages are uneven.",
        place=(18, 38, 6, 8),
        unit="percentunit",
        no_value="no account yet",
        queries=[
            query(of("goodput_straggler_slowdown_ratio"), "slowdown"),
            query(f'max(goodput_pipeline_bubble_ratio{{{RUN},kind="measured"}})', "bubble"),
            query(f'max(goodput_pipeline_bubble_ratio{{{RUN},kind="ideal"}})', "ideal bubble"),
            query(of("goodput_restarts"), "restarts"),
            query(f'max(goodput_steps{{{RUN},kind="lost"}})', "steps lost"),
            query(f'max(goodput_run_samples{{{RUN},kind="lost"}})', "samples lost"),
            query(f"sum({of('goodput_run_health_cost_gpu_seconds', 'kind')}) / 3600", "lost to hardware"),
            query(f"sum({of('goodput_run_health_events', 'kind, severity')})", "hardware events"),
        ],
        trend=False,
        below=True,
    )
    series_options(panel, "slowdown", unit="suffix: ×", steps=[(None, GREEN), (1.05, YELLOW), (1.2, RED)])
    override(panel, "slowdown", {"decimals": 3})
    series_options(panel, "lost to hardware", unit="suffix: GPU h")
    for name in ("restarts", "steps lost", "samples lost", "hardware events"):
        series_options(panel, name, unit="none")
    return panel


_AGE, _LIMIT = f"max(goodput_progress_age_seconds{{{RUN}}})", f"max(goodput_stall_threshold_seconds{{{RUN}}})"
# A checkpoint's age falls when the next one is committed.
_COMMITTED = f"max(resets(goodput_checkpoint_age_seconds{{{RUN}}}[$__rate_interval])) > 0"
_HEALTH = f'goodput_run_health_events{{{RUN},severity="critical"}}'
MARKS = {
    "Restarts": (f"max(changes(goodput_restarts{{{RUN}}}[$__rate_interval])) > 0", "Restart", "lost"),
    "Checkpoints": (_COMMITTED, "Checkpoint committed", "evaluation"),
    "Stalls": (f"{_AGE} > {_LIMIT}", "Stall", "stall"),
    "Hardware": (
        f"max(changes({_HEALTH}[$__rate_interval])) > 0",
        "Critical hardware event",
        "straggler",
    ),
}


def board() -> builders.Dashboard:
    return build_board(
        "goodput-run",
        "Was every GPU-second of the run useful work, and if not, why, which rank, and what did it cost?",
        variables=[run_variable()],
        panels=PANELS,
        marks=[
            annotation(name, expr, title, STATE_COLOURS[state])
            for name, (expr, title, state) in MARKS.items()
        ],
    )
