"""Names of pods by container, without asking the kubelet: from the links to logs that it keeps.

In: the folder of links, /var/log/containers where the kubelet runs. Out: (pod, namespace, container) of a container
id, or None. The kubelet names each link POD_NAMESPACE_CONTAINER-ID.log; none of the first three can hold a "_".

Why not its pod-resources API, which also knows the devices given to a container: it is gRPC on a Unix socket for
root. grpcio 1.85 takes 14.5 MiB more and six threads after one call, where the agent and its driver have 3 MiB left of
their 64; a process of its own for it would take 30. An agent without this folder has the pod's uid from the control groups, by which
kube-state-metrics' kube_pod_info can be joined, and the names where the pod's downward API sets them.

A listing is read when an unknown id is asked for, at most once in LIST_SECONDS; at most LINKS_MAX are looked at.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

from goodput.wire.identity import clean_text

LIST_SECONDS = 5.0
LINKS_MAX = 4096
_LINK = re.compile(r"([^_]{1,253})_([^_]{1,63})_([^_]{1,253})-([0-9a-f]{64})\.log")

Names = tuple[str, str, str]


class Pods:
    def __init__(self, directory: str, monotonic: Callable[[], float] = time.monotonic):
        self._directory, self._monotonic = directory, monotonic
        self._names: dict[str, Names] = {}
        self._listed: float | None = None

    def __call__(self, container_id: str) -> Names | None:
        """(pod, namespace, container) of a container. Raises nothing."""
        if container_id not in self._names:
            now = self._monotonic()
            if self._listed is None or now - self._listed >= LIST_SECONDS:
                self._listed = now
                self._names = self._list()
        return self._names.get(container_id)

    def _list(self) -> dict[str, Names]:
        found = {}
        try:
            with os.scandir(self._directory) as links:
                for _, link in zip(range(LINKS_MAX), links, strict=False):
                    match = _LINK.fullmatch(link.name)
                    if match:
                        pod, namespace, container = (clean_text(name, 255) for name in match.groups()[:3])
                        found[match[4]] = pod, namespace, container
        except OSError:
            pass  # No kubelet here, or its folder is not given to the agent.
        return found
