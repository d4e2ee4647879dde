"""goodput / Fleet: what all GPUs did, what that was worth, and which run or node to look at first."""

from __future__ import annotations

from dashboards import panels
from dashboards.board_builder import build_board
from dashboards.panels import COLOUR_TEXT, GAUGE, GREEN, RED, YELLOW, Instant, series
from dashboards.promql import top_over_range
from dashboards.states import (
    COVERAGE_STEPS,
    GOOD_IS_HIGH,
    MFU_STEPS,
    ONE_IS_BAD,
    STATE_COLOURS,
    STATUS_MEANINGS,
    status_number,
)

NO_ACCOUNT = "no run has an account in this time"
IDLE = '{state!="productive"}'
ALL = "cluster_state:gpu_seconds:change_1m"
SEEN = 'sum(goodput_gpus{kind="seen"})'
ALLOCATED = "sum(max by (run) (goodput_run_gpus))"
AGENTS = 'avg(up{job="goodput-node"})'

STATUS = status_number("max by (run)")
WASTE = "sum_over_time(run:waste_gpu_seconds:change_1m[$__range])"
WASTEFUL = f"topk(20, {WASTE} > 0)"
AMONG = f"and on (run) {WASTEFUL}"
RUN_SECONDS = f"sum_over_time(run:gpu_seconds:change_1m[$__range]) {AMONG}"
# As the page's list of runs has them: the first of the causes in the order in which to act; the rank at which the run
# hangs, else the rank or the pipeline stage that delays it.
CAUSE = (
    "topk by (run) (1, max by (run, state) (goodput_cause_gain_ratio) and on (run, state) "
    f"goodput_cause_order == 1) - 1 {AMONG}"
)


def _culprit(series: str, label: str, names: str) -> str:
    """The largest of a run's series, its name as the label `culprit`."""
    largest = f"topk by (run) (1, max by (run, {label}) ({series}))"
    return f'label_replace({largest}, "culprit", {names})'


_OF_RANK = "rank, host"
_RANK = '"rank $1", "rank", "(.*)"'
CULPRIT = " or on (run) ".join(
    (
        _culprit("goodput_hang_culprit_seconds", _OF_RANK, _RANK),
        _culprit("goodput_straggler_culprit_slowness_ratio", _OF_RANK, _RANK),
        _culprit("goodput_straggler_stage_slowness_ratio", "stage", '"stage $1", "stage", "(.*)"'),
    )
)
COST = 'sum by (state) (sum_over_time(cluster_state:cost_dollars:change_1m{state!="productive"}[$__range]))'
# Faults that are open now before the events of the last hour, which may be over.
_OPEN = 'sum by (instance) (node_kind:open_health:count{kind=~"gpu|link"})'
_HEALTH = "sum by (instance) (node_kind:open_health:count)"
UNHEALTHY = f"topk(20, 1000 * {_OPEN} or {_HEALTH})"


def _share(state: str) -> str:
    """Share of a state in all GPU time of the time range."""
    window = "[$__range]"
    return f'sum(sum_over_time({ALL}{{state="{state}"}}{window})) / (sum(sum_over_time({ALL}{window})) > 0)'


def _gained(window: str, selector: str = "") -> str:
    """GPU time by state; a state is clamped, as a restart takes from productive what it adds to lost."""
    return f"clamp_min(sum by (state) (sum_over_time({ALL}{selector}[{window}])), 0)"


def _shares(window: str, selector: str = "") -> str:
    return f"{_gained(window, selector)} / on () group_left () (sum({_gained(window)}) > 0)"


# Other states of the time range would have a line of the legend each.
# The largest change and not their sum: unobserved time becomes known, and is taken away, when reports arrive late.
OCCURS = f"(max by (state) (max_over_time({ALL}[$__range] @ end())) > 0)"


def _runs(status: str) -> str:
    return f'count(group by (run) (goodput_run_info{{status="{status}"}})) or vector(0)'


