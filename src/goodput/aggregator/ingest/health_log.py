"""Health events of nodes' hardware in memory, by node and number, bounded.

Merging is keyed, so lost, repeated and reordered reports change nothing. An event weighs one, plus one for each process
that it hit; each node may weigh NODE_WEIGHT_MAX and all together WEIGHT_MAX. Beyond that the least important event is
dropped from memory (not from the ledger) and counted: info before warning before critical, and of one severity the
oldest, where a time in the future counts as now. Events pushed with a token for some runs only have a tenth of these
bounds to themselves, so that they cannot displace others.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter

from msgspec.structs import replace

from goodput.aggregator.records import SCOPED_OFFSET, HealthKey, health_key
from goodput.wire import schema

# The kinds with a label of their own; series show any other as "other".
KINDS = (
    *("xid", "ecc", "row_remap", "page_retired", "throttle", "lost", "back", "missing", "driver_stuck"),
    *("link_down", "link_up", "link_flap", "retransmits", "driver", "other"),
)
NODE_WEIGHT_MAX, WEIGHT_MAX = 2000, 50_000
SCOPED_SHARE = 10
NODE_CHARS_MAX = 255
# How far a node's clock may be ahead; an event further ahead would stay the newest for that long.
AHEAD_NS_MAX = 5 * 60 * 10**9

Entry = tuple[int, int, str, int]  # an event's importance (severity, time) and key


class _BoundedEvents:
    """Events under one pair of bounds, each divided by `share`."""

    def __init__(self, counts: Counter, share: int = 1):
        self.counts, self._share = counts, share
        self.events: dict[HealthKey, schema.Health] = {}
        self._by_node: dict[str, list[Entry]] = {}  # sorted
        self._node_weight: Counter = Counter()
        self._weight = 0
        self.by_run: dict[str, set[HealthKey]] = {}

    def add(self, key: HealthKey, event: schema.Health, importance: tuple[int, int]) -> bool:
        """Whether the event is new and kept."""
        if key in self.events:
            return False
        self.events[key] = event
        self._weigh(key, event, 1)
        insort(self._by_node.setdefault(key[0], []), (*importance, *key))
        for run in {run for run, _ in event.hits}:
            self.by_run.setdefault(run, set()).add(key)
        while self._node_weight[key[0]] > NODE_WEIGHT_MAX // self._share:
            self._drop(self._by_node[key[0]][0])
        while self._weight > WEIGHT_MAX // self._share:
            self._drop(min(entries[0] for entries in self._by_node.values()))
        return key in self.events

    def of_run(self, run: str) -> list[tuple[HealthKey, schema.Health]]:
        return [(key, self.events[key]) for key in self.by_run.get(run, ())]

    def _weigh(self, key: HealthKey, event: schema.Health, sign: int) -> None:
        weight = sign * (1 + len(event.hits))
        self._node_weight[key[0]] += weight
        self._weight += weight

    def _drop(self, entry: Entry) -> None:
        key = entry[2:]
        event = self.events.pop(key)
        self.counts["dropped", "full"] += 1
        self._weigh(key, event, -1)
        entries = self._by_node[key[0]]
        entries.pop(0)
        if not entries:
            del self._by_node[key[0]], self._node_weight[key[0]]
        for run in {run for run, _ in event.hits}:
            self.by_run[run].discard(key)
            if not self.by_run[run]:
                del self.by_run[run]


class HealthLog:
    """`counts` has new events by (kind, severity), and dropped ones by ("dropped", reason)."""

    def __init__(self):
        self.counts: Counter = Counter()
        self._own, self._scoped = _BoundedEvents(self.counts), _BoundedEvents(self.counts, SCOPED_SHARE)
        self._parts = (self._own, self._scoped)

    def __len__(self) -> int:
        return sum(len(part.events) for part in self._parts)

    def __contains__(self, key: HealthKey) -> bool:
        return any(key in part.events for part in self._parts)

    def add(
        self, node: str, event: schema.Health, now_ns: int = 0, ahead_ns: int = 0, is_scoped: bool = False
    ) -> bool:
        """Merge an event; whether it is new and kept. With `now_ns` it may be at most `ahead_ns` ahead of that."""
        if not 0 < len(node) <= NODE_CHARS_MAX or not node.isprintable() or not schema.is_health(event):
            self.counts["dropped", "malformed"] += 1
            return False
        if now_ns and event.time_ns > now_ns + ahead_ns:
            self.counts["dropped", "time"] += 1
            return False
        time_ns = min(event.time_ns, now_ns) if now_ns else event.time_ns
        importance = schema.SEVERITIES.index(event.severity), time_ns
        part = self._scoped if is_scoped else self._own
        if not part.add(health_key(node, event, is_scoped), event, importance):
            return False
        if now_ns:
            self.counts[kind_of(event), event.severity] += 1
        return True

    def restore(self, node: str, event: schema.Health) -> None:
        """Merge an event of the ledger, whose number is its key's."""
        is_scoped, number = divmod(event.number, SCOPED_OFFSET)
        self.add(node, replace(event, number=number), is_scoped=bool(is_scoped))

    def has_hit(self, run: str) -> bool:
        return any(run in part.by_run for part in self._parts)

    def of_run(self, run: str) -> list[tuple[HealthKey, schema.Health]]:
        """The events that hit a run, in no order."""
        return [entry for part in self._parts for entry in part.of_run(run)]

    def all(self) -> list[tuple[HealthKey, schema.Health]]:
        """All events, in no order."""
        return [entry for part in self._parts for entry in part.events.items()]


def kind_of(event: schema.Health) -> str:
    """The event's kind as a label."""
    return event.kind if event.kind in KINDS else "other"
