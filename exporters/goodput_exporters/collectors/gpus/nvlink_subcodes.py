"""Completes the XIDs of NVLink 5 in samples with the sub-codes that only the kernel's log has.

The kernel writes the line before a driver reports the XID. Of several lines of a GPU within LINE_NS, as of its 18
links, the worst counts. Without a line, or without permission to read the log, an XID is as xid.py has it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from msgspec import structs

from goodput_exporters.gpu.nvidia.nvlink_xid import NUMBERS, NvlinkXid, parse_line
from goodput_exporters.gpu.pci import normalize
from goodput_exporters.gpu.sample import TEXT_MAX, Event, Sample
from goodput_exporters.system.kernel_log import KernelLog

LINES_MAX, SHOWN_MAX = 1024, 3
# A dcgm-exporter shows an XID up to its interval later, 30 s by default.
LINE_NS = 60 * 10**9
_RANK = {"info": 0, "warning": 1, "critical": 2}


class NvlinkSubcodes:
    def __init__(self, log: KernelLog, monotonic_ns: Callable[[], int] = time.monotonic_ns):
        self.log, self._monotonic_ns = log, monotonic_ns
        self._lock = threading.Lock()  # each driver has a thread
        self._found: deque[tuple[int, NvlinkXid]] = deque(maxlen=LINES_MAX)  # and when

    def complete(self, sample: Sample) -> Sample:
        """The sample, its XIDs of NVLink 5 with the severity, action and text of their sub-codes."""
        with self._lock:
            now_ns = self._monotonic_ns()
            self._found += [(now_ns, found) for found in map(parse_line, self.log.poll()) if found]
            if not any(event.kind == "xid" and event.code in NUMBERS for event in sample.events):
                return sample
            addresses = {gpu.uuid: normalize(gpu.pci).rpartition(".")[0] for gpu in sample.gpus}
            recent = [found for at_ns, found in self._found if now_ns - at_ns <= LINE_NS]
            events = [_complete(event, addresses.get(event.device, ""), recent) for event in sample.events]
        return structs.replace(sample, events=events)


def _complete(event: Event, address: str, found: list[NvlinkXid]) -> Event:
    mine = [one for one in found if event.kind == "xid" and (one.pci, one.number) == (address, event.code)]
    if not mine:
        return event
    worst = max(mine, key=lambda one: _RANK[one.severity])
    texts = list(dict.fromkeys(one.text for one in mine if one.severity == worst.severity))
    more = f" and {len(texts) - SHOWN_MAX} more" if len(texts) > SHOWN_MAX else ""
    times = f", {event.count} times" if event.count > 1 else ""
    text = f"to do: {worst.action}{times}, {'; '.join(texts[-SHOWN_MAX:])}{more}"
    return structs.replace(event, severity=worst.severity, text=text[:TEXT_MAX])
