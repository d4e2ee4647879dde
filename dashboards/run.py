"""goodput / Run: where the GPU time of one run goes, and why."""

from __future__ import annotations

from dashboards import board_builder, panels
from dashboards.board_builder import CollapsedRow, build_board
from dashboards.panels import COLOUR_TEXT, GAUGE, GREEN, RED, YELLOW, series
from dashboards.promql import RATE, named_operations, quantiles, top_over_range
from dashboards.states import (
    COVERAGE_STEPS,
    GOOD_IS_HIGH,
    MFU_STEPS,
    ONE_IS_BAD,
    STATE_COLOURS,
    STATUS_MEANINGS,
    status_number,
)
from goodput.causes import general

RUN = 'run="$run"'
STATES = panels.texts("state", {state: (state, colour) for state, colour in STATE_COLOURS.items()})
FACTORS = {
    "goodput": ("goodput_goodput_ratio", GOOD_IS_HIGH),
    "availability": ("goodput_availability_ratio", GOOD_IS_HIGH),
    "step efficiency": ("goodput_step_efficiency_ratio", GOOD_IS_HIGH),
}
COMPUTE_FACTORS = {
    "MFU": ("goodput_mfu_ratio", MFU_STEPS),
    "compute efficiency": ("goodput_compute_efficiency_ratio", MFU_STEPS),
    "HFU": ("goodput_hfu_ratio", MFU_STEPS),
}


def _max(series: str, by: str = "", more: str = "") -> str:
    """The run's value: the largest, and so the newest, of the aggregators that share the run."""
    return f"max{f' by ({by}) ' if by else ''}({series}{{{RUN}{more}}})"


def _minutes(series: str) -> str:
    """On an axis of seconds, Grafana would put its lines at 1.67 and 3.33 minutes."""
    return f"{_max(series)} / 60"


# -- Account

KEPT, USEFUL, MODEL = (_max(f"goodput_{name}_ratio") for name in ("availability", "goodput", "mfu"))
SECONDS = _max("goodput_gpu_seconds", "state")
ROLE_SECONDS = _max("goodput_role_gpu_seconds", "role, state")
OPERATION_SECONDS = _max("goodput_communication_gpu_seconds", "group, operation")
ORDER = _max("goodput_cause_order", "state")
LEADING = f"({_max('goodput_cause_gain_ratio', 'state')} - 1 > 0 and on (state) {ORDER} <= 5)"


def _gain_bound(bound: str) -> str:
    """Of the interval of a gain by replay."""
    bounds = _max("goodput_cause_gain_bound_ratio", "state", f',bound="{bound}"')
    return f"{bounds} - 1 and on (state) {LEADING}"


# A state's gain is clamped at 0, because a restart moves time from productive to lost, and divided by the sum of the
# clamped gains, so that the shares add up to 1. Subtracting the earlier value, or 0 if there was none, counts a state
# from its first sample; delta() would not. deploy/prometheus/recording.yml does the same for fixed windows.
_BEFORE = f"max by (state) (goodput_gpu_seconds{{{RUN}}} offset {RATE})"
_GAINED = f"clamp_min({SECONDS} - ({_BEFORE} or {SECONDS} * 0), 0)"
# Also those that it had no more at the end: unobserved time becomes known when a node's reports arrive late.
_MOST = f"max by (state) (max_over_time(goodput_gpu_seconds{{{RUN}}}[$__range] @ end()))"
# Without states that the run never had: each would have a line of the legend.
SHARES = f"{_GAINED} / on () group_left () (sum({_GAINED}) > 0) and on (state) ({_MOST} > 0)"

# -- Phases

PHASE_SUM, PHASE_COUNT = (
    f"sum by (phase) (rate(goodput_run_phase_duration_seconds_{part}{{{RUN}}}[5m]))"
    for part in ("sum", "count")
)
PHASE_MEAN = f"{PHASE_SUM} / ({PHASE_COUNT} > 0)"
# An estimate, where the aggregator's series are not scraped: two buckets to a factor of ten.
PHASE_BUCKETS = f"run_phase_le:phase_seconds_bucket:rate_5m{{{RUN}}}"

