"""What happened to nodes' hardware, in memory: health events by node and number, bounded.

In: the events of node reports, and what the ledger had. Out: those that are new, and those that are asked for.
Merging is keyed, so lost, repeated and reordered reports change nothing. An event weighs one, and one more for each
process that it hit; a node and all nodes together may weigh so much. Then the least important go first, info before
warning before critical and of one severity the oldest, a time ahead counting as now; what went is counted, and stays in
the ledger. What came by a token for some runs has a tenth of these bounds to itself, so that it pushes out nothing else.
It knows no account; health_costs.py says what an event has cost.
"""

from __future__ import annotations

import heapq
from collections import Counter

from msgspec.structs import replace

from goodput.aggregator.records import SCOPED_OFFSET, HealthKey, health_key
from goodput.wire import schema

# The kinds with a label of their own; agents may name others, which series show as "other".
KINDS = (
    *("xid", "ecc", "row_remap", "page_retired", "throttle", "lost", "back", "missing", "driver_stuck"),
    *("link_down", "link_up", "link_flap", "retransmits", "driver", "other"),
)
NODE_WEIGHT_MAX, WEIGHT_MAX = 2000, 50_000
SCOPED_SHARE = 10
NODE_CHARS_MAX = 255
# Nodes' clocks differ by less where they are kept; what is far ahead would be the newest for that long.
AHEAD_NS_MAX = 5 * 60 * 10**9


class _Bounded:
    """Events under one pair of bounds, `share` of what there is."""

    def __init__(self, counts: Counter, share: int = 1):
        self.counts, self._share = counts, share
        self.changes = 0  # grows with each event that comes or goes
        self._events: dict[HealthKey, schema.Health] = {}
        self._ranks: dict[HealthKey, tuple[int, int]] = {}  # their importance
        self._nodes: dict[str, list[tuple]] = {}  # heaps, the least important in front
        self._node_weight: Counter = Counter()
        self._all: list[tuple] = []  # a heap; what went by its node's bound is still in it for a while
        self._weight = 0
        self._by_run: dict[str, set[HealthKey]] = {}

    def __len__(self) -> int:
        return len(self._events)

    def __contains__(self, key: HealthKey) -> bool:
        return key in self._events

    def keep(self, key: HealthKey, event: schema.Health, rank: tuple[int, int]) -> bool:
        """Whether it is new, and kept."""
        if key in self._events:
            return False
        self._add(key, event, rank)
        self._bound(key[0])
        return key in self._events

    def has_hit(self, run: str) -> bool:
        return run in self._by_run

    def of_run(self, run: str) -> list[tuple[HealthKey, schema.Health]]:
        """The events that hit a run, in no order."""
        return [(key, self._events[key]) for key in self._by_run.get(run, ())]

    def all(self) -> list[tuple[HealthKey, schema.Health]]:
        """All events, in no order."""
        return list(self._events.items())

    def _add(self, key: HealthKey, event: schema.Health, rank: tuple[int, int]) -> None:
        node, number = key
        self._events[key], self._ranks[key] = event, rank
        self.changes += 1
        heapq.heappush(self._nodes.setdefault(node, []), (*rank, number))
        heapq.heappush(self._all, (*rank, node, number))
        self._node_weight[node] += 1 + len(event.hits)
        self._weight += 1 + len(event.hits)
        for run in {run for run, _ in event.hits}:
            self._by_run.setdefault(run, set()).add(key)

    def _bound(self, node: str) -> None:
        while self._node_weight[node] > NODE_WEIGHT_MAX // self._share:
            *_, number = heapq.heappop(self._nodes[node])
            self._drop((node, number))
        while self._weight > WEIGHT_MAX // self._share:
            entry = heapq.heappop(self._all)
            if self._is_live(entry):
                # The least of all is the least of its node.
                heapq.heappop(self._nodes[entry[2]])
                self._drop(entry[2:])
        if len(self._all) > 2 * len(self._events) + 64:
            self._all = list(set(filter(self._is_live, self._all)))
            heapq.heapify(self._all)

    def _is_live(self, entry: tuple) -> bool:
        return self._ranks.get(entry[2:]) == entry[:2]

    def _drop(self, key: HealthKey) -> None:
        event = self._events.pop(key)
        del self._ranks[key]
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


class HealthLog(_Bounded):
    """The events that are kept. `counts` has new events by (kind, severity), and those dropped by ("dropped", why)."""

    def __init__(self):
        super().__init__(Counter())
        self._scoped = _Bounded(self.counts, SCOPED_SHARE)

    def __len__(self) -> int:
        return super().__len__() + len(self._scoped)

    def __contains__(self, key: HealthKey) -> bool:
        return super().__contains__(key) or key in self._scoped

    def seen(self) -> int:
        """Grows with each event that comes or goes."""
        return self.changes + self._scoped.changes

    def take(
        self, node: str, event: schema.Health, now_ns: int = 0, ahead_ns: int = 0, is_scoped: bool = False
    ) -> bool:
        """Merge an event; whether it is new, and kept. With `now_ns` it may be at most `ahead_ns` ahead of it."""
        if not 0 < len(node) <= NODE_CHARS_MAX or not node.isprintable() or not schema.is_health(event):
            self.counts["dropped", "malformed"] += 1
            return False
        if now_ns and event.time_ns > now_ns + ahead_ns:
            self.counts["dropped", "time"] += 1
            return False
        rank = _importance(event, now_ns)
        kept = self._scoped.keep if is_scoped else self.keep
        if not kept(health_key(node, event, is_scoped), event, rank):
            return False
        if now_ns:
            self.counts[kind_of(event), event.severity] += 1
        return True

    def restore(self, node: str, event: schema.Health) -> None:
        """Merge an event of the ledger, whose number is its key's."""
        is_scoped, number = divmod(event.number, SCOPED_OFFSET)
        self.take(node, replace(event, number=number), is_scoped=bool(is_scoped))

    def has_hit(self, run: str) -> bool:
        return super().has_hit(run) or self._scoped.has_hit(run)

    def of_run(self, run: str) -> list[tuple[HealthKey, schema.Health]]:
        return super().of_run(run) + self._scoped.of_run(run)

    def all(self) -> list[tuple[HealthKey, schema.Health]]:
        return super().all() + self._scoped.all()


def _importance(event: schema.Health, now_ns: int) -> tuple[int, int]:
    """What is least goes first."""
    return schema.SEVERITIES.index(event.severity), min(event.time_ns, now_ns) if now_ns else event.time_ns


def kind_of(event: schema.Health) -> str:
    """The event's kind as a label."""
    return event.kind if event.kind in KINDS else "other"
