"""goodput / Fleet: what all GPUs did, what that was worth, and which run or node to look at first.

In: series of goodput.metrics and recording rules of deploy/prometheus/recording.yml, which have one series per run or
per state for the whole fleet. Out: one board of fifteen panels; rows that name a run lead to its board, those that
name a node to the node's.

    python -m dashboards.generate
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from dashboards.fleet_panels import PANELS
from dashboards.frame import frame


def board() -> builders.Dashboard:
    return frame(
        "goodput-fleet",
        "Of all GPU-hours, how many were useful work, what took the others, and where is it worth to look?",
        variables=[],
        panels=PANELS,
        time_from="now-6h",
        refresh="1m",
    )