# -- Ranks

OWN_STEP = f"rank:own_step_seconds:mean_1m{{{RUN}}}"
OWN_STEP_MEAN = f"max by (rank) (avg_over_time({OWN_STEP}[$__range:$__interval] @ end()))"
SLOWEST = f"topk(10, {_max('goodput_straggler_share_ratio', 'rank, host')})"
SLOWNESS_STEPS = [(None, "text"), (0.02, YELLOW), (0.1, RED)]
NODE_OF_HOST = (
    "on (host) group_left (instance) topk by (host) (1, group by (host, instance) (goodput_node_info))"
)


def _padded(expr: str) -> str:
    """With ranks of three digits or more, so that they sort by their numbers."""
    for digits, zeros in ((1, "00"), (2, "0")):
        pattern = "([0-9]{" + str(digits) + "})"
        expr = f'label_replace({expr}, "rank", "{zeros}$1", "rank", "{pattern}")'
    return expr


_SLOWEST_OWN_STEP = f"(max by (rank) ({OWN_STEP}) and on (rank) topk(40, {OWN_STEP_MEAN}))"
# Over the median of the same moment, which the first steps of an attempt raise for all ranks alike.
_MEDIAN_NOW = f"on () group_left () (quantile(0.5, max by (rank) ({OWN_STEP})) > 0)"
SLOW_RANKS = _padded(f"{_SLOWEST_OWN_STEP} / {_MEDIAN_NOW}")
SLOWNESS = _max("rank:slowness:ratio_5m", "rank")
SLOWNESS_MOST = f"max by (rank) (max_over_time(rank:slowness:ratio_5m{{{RUN}}}[$__range]))"


def _phase_share(clock: str) -> str:
    return _max("run_phase_clock:phase_seconds:rate_1m", "phase", f',clock="{clock}"')


def _factors(title: str, description: str, factors: dict):
    return panels.stats(
        title,
        description,
        {name: _max(ratio) for name, (ratio, _) in factors.items()},
        unit="percentunit",
        no_value="no account yet",
        overrides=[series(name, "percentunit", steps) for name, (_, steps) in factors.items()],
        trend=True,
    )


