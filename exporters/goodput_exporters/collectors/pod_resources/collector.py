"""The pods that have GPUs allocated, from the kubelet's pod-resources API, whatever runs in them and whether it runs.

They are in `goodput_gpu_pod_info`, which the collector `gpus` exposes. The socket is root's (its folder has mode 0750): without
it, or without h2 (the extra `pods`), pods are known by their processes alone (collectors/attribution). The kubelet is asked
every LIST_SECONDS; a kubelet that does not answer costs this collector, and its last answer counts for KEPT_SECONDS.
Of claims (DRA) whole GPUs are known by the names that NVIDIA's and AMD's drivers give them; MIG instances have names
there that NVML does not know.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable

from goodput_exporters.collector import CollectorError, NoData, ParseError, Settings
from goodput_exporters.collectors.pod_resources.device_names import device_names
from goodput_exporters.collectors.pod_resources.messages import Allocation, parse_allocations
from goodput_exporters.collectors.pod_resources.unary_call import unary_call
from goodput_exporters.gpu.merge import MergedGpu
from goodput_exporters.gpu.pci import normalize
from goodput_exporters.gpu.sample import PODS_MAX
from goodput_exporters.system.interval import Interval

LIST_SECONDS, KEPT_SECONDS, CALL_SECONDS_MAX = 15.0, 300.0, 2.0
ALLOCATIONS_MAX = 4096
METHOD = "/v1.PodResourcesLister/List"
# Kubernetes' own rules for names.
_POD = re.compile(r"[a-z0-9][-a-z0-9.]{0,252}")
_SHORT = re.compile(r"[a-z0-9][-a-z0-9]{0,62}")
_DEVICE = re.compile(r"[\w.:/-]{1,255}", re.ASCII)

Pod = tuple[str, str, str]


class PodResources:
    """`pods_of` is called by the collector `gpus`, in its thread."""

    name = "pod_resources"

    def __init__(self, settings: Settings, call: Callable[..., bytes] = unary_call):
        self._socket, self._call = settings.pod_resources, call
        self._sysfs, self._procfs = settings.sysfs, settings.procfs
        self._monotonic_ns = settings.monotonic_ns
        self._interval = Interval(LIST_SECONDS, settings.monotonic_ns)
        self._pods: dict[str, list[Pod]] = {}
        self._names: dict[str, set[str]] = {}  # of whole GPUs, by UUID
        self._listed_ns = 0
        self._problem = ""

    def collect(self, families) -> None:
        if not _is_socket(self._socket):
            self._pods = {}
            raise NoData(f"{self._socket}: no socket of a kubelet that may be reached")
        if self._interval.is_due():
            self._list()
        if self._problem:
            raise CollectorError(self._problem)

    def pods_of(self, gpu: MergedGpu) -> list[Pod]:
        """(pod, namespace, container) of those that have this GPU or MIG instance, by any name that plugins give it."""
        pods = self._pods
        if not pods or self._monotonic_ns() - self._listed_ns > KEPT_SECONDS * 1e9:
            return []
        names = {gpu.uuid, *gpu.names}
        if not gpu.parent:
            known = self._names
            if gpu.uuid not in known:
                known[gpu.uuid] = device_names(gpu, self._sysfs, self._procfs)
            names |= known[gpu.uuid]
        return sorted({pod for name in names for pod in pods.get(name, ())})[:PODS_MAX]

    def _list(self) -> None:
        self._problem = ""
        try:
            message = self._call(self._socket, METHOD, b"", CALL_SECONDS_MAX)
            self._pods, refused = by_device(list(parse_allocations(message)))
            self._names = {}
            self._listed_ns = self._monotonic_ns()
        except ImportError:
            self._problem = "h2 is not installed: pip install 'goodput-telemetry[pods]'"
        except (CollectorError, ParseError) as error:
            self._problem = f"{error}"
        else:
            if refused:
                self._problem = (
                    f"{self._socket}: {refused} devices beyond {ALLOCATIONS_MAX} or with invalid names"
                )


def by_device(allocations: list[Allocation]) -> tuple[dict[str, list[Pod]], int]:
    """The pods of each device of a GPU, and how many devices are left out."""
    found: dict[str, list[Pod]] = {}
    of_gpus = [one for one in allocations if "gpu" in one.resource or "/mig-" in one.resource]
    refused = max(0, len(of_gpus) - ALLOCATIONS_MAX)
    for one in of_gpus[:ALLOCATIONS_MAX]:
        # A GPU that is shared has several, as GPU-5d…::0 and GPU-5d…::1.
        device = one.device.partition("::")[0]
        is_valid = (
            _DEVICE.fullmatch(device)
            and _POD.fullmatch(one.pod)
            and _SHORT.fullmatch(one.namespace)
            and _SHORT.fullmatch(one.container)
        )
        if is_valid:
            found.setdefault(normalize(device) or device, []).append((one.pod, one.namespace, one.container))
        else:
            refused += 1
    return found, refused


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
