"""goodput / Host and storage: processors, memory, disks, file systems and links of a node, in depth.

In: series of goodput.metrics that node agents serve, and recording rules. Out: one board of fifteen panels, below that
of the node: where the node's board says that GPUs wait for the host, storage or network, this one says for what. What has
a line per device or mount is cut by topk.

    python -m dashboards.generate
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from dashboards.frame import any_run, frame, nodes
from dashboards.host_panels import PANELS


def board() -> builders.Dashboard:
    return frame(
        "goodput-host",
        "What do loaders, checkpoints and collectives wait for on a node: cores, memory, disks, file systems, links?",
        variables=[any_run(), nodes()],
        panels=PANELS,
    )
