"""Which TCP connections of ranks are reported: of those that wait for communication, the ones that were busy longest.

A rank waits for communication if it spent WAITING_MIN of the window so far in it, or if it may hang. A window lasts until
STEPS_MIN steps have ended in it, from WINDOW_NS to WINDOW_NS_MAX: in a part of a step only one connection may be used, and
nothing to compare it with. All such ranks of one network namespace share a dump; the pause until the next one bounds the
cost to 1 / PAUSE_TIMES of a core. A rank that does not wait any more reports once that it has none. Connections within a
host are left out.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from goodput.rank_page.reader import Snapshot
from goodput.wire.connections import CONNECTIONS_MAX, ConnectionRow, Connections
from goodput_exporters.collector import CollectorError, Settings
from goodput_exporters.collectors.ranks.rank import Rank
from goodput_exporters.collectors.ranks.reported_collectives import AFTER_NS
from goodput_exporters.system.processes import Processes
from goodput_exporters.system.ranks import RankKey
from goodput_exporters.system.tcp_diag import (
    Connection,
    dump,
    host_of,
    is_loopback,
    namespace_of,
    socket_inodes,
)

log = logging.getLogger("goodput.node")

WINDOW_NS, WINDOW_NS_MAX = 10 * 10**9, 60 * 10**9
STEPS_MIN = 2  # ended in a window, so that it has one from its begin to its end
WAITING_MIN = 0.2
PAUSE_TIMES = 500
OUTCOMES = ("read", "failed")
_Samples = dict[int, Connection]


class _Seen(NamedTuple):
    """A rank at the begin of a window: its time in communication and its steps so far.

    `samples` are its connections, None if they were not read, since it did not wait.
    """

    at_ns: int
    waited_ns: int
    steps: int
    samples: _Samples | None

    def is_over(self, now_ns: int, steps: int) -> bool:
        """Whether the window ends here: it has a whole step, or lasts for too long."""
        return steps - self.steps >= STEPS_MIN or now_ns - self.at_ns >= WINDOW_NS_MAX


class ReportedConnections:
    """`outcomes` counts the ranks whose connections were read, or could not be."""

    def __init__(self, settings: Settings):
        self._procfs = settings.procfs
        self._processes = Processes(settings.procfs, monotonic_ns=settings.monotonic_ns)
        self._due_ns = 0
        self._seen: dict[RankKey, _Seen] = {}
        self._has_failed = False
        self.outcomes = Counter(dict.fromkeys(OUTCOMES, 0))

    def poll(self, ranks: Iterable[Rank], now_ns: int) -> None:
        """Give each rank, if it is time, what to report at monotonic `now_ns`; at other times nothing is read."""
        if now_ns < self._due_ns:
            return
        began_ns = time.thread_time_ns()
        before, self._seen = self._seen, {}
        waiting = {}
        for rank in ranks:
            if rank.snapshot is None or not rank.alive or rank.joined:
                continue
            begin = before.get(rank.key)
            now = _Seen(now_ns, _waited_ns(rank.snapshot, now_ns), rank.snapshot.steps_done, None)
            is_over = begin is None or begin.is_over(now_ns, now.steps)
            self._seen[rank.key] = now if is_over or begin is None else begin
            if _may_hang(rank, now_ns) or (begin and _has_waited(begin, now.waited_ns, now_ns)):
                waiting[rank] = now
            elif is_over and begin and begin.samples is not None:
                rank.connections = Connections(0)
        for rank, samples in self._read(list(waiting)).items():
            begin, now = before.get(rank.key), waiting[rank]._replace(samples=samples)
            rank.connections = _reported(now, begin)
            if begin is None or begin.samples is None or begin.is_over(now_ns, now.steps):
                self._seen[rank.key] = now
        self._due_ns = now_ns + max(WINDOW_NS, PAUSE_TIMES * (time.thread_time_ns() - began_ns))

    def _read(self, ranks: list[Rank]) -> dict[Rank, _Samples]:
        """The connections of these ranks' processes, of those where they can be read."""
        inodes: dict[Rank, set[int]] = {}
        namespaces: dict[int, dict[Rank, int]] = {}  # the pids in each
        processes = {rank.process(): rank for rank in ranks}
        for process, pid in self._processes.find(list(processes)).items():
            rank = processes[process]
            try:
                inodes[rank] = socket_inodes(pid, self._procfs)
                namespaces.setdefault(namespace_of(pid, self._procfs), {})[rank] = pid
            except CollectorError as error:
                self._fail(error)
        found: dict[Rank, _Samples] = {}
        for pids in namespaces.values():
            wanted = set().union(*(inodes[rank] for rank in pids))
            try:
                one = dump(next(iter(pids.values())), wanted, self._procfs)
            except CollectorError as error:
                self._fail(error)
                continue
            for rank in pids:
                found[rank] = {inode: one[inode] for inode in inodes[rank] & one.keys()}
        self.outcomes["read"] += len(found)
        self.outcomes["failed"] += len(ranks) - len(found)
        return found

    def _fail(self, error: CollectorError) -> None:
        if not self._has_failed:
            self._has_failed = True
            log.warning("connections of ranks that wait for communication: %s", error)