PANELS = [
    # What became of the GPU time since the run's start: goodput = availability x step efficiency.
    _factors(
        "Goodput = availability × step efficiency",
        "Since the run's start. Low availability: restarts, lost steps, long startups, stalls. Low step efficiency: "
        "steps wait for data, copies, collectives or a slow rank; the causes below show which.",
        FACTORS,
    ),
    _factors(
        "MFU = goodput × compute efficiency",
        "Since the run's start; of the hardware's peak, so that good values are far below 100 %. Low compute "
        "efficiency: the kernels are slow (small batches, wrong precision); profile a step.",
        COMPUTE_FACTORS,
    ),
    panels.stats(
        "Status, ranks and telemetry coverage",
        "Ranks that are expected and that are alive, for how long the run hangs, the share of GPU time that was "
        "observed, and impossible inputs. Alive below expected: processes have died. Coverage below 100 %: a node "
        "without an agent, or ranks without goodput; every figure lacks as much. Wrong inputs: check the FLOPs.",
        {
            "status": status_number("max", RUN),
            "hangs for": f"{_minutes('goodput_hang_seconds')} > 0",
            "expected": _max("goodput_ranks", more=',kind="expected"'),
            "alive": _max("goodput_ranks", more=',kind="alive"'),
            "GPUs": _max("goodput_run_gpus"),
            "coverage": _max("goodput_coverage_ratio"),
            "wrong inputs": _max("goodput_input_errors"),
        },
        unit="short",
        no_value="no rank has reported",
        overrides=[
            ("status", {"mappings": [panels.value_map(STATUS_MEANINGS)]}),
            series("hangs for", "suffix:min", [(None, RED)]),
            ("hangs for", {"decimals": 1}),
            series("coverage", "percentunit", COVERAGE_STEPS),
            series("wrong inputs", "short", ONE_IS_BAD),
        ],
    ),
    panels.waterfall(
        "From peak to useful work",
        "What remains of the peak of all allocated GPUs after each step of the chain; the end is MFU. Begin with "
        "the longest bar that is lost: outside of kept steps (restarts, startups, stalls), waiting in steps (data, "
        "collectives, slow ranks), or slow kernels. The last two bars need the FLOPs of a step.",
        [
            ("peak", "left", None, f"{KEPT} * 0 + 1"),
            ("not in kept steps", "availability", KEPT, f"1 - {KEPT}"),
            ("in kept steps", "left", None, KEPT),
            ("waiting in steps", "step efficiency", USEFUL, f"clamp_min({KEPT} - {USEFUL}, 0)"),
            ("productive", "left", None, USEFUL),
            ("slow kernels", "compute efficiency", MODEL, f"clamp_min({USEFUL} - {MODEL}, 0)"),
            ("model FLOPs", "left", None, MODEL),
        ],
        unit="percentunit",
        no_value="no account yet",
        series_colours={
            "left": STATE_COLOURS["productive"],
            "availability": STATE_COLOURS["lost"],
            "step efficiency": STATE_COLOURS["loader"],
            "compute efficiency": STATE_COLOURS["startup"],
        },
    ),
    # Where the GPU time goes, over time and in total.
    panels.areas(
        "Where the GPU time goes",
        "Share of GPU time in each state, over the interval of a pixel. Dark blue is productive. Right after a "
        "restart 'lost' is large, because the steps since the last checkpoint are booked as lost at that moment; "
        "the shares still add up to 100 %. Remove the largest other colour that lasts.",
        {"{{state}}": SHARES},
        unit="percentunit",
        no_value="no account in this time",
        overrides=panels.colours(STATE_COLOURS),
        shares=True,
        legend_table=True,
    ),
    panels.table(
        "Leading causes, and what to do",
        "The first five causes, and how much faster the run would be without each (with an interval where its steps were replayed, else by its share alone): those that recur with the steps, "
        "the largest first, then those that are paid once (startup, restore, compile and queue of the first start). "
        "Begin at the top. Below 2 % none is worth the work. `goodput report` and the aggregator's page have the same "
        "order, and add the ranks and workers of this run.",
        {
            "order": f"{ORDER} and on (state) {LEADING}",
            "faster by": LEADING,
            "95 % from": _gain_bound("low"),
            "to": _gain_bound("high"),
            "GPU hours": f"label_replace({SECONDS} / 3600 and on (state) {LEADING}, "
            '"advice", "$1", "state", "(.*)")',
        },
        unit="percentunit",
        no_value="no cause above the noise",
        first=["state"],
        last=["advice"],
        sort="-order",
        tall=True,
        pages=False,  # It has five rows at most.
        steps=[(None, GREEN), (0.05, YELLOW), (0.2, RED)],
        overrides=[
            series("GPU hours", "suffix: GPU h"),
            series("order", "none"),
            *panels.widths(order=75, GPU_hours=100, faster_by=95, state=115, to=75),
            ("95 % from", {"custom.width": 95, "decimals": 1}),
            ("to", {"decimals": 1}),
            ("GPU hours", {"decimals": 2}),
            ("faster by", COLOUR_TEXT | {"decimals": 1}),
            STATES,
            panels.texts("advice", general(), wrap=True),
        ],
    ),
    panels.table(
        "Account by state",
        "GPU time since the run's start by state: hours, share, cost and energy. All but 'productive' was paid for "
        "and not used; begin with the largest. 'unattributed' is time in no phase: name it with goodput.phase(); "
        "'unobserved' is time without telemetry. Cost and energy need a price and a power meter.",
        {
            "GPU hours": f"{SECONDS} / 3600 > 0",
            "share": f"{SECONDS} / on () group_left () sum({SECONDS}) > 0",
            "cost": f"{_max('goodput_cost_dollars', 'state')} > 0",
            "energy": f"{_max('goodput_energy_joules', 'state')} > 0",
        },
        unit="short",
        no_value="no account yet",
        first=["state"],
        sort="GPU hours",
        overrides=[
            ("GPU hours", {"decimals": 2}),
            series("share", "percentunit"),
            ("share", GAUGE | {"min": 0, "max": 1}),
            *panels.widths(state=115, share=105),
            series("cost", "currencyUSD"),
            series("energy", "joule"),
            STATES,
        ],
    ),
    # Trends, and what the steps consist of.
    panels.lines(
        "MFU, goodput and idle causes",
        "Over five minutes: goodput, MFU, the five largest causes of idle time; samples kept over those at the "
        "ideal rate. A cause that rises as goodput falls is the reason. MFU falls alone: slower kernels. "
        "Throughput below goodput: steps got slower without waiting.",
        {
            "goodput": f"run:goodput:ratio_5m{{{RUN}}}",
            "MFU": f"run:mfu:ratio_5m{{{RUN}}}",
            "{{state}}": top_over_range(5, _max("run:idle:share_5m", "state"), "state"),
            "throughput": _max("goodput_throughput_goodput_ratio"),
        },
        unit="percentunit",
        no_value="no account in this time",
        overrides=panels.colours({"goodput": GREEN, "MFU": "purple", "throughput": "text", **STATE_COLOURS}),
    ).max(1),
    panels.lines(
        "Step time, all ranks",
        "Duration of a step: percentiles over the last five minutes of all ranks together, exact to 0.05 %, from the "
        "aggregator; the mean over the last minute, and samples per second of all ranks (right), from the agents. "
        "p99 far above p50: single steps stall. The mean rises too: every step got slower.",
        {
            **quantiles("goodput_run_step_seconds", RUN),
            "mean": f"run:step_seconds:mean_1m{{{RUN}}}",
            "samples": f"run:samples:rate_1m{{{RUN}}}",
        },
        unit="s",
        no_value="no step in the last minute",
        overrides=[
            *panels.colours({"mean": "#3f86cf"}),
            series("samples", "suffix: samples/s", right=""),
        ],
    ),
    panels.table(
        "Phases: percentiles and share of time",
        "Time of each phase in the last five minutes, all ranks together, and its share of a rank's time on either "
        "clock; 'none' is time in no phase. Percentiles and mean are of the time within a step that has the phase, "
        "exact to 0.05 %, or without an aggregator estimated from buckets, three times too long at worst. "
        "p99 far above p50: the phase stalls now and then (storage, network). A large share of "
        "loader or communication: the GPU waits.",
        {
            "mean": f"{PHASE_MEAN} or on (phase) {_max('run_phase:phase_seconds:mean_5m', 'phase')}",
            **{
                q: f"{exact} or on (phase) histogram_quantile(0.{q[1:]}, {PHASE_BUCKETS}) >= 0"
                for q, exact in quantiles("goodput_run_phase_seconds", RUN, "phase").items()
            },
            "exact": f"{_max('goodput_run_phase_seconds', 'phase')} * 0 + 1 "
            f"or on (phase) group by (phase) ({PHASE_BUCKETS} > 0) - 1",
            "host": _phase_share("host"),
            "device": _phase_share("device"),
        },
        unit="s",
        no_value="no node agent is scraped",
        first=["phase"],
        sort="host",
        hide=("run",),
        overrides=[
            *(series(name, "percentunit") for name in ("host", "device")),
            series("exact", "bool_yes_no"),
            *panels.widths(phase=115, mean=64, p50=64, p95=64, p99=64, exact=56, host=66),
        ],
    ),
    # Which rank.
    panels.heat_map(
        "Own step time by rank, over the median",
        "Duration of each rank's steps without collectives, over the median of all ranks at the same moment: in "
        "lock-step all full steps are equal, and only this differs between ranks. The forty slowest ranks. One hot "
        "line: that rank, see the table. Changing lines: uneven batches. All ranks slow at once: see the step time.",
        {"{{rank}}": SLOW_RANKS},
        unit="suffix:×",
        no_value="no step in this time",
        scale=(0.97, 1.2),
        axis="rank",
    ),
    panels.table(
        "Stragglers and hang culprits",
        "Ranks by the share of the waiting that they caused since the run's start, with the share of their node; how "
        "far their own steps are above the median, at most in the time shown and now; the rank that causes a "
        "hang, and ranks that report nothing. One far ahead and slow now: look at its host (throttling, a slow NIC) or remove it. Even shares: the "
        "work is uneven. Named: the account blames this rank, or a pipeline stage, in the last minutes.",
        {
            "since start": f"({SLOWEST} * {NODE_OF_HOST} or on (rank) {SLOWEST})",
            "node since start": f"{SLOWEST} * 0 + on (host) group_left () "
            f"{_max('goodput_straggler_host_share_ratio', 'host')}",
            "most above median": f"{SLOWNESS_MOST} - 1 and on (rank) {SLOWEST}",
            "now": f"{SLOWNESS} - 1 and on (rank) {SLOWEST}",
            "named": f"{_max('goodput_straggler_culprit_slowness_ratio', 'rank, host')} - 1",
            "slow stage": f"{_max('goodput_straggler_stage_slowness_ratio', 'stage')} - 1",
            "hangs since": _max("goodput_hang_culprit_seconds", "rank, host, phase"),
            "no report for": _max("goodput_rank_missing_seconds", "rank, host"),
        },
        unit="percentunit",
        no_value="no rank is slower than the others",
        first=["rank", "host", "instance", "stage", "phase"],
        sort=("hangs since", "since start"),
        steps=[(None, GREEN), (0.3, YELLOW), (0.6, RED)],
        overrides=[
            ("since start", GAUGE | {"min": 0, "max": 1}),
            *(series(name, "percentunit", SLOWNESS_STEPS) for name in ("most above median", "now", "named")),
            *((name, COLOUR_TEXT) for name in ("most above median", "now", "named", "hangs since")),
            series("hangs since", "s", [(None, RED)]),
            series("no report for", "s", [(None, YELLOW)]),
            *panels.widths(rank=55, instance=110, phase=75, since_start=125, node_since_start=130),
            *panels.widths(most_above_median=155, now=65),
            panels.link("rank", "Open the rank", "goodput-rank", run="run", rank="field:rank"),
            *(
                panels.link(name, "Open the node", "goodput-node", run="run", instance="field:instance")
                for name in ("host", "instance")
            ),
        ],
    ),
    # Progress, and what restarts cost.
    panels.lines(
        "Time since the last step",
        "Time since any rank completed a step, the stall threshold, and the duration of a hang; steps per second "
        "of the median rank (right). Above the threshold outside of a checkpoint, an evaluation or a start: find "
        "the culprit above, save its stack, restart from the last checkpoint.",
        {
            "since the last step": _minutes("goodput_progress_age_seconds"),
            "stall threshold": _minutes("goodput_stall_threshold_seconds"),
            "hangs": f"{_minutes('goodput_hang_seconds')} > 0",
            "steps": f"run:steps:rate_1m{{{RUN}}}",
        },
        unit="suffix:min",
        no_value="no step yet",
        overrides=[
            *panels.colours({"stall threshold": RED, "hangs": STATE_COLOURS["stall"]}),
            series("steps", "suffix: steps/s", right=""),
        ],
    ),
    panels.lines(
        "Checkpoints",
        "Age of the last committed checkpoint, the present interval, the interval with the least cost for the "
        "observed failures, and how long saving takes. Age far above the interval: saving fails, and a restart now "
        "loses that much. Interval far from the best: save less or more often. Saving slows down: the storage.",
        {
            "age": _minutes("goodput_checkpoint_age_seconds"),
            "interval": _minutes("goodput_checkpoint_interval_seconds"),
            "best interval": _minutes("goodput_checkpoint_best_interval_seconds"),
            "saving, mean": _minutes("goodput_checkpoint_save_seconds"),
            "saving, last": _minutes("goodput_checkpoint_last_save_seconds"),
        },
        unit="suffix:min",
        no_value="no checkpoint has been reported",
    ),
    panels.table(
        "Work lost per restart",
        "The newest restarts: when, the GPU time of steps that were repeated, and how long no rank was alive. Much "
        "lost each time: save checkpoints more often. Long down: keep a spare node and a warm image. Restarts in a "
        "row: read the log of the rank that ended first, and look for one host in all of them.",
        {
            "when": f"{_max('goodput_restart_timestamp_seconds', 'attempt')} * 1000",
            "lost": f"{_max('goodput_restart_lost_gpu_seconds', 'attempt')} / 3600",
            "down": _max("goodput_restart_down_seconds", "attempt"),
        },
        unit="s",
        no_value="no restart",
        first=["attempt"],
        sort="when",
        overrides=[
            series("when", "dateTimeFromNow"),
            *panels.widths(attempt=65, when=125),
            series("lost", "suffix: GPU h", [(None, GREEN), (1, YELLOW), (10, RED)]),
            ("lost", COLOUR_TEXT | {"decimals": 2}),
        ],
    ),
    panels.stats(
        "Other counts of the run",
        "Duration of steps over that with evenly spread work; the share of kept steps spent waiting for other "
        "pipeline stages, and the unavoidable part of it; restarts; lost steps and samples; GPU-hours lost to "
        "hardware, and its events. Slowdown above 1.05: see the stragglers. Bubble far above the ideal: the stages "
        "are uneven.",
        {
            "slowdown": _max("goodput_straggler_slowdown_ratio"),
            "bubble": _max("goodput_pipeline_bubble_ratio", more=',kind="measured"'),
            "ideal bubble": _max("goodput_pipeline_bubble_ratio", more=',kind="ideal"'),
            "restarts": _max("goodput_restarts"),
            "steps lost": _max("goodput_steps", more=',kind="lost"'),
            "samples lost": _max("goodput_run_samples", more=',kind="lost"'),
            "lost to hardware": f"sum({_max('goodput_run_health_cost_gpu_seconds', 'kind')}) / 3600",
            "hardware events": f"sum({_max('goodput_run_health_events', 'kind, severity')})",
        },
        unit="percentunit",
        no_value="no account yet",
        overrides=[
            series("slowdown", "suffix: ×", [(None, GREEN), (1.05, YELLOW), (1.2, RED)]),
            ("slowdown", {"decimals": 3}),
            series("lost to hardware", "suffix: GPU h"),
            *(series(n, "none") for n in ("restarts", "steps lost", "samples lost", "hardware events")),
        ],
        below=True,
    ),
    panels.table(
        "Communication by process group and operation",
        "Time that ranks waited in each collective, beyond what computing hid: all rows are the states communication, "
        "straggler and bubble together. Begin with the largest: fewer or larger calls, overlap with computing, or a "
        "faster link for its group. 'not recorded' is what no record explains: if it is large, calls of NCCL are not "
        "measured, which its profiler plugin does (goodput run loads it). Bus: what the links of a rank carried, as the bus "
        "bandwidth of nccl-tests.",
        {
            "GPU hours": named_operations(f"{OPERATION_SECONDS} / 3600"),
            "share": named_operations(
                f"{OPERATION_SECONDS} / on () group_left () (sum({OPERATION_SECONDS}) > 0)"
            ),
            "share of the run": named_operations(
                f"{OPERATION_SECONDS} / on () group_left () sum({SECONDS}) > 0"
            ),
            "bus, at most": _max("goodput_communication_bus_bytes_per_second", "group, operation"),
            "bus, at least": _max("goodput_communication_bus_min_bytes_per_second", "group, operation"),
        },
        unit="percentunit",
        no_value="no collectives are recorded",
        first=["group", "operation"],
        sort="GPU hours",
        overrides=[
            series("GPU hours", "suffix: GPU h"),
            ("GPU hours", {"decimals": 2}),
            ("share", GAUGE | {"min": 0, "max": 1}),
            series("bus, at most", "Bps"),
            series("bus, at least", "Bps"),
            panels.link("group", "Open the communication", "goodput-communication", run="run"),
        ],
    ),
]

