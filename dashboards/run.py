"""goodput / Run: where the GPU time of one run goes, and why.

In: series of goodput.metrics and recording rules of deploy/prometheus/recording.yml. Out: one board of
fifteen panels, read from the top: how much of the GPU time was useful, where the rest went, what to do about
it, and what the ranks are doing. Per-rank series are merged by recording rules or cut by topk, so the board
costs the same for 8 ranks and for 8 000.

    python -m dashboards.generate
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard as models

from dashboards.panels import (
    DATASOURCE,
    GREEN,
    RED,
    YELLOW,
    bars,
    change,
    lines,
    link,
    numbers,
    paint,
    query,
    stack,
)

UID = "goodput-run"
RUN = 'run="$run"'

# Useful is green, waiting for others yellow to orange, planned blue and purple, gone red, unknown grey.
# The built-in page's colours, which neighbours in a bar keep apart for colour-blind eyes too.
STATE_COLOURS = {
    "productive": "#1261b0",
    "checkpoint": "#86cab2",
    "lost": "#712b2e",
    "loader": "#e28c03",
    "evaluation": "#4ba18c",
    "down": "#4f5a63",
    "h2d": "#f7e04f",
    "compile": "#c3a6f9",
    "queue": "#97a9b8",
    "communication": "#ecaa68",
    "startup": "#a572c9",
    "unattributed": "#c9d2de",
    "straggler": "#af2d11",
    "restore": "#5e248a",
    "unobserved": "#78818c",
    "launch": "#c07b35",
    "stall": "#c6585c",
}

GOOD_IS_HIGH = [(None, RED), (0.7, YELLOW), (0.85, GREEN)]


def board() -> builders.Dashboard:
    dashboard = (
        builders.Dashboard("goodput / Run")
        .uid(UID)
        .description(
            "Was every GPU-second of the run useful work, and if not, why, which rank, and what did it cost?"
        )
        .tags(["goodput"])
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .editable()
        .link(link("Nodes and GPUs", "goodput-node"))
        .with_variable(_datasource())
        .with_variable(_run())
    )
    for panel in PANELS:
        dashboard.with_panel(panel())
    return dashboard


def account_share(run: str, window: str) -> str:
    """Share of each state in the GPU time that the account gained over a window; the shares add up to 1.

    A state's gain is clamped at 0, because a restart moves time from productive to lost, and divided by the
    sum of the clamped gains. Subtracting a former value, and 0 where there is none, counts a state from its
    birth; delta() would not. See deploy/prometheus/recording.yml, which does the same for fixed windows.
    """
    now = f"max by (state) (goodput_gpu_seconds{{{run}}})"
    before = f"max by (state) (goodput_gpu_seconds{{{run}}} offset {window})"
    gain = f"clamp_min({now} - ({before} or {now} * 0), 0)"
    return f"{gain} / on () group_left () (sum({gain}) > 0)"


def _datasource():
    return builders.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _run():
    text = "label_values(goodput_run_info, run)"
    return (
        builders.QueryVariable("run")
        .label("Run")
        .datasource(DATASOURCE)
        .query({"qryType": 1, "query": text, "refId": "PrometheusVariableQueryEditor-VariableQuery"})
        .definition(text)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_DESC)
        .include_all(False)
        .multi(False)
    )


def _ratio(title, description, *, place, series, no_value, steps):
    """A factor of the identity, as one number."""
    queries = [query(f"max({series}{{{RUN}}})", title)]
    panel = numbers(
        title, description, place=place, unit="percentunit", no_value=no_value, queries=queries, steps=steps
    )
    return panel.decimals(1)


def _by_state(series):
    """The states that have any of it, the largest first."""
    return query(f"sort_desc(max by (state) ({series}{{{RUN}}}) > 0)", "{{state}}", instant=True)


# -- What became of the GPU time since the run's start: goodput = availability x step efficiency


def _goodput():
    return _ratio(
        "Goodput",
        "Productive GPU time over allocated GPU time since the run's start. Low: see whether availability "
        "(the run was not stepping) or step efficiency (its steps waited) is the smaller factor, then the "
        "panels below it.",
        place=(0, 0, 4, 4),
        series="goodput_goodput_ratio",
        no_value="no account yet",
        steps=GOOD_IS_HIGH,
    )


def _availability():
    return _ratio(
        "Availability",
        "GPU time in steps that were kept over allocated GPU time. Low: restarts, lost steps, long "
        "startups, stalls or checkpoints. Checkpoint more often if steps are lost, less often if saving "
        "takes the time.",
        place=(4, 0, 4, 4),
        series="goodput_availability_ratio",
        no_value="no account yet",
        steps=[(None, RED), (0.85, YELLOW), (0.95, GREEN)],
    )


def _step_efficiency():
    return _ratio(
        "Step efficiency",
        "Productive time over time in kept steps. Low: the steps wait for data, copies, collectives or a "
        "slow rank. The leading causes below say for which, and what its removal would gain.",
        place=(8, 0, 4, 4),
        series="goodput_step_efficiency_ratio",
        no_value="no step yet",
        steps=GOOD_IS_HIGH,
    )


def _mfu():
    return _ratio(
        "MFU",
        "Model FLOPs of kept steps over what the allocated GPUs could have done at peak. Low although "
        "goodput is high: the kernels are slow (small batches, wrong precision, no fused attention), so "
        "profile a step.",
        place=(12, 0, 4, 4),
        series="goodput_mfu_ratio",
        no_value="unknown: FLOPs per step or device peak not given",
        steps=[(None, RED), (0.2, YELLOW), (0.35, GREEN)],
    )


def _coverage():
    panel = numbers(
        "Ranks and telemetry coverage",
        "Ranks that should be there, that ever reported and that live now, and the share of GPU time that "
        "was observed. Observed below expected or coverage below 100 %: a node without an agent, or ranks "
        "that do not load goodput; every other figure is then blind by as much. Alive below expected: "
        "processes have died.",
        place=(16, 0, 8, 4),
        unit="short",
        no_value="no rank has reported",
        queries=[
            query(f'max(goodput_ranks{{{RUN},kind="expected"}})', "expected"),
            query(f'max(goodput_ranks{{{RUN},kind="observed"}})', "observed"),
            query(f'max(goodput_ranks{{{RUN},kind="alive"}})', "alive"),
            query(f"max(goodput_coverage_ratio{{{RUN}}})", "coverage"),
        ],
        trend=False,
    )
    return change(panel, "coverage", unit="percentunit", steps=[(None, RED), (0.95, YELLOW), (0.999, GREEN)])


# -- Where the GPU time goes, lately and in total


def _account():
    panel = stack(
        "Where the GPU time goes",
        "Share of GPU time in each state, over the interval of a pixel. Green is useful. Right after a "
        "restart 'lost' is large, because the steps since the last checkpoint are booked as lost at that "
        "moment; the shares still add up to 100 %. A lasting colour other than green is the thing to "
        "remove.",
        place=(0, 4, 16, 9),
        unit="percentunit",
        no_value="no account in this time",
        queries=[query(account_share(RUN, "$__rate_interval"), "{{state}}")],
        percent=True,
    )
    return paint(panel, STATE_COLOURS)


def _gpu_seconds():
    panel = bars(
        "GPU-seconds by state",
        "The whole account since the run's start. What is not productive, largest first, is what the run "
        "paid for and did not use. 'unattributed' is time in no phase: name it with goodput.phase(); "
        "'unobserved' is time of ranks that never reported.",
        place=(16, 4, 8, 9),
        unit="s",
        no_value="no account yet",
        queries=[_by_state("goodput_gpu_seconds")],
    )
    return paint(panel, STATE_COLOURS)


# -- Why, which rank, and what it costs


def _causes():
    expr = f"topk(8, max by (state) (goodput_cause_gain_ratio{{{RUN}}}) - 1)"
    return bars(
        "Leading causes: speed-up without them",
        "How much faster the run would be without each cause. Start at the top: loader means more workers "
        "or faster storage, h2d pinned memory, communication overlap or bandwidth, straggler the rank named "
        "beside. goodput report has the advice in full.",
        place=(0, 13, 8, 8),
        unit="percentunit",
        no_value="no cause above the noise",
        queries=[query(expr, "{{state}}", instant=True)],
        steps=[(None, GREEN), (0.05, YELLOW), (0.2, RED)],
    )


def _stragglers():
    expr = f"topk(10, max by (rank, host) (goodput_straggler_share_ratio{{{RUN}}}))"
    return bars(
        "Stragglers: whom the others wait for",
        "Share of the waiting time that each of the ten slowest ranks explains. One rank far ahead: look at "
        "its host (thermal throttling, a slow NIC, a noisy neighbour) or take the host out. Even shares: "
        "the work is uneven, not a machine.",
        place=(8, 13, 8, 8),
        unit="percentunit",
        no_value="no rank is slower than the others",
        queries=[query(expr, "rank {{rank}} on {{host}}", instant=True)],
        steps=[(None, GREEN), (0.3, YELLOW), (0.6, RED)],
    )


def _cost():
    panel = bars(
        "Cost by state",
        "The account in money since the run's start. Everything but 'productive' bought nothing; compare a "
        "fix's price with its bar.",
        place=(16, 13, 8, 8),
        unit="currencyUSD",
        no_value="unknown: no price of a GPU-hour given",
        queries=[_by_state("goodput_cost_dollars")],
    )
    return paint(panel, STATE_COLOURS)


# -- What the steps are made of


def _step_time():
    buckets = f"run_le:step_seconds_bucket:rate_1m{{{RUN}}}"
    return lines(
        "Step time, all ranks",
        "Length of a step over the last minute, from the histograms of all ranks merged; buckets are two to "
        "a factor of ten, so read trends here and exact values in goodput report. p99 far above p50: single "
        "steps stall (loader, checkpoint, network). All three up: every step got slower.",
        place=(0, 21, 8, 8),
        unit="s",
        no_value="no step in the last minute",
        queries=[
            query(f"histogram_quantile(0.5, {buckets})", "p50"),
            query(f"histogram_quantile(0.95, {buckets})", "p95"),
            query(f"histogram_quantile(0.99, {buckets})", "p99"),
        ],
    )


def _phases():
    return lines(
        "Phases: seconds per second",
        "Of each second, how much the ranks spend in each phase, mean over ranks, the last minute. 'none' "
        "is time in no phase. Loader or communication near the compute phases: the GPU waits about as long "
        "as it works.",
        place=(8, 21, 8, 8),
        unit="percentunit",
        no_value="no node agent is scraped",
        queries=[query(f"run_phase_clock:phase_seconds:rate_1m{{{RUN}}}", "{{phase}} ({{clock}} clock)")],
    )


def _throughput():
    panel = lines(
        "Steps and samples per second",
        "Steps of the median rank (left) and samples of all ranks (right) per second, the last minute. Both "
        "down: the steps got slower. Samples down alone: smaller batches or fewer ranks. Zero: see the "
        "progress below.",
        place=(16, 21, 8, 8),
        unit="suffix: steps/s",
        no_value="no node agent is scraped",
        queries=[
            query(f"run:steps:rate_1m{{{RUN}}}", "steps"),
            query(f"run:samples:rate_1m{{{RUN}}}", "samples"),
        ],
    )
    return change(panel, "samples", unit="suffix: samples/s", axis_right=True)


# -- Does it move at all?


def _progress():
    panel = lines(
        "Time since the last step",
        "Time since any rank completed a step, against the threshold from which it is a stall. Above it "
        "outside of a checkpoint, an evaluation or a start: the run hangs; find the rank with the oldest "
        "sign of life (goodput_rank_beat_age_seconds), save its stack, restart from the last checkpoint.",
        place=(0, 29, 12, 7),
        unit="s",
        no_value="no step yet",
        queries=[
            query(f"max(goodput_progress_age_seconds{{{RUN}}})", "since the last step"),
            query(f"max(goodput_stall_threshold_seconds{{{RUN}}})", "stall threshold"),
        ],
    )
    return paint(panel, {"stall threshold": RED})


def _restarts():
    panel = lines(
        "Restarts and steps lost",
        "Restarts of the run (left) and steps of all ranks that were done and had to be done again (right). "
        "Each restart loses the steps since the last committed checkpoint. Many steps per restart: "
        "checkpoint more often. Many restarts: look for the same host in each.",
        place=(12, 29, 12, 7),
        unit="suffix: restarts",
        no_value="no account yet",
        queries=[
            query(f"max(goodput_restarts{{{RUN}}})", "restarts"),
            query(f'max(goodput_steps{{{RUN},kind="lost"}})', "steps lost"),
        ],
    )
    return change(panel.decimals(0), "steps lost", unit="suffix: steps", axis_right=True)


PANELS = (
    *(_goodput, _availability, _step_efficiency, _mfu, _coverage),
    *(_account, _gpu_seconds),
    *(_causes, _stragglers, _cost),
    *(_step_time, _phases, _throughput),
    *(_progress, _restarts),
)
