"""The panels of the board of a run (run.py) that tell its ranks apart.

In: series of goodput.metrics and recording rules. Out: `heat` and `stragglers`. Never more than forty ranks are shown.
"""

from __future__ import annotations

from dashboards.frame import address
from dashboards.panels import (
    GREEN,
    RED,
    YELLOW,
    change,
    column,
    heats,
    lead,
    override,
    query,
    rows,
    widths,
)

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


def heat():
    own = f"max by (rank) (rank:own_step_seconds:mean_1m{{{RUN}}})"
    mean = (
        f"max by (rank) (avg_over_time(rank:own_step_seconds:mean_1m{{{RUN}}}[$__range:$__interval] @ end()))"
    )
    # First steps, which compile, would else leave one colour to all others.
    shown = f"clamp_max({own} and on (rank) topk(40, {mean}), 1.5 * scalar(quantile(0.5, {mean})))"
    return heats(
        "Step time by rank, less its waiting for others",
        "What each step takes of a rank itself, collectives left out: in lock-step all steps are equally long, and it is "
        "this that tells ranks apart. The forty ranks that take most; red is half as long again as usual, or more. "
        "One warm line: that rank, see the table. Warm columns: all ranks at once. Changing lines: uneven batches.",
        place=(0, 29, 12, 9),
        unit="s",
        no_value="no step in this time",
        queries=[query(_padded(shown), "{{rank}}")],
    )


def stragglers():
    node = "on (host) group_left (instance) topk by (host) (1, group by (host, instance) (goodput_node_info))"
    named = f"({SLOWEST} * {node} or on (rank) {SLOWEST})"
    slower = f"max by (rank) (rank:slowness:ratio_5m{{{RUN}}}) - 1"
    panel = rows(
        "Stragglers and culprits: whom the others wait for",
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
    change(panel, "hangs since", unit="s", steps=[(None, RED)])
    widths(panel, rank=65, share=150)
    for name in ("rank", "host", "instance"):
        lead(panel, name, *(("Open the rank", RANK_LINK) if name == "rank" else ("Open the node", NODE_LINK)))
    return panel