def _may_hang(rank: Rank, now_ns: int) -> bool:
    return now_ns - rank.progress_ns() > AFTER_NS


def _waited_ns(snapshot: Snapshot, now_ns: int) -> int:
    """Time in communication so far, the running phase included."""
    states, totals = snapshot.phase_states, snapshot.host_totals or snapshot.totals
    phases = {one for one in snapshot.phases if "communication" in (one, states.get(one))}
    waited_ns = sum(ns for name, ns in zip(snapshot.phases, totals, strict=False) if name in phases)
    return waited_ns + (max(now_ns - snapshot.last_ns, 0) if snapshot.phase in phases else 0)


def _has_waited(before: _Seen, waited_ns: int, now_ns: int) -> bool:
    return waited_ns - before.waited_ns >= WAITING_MIN * (now_ns - before.at_ns)


def _reported(now: _Seen, begin: _Seen | None) -> Connections:
    """The rows since the begin of the window; without a sample of that since the connections were opened."""
    known: Mapping[int, Connection] = (begin and begin.samples) or {}
    pairs: dict[tuple[str, str], list[ConnectionRow]] = {}
    for inode, one in (now.samples or {}).items():
        if not is_loopback(one):
            interfaces = host_of(one.local), host_of(one.remote)
            pairs.setdefault(interfaces, []).append(_row(one, known.get(inode)))
    rows = sorted(map(_joined, pairs.values()), key=_weight, reverse=True)
    window_ns = now.at_ns - begin.at_ns if begin is not None and begin.samples is not None else 0
    return Connections(window_ns, tuple(rows[:CONNECTIONS_MAX]))


def _waits(row: ConnectionRow) -> tuple[int, int]:
    return (row.retransmits, row.silent_ns) if row.unacked else (0, 0)


def _weight(row: ConnectionRow) -> tuple:
    return *_waits(row), row.busy_ns, row.bytes


def _joined(rows: list[ConnectionRow]) -> ConnectionRow:
    """One row of the connections between two interfaces, which share what is sent."""
    if len(rows) == 1:
        return rows[0]
    busiest, waits = max(rows, key=lambda row: row.busy_ns), max(rows, key=_waits)
    sums = {name: sum(getattr(row, name) for row in rows) for name in ("bytes", "segments", "retransmitted")}
    return replace(
        waits,
        local=busiest.local,
        remote=busiest.remote,
        busy_ns=busiest.busy_ns,
        rtt_ns=max(row.rtt_ns for row in rows),
        **sums,
    )


def _row(now: Connection, before: Connection | None) -> ConnectionRow:
    """A connection's row; `before` counts if it is the same connection, not another one with its inode."""
    if before is None or (before.local, before.remote) != (now.local, now.remote):
        before = Connection(now.local, now.remote, *[0] * 9)
    grown = [max(a - b, 0) for a, b in zip(now[2:], before[2:], strict=True)]
    since = Connection(now.local, now.remote, *grown)
    return ConnectionRow(
        now.local,
        now.remote,
        busy_ns=max(since.busy_us - since.limited_us, 0) * 1000,
        bytes=since.bytes_acked,
        segments=since.segments,
        retransmitted=since.retransmitted,
        rtt_ns=now.rtt_us * 1000,
        unacked=now.unacked,
        retransmits=now.retransmits,
        silent_ns=now.silent_ms * 10**6,
    )
