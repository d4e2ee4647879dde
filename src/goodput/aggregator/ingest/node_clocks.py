"""How far each node's clock is from ours, as bounds, from the pushes of its agent.

A report says when it was sent by the node's clock. It arrived later, so the node is ahead of us by at least `sent - arrived`.
It also says how long the push before took until its answer, by the agent's monotonic clock, and that one arrived within
this time: so the node is ahead by at most `sent - arrived + took` of that push, as in NTP. A push that came late widens
nothing: it only bounds the node's clock less tightly than others do. Bounds are the tightest of the last 8 to 16 pushes; a
push that contradicts them shows that a clock was stepped, and they begin anew.

Durations are differences of one clock. The times of a process are moved by the offset that its node had when it was first
reported (moved_times.py). Reports of tokens for some runs are left out, since such a token may name any node; their nodes'
clocks are kept apart. Cost: 4 us a push, 360 bytes a node.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Protocol

from goodput.aggregator.clock import SKEW_NS, WIDEST, Offset, SteadyClock
from goodput.aggregator.ingest.known_ranks import AnyReport
from goodput.wire import schema

log = logging.getLogger("goodput.aggregator")

# Nodes that are known; beyond, the one that has been silent for the longest time is forgotten.
NODES_MAX, HOSTS_MAX, NODE_CHARS_MAX = 16_384, 65_536, 255
HALF_WINDOW = 8  # pushes
# A push that takes longer has failed for the agent.
PUSH_NS_MAX = 10 * 10**9
# Nodes that have pushed in this time count where a step of our wall clock is to be confirmed, and are listed.
RECENT_NS, LISTED_NS = 60 * 10**9, 600 * 10**9
COUNTED_NS = 5 * 10**9  # any client may read the count
STEP_NS, CONFIRMED_NS = 10**9, 2 * 10**9
# Where so many nodes or more push and most of them agree, our own clock is wrong, and not theirs.
AGREEING_LEAST = 3


class _Node:
    """The bounds on a node's clock by its pushes: of HALF_WINDOW pushes `before`, and of those since then, `now`."""

    __slots__ = ("ahead_ns", "before", "heard_ns", "now", "pushes", "sent_ns")

    def __init__(self) -> None:
        self.before, self.now, self.pushes = WIDEST, WIDEST, 0
        self.sent_ns = self.ahead_ns = self.heard_ns = 0  # of the last push

    def offset(self) -> Offset:
        (low, high), (other_low, other_high) = self.before, self.now
        return Offset(low if low > other_low else other_low, high if high < other_high else other_high)

    def narrow(self, bounds: tuple[int, int]) -> None:
        """Add the bounds of a push; where they contradict those known a clock was stepped."""
        low, high = _both(self.offset(), bounds)
        if low > high:
            self.before, self.now, self.pushes = WIDEST, bounds, 0
        else:
            self.now = _both(self.now, bounds)

    def end_push(self) -> None:
        self.pushes += 1
        if self.pushes == HALF_WINDOW:
            self.before, self.now, self.pushes = self.now, WIDEST, 0

    def move(self, step_ns: int) -> None:
        self.before, self.now = (
            (low if low == WIDEST[0] else low + step_ns, high if high == WIDEST[1] else high + step_ns)
            for low, high in (self.before, self.now)
        )
        self.ahead_ns += step_ns
        self.heard_ns -= step_ns


def _both(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), min(one[1], other[1])


