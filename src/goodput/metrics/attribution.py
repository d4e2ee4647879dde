"""Series that say whose a process, a GPU or a container is, to join others with."""

from __future__ import annotations

from goodput.metrics.metric import declare

SERIES = declare(
    "node",
    [
    ],
)  # fmt: skip
