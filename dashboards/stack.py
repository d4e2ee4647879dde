"""goodput / The stack itself: whether what watches the runs is well, and what it costs.

In: series of goodput.metrics that aggregators and node agents tell of themselves. Out: one board of fifteen panels: rate,
errors and duration of the aggregator and of the agents, their cost, and what measuring costs the trainers. Agents and
trainers are merged or cut by topk, so the board costs the same for one node and for a thousand.

    python -m dashboards.generate
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from dashboards.frame import agents, any_run, frame
from dashboards.stack_panels import PANELS


def board() -> builders.Dashboard:
    return frame(
        "goodput-stack",
        "Do aggregator and agents take all that comes, quickly and without loss, and what do they and the SDK cost?",
        variables=[any_run(), agents()],
        panels=PANELS,
    )
