"""Which versions of the node agent push: that of each node's newest report, about 200 bytes a node."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

# Nodes that are known, the one that has been silent longest is forgotten beyond; and those that are counted.
NODES_MAX, HEARD_SECONDS = 16_384, 600.0
VERSION_CHARS_MAX, NAME_CHARS_MAX = 32, 255
UNKNOWN = "unknown"


class AgentVersions:
    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._nodes: dict[str, tuple[str, float]] = {}  # version, when it was heard; the newest last

    def add(self, node: str, version: str) -> None:
        """Note the version that a node's agent reports; it is unknown where that cannot be shown."""
        if not 0 < len(node) <= NAME_CHARS_MAX:
            return
        if not 0 < len(version) <= VERSION_CHARS_MAX or not version.isprintable():
            version = UNKNOWN
        self._nodes.pop(node, None)
        self._nodes[node] = version, self._clock()
        if len(self._nodes) > NODES_MAX:
            del self._nodes[next(iter(self._nodes))]

    def count(self) -> Counter[str]:
        """Nodes whose agent has pushed in the last ten minutes, by its version."""
        since = self._clock() - HEARD_SECONDS
        return Counter(version for version, heard in self._nodes.values() if heard >= since)
