"""Queues events of GPUs, links and drivers for the aggregator, counts them, and logs a line for each.

Numbers grow even across restarts of the agent, so the aggregator takes each event once however often it is sent.
At most WAITING_MAX wait; beyond that the oldest of the least severe is dropped and counted. Of two drivers that
report the same event of a device within SAME_SECONDS one is used. At most COUNTED_MAX series of devices; further
events are counted by kind, with device `other`.

    queue = EventQueue(time.time_ns); queue.set_devices("gpu", ["GPU-1"], "nvml")  # counted from 0 on
    queue.add(event, [("r1", 3)]); batch = queue.pending(); queue.acknowledge(batch)
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from goodput.wire import schema
from goodput.wire.identity import clean_text
from goodput_exporters.events.event_log import RateLimitedFormatter
from goodput_exporters.gpu.sample import Event

log = logging.getLogger("goodput.node")

WAITING_MAX = 1024
BATCH_MAX = 256
SAME_SECONDS = 30.0
SAME_MAX = 1024
COUNTED_MAX, DEVICES_MAX = 1024, 512
EVENTS, OTHER = "goodput_health_events_total", "other"
TEXT_MAX = 255
# (kind, severity) of the events that a device of each type may have; of a GPU those that its drivers can report. They
# are exposed as 0 from the start, so that the first event is an increase.
POSSIBLE: dict[str, tuple[tuple[str, str], ...]] = {
    "gpu": (
        *(("xid", "warning"), ("xid", "critical"), ("lost", "critical"), ("ecc", "critical")),
        *(("throttle", "warning"), ("row_remap", "warning"), ("row_remap", "critical"), ("page_retired", "warning")),
    ),
    "ethernet": (("link_down", "warning"), ("link_flap", "warning")),
    "rdma": (("link_down", "critical"), ("link_flap", "critical"), ("retransmits", "warning")),
    "tcp": (("retransmits", "warning"),),
    "driver": (("driver", "warning"),),
}  # fmt: skip
# Kinds that keep their name when events of unknown kinds have used up COUNTED_MAX.
KINDS = {kind for pairs in POSSIBLE.values() for kind, _ in pairs}
KINDS |= {"back", "link_up", "gpu_reset", "gpu_hang", "page_fault"}


class EventQueue:
    """`is_sent` is False without an aggregator: events are then only counted and logged."""

    def __init__(
        self, unix_ns: Callable[[], int], is_sent: bool = True, formatter: RateLimitedFormatter | None = None
    ):
        self._unix_ns, self._is_sent = unix_ns, is_sent
        self._formatter = formatter or RateLimitedFormatter()
        self._lock = threading.Lock()
        self._waiting: list[schema.Health] = []
        self._number = 0
        self._last: dict[tuple, tuple[int, str]] = {}  # last report of each event: when, and by which driver
        self._counts: Counter[tuple[str, str, str]] = Counter()  # kind, severity, device
        # By type and driver: (kind, severity) of the possible events of each device that is present.
        self._devices: dict[tuple[str, str], Mapping[str, Iterable[tuple[str, str]]]] = {}
        self._dropped = 0
        # The keys of the series in order, with their label values, until there is another device or event.
        self._rows: list[tuple[tuple[str, str, str], tuple[str, ...]]] | None = None

    def set_devices(self, kind: str, devices: Iterable[str], driver: str = "") -> None:
        """Replace the devices of a type, a key of POSSIBLE; GPUs by the driver that reports them."""
        possible: dict[str, tuple[tuple[str, str], ...]] = dict.fromkeys(devices, POSSIBLE[kind])
        self.set_possible(kind, possible, driver)

    def set_possible(
        self, kind: str, possible: Mapping[str, Iterable[tuple[str, str]]], driver: str = ""
    ) -> None:
        """Replace the devices of a type, with (kind, severity) of the events that each may have."""
        if self._devices.get((kind, driver)) != possible:
            with self._lock:
                self._devices[kind, driver] = possible
                self._rows = None

    def add(self, event: Event, ranks: list[tuple[str, int]], source: str = "") -> None:
        """Add an event that affects these ranks, (run, rank). `source` is the driver that reports it."""
        with self._lock:
            line = self._add(event, ranks, source)
        # Outside the lock, which a scrape takes: writing to the log may block.
        if line is not None:
            log.warning("%s", line)

    def _add(self, event: Event, ranks: list[tuple[str, int]], source: str) -> str | None:
        """Returns the line to log, if any."""
        kind = clean_text(event.kind, 32) or "unknown"
        device = clean_text(event.device, TEXT_MAX)
        severity = event.severity if event.severity in schema.SEVERITIES else "warning"
        if self._is_duplicate((kind, device, event.code, event.name, severity), source):
            return None
        self._number = max(self._number + 1, _bounded(self._unix_ns()))
        key = self._count_key(kind, severity, device)
        if key not in self._counts:
            self._rows = None
        self._counts[key] += 1
        if self._is_sent:
            health = schema.Health(
                self._number,
                kind,
                device,
                _bounded(event.time_ns),
                _bounded(event.code),
                clean_text(event.name, TEXT_MAX),
                severity,
                clean_text(event.text, TEXT_MAX),
                sorted({rank for rank in ranks if _is_valid_rank(*rank)})[: schema.HITS_MAX],
            )
            self._enqueue(health)
        return self._formatter.format(event, ranks)

    def _enqueue(self, health: schema.Health) -> None:
        self._waiting.append(health)
        if len(self._waiting) > WAITING_MAX:
            least = min(self._waiting, key=lambda one: (schema.SEVERITIES.index(one.severity), one.number))
            self._waiting.remove(least)
            self._dropped += 1

    def pending(self) -> list[schema.Health]:
        """The next batch to send, oldest first."""
        with self._lock:
            return self._waiting[:BATCH_MAX]

    def acknowledge(self, batch: list[schema.Health]) -> None:
        """Drop what the aggregator has stored."""
        numbers = {health.number for health in batch}
        with self._lock:
            self._waiting = [health for health in self._waiting if health.number not in numbers]

    def collect(self, families) -> None:
        with self._lock:
            if self._rows is None:
                self._rows = self._series(families.row_of)
            counts = [(row, self._counts[key]) for key, row in self._rows]
            dropped, waiting = self._dropped, len(self._waiting)
        for row, count in counts:
            families.add_row(EVENTS, row, count)
        families.add("goodput_health_events_dropped_total", {}, dropped)
        families.add("goodput_health_events_waiting", {}, waiting)

    def _series(self, row_of: Callable) -> list[tuple[tuple[str, str, str], tuple[str, ...]]]:
        """Of the events that may happen and of those that did."""
        possible = {
            (kind, severity, clean_text(device, TEXT_MAX))
            for devices in self._devices.values()
            for device in sorted(devices)[:DEVICES_MAX]
            for kind, severity in devices[device]
        }
        return [
            (key, row_of(EVENTS, dict(zip(("kind", "severity", "device"), key, strict=True))))
            for key in sorted(possible | self._counts.keys())
        ]

    def _count_key(self, kind: str, severity: str, device: str) -> tuple[str, str, str]:
        key = (kind, severity, device)
        if key in self._counts or len(self._counts) < COUNTED_MAX:
            return key
        return (kind if kind in KINDS else OTHER, severity, OTHER)

    def _is_duplicate(self, event: tuple, source: str) -> bool:
        now_ns = self._unix_ns()
        before_ns, reporter = self._last.pop(event, (0, source))
        if reporter != source and now_ns - before_ns < SAME_SECONDS * 1e9:
            self._last[event] = before_ns, reporter
            return True
        self._last[event] = now_ns, source
        if len(self._last) > SAME_MAX:
            del self._last[next(iter(self._last))]
        return False


def _bounded(value: int) -> int:
    return min(max(value, 0), schema.TIME_NS_MAX - 1)


def _is_valid_rank(run: str, rank: int) -> bool:
    """Whether schema.is_health accepts it; otherwise the aggregator would drop the event."""
    return len(run) <= TEXT_MAX and run.isprintable() and 0 <= rank < schema.WORLD_SIZE_MAX
