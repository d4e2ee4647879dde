"""The panels of the board of the stack (stack.py) on trainers: what measuring costs them, and what it left out.

In: series of goodput.metrics that node agents serve, and recording rules. Out: `overhead`, `thinned`, `worst`.
"""

from __future__ import annotations

from dashboards.frame import address
from dashboards.panels import (
    RED,
    change,
    column,
    lasting,
    lead,
    lines,
    override,
    paint,
    query,
    rows,
)

RUN = 'run=~"$run"'
RATE = "$__rate_interval"


def rate_of(series: str, by: str = "", selector: str = "") -> str:
    braces = f"{{{selector}}}" if selector else ""
    return f"sum{f' by ({by}) ' if by else ''}(rate({series}{braces}[{RATE}]))"


# -- The trainers


def overhead():
    panel = lines(
        "Trainers: what measuring costs",
        "Time of the SDK over the time of its rank: median and worst of each run, the three worst runs, against the smallest budget. Above it: the "
        "SDK measures fewer steps by phases, beside. Stays above: too many phases of one's own in a step, or a deep look too often.",
        place=(0, 28, 8, 8),
        unit="percentunit",
        no_value="no rank is measured",
        queries=[
            query(lasting(3, f"max by (run) (rank:sdk_cost:ratio_15m{{{RUN}}})", "run"), "worst of {{run}}"),
            query(f"quantile(0.5, rank:sdk_cost:ratio_15m{{{RUN}}})", "median"),
            query(f"min(goodput_sdk_budget_ratio{{{RUN}}})", "budget"),
            query(
                lasting(
                    3, f"max by (run) (rate(goodput_deep_look_cost_seconds_total{{{RUN}}}[{RATE}]))", "run"
                ),
                "deep looks of {{run}}",
            ),
        ],
    ).decimals(3)
    return paint(panel, {"budget": RED})


def thinned():
    panel = lines(
        "Trainers: what was not measured",
        "Records that the SDK dropped, steps of which only the length was measured, loader workers beyond a page's room, in a minute; ranks "
        "whose phases are off (right). Dropped records: goodput is called wrongly there. Unmeasured steps: measuring their phases would "
        "cost more than the budget, so their time is unattributed.",
        place=(8, 28, 8, 8),
        unit="short",
        no_value="no rank is measured",
        queries=[
            query(f"{rate_of('goodput_sdk_dropped_total', 'what', RUN)} * 60 > 0", "dropped {{what}}"),
            query(f"{rate_of('goodput_sdk_unmeasured_steps_total', '', RUN)} * 60", "steps by length alone"),
            query(f"sum(goodput_loader_workers_unmeasured_total{{{RUN}}})", "workers not measured"),
            query(f"count(goodput_sdk_phases_every{{{RUN}}} == 0)", "ranks without phases"),
        ],
    )
    return change(panel, "ranks without phases", unit="short", axis_right=True)


def worst():
    cost = f"topk(10, max by (run, rank, host) (rank:sdk_cost:ratio_15m{{{RUN}}} * on (run, rank) group_left (host) {_HOST}))"
    panel = rows(
        "Ranks in which measuring costs most",
        "The ten ranks in which measuring costs most, with their host and what their budget allows. One host for all of them: its CPUs are "
        "overloaded, see the pressure on its board. All ranks alike: the run's own phases are many; see the run.",
        place=(16, 28, 8, 8),
        unit="percentunit",
        no_value="no rank is measured",
        first=["run", "rank", "host"],
        sort="cost",
        columns=[
            column(cost, "cost"),
            column(
                f"max by (run, rank) (goodput_sdk_budget_ratio{{{RUN}}}) and on (run, rank) {cost}", "budget"
            ),
            column(
                f"max by (run, rank) (goodput_sdk_phases_every{{{RUN}}}) and on (run, rank) {cost}",
                "phases measured",
            ),
        ],
    ).decimals(3)
    override(panel, "phases measured", {"unit": "bool_yes_no"})
    lead(panel, "run", "Open the run", address("goodput-run", {"run": "field:run"}))
    return lead(
        panel, "rank", "Open the rank", address("goodput-rank", {"run": "field:run", "rank": "field:rank"})
    )


_HOST = "topk by (run, rank) (1, group by (run, rank, host) (goodput_rank_info))"
