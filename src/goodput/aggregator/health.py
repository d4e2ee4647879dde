"""What happened to nodes' hardware, in memory: health events by node and number, bounded.

In: the events of node reports, and what the ledger had. Out: those that are new, and those that are asked for.
Merging is keyed, so lost, repeated and reordered reports change nothing. An event weighs one, and one more for each
process that it hit; a node and all nodes together may weigh so much. Then the least important go first, info before
warning before critical and of one severity the oldest; what went is counted, and stays in the ledger.
It knows no account; health_costs.py says what an event has cost.
"""

from __future__ import annotations

import heapq
from collections import Counter

from goodput import schema

SEVERITIES = ("info", "warning", "critical")
# The kinds with a label of their own; agents may name others, which series show as "other".
KINDS = (
    *("xid", "ecc", "row_remap", "page_retired", "throttle", "lost", "back", "missing", "driver_stuck"),
    *("link_down", "link_up", "link_flap", "retransmits", "driver", "other"),
)
NODE_WEIGHT_MAX, WEIGHT_MAX = 2000, 50_000
NODE_CHARS_MAX = 255

Key = tuple[str, int]  # (node, number)


class HealthLog:
    """The events that are kept. `counts` has new events by (kind, severity), and those dropped by ("dropped", why)."""

    def __init__(self):
        self.counts: Counter = Counter()
        self.changes = 0  # grows with each event that comes or goes
        self._events: dict[Key, schema.Health] = {}
        self._nodes: dict[str, list[tuple]] = {}  # heaps, the least important in front
        self._node_weight: Counter = Counter()
        self._all: list[tuple] = []  # a heap; what went by its node's bound is still in it for a while
        self._weight = 0
        self._by_run: dict[str, set[Key]] = {}

    def __len__(self) -> int:
        return len(self._events)

    def __contains__(self, key: Key) -> bool:
        return key in self._events

    def take(self, node: str, event: schema.Health, now_ns: int = 0, ahead_ns: int = 0) -> bool:
        """Merge an event; whether it is new, and kept. With `now_ns` it may be at most `ahead_ns` ahead of it."""
        if not 0 < len(node) <= NODE_CHARS_MAX or not node.isprintable() or not schema.is_health(event):
            self.counts["dropped", "malformed"] += 1
            return False
        if now_ns and event.time_ns > now_ns + ahead_ns:
            self.counts["dropped", "time"] += 1
            return False
        key = (node, event.number)
        if key in self._events:
            return False
        self._add(key, event)
        self._bound(node)
        if key not in self._events:
            return False
        if now_ns:
            self.counts[kind_of(event), event.severity] += 1
        return True

    def has_hit(self, run: str) -> bool:
        return run in self._by_run

    def of_run(self, run: str) -> list[tuple[Key, schema.Health]]:
        """The events that hit a run, in no order."""
        return [(key, self._events[key]) for key in self._by_run.get(run, ())]

    def all(self) -> list[tuple[Key, schema.Health]]:
        """All events, in no order."""
        return list(self._events.items())

    def _add(self, key: Key, event: schema.Health) -> None:
        node, number = key
        rank = _importance(event)
        self._events[key] = event
        self.changes += 1
        heapq.heappush(self._nodes.setdefault(node, []), (*rank, number))
        heapq.heappush(self._all, (*rank, node, number))
        self._node_weight[node] += 1 + len(event.hits)
        self._weight += 1 + len(event.hits)
        for run in {run for run, _ in event.hits}:
            self._by_run.setdefault(run, set()).add(key)

    def _bound(self, node: str) -> None:
        while self._node_weight[node] > NODE_WEIGHT_MAX:
            *_, number = heapq.heappop(self._nodes[node])
            self._drop((node, number))
        while self._weight > WEIGHT_MAX:
            entry = heapq.heappop(self._all)
            if self._is_live(entry):
                # The least of all is the least of its node.
                heapq.heappop(self._nodes[entry[2]])
                self._drop(entry[2:])
        if len(self._all) > 2 * len(self._events) + 64:
            self._all = list(set(filter(self._is_live, self._all)))
            heapq.heapify(self._all)

    def _is_live(self, entry: tuple) -> bool:
        event = self._events.get(entry[2:])
        return event is not None and entry[:2] == _importance(event)

    def _drop(self, key: Key) -> None:
        event = self._events.pop(key)
        self.counts["dropped", "full"] += 1
        self.changes += 1
        self._node_weight[key[0]] -= 1 + len(event.hits)
        self._weight -= 1 + len(event.hits)
        if not self._node_weight[key[0]]:
            del self._node_weight[key[0]], self._nodes[key[0]]
        for run in {run for run, _ in event.hits}:
            self._by_run[run].discard(key)
            if not self._by_run[run]:
                del self._by_run[run]


def _importance(event: schema.Health) -> tuple[int, int]:
    """What is least goes first."""
    return SEVERITIES.index(event.severity), event.time_ns


def kind_of(event: schema.Health) -> str:
    """The event's kind as a label."""
    return event.kind if event.kind in KINDS else "other"
