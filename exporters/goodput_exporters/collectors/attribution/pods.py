"""Pod names by container id, read from the links to container logs that the kubelet keeps.

The kubelet names each link POD_NAMESPACE_CONTAINER-ID.log; none of the first three can contain "_".

The kubelet's pod-resources API (collectors/pod_resources) names the pods of GPUs, not of processes: it has no container ids.
Without this folder there is still the pod's UID from the control groups (join with kube_pod_info of kube-state-metrics), and
the names where the downward API sets them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Callable

from goodput.wire.identity import clean_text
from goodput_exporters.system.interval import Interval

LIST_SECONDS = 5.0
LINKS_MAX = 4096
_LINK = re.compile(r"([^_]{1,253})_([^_]{1,63})_([^_]{1,253})-([0-9a-f]{64})\.log")

Names = tuple[str, str, str]


class Pods:
    """Lists the folder when it meets an unknown id, at most once per LIST_SECONDS."""

    def __init__(self, directory: str, monotonic_ns: Callable[[], int] = time.monotonic_ns):
        self._directory, self._interval = directory, Interval(LIST_SECONDS, monotonic_ns)
        self._names: dict[str, Names] = {}

    def __call__(self, container_id: str) -> Names | None:
        """(pod, namespace, container) of a container. Raises nothing."""
        if container_id not in self._names and self._interval.is_due():
            self._names = self._list()
        return self._names.get(container_id)

    def _list(self) -> dict[str, Names]:
        found = {}
        # Without a kubelet there is no such folder; it may also be missing in the agent's container.
        with contextlib.suppress(OSError), os.scandir(self._directory) as links:
            for link in itertools.islice(links, LINKS_MAX):
                match = _LINK.fullmatch(link.name)
                if match:
                    pod, namespace, container = (clean_text(name, 255) for name in match.groups()[:3])
                    found[match[4]] = pod, namespace, container
        return found