class NodeClocks:
    """The clocks of the nodes that push; `clock_ns` is ours."""

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns):
        self._clock_ns = clock_ns
        self._nodes: dict[str, _Node] = {}  # the one heard last at the end
        self._of_host: dict[str, str] = {}  # the node whose agent reports a host's ranks
        self._count, self._counted_ns = 0, -COUNTED_NS
        self._reference, self._referred_ns = 0, -COUNTED_NS

    def add(self, report: AnyReport, arrived_ns: int) -> Offset | None:
        """Take a report's times; returns its node's offset. A name that cannot be a label, or a time that no clock can
        have, is ignored."""
        name = report.node
        if not 0 < len(name) <= NODE_CHARS_MAX or not name.isprintable():
            return None
        if not 0 < report.sent_ns < schema.TIME_NS_MAX:
            return None
        node = self._nodes.pop(name, None) or _Node()
        self._nodes[name] = node
        if len(self._nodes) > NODES_MAX:
            del self._nodes[next(iter(self._nodes))]
        self._note_hosts(report)
        ahead_ns = report.sent_ns - arrived_ns
        if report.previous_sent_ns == node.sent_ns > 0 and 0 <= report.previous_took_ns <= PUSH_NS_MAX:
            node.narrow((node.ahead_ns, node.ahead_ns + report.previous_took_ns))
        node.narrow((ahead_ns, WIDEST[1]))
        node.end_push()
        node.sent_ns, node.ahead_ns, node.heard_ns = report.sent_ns, ahead_ns, arrived_ns
        return node.offset()

    def narrow(self, name: str, bounds: Offset, arrived_ns: int) -> None:
        """Take the bounds on a node's clock that an ingest worker knows with a push, which is to be added next.

        An aggregator of a stream has only those pushes that have ranks of its partitions: often not the one before.
        """
        if not 0 < len(name) <= NODE_CHARS_MAX or not name.isprintable() or bounds.low_ns > bounds.high_ns:
            return
        node = self._nodes.setdefault(name, _Node())
        node.narrow(bounds)
        node.heard_ns = max(node.heard_ns, arrived_ns)

    def _note_hosts(self, report: AnyReport) -> None:
        """Containers have host names of their own."""
        for host in {rank.identity.host for rank in report.ranks} - {report.node}:
            self._of_host[host] = report.node
        while len(self._of_host) > HOSTS_MAX:
            del self._of_host[next(iter(self._of_host))]

    def offset(self, host: str) -> Offset | None:
        """That of a node, or of the node whose agent reports the ranks of a host; None if none has pushed."""
        node = self._nodes.get(self._of_host.get(host, host))
        return None if node is None else node.offset()

    def ours(self, host: str, ns: int) -> int:
        """A time that a host has stamped, on our clock: moved by the estimate where the clocks surely differ."""
        found = self.offset(host)
        return ns if found is None else ns - found.correction_ns

    def listed(self) -> Iterator[tuple[str, Offset, int]]:
        """Name, offset and the age of the last push in ns, of nodes that have pushed recently; the last one first."""
        now_ns = self._clock_ns()
        for name, node in reversed(self._nodes.items()):
            age_ns = max(now_ns - node.heard_ns, 0)
            if age_ns > LISTED_NS:
                return
            yield name, node.offset(), age_ns

    def reference_ns(self) -> int:
        """What offsets are counted from: 0, or where ours is the wrong clock the offset in which most nodes agree."""
        now_ns = self._clock_ns()
        if abs(now_ns - self._referred_ns) >= COUNTED_NS:
            found = [one.ns for _, one, age_ns in self.listed() if one.is_known and age_ns <= RECENT_NS]
            middle = int(median(found)) if len(found) >= AGREEING_LEAST else 0
            agreeing = sum(abs(ns - middle) <= CONFIRMED_NS for ns in found)
            is_ours = abs(middle) > SKEW_NS and 2 * agreeing > len(found)
            self._reference, self._referred_ns = middle if is_ours else 0, now_ns
        return self._reference

    def count_skewed(self) -> int:
        """How many nodes' clocks are off, as counted some seconds ago at most."""
        now_ns = self._clock_ns()
        if abs(now_ns - self._counted_ns) >= COUNTED_NS:
            self._count = sum(offset.is_skewed for _, offset, _ in self.listed())
            self._counted_ns = now_ns
        return self._count

    def skewed(self, hosts: Iterable[str]) -> list[tuple[str, Offset]]:
        """Of these hosts those whose clock is off, by name, with their nodes' offsets."""
        found = ((host, self.offset(host)) for host in sorted(set(hosts)))
        return [(host, offset) for host, offset in found if offset is not None and offset.is_skewed]

    def confirm(self, step_ns: int) -> bool:
        """Whether the nodes' clocks agree with ours after this step: half of those that push, or more."""
        found = [one.ns for _, one, age_ns in self.listed() if one.is_known and age_ns <= RECENT_NS]
        return bool(found) and abs(median(found) - step_ns) <= CONFIRMED_NS

    def move(self, step_ns: int) -> None:
        """Our clock was set forward by so much."""
        for node in self._nodes.values():
            node.move(-step_ns)


class Movable(Protocol):
    """Holds times on our clock."""

    def move(self, step_ns: int) -> None: ...


def follow_step(clock: SteadyClock, nodes: NodeClocks, *holders: Movable) -> bool:
    """Set our clock by a step of the wall clock that the nodes confirm; ages in `holders` stay. Whether it was."""
    step_ns = clock.step_ns()
    if abs(step_ns) < STEP_NS or not nodes.confirm(step_ns):
        return False
    clock.follow(step_ns)
    for holder in (nodes, *holders):
        holder.move(step_ns)
    log.warning("the wall clock was stepped by %.1f s, which the clocks of the nodes confirm", step_ns / 1e9)
    return True
