"""Health events of this node until the aggregator has them: what happened to a GPU or a link, and whom it hit.

In: gpu.Event records from drivers and links, each with the ranks that used the device. Out: schema.Health records to
send, kept until `settled`, the series `goodput_health_events_total`, and a line of the log for each (health_lines.py).
Numbers only grow, over restarts of the agent too, so the aggregator takes each event once however often it comes.

Guarantee: at most WAITING_MAX wait; beyond that the oldest of the least severe goes, and is counted. Of two drivers
that tell the same of one device within SAME_SECONDS one is taken. At most COUNTED_MAX series of devices that something
happened to; what is beyond is counted by its kind, with device `other`. It does not know what an event costs.

    log = HealthLog(time.time_ns); log.know("nvml", GPU, ["GPU-1"])  # counted from 0 on
    log.add(event, [("r1", 3)]); sent = log.pending(); ...; log.settled(sent)
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable

from goodput.wire import schema
from goodput.wire.identity import clean_text
from goodput_exporters.events.event_log import Lines
from goodput_exporters.gpu.sample import Event

log = logging.getLogger("goodput.node")

WAITING_MAX = 1024
SENT_MAX = 256
SAME_SECONDS = 30.0
SAME_MAX = 1024
COUNTED_MAX, KNOWN_MAX = 1024, 512
OTHER = "other"
SEVERITIES = ("info", "warning", "critical")
TEXT_MAX = 255
# Of a device that is there, by what it is: exposed from the start, so that the first event of each is an increase.
GPU = (
    *(("xid", "warning"), ("xid", "critical"), ("lost", "critical"), ("ecc", "critical"), ("throttle", "warning")),
    *(("row_remap", "warning"), ("row_remap", "critical"), ("page_retired", "warning")),
)  # fmt: skip
ETHERNET = (("link_down", "warning"), ("link_flap", "warning"))
RDMA = (("link_down", "critical"), ("link_flap", "critical"), ("retransmits", "warning"))
TCP = (("retransmits", "warning"),)
DRIVER = (("driver", "warning"),)
# Names that a flood of others cannot take the place of.
KINDS = {kind for kind, _ in (*GPU, *ETHERNET, *RDMA, *DRIVER)} | {"back", "link_up"}


class HealthLog:
    """`kept` is False where there is nobody to send to: events are then only counted."""

    def __init__(self, unix_ns: Callable[[], int], kept: bool = True, lines: Lines | None = None):
        self._unix_ns, self._kept = unix_ns, kept
        self._lines = lines or Lines()
        self._lock = threading.Lock()
        self._waiting: list[schema.Health] = []
        self._number = 0
        self._told: dict[tuple, tuple[int, str]] = {}  # who told it last, and when
        self._counts: Counter[tuple[str, str, str]] = Counter()  # kind, severity, device
        # By who knows of them: what may happen to the devices that are there.
        self._known: dict[str, tuple[frozenset[str], tuple[tuple[str, str], ...]]] = {}
        self._dropped = 0

    def know(self, source: str, usual: tuple[tuple[str, str], ...], devices: Iterable[str]) -> None:
        """These devices are there, in place of those that `source` named before; `usual` is GPU, ETHERNET, ..."""
        names = frozenset(devices)
        known = self._known.get(source)
        if known is None or known[0] != names:
            with self._lock:
                self._known[source] = names, usual

    def add(self, event: Event, hits: list[tuple[str, int]], source: str = "") -> None:
        """Take an event that hit these ranks, (run, rank). `source` is the driver that tells it."""
        with self._lock:
            line = self._take(event, hits, source)
        # Not under the lock, which a scrape takes: whoever reads the log may be slow.
        if line is not None:
            log.warning("%s", line)

    def _take(self, event: Event, hits: list[tuple[str, int]], source: str) -> str | None:
        """The line of the log, None where there is none."""
        kind, severity = clean_text(event.kind, 32) or "unknown", event.severity
        device = clean_text(event.device, TEXT_MAX)
        severity = severity if severity in SEVERITIES else "warning"
        if self._is_told((kind, device, event.code), source):
            return None
        self._number = max(self._number + 1, _number(self._unix_ns()))
        self._counts[self._counted(kind, severity, device)] += 1
        if self._kept:
            health = schema.Health(
                self._number,
                kind,
                device,
                _number(event.time_ns),
                _number(event.code),
                clean_text(event.name, TEXT_MAX),
                severity,
                clean_text(event.text, TEXT_MAX),
                sorted({hit for hit in hits if _is_hit(*hit)})[: schema.HITS_MAX],
            )
            self._keep(health)
        return self._lines.line(event, hits)

    def _keep(self, health: schema.Health) -> None:
        self._waiting.append(health)
        if len(self._waiting) > WAITING_MAX:
            oldest = min(self._waiting, key=lambda one: (SEVERITIES.index(one.severity), one.number))
            self._waiting.remove(oldest)
            self._dropped += 1

    def pending(self) -> list[schema.Health]:
        """What is to be sent next, oldest first."""
        with self._lock:
            return self._waiting[:SENT_MAX]

    def settled(self, sent: list[schema.Health]) -> None:
        """The aggregator has these."""
        numbers = {health.number for health in sent}
        with self._lock:
            self._waiting = [health for health in self._waiting if health.number not in numbers]

    def collect(self, families) -> None:
        with self._lock:
            counts = dict.fromkeys(self._expected(), 0) | self._counts
            dropped, waiting = self._dropped, len(self._waiting)
        for (kind, severity, device), count in sorted(counts.items()):
            labels = {"kind": kind, "severity": severity, "device": device}
            families.add("goodput_health_events_total", labels, count)
        families.add("goodput_health_events_dropped_total", {}, dropped)
        families.add("goodput_health_events_waiting", {}, waiting)

    def _counted(self, kind: str, severity: str, device: str) -> tuple[str, str, str]:
        """The series that an event counts in."""
        named = (kind, severity, device)
        if named in self._counts or len(self._counts) < COUNTED_MAX:
            return named
        return (kind if kind in KINDS else OTHER, severity, OTHER)

    def _expected(self) -> list[tuple[str, str, str]]:
        """What may happen to the devices that are there."""
        found = {
            (kind, severity, clean_text(device, TEXT_MAX))
            for names, usual in self._known.values()
            for device in sorted(names)[:KNOWN_MAX]
            for kind, severity in usual
        }
        return sorted(found)

    def _is_told(self, what: tuple, source: str) -> bool:
        now_ns = self._unix_ns()
        before_ns, teller = self._told.pop(what, (0, source))
        if teller != source and now_ns - before_ns < SAME_SECONDS * 1e9:
            self._told[what] = before_ns, teller
            return True
        self._told[what] = now_ns, source
        if len(self._told) > SAME_MAX:
            del self._told[next(iter(self._told))]
        return False


def _number(value: int) -> int:
    return min(max(value, 0), schema.TIME_NS_MAX - 1)


def _is_hit(run: str, rank: int) -> bool:
    """Whether schema.is_health takes it; one that it does not would cost the event, and the push it is in."""
    return len(run) <= TEXT_MAX and run.isprintable() and 0 <= rank < schema.WORLD_SIZE_MAX