def _unhealthy(kind: str) -> str:
    """How much of a kind is wrong on each of the worst nodes."""
    return f'sum by (instance) (node_kind:open_health:count{{kind="{kind}"}}) and on (instance) {UNHEALTHY}'


PANELS = [
    panels.stats(
        "Goodput",
        "Productive GPU time over allocated GPU time of all runs: in the time range, and in the last five "
        "minutes. Low: the states beside show what took the time, the table below in which runs. Start with the "
        "run that wastes most GPU time, not with the one whose ratio is lowest.",
        {
            "in the time range": Instant(_share("productive")),
            "last 5 minutes": "cluster:goodput:ratio_5m",
        },
        unit="percentunit",
        no_value=NO_ACCOUNT,
        steps=GOOD_IS_HIGH,
    ),
    panels.stats(
        "MFU",
        "Model FLOPs over the peak of the GPUs in the last five minutes, of the runs that declare their FLOPs, "
        "weighted by GPUs. Low with high goodput: the kernels are slow (small batches, wrong precision); profile "
        "a step of the largest run.",
        {"last 5 minutes": "cluster:mfu:ratio_5m"},
        unit="percentunit",
        no_value="unknown: no run declares its FLOPs",
        steps=MFU_STEPS,
    ),
    panels.stats(
        "GPUs",
        "GPUs that are allocated to runs, that drivers see, and that were seen and are lost. Allocated far below "
        "seen: free capacity, or runs on nodes without an agent. Lost above 0: the table of nodes shows where.",
        {"allocated": ALLOCATED, "seen": SEEN, "lost": 'sum(goodput_gpus{kind="lost"})'},
        unit="short",
        no_value="no run and no driver",
        overrides=[series("lost", "short", ONE_IS_BAD)],
    ),
    panels.stats(
        "Runs",
        "Runs by status. Failed: its ranks have ended and nothing has restarted it; it is listed for a day, or a "
        "quarter of an hour once its end is declared. Unobserved: a run that has not ended sends no reports; check the "
        "agents of its nodes. It is taken for abandoned after a day: its GPUs count as free, its time as over, until it "
        "reports again.",
        {status: _runs(status) for status in ("running", "failed", "unobserved")},
        unit="short",
        no_value="no run",
        overrides=[series(name, "short", [(None, GREEN), (1, YELLOW)]) for name in ("failed", "unobserved")],
    ),
    panels.stats(
        "Telemetry coverage",
        "Share of GPU time that was observed in the time range, and of agents and aggregators that Prometheus "
        "can scrape. Below 100 % every other figure lacks as much. The board 'The stack itself' lists targets "
        "that are down; the runs below show their coverage: ranks there may not load goodput.",
        {
            "GPU time": Instant(f"1 - {_share('unobserved')}"),
            "agents": AGENTS,
            "aggregators": 'avg(up{job="goodput-aggregator"})',
        },
        unit="percentunit",
        no_value=NO_ACCOUNT,
        steps=COVERAGE_STEPS,
    ),
    # Which runs.
    panels.table(
        "Runs ranked by waste",
        "The twenty runs with most GPU-hours that were not productive in the time range. Open the first one: its "
        "board shows why, which rank, and what to do. Cause: what to act on first, and how much faster the run would be "
        "without it. Culprit: the rank or stage that delays it, or at which it hangs. High waste with high goodput is a large run; high waste "
        "with low goodput is where work pays. Coverage below 100 %: its figures lack as much.",
        {
            "faster by": f'label_replace({CAUSE}, "cause", "$1", "state", "(.*)")',
            "slowest": f"({CULPRIT}) {AMONG}",
            "wasted": f"{WASTEFUL} / 3600",
            "goodput": f"(1 - ({WASTE}) / ({RUN_SECONDS} > 0)) {AMONG}",
            "GPUs": f"max by (run) (goodput_run_gpus) {AMONG}",
            "cost": f"sum_over_time(run:waste_dollars:change_1m[$__range]) {AMONG}",
            "status": f"{STATUS} {AMONG}",
            "hangs for": f"max by (run) (goodput_hang_seconds) / 60 > 0 {AMONG}",
            "restarts": f"max by (run) (goodput_restarts) {AMONG}",
            "MFU": f"max by (run) (goodput_mfu_ratio) {AMONG}",
            "coverage": f"min by (run) (goodput_coverage_ratio) {AMONG}",
        },
        unit="short",
        no_value="no waste, or no run in this time",
        first=["run", "cause", "culprit", "host"],
        sort="wasted",
        hide=("slowest", "state", "stage", "rank"),
        overrides=[
            panels.texts("cause", {state: (state, colour) for state, colour in STATE_COLOURS.items()}),
            series("faster by", "percentunit"),
            series("goodput", "percentunit", GOOD_IS_HIGH),
            series("MFU", "percentunit", MFU_STEPS),
            series("coverage", "percentunit", COVERAGE_STEPS),
            *((name, COLOUR_TEXT | {"decimals": 1}) for name in ("goodput", "MFU", "coverage")),
            series("wasted", "suffix: GPU h"),
            ("wasted", GAUGE | {"decimals": 1}),
            *panels.widths(run=180, cause=125, culprit=90, wasted=160),
            panels.link("culprit", "Open the run", "goodput-run", run="field:run"),
            series("cost", "currencyUSD"),
            panels.texts("status", STATUS_MEANINGS),
            series("hangs for", "suffix:min", [(None, RED)]),
            ("hangs for", COLOUR_TEXT | {"decimals": 1}),
            panels.link("run", "Open the run", "goodput-run", run="field:run"),
        ],
    ),
    panels.states(
        "Status of these runs",
        "The runs of the table over time. Red: hangs, no rank completes a step. Dark red: failed, and not yet "
        "restarted. Grey: unobserved, no reports. Many runs that fail at one moment share a cause: network, storage or power.",
        # Chosen at the end of the time range, so that the same twenty runs are drawn all along.
        {"{{run}}": f"{STATUS} and on (run) {WASTEFUL.replace(']', '] @ end()')}"},
        no_value="no run in this time",
        meanings=STATUS_MEANINGS,
        overrides=[panels.link("/.*/", "Open the run", "goodput-run", run="label:run")],
    ),
    # Which nodes.
    panels.table(
        "Nodes with faults",
        "Open now: GPUs that are lost or request a reset, and links that were up and are down. Drain such a node: its "
        "run waits for it, will fail or is slow. Beside it the health events of the last hour, which may be over: a "
        "GPU that is back after a critical event needs a look when it happens again; warnings when there are many.",
        {
            "GPUs now": _unhealthy("gpu"),
            "links now": _unhealthy("link"),
            "critical, 1 h": _unhealthy("critical"),
            "warnings, 1 h": _unhealthy("warning"),
            "node": f"group by (instance, host, run) (node:owner:info) and on (instance) {UNHEALTHY}",
        },
        unit="short",
        no_value="every node is healthy",
        first=["host", "instance", "run"],
        sort="GPUs now",
        hide=("node",),
        steps=[(None, "text"), (1, RED)],
        overrides=[
            *((name, COLOUR_TEXT) for name in ("GPUs now", "links now")),
            *(series(name, "none", [(None, "text")]) for name in ("critical, 1 h", "warnings, 1 h")),
            panels.link("run", "Open the run", "goodput-run", run="field:run"),
            panels.link("instance", "Open the node", "goodput-node", instance="field:instance"),
            panels.link("host", "Open the node", "goodput-node", instance="field:instance"),
        ],
    ),
    panels.bars(
        "Lost to hardware",
        "GPU-hours of restarts that are attributed to a hardware event, by kind. One kind far ahead: contact the "
        "vendor with the nodes of the table. None although runs restart: the cause is the code or the scheduler; "
        "see the restarts of the run.",
        {
            "{{kind}}": "topk(8, sum by (kind) "
            "(max by (run, kind) (goodput_run_health_cost_gpu_seconds)) / 3600)"
        },
        unit="suffix: GPU h",
        no_value="no restart is attributed to hardware",
        steps=[(None, YELLOW), (10, RED)],
    ),
    # Where the GPU-hours go. Recorded once a minute: a shorter interval would leave holes.
    panels.areas(
        "GPU-hours by state",
        "Share of the GPU-hours of all runs in each state; the shares add up to 100 %. Dark blue is productive. "
        "Remove the largest other colour that lasts; a spike of 'lost' is a restart, which books the steps since "
        "the last checkpoint at once. Grey is unobserved time.",
        {"{{state}}": f"{_shares('$__interval')} and on (state) {OCCURS}"},
        unit="percentunit",
        no_value=NO_ACCOUNT,
        overrides=panels.colours(STATE_COLOURS),
        shares=True,
        legend_table=True,
    ).interval("1m"),
    panels.bars(
        "GPU-hours in the time shown",
        "GPU-hours in each state; their sum is what was allocated. All but 'productive' was paid for and not "
        "used. Long 'queue' or 'down': the scheduler; 'loader' or 'communication': the training code; 'lost': "
        "the checkpoint interval.",
        {"{{state}}": f"sort_desc(sum by (state) (sum_over_time({ALL}[$__range])) / 3600 > 0)"},
        unit="suffix: GPU h",
        no_value=NO_ACCOUNT,
        overrides=panels.colours(STATE_COLOURS),
    ).decimals(1),
    panels.lines(
        "Goodput and MFU",
        "Both over the last five minutes, and the five largest causes of idle time. Goodput falls while a cause "
        "rises: that is the cause. MFU falls alone: the kernels got slower (another model, smaller batches, "
        "throttled GPUs).",
        {
            "goodput": "cluster:goodput:ratio_5m",
            "MFU": "cluster:mfu:ratio_5m",
            "{{state}}": top_over_range(5, _shares("5m", IDLE), "state"),
        },
        unit="percentunit",
        no_value=NO_ACCOUNT,
        overrides=panels.colours({"goodput": GREEN, "MFU": "purple", **STATE_COLOURS}),
    ).max(1),
    panels.bars(
        "Cost of idle time by cause",
        "Cost of the GPU time that was not productive in the time range, by cause. Compare the price of a fix "
        "(faster storage, more frequent checkpoints, spare nodes) with its bar, extrapolated to a month.",
        {"{{state}}": f"topk(10, {COST} > 0)"},
        unit="currencyUSD",
        no_value="unknown: no run declares the price of a GPU-hour",
        overrides=panels.colours(STATE_COLOURS),
    ),
    panels.lines(
        "Allocated against available GPUs",
        "GPUs that drivers see, that are allocated to runs, and that a living rank uses. Used below allocated: "
        "runs that are starting, or failed a moment ago. Allocated below seen: free capacity. Seen falls: GPUs or nodes were "
        "lost. Allocated above seen: nodes without an agent or a driver.",
        {
            "seen": SEEN,
            "allocated": ALLOCATED,
            "used by a rank": "count(group by (instance, gpu) (goodput_gpu_rank_info))",
        },
        unit="suffix: GPUs",
        no_value="no run and no driver",
        overrides=panels.colours({"seen": "text", "allocated": YELLOW, "used by a rank": "#3f86cf"}),
    ).decimals(0),
    panels.lines(
        "Coverage over time",
        "Share of GPU time that was observed in five minutes, of the five runs with the lowest, and share of "
        "agents that Prometheus can scrape. A run below 100 %: ranks without goodput, or a node without an agent. "
        "Agents below 100 %: nodes or agents are down.",
        {
            "{{run}}": top_over_range(5, "run:coverage:ratio_5m", "run", "bottomk"),
            "agents up": AGENTS,
        },
        unit="percentunit",
        no_value=NO_ACCOUNT,
    ).max(1),
]

BOARD = build_board(
    "goodput-fleet",
    "How many GPU-hours were useful work, what took the others, and which run or node is worth a look first?",
    PANELS,
    [(4, 5, 4, 5, 5, 5), (9, 24), (8, 7, 11, 6), (14, 16, 8), (8, 6, 6, 6, 6)],
    time_from="now-6h",
    refresh="1m",
)
