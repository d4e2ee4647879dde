"""Health events of this node until the aggregator has them: what happened to a GPU or a link, and whom it hit.

In: gpu.Event records from drivers and links, each with the ranks that used the device. Out: schema.Health records to
send, kept until `settled`, and the series `goodput_health_events_total`. Numbers only grow, over restarts of the agent
too, so the aggregator takes each event once however often it comes.

Guarantee: at most WAITING_MAX wait; beyond that the oldest of the least severe goes, and is counted. Of two drivers
that tell the same of one device within SAME_SECONDS one is taken. It does not know what an event costs.

    log = HealthLog(time.time_ns); log.add(event, [("r1", 3)]); sent = log.pending(); ...; log.settled(sent)
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from goodput import schema
from goodput.identity import clean_text
from goodput_exporters.gpu import Event

WAITING_MAX = 1024
SENT_MAX = 256
SAME_SECONDS = 30.0
SAME_MAX = 1024
COUNTED_MAX = 64
SEVERITIES = ("info", "warning", "critical")
TEXT_MAX = 255
# Exposed from the start, so that the first event of each is an increase.
USUAL = (
    *(("xid", severity) for severity in SEVERITIES),
    *(("lost", "critical"), ("back", "info"), ("ecc", "info"), ("ecc", "critical"), ("row_remap", "warning")),
    *(("row_remap", "critical"), ("page_retired", "warning"), ("throttle", "warning"), ("link_up", "info")),
    *(
        ("link_down", "warning"),
        ("link_down", "critical"),
        ("link_flap", "warning"),
        ("link_flap", "critical"),
    ),
    ("retransmits", "warning"),
    ("driver", "warning"),
)


class HealthLog:
    """`kept` is False where there is nobody to send to: events are then only counted."""

    def __init__(self, unix_ns: Callable[[], int], kept: bool = True):
        self._unix_ns, self._kept = unix_ns, kept
        self._lock = threading.Lock()
        self._waiting: list[schema.Health] = []
        self._number = 0
        self._told: dict[tuple, tuple[int, str]] = {}  # who told it last, and when
        self._counts: Counter[tuple[str, str]] = Counter(dict.fromkeys(USUAL, 0))
        self._dropped = 0

    def add(self, event: Event, hits: list[tuple[str, int]], source: str = "") -> None:
        """Take an event that hit these ranks, (run, rank). `source` is the driver that tells it."""
        kind, severity = clean_text(event.kind, 32) or "unknown", event.severity
        device = clean_text(event.device, TEXT_MAX)
        severity = severity if severity in SEVERITIES else "warning"
        with self._lock:
            if self._is_told((kind, device, event.code), source):
                return
            self._number = max(self._number + 1, _number(self._unix_ns()))
            named = (kind, severity)
            if named not in self._counts and len(self._counts) >= COUNTED_MAX:
                named = ("other", severity)
            self._counts[named] += 1
            if not self._kept:
                return
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
            counts, dropped, waiting = sorted(self._counts.items()), self._dropped, len(self._waiting)
        for (kind, severity), count in counts:
            families.add("goodput_health_events_total", {"kind": kind, "severity": severity}, count)
        families.add("goodput_health_events_dropped_total", {}, dropped)
        families.add("goodput_health_events_waiting", {}, waiting)

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
