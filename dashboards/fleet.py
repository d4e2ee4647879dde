"""goodput / Fleet: what all GPUs did, what that was worth, and which run or node to look at first."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from dashboards.board_builder import address, build_board
from dashboards.panels import (
    GREEN,
    RED,
    YELLOW,
    Panels,
    bars,
    colour_series,
    column,
    lines,
    link_to,
    numbers,
    override,
    query,
    rows,
    series_options,
    stack,
    states,
    top_over_range,
    value_texts,
    widths,
)
from dashboards.states import COVERAGE_STEPS, GOOD_IS_HIGH, MFU_STEPS, STATE_COLOURS, STATUSES, status

PANELS = Panels()

NO_ACCOUNT = "no run has an account in this time"
ALL = "cluster_state:gpu_seconds:change_1m"
# Recorded once a minute: a shorter interval would leave holes.
MINUTE = "1m"
WASTE = "sum_over_time(run:waste_gpu_seconds:change_1m[$__range])"
WASTEFUL = f"topk(20, {WASTE} > 0)"
RUN_LINK = address("goodput-run", {"run": "field:run"})


def _share(states_: str, window: str) -> str:
    """Share of these states in all GPU time of a window."""
    return f"sum(sum_over_time({ALL}{{{states_}}}[{window}])) / (sum(sum_over_time({ALL}[{window}])) > 0)"


# -- One number each


@PANELS.add
def _goodput():
    return numbers(
        "Goodput",
        "Productive GPU time over allocated GPU time of all runs: in the time shown, and in the last five minutes. "
        "Low: the states beside say what took the time, the table below in which runs. Start with the run that "
        "wastes most, not with the one whose ratio is worst.",
        place=(0, 0, 5, 4),
        unit="percentunit",
        no_value=NO_ACCOUNT,
        queries=[
            query(_share('state="productive"', "$__range"), "in the time shown", instant=True),
            query("cluster:goodput:ratio_5m", "last 5 minutes"),
        ],
        steps=GOOD_IS_HIGH,
        trend=False,
    ).decimals(1)


@PANELS.add
def _mfu():
    return numbers(
        "MFU",
        "Model FLOPs over what the GPUs of the runs that tell their FLOPs could have done, in the last five minutes, "
        "each run weighed by its GPUs. Low with high goodput: the kernels are slow (small batches, wrong precision); "
        "profile a step of the largest run.",
        place=(5, 0, 4, 4),
        unit="percentunit",
        no_value="unknown: no run tells its FLOPs",
        queries=[query("cluster:mfu:ratio_5m", "last 5 minutes")],
        steps=MFU_STEPS,
        trend=False,
    ).decimals(1)


@PANELS.add
def _gpus():
    panel = numbers(
        "GPUs",
        "GPUs that runs have been allocated, that drivers see, and that were seen and are lost. Allocated far below "
        "seen: nobody asks for the rest, or no agent runs where runs are. Lost above 0: the table of nodes says where.",
        place=(9, 0, 5, 4),
        unit="short",
        no_value="no run and no driver",
        queries=[
            query("sum(max by (run) (goodput_run_gpus))", "allocated"),
            query('sum(goodput_gpus{kind="seen"})', "seen"),
            query('sum(goodput_gpus{kind="lost"})', "lost"),
        ],
        trend=False,
    )
    return series_options(panel, "lost", unit="short", steps=[(None, GREEN), (1, RED)])


@PANELS.add
def _runs():
    def of(name: str) -> str:
        return f'count(group by (run) (goodput_run_info{{status="{name}"}})) or vector(0)'

    panel = numbers(
        "Runs",
        "Runs by status. Down: no rank lives, and the GPUs are paid for all the same; see why it was not started "
        "again. Unobserved: nothing is heard of a run that has not ended; look at the agents of its nodes.",
        place=(14, 0, 5, 4),
        unit="short",
        no_value="no run",
        queries=[query(of(name), name) for name in ("running", "down", "unobserved")],
        trend=False,
    )
    for name in ("down", "unobserved"):
        series_options(panel, name, unit="short", steps=[(None, GREEN), (1, YELLOW)])
    return panel


@PANELS.add
def _coverage():
    unseen = _share('state="unobserved"', "$__range")
    return numbers(
        "Telemetry coverage",
        "Share of GPU time that was observed in the time shown, and of agents and aggregators that answer "
        "Prometheus. Below 100 % every other figure is blind by as much: find the nodes without an agent in The stack "
        "itself, and the ranks that do not load goodput in the runs below.",
        place=(19, 0, 5, 4),
        unit="percentunit",
        no_value=NO_ACCOUNT,
        queries=[
            query(f"1 - ({unseen} or vector(0))", "GPU time", instant=True),
            query('avg(up{job="goodput-node"})', "agents"),
            query('avg(up{job="goodput-aggregator"})', "aggregators"),
        ],
        steps=COVERAGE_STEPS,
        trend=False,
    )


# -- Where the GPU-hours go


@PANELS.add
def _account():
    # Each state's own part is clamped, as a restart takes from productive what it adds to lost.
    gained = f"clamp_min(sum by (state) (sum_over_time({ALL}[$__interval])), 0)"
    panel = stack(
        "GPU-hours by state",
        "Share of the GPU-hours of all runs in each state; the shares add up to 100 %. Dark blue is useful. A lasting "
        "colour other than that is what to remove; a spike of 'lost' is a restart, which books the steps since the "
        "last checkpoint at once. Grey is time nobody saw.",
        place=(0, 4, 16, 9),
        unit="percentunit",
        no_value=NO_ACCOUNT,
        queries=[query(f"{gained} / on () group_left () (sum({gained}) > 0)", "{{state}}")],
        percent=True,
    ).interval(MINUTE)
    return colour_series(panel, STATE_COLOURS)


@PANELS.add
def _hours():
    hours = f"sum by (state) (sum_over_time({ALL}[$__range])) / 3600"
    panel = bars(
        "GPU-hours in the time shown",
        "How many GPU-hours went into each state; together they are what was allocated. What is not productive, the "
        "largest first, is what was paid for and not used. A long bar of 'queue' or 'down' is the scheduler's, of "
        "'loader' or 'communication' the training code's, of 'lost' the checkpoints'.",
        place=(16, 4, 8, 9),
        unit="suffix: GPU h",
        no_value=NO_ACCOUNT,
        queries=[query(f"sort_desc({hours} > 0)", "{{state}}", instant=True)],
    ).decimals(1)
    return colour_series(panel, STATE_COLOURS)


@PANELS.add
def _ratios():
    panel = lines(
        "Goodput and MFU",
        "Both over the last five minutes, and the three largest causes of idle time. Goodput falls and a cause rises: that "
        "is it. MFU falls alone: the kernels got slower (another model, smaller batches, GPUs throttled).",
        place=(0, 13, 8, 8),
        unit="percentunit",
        no_value=NO_ACCOUNT,
        queries=[
            query("cluster:goodput:ratio_5m", "goodput"),
            query("cluster:mfu:ratio_5m", "MFU"),
            query(
                f"topk(3, {_by_state('[5m]')} / on () group_left () (sum({_by_state('[5m]', '')}) > 0))",
                "{{state}}",
            ),
        ],
    ).max(1)
    return colour_series(panel, {"goodput": GREEN, "MFU": "purple", **STATE_COLOURS})


def _by_state(window: str, selector: str = '{state!="productive"}') -> str:
    return f"clamp_min(sum by (state) (sum_over_time({ALL}{selector}{window})), 0)"


@PANELS.add
def _cost():
    spent = (
        'sum by (state) (sum_over_time(cluster_state:cost_dollars:change_1m{state!="productive"}[$__range]))'
    )
    panel = bars(
        "Cost of idle time by cause",
        "What GPU time that was not productive has cost in the time shown, by cause. Compare the price of a fix "
        "(faster storage, more frequent checkpoints, spare nodes) with its bar, extended to a month.",
        place=(8, 13, 8, 8),
        unit="currencyUSD",
        no_value="unknown: no run tells the price of a GPU-hour",
        queries=[query(f"topk(10, {spent} > 0)", "{{state}}", instant=True)],
    )
    return colour_series(panel, STATE_COLOURS)


@PANELS.add
def _allocated():
    used = "count(group by (instance, gpu) (goodput_gpu_rank_info))"
    panel = lines(
        "Allocated against available GPUs",
        "GPUs that drivers see, that runs have been allocated, and that a living rank uses. Used below allocated: runs "
        "that are down or start. Allocated below seen: capacity that nobody has asked for. Seen that drops: GPUs or "
        "nodes that went away. Allocated above seen: nodes without an agent or a driver.",
        place=(16, 13, 8, 8),
        unit="suffix: GPUs",
        no_value="no run and no driver",
        queries=[
            query('sum(goodput_gpus{kind="seen"})', "seen"),
            query("sum(max by (run) (goodput_run_gpus))", "allocated"),
            query(used, "used by a rank"),
        ],
    ).decimals(0)
    return colour_series(panel, {"seen": "text", "allocated": YELLOW, "used by a rank": "#3f86cf"})


# -- Which runs


@PANELS.add
def _ranked():
    among = f"and on (run) {WASTEFUL}"
    wide = f"sum_over_time(run:gpu_seconds:change_1m[$__range]) {among}"
    panel = rows(
        "Runs ranked by waste",
        "The twenty runs with most GPU-hours that were not productive in the time shown. Open the first one: its board "
        "says why, which rank, and what to do. High waste with high goodput is merely a large run; high waste with "
        "low goodput is where work pays. Coverage below 100 %: its figures are blind by as much.",
        place=(0, 21, 16, 10),
        unit="short",
        no_value="no waste, or no run in this time",
        first=["run"],
        sort="wasted",
        columns=[
            column(f"{WASTEFUL} / 3600", "wasted"),
            column(f"(1 - ({WASTE}) / ({wide} > 0)) {among}", "goodput"),
            column(f"max by (run) (goodput_run_gpus) {among}", "GPUs"),
            column(f"sum_over_time(run:waste_dollars:change_1m[$__range]) {among}", "cost of it"),
            column(f"{status()} {among}", "status"),
            column(f"max by (run) (goodput_restarts) {among}", "restarts"),
            column(f"max by (run) (goodput_mfu_ratio) {among}", "MFU"),
            column(f"min by (run) (goodput_coverage_ratio) {among}", "coverage"),
        ],
    )
    series_options(panel, "goodput", unit="percentunit", steps=GOOD_IS_HIGH)
    series_options(panel, "MFU", unit="percentunit", steps=MFU_STEPS)
    series_options(panel, "coverage", unit="percentunit", steps=COVERAGE_STEPS)
    for name in ("goodput", "MFU", "coverage"):
        override(panel, name, {"custom.cellOptions": {"type": "color-text"}, "decimals": 1})
    series_options(panel, "wasted", unit="suffix: GPU h")
    override(panel, "wasted", {"custom.cellOptions": {"type": "gauge", "mode": "basic"}, "decimals": 1})
    widths(panel, run=200, wasted=160)
    series_options(panel, "cost of it", unit="currencyUSD")
    value_texts(panel, "status", {str(number): (name, colour) for name, (number, colour) in STATUSES.items()})
    return link_to(panel, "run", "Open the run", RUN_LINK)


@PANELS.add
def _statuses():
    panel = states(
        "Status of these runs",
        "The runs of the table over time. Dark red: down, its GPUs wait for a restart. Grey: nothing was heard of it. "
        "Many runs that go down at one moment: the network, the storage or the power they share.",
        place=(16, 21, 8, 10),
        no_value="no run in this time",
        # Chosen at the end of the time shown, so that the same twenty are drawn all along.
        queries=[query(f"{status()} and on (run) {WASTEFUL.replace(']', '] @ end()')}", "{{run}}")],
        names={number: (name, colour) for name, (number, colour) in STATUSES.items()},
    )
    return link_to(panel, "/.*/", "Open the run", address("goodput-run", {"run": "label:run"}))


# -- Which nodes, and whether all is seen


@PANELS.add
def _nodes():
    bad = "topk(20, sum by (instance) (node_kind:open_health:count))"

    def of(kind: str):
        return f'sum by (instance) (node_kind:open_health:count{{kind="{kind}"}}) and on (instance) {bad}'

    panel = rows(
        "Nodes with open health events",
        "Nodes whose GPUs or links are not as they should be: GPUs that are lost or ask to be reset, links that were up "
        "and are down, and events of the last hour. A GPU or a critical event: drain the node; its run waits for it or "
        "will fail. A link: the run on it is slow. Warnings alone: look when there are many.",
        place=(0, 31, 12, 8),
        unit="short",
        no_value="every node is well",
        first=["host", "instance", "run"],
        sort="critical",
        columns=[
            column(of("critical"), "critical"),
            column(of("gpu"), "GPUs"),
            column(of("link"), "links down"),
            column(of("warning"), "warnings"),
            column(f"group by (instance, host, run) (node:owner:info) and on (instance) {bad}", "node"),
        ],
        hide=("node", "Value #E"),
        steps=[(None, "text"), (1, RED)],
    )
    for name in ("critical", "GPUs", "links down"):
        override(panel, name, {"custom.cellOptions": {"type": "color-text"}})
    link_to(panel, "run", "Open the run", RUN_LINK)
    link_to(panel, "instance", "Open the node", address("goodput-node", {"instance": "field:instance"}))
    return link_to(panel, "host", "Open the node", address("goodput-node", {"instance": "field:instance"}))


@PANELS.add
def _hardware():
    return bars(
        "Lost to hardware",
        "GPU-hours of restarts that are put down to an event of the hardware, by kind, in the runs that are shown. "
        "One kind far ahead: talk to the vendor with the nodes of the table. None although runs restart: the cause is the "
        "code or the scheduler; see the run's restarts.",
        place=(12, 31, 6, 8),
        unit="suffix: GPU h",
        no_value="no restart is put down to hardware",
        queries=[
            query(
                "topk(8, sum by (kind) (max by (run, kind) (goodput_run_health_cost_gpu_seconds)) / 3600)",
                "{{kind}}",
                instant=True,
            ),
        ],
        steps=[(None, YELLOW), (10, RED)],
    )


@PANELS.add
def _coverage_history():
    return lines(
        "Coverage over time",
        "Share of GPU time that was observed in five minutes: of the five runs that are seen least, and of agents that "
        "answer. A run below 100 %: ranks without goodput, or a node without an agent. Agents below 100 %: nodes that "
        "are down, or agents that are.",
        place=(18, 31, 6, 8),
        unit="percentunit",
        no_value=NO_ACCOUNT,
        queries=[
            query(top_over_range(5, "run:coverage:ratio_5m", "run", "bottomk"), "{{run}}"),
            query('avg(up{job="goodput-node"})', "agents that answer"),
        ],
    ).max(1)


def board() -> builders.Dashboard:
    return build_board(
        "goodput-fleet",
        "Of all GPU-hours, how many were useful work, what took the others, and where is it worth to look?",
        variables=[],
        panels=PANELS,
        time_from="now-6h",
        refresh="1m",
    )