ROLES = [
    panels.table(
        "Account by role",
        "GPU time of each role by state, where a run has several (trainer, generator): the shares of a role add up to "
        "100 %. What helps a trainer is 'productive', what helps a generator 'rollout'; begin with the largest other "
        "state. One role waits for the other (loader, unattributed): give the slower one more GPUs.",
        {
            "GPU hours": f"{ROLE_SECONDS} / 3600 > 0",
            "share of the role": f"{ROLE_SECONDS} / on (role) group_left () sum by (role) ({ROLE_SECONDS}) > 0",
            "share of the run": f"{ROLE_SECONDS} / on () group_left () sum({SECONDS}) > 0",
        },
        unit="percentunit",
        no_value="the run has one role",
        first=["role", "state"],
        sort="GPU hours",
        overrides=[
            series("GPU hours", "suffix: GPU h"),
            ("GPU hours", {"decimals": 2}),
            ("share of the role", GAUGE | {"min": 0, "max": 1}),
            STATES,
        ],
    ),
]

_STALLED = f"{_max('goodput_progress_age_seconds')} > {_max('goodput_stall_threshold_seconds')}"
# A checkpoint's age falls when the next one is committed.
_COMMITTED = f"max(resets(goodput_checkpoint_age_seconds{{{RUN}}}[{RATE}])) > 0"
_HEALTH = f'goodput_run_health_events{{{RUN},severity="critical"}}'
# Of the rank, and of the stage, that the account's rule names over the last minutes.
_SLOW_RANK = _max("goodput_straggler_culprit_slowness_ratio", "rank, host, phase")
_SLOW_STAGE = _max("goodput_straggler_stage_slowness_ratio", "stage, phase")
_HUNG_RANK = _max("goodput_hang_culprit_seconds", "rank, host, phase")
_HUNG_CALL = _max("goodput_hang_collective_seconds", "kind, operation, group")
# The median step of the last four to five minutes jumps when half of these have another pace.
_MEDIAN = f'goodput_run_step_seconds{{{RUN},q="p50"}}'
_PACE = f"max({_MEDIAN}) / max({_MEDIAN} offset {RATE})"
ANNOTATIONS = [
    ("Restarts", f"max(changes(goodput_restarts{{{RUN}}}[{RATE}])) > 0", "Restart", "lost"),
    ("Checkpoints", _COMMITTED, "Checkpoint committed", "evaluation"),
    ("Stalls", _STALLED, "Stall", "stall"),
    ("Hangs", _HUNG_RANK, "Rank {{rank}} on {{host}} hangs in {{phase}}", "down"),
    ("Hung collectives", _HUNG_CALL, "{{operation}} of group {{group}} hangs: {{kind}}", "down"),
    ("Slow ranks", _SLOW_RANK, "Rank {{rank}} on {{host}} is slow in {{phase}}", "straggler"),
    ("Slow stages", _SLOW_STAGE, "Stage {{stage}} is slow in {{phase}}", "straggler"),
    ("Slower", f"{_PACE} > 1.1", "Steps became longer", "loader"),
    ("Faster", f"{_PACE} < 1 / 1.1", "Steps became shorter", "productive"),
    ("Hardware", f"max(changes({_HEALTH}[{RATE}])) > 0", "Critical hardware event", "straggler"),
]

# The events of the run's story, each at its beginning, with what it cost and how that is known.
_STORY = f"1000 * {_max('goodput_run_event_timestamp_seconds', 'kind, title, cost, claims')}"

BOARD = build_board(
    "goodput-run",
    "Was every GPU-second of the run useful work, and if not, why, which rank, and what did it cost?",
    PANELS,
    [(4, 7, 6, 11), (13, 10, 14), (10, 16, 8), (10, 8, 7, 9), (9, 9, 15), (8, 12, 12), (8, 14, 10), (9, 24)],
    rows=[
        CollapsedRow("Roles: the account of each, for runs with trainers and generators", ROLES, [(9, 24)])
    ],
    variables=[board_builder.RUN],
    annotations=[
        panels.annotation(name, expr, title, STATE_COLOURS[state]) for name, expr, title, state in ANNOTATIONS
    ]
    + [
        panels.annotation(
            "Story", _STORY, "{{title}}", STATE_COLOURS["stall"], "{{cost}} {{claims}}", at_value=True
        )
    ],
)
