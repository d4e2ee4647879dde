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
from goodput.wire.health_kinds import HEALTH_KINDS

NODE_WEIGHT_MAX, WEIGHT_MAX = 2000, 50_000
SCOPED_DIVISOR = 10  # events of tokens for some runs may take the bounds divided by this
NODE_CHARS_MAX = 255
# How far a node's clock may be ahead; an event further ahead would stay the newest for that long.
AHEAD_NS_MAX = 5 * 60 * 10**9

Entry = tuple[int, int, str, int]  # an event's importance (severity, time) and key
Part = tuple[bool, str]  # (is_scoped, node): events under one bound


class HealthLog:
    """`counts` has new events by (kind, severity), and dropped ones by ("dropped", reason)."""

    def __init__(self):
        self.counts: Counter = Counter()
        self._events: dict[HealthKey, schema.Health] = {}
        self._by_run: dict[str, set[HealthKey]] = {}
        self._entries: dict[Part, list[Entry]] = {}  # the least important first
        self._weights: Counter[Part | bool] = Counter()  # of each part, and of all scoped or other parts

    def __len__(self) -> int:
        return len(self._events)

    def __contains__(self, key: HealthKey) -> bool:
        return key in self._events

    def used_share(self) -> float:
        """The used part of the bound, of that for tokens of some runs or the other, whichever is fuller."""
        return max(self._weights[False] / WEIGHT_MAX, self._weights[True] / (WEIGHT_MAX // SCOPED_DIVISOR))

    def add(self, node: str, event: schema.Health, now_ns: int = 0, is_scoped: bool = False) -> bool:
        """Merge an event; whether it is new and kept. With `now_ns` it may be at most AHEAD_NS_MAX ahead of that."""
        if not 0 < len(node) <= NODE_CHARS_MAX or not node.isprintable() or not schema.is_health(event):
            self.counts["dropped", "malformed"] += 1
            return False
        if now_ns and event.time_ns > now_ns + AHEAD_NS_MAX:
            self.counts["dropped", "time"] += 1
            return False
        key, part = health_key(node, event, is_scoped), (is_scoped, node)
        if key in self._events:
            return False
        self._events[key] = event
        time_ns = min(event.time_ns, now_ns) if now_ns else event.time_ns
        insort(self._entries.setdefault(part, []), (schema.SEVERITIES.index(event.severity), time_ns, *key))
        self._weigh(part, event, 1)
        for run, _ in event.hits:
            self._by_run.setdefault(run, set()).add(key)
        divisor = SCOPED_DIVISOR if is_scoped else 1
        while self._weights[part] > NODE_WEIGHT_MAX // divisor:
            self._drop_from(part)
        while self._weights[is_scoped] > WEIGHT_MAX // divisor:
            self._drop_from(min((one for one in self._entries if one[0] == is_scoped), key=self._first))
        if key not in self._events:
            return False
        if now_ns:
            self.counts[kind_of(event), event.severity] += 1
        return True

    def restore(self, node: str, event: schema.Health) -> None:
        """Merge an event of the ledger, whose number is its key's."""
        is_scoped, number = divmod(event.number, SCOPED_OFFSET)
        self.add(node, replace(event, number=number), is_scoped=bool(is_scoped))

    def has_hit(self, run: str) -> bool:
        return run in self._by_run

    def of_run(self, run: str) -> list[tuple[HealthKey, schema.Health]]:
        """The events that hit a run, in no order."""
        return [(key, self._events[key]) for key in self._by_run.get(run, ())]

    def all(self) -> list[tuple[HealthKey, schema.Health]]:
        """All events, in no order."""
        return list(self._events.items())

    def _first(self, part: Part) -> Entry:
        return self._entries[part][0]

    def _weigh(self, part: Part, event: schema.Health, sign: int) -> None:
        for counted in (part, part[0]):
            self._weights[counted] += sign * (1 + len(event.hits))

    def _drop_from(self, part: Part) -> None:
        """Drop the part's least important event."""
        _, _, node, number = self._entries[part].pop(0)
        key = (node, number)
        event = self._events.pop(key)
        self.counts["dropped", "full"] += 1
        self._weigh(part, event, -1)
        if not self._entries[part]:
            del self._entries[part], self._weights[part]
        for run in {run for run, _ in event.hits}:
            self._by_run[run].discard(key)
            if not self._by_run[run]:
                del self._by_run[run]


def kind_of(event: schema.Health) -> str:
    """The event's kind as a label."""
    return event.kind if event.kind in HEALTH_KINDS else "other"
