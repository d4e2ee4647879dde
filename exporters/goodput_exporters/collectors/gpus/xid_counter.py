"""Counts XID errors per GPU in the agent, where the counts outlive the drivers' processes.

Of two drivers that report the same errors the larger count is used, not the sum. At most GPUS_MAX GPUs per agent and
NUMBERS_MAX numbers per GPU; further numbers are counted as ("other", "unknown").
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from goodput_exporters.gpu.nvidia.nvlink_xid import NUMBERS
from goodput_exporters.gpu.nvidia.xid import lookup
from goodput_exporters.gpu.sample import Event, Sample

OTHER = ("other", "unknown")
GPUS_MAX, NUMBERS_MAX = 512, 64


class XidCounter:
    def __init__(self):
        self._lock = threading.Lock()  # each driver has a thread
        self._counts: dict[tuple[str, str], Counter[tuple[str, str]]] = {}  # by driver and UUID
        self._last: dict[str, int] = {}  # number by UUID

    def add_sample(self, sample: Sample) -> None:
        with self._lock:
            for event in sample.events:
                key = sample.driver, event.device
                if event.kind != "xid" or (key not in self._counts and len(self._counts) >= GPUS_MAX):
                    continue
                self._last[event.device] = event.code
                counts = self._counts.setdefault(key, Counter())
                number = str(event.code), _kind(event)
                counts[number if number in counts or len(counts) < NUMBERS_MAX else OTHER] += event.count

    def counts(self, uuids: Iterable[str]) -> Counter[tuple[str, str]]:
        """Counts by (XID, class) of the GPU that has these UUIDs."""
        found: Counter[tuple[str, str]] = Counter()
        with self._lock:
            for (_, uuid), counts in self._counts.items():
                if uuid in uuids:
                    found |= counts  # the larger of the two
        return found

    def last(self) -> dict[str, int]:
        """The number of each GPU's last XID, by UUID."""
        with self._lock:
            return dict(self._last)

    def forget(self, uuids: Iterable[str]) -> None:
        with self._lock:
            self._counts = {key: counts for key, counts in self._counts.items() if key[1] not in uuids}
            self._last = {uuid: number for uuid, number in self._last.items() if uuid not in uuids}


def _kind(event: Event) -> str:
    """The class: of an NVLink error that its sub-code makes critical another one, since alerts go by number and class."""
    xid = lookup(event.code)
    is_fatal = event.code in NUMBERS and event.severity == "critical" != xid.severity
    return "link_fatal" if is_fatal else xid.kind
