"""goodput / Node and GPU: what the hardware under a run does, and what is wrong with it.

In: series of goodput.metrics that the node agents serve, and recording rules of deploy/prometheus/recording.yml.
Out: one board of fifteen panels, read from the top: what is broken, how hard the GPUs work and in which phase,
what holds them back, and whether network, storage or host make them wait. Nodes and GPUs are chosen by variables;
what has a line per device is cut by topk, so the board costs the same for one GPU and for hundreds.

    python -m dashboards.generate
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from dashboards.frame import any_run, frame, gpus, nodes
from dashboards.node_panels import PANELS


def board() -> builders.Dashboard:
    return frame(
        "goodput-node",
        "What do the GPUs, links, disks and the host under a run do, and what is wrong with them?",
        variables=[any_run(), nodes(), gpus()],
        panels=PANELS,
    )
