"""Step rows and events of each rank process that the aggregator has not acknowledged. No clock, socket or lock.

Bounded: more than `rows_max` rows of a rank are thinned to the steps whose (step + 1) is a multiple of a stride, which
doubles as needed. All ranks keep the same steps, so they stay comparable; steps named by a checkpoint event and the
newest row are always kept. Rows are cumulative, so thinning loses resolution, never time. Of more than `events_max`
events the oldest marks are dropped first. A waiting row costs about 0.6 KB, adding one about 1 µs.

    backlog.add(report)
    batch = backlog.pending(rows_max=5000); ...; backlog.acknowledge(batch.reports)
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from goodput.wire import schema
from goodput_exporters.system.ranks import RankKey, rank_key

ROWS_MAX = 4096
EVENTS_MAX = 1024
RANKS_MAX = schema.RANKS_MAX
STRIDE_MAX = 1 << 62
_CHECKPOINTS = ("checkpoint_begun", "checkpoint_committed")
# Fields of the live part; None: as before.
_REPORTED_ONCE = ("collectives", "operations", "connections", "ras")


class Batch(NamedTuple):
    """Reports to send now; `truncated` if more are waiting."""

    reports: list[schema.RankReport]
    truncated: bool


class RankBacklog:
    """The backlog of one rank process. `latest` has its identity and current state, without rows."""

    def __init__(self, first: schema.RankReport, node: Backlog):
        self.latest = msgspec.structs.replace(first, steps=[], events=[])
        self.rows: list[schema.StepRow] = []
        self.events: list[schema.EventRow] = []
        self.stride = 1
        self.sequence_acknowledged = -1
        self._node = node  # with the bounds, and the counters of what they cost
        self._row_last = self._event_last = 0
        self._checkpoint_steps: dict[int, None] = {}  # oldest first

    @property
    def is_due(self) -> bool:
        return bool(self.rows or self.events) or self.latest.sequence > self.sequence_acknowledged

    def add(self, report: schema.RankReport) -> None:
        """Add a report; rows and events that were added before are skipped."""
        if report.sequence > self.latest.sequence:
            self._supersede(report)
        for event in report.events:
            if event.number > self._event_last:
                self._event_last = event.number
                self.events.append(event)
                if event.kind in _CHECKPOINTS:
                    self._checkpoint_steps[event.step] = None
        self._bound_events()
        self._add_rows(report.steps)

    def _supersede(self, report: schema.RankReport) -> None:
        """Take its state as the newest. What is reported once stays until it is acknowledged."""
        live, waiting = report.live, self.latest.live
        kept = {name: getattr(waiting, name) for name in _REPORTED_ONCE if getattr(live, name) is None}
        live = msgspec.structs.replace(live, **kept)
        self.latest = msgspec.structs.replace(report, live=live, steps=[], events=[])

    def acknowledge(self, sent: schema.RankReport) -> None:
        """Forget these rows and events; the state of this sequence number has arrived."""
        live = self.latest.live
        arrived = {
            name: None
            for name in _REPORTED_ONCE
            if getattr(live, name) is not None and getattr(live, name) == getattr(sent.live, name)
        }
        if arrived:
            live = msgspec.structs.replace(live, **arrived)
            self.latest = msgspec.structs.replace(self.latest, live=live)
        self.rows = without(self.rows, sent.steps)
        self.events = without(self.events, sent.events)
        self.sequence_acknowledged = max(self.sequence_acknowledged, sent.sequence)
        if not self.rows:
            self.stride = 1

    def report(self, rows_max: int) -> schema.RankReport:
        """The oldest rows and events, at most `rows_max`, with the latest state."""
        events = self.events[:rows_max]
        width = len(self.latest.phases)
        rows = [widened(row, width) for row in self.rows[: rows_max - len(events)]]
        return msgspec.structs.replace(self.latest, steps=rows, events=events)

    def _add_rows(self, rows: list[schema.StepRow]) -> None:
        fresh = [row for row in rows if row.number > self._row_last]
        if not fresh:
            return
        if self._row_last:
            # The first row includes those that the page's ring dropped before it was read.
            self._node.rows_thinned += fresh[0].number - self._row_last - 1
        self._row_last = fresh[-1].number
        if self.stride == 1:
            self.rows += fresh
        else:
            self.rows = self.rows[:-1] + self._on_stride(self.rows[-1:] + fresh)
        rows_max = self._node.rows_max
        while len(self.rows) > rows_max and self.stride < STRIDE_MAX:
            self.stride *= 2
            self.rows = self._on_stride(self.rows)
        if len(self.rows) > rows_max:
            # All remaining rows claim to be checkpoint steps: only a malicious page does that.
            self._node.rows_thinned += len(self.rows) - rows_max
            self.rows = self.rows[-rows_max:]

    def _on_stride(self, rows: list[schema.StepRow]) -> list[schema.StepRow]:
        stride, named = self.stride, self._checkpoint_steps
        kept = [row for row in rows[:-1] if (row.step + 1) % stride == 0 or row.step in named]
        self._node.rows_thinned += len(rows) - 1 - len(kept)
        return [*kept, rows[-1]]

    def _bound_events(self) -> None:
        excess = len(self.events) - self._node.events_max
        if excess > 0:
            self.events = without(
                self.events, sorted(self.events, key=lambda one: one.kind != "mark")[:excess]
            )
            self._node.events_dropped += excess
        while len(self._checkpoint_steps) > self._node.rows_max // 2:
            del self._checkpoint_steps[next(iter(self._checkpoint_steps))]


class Backlog:
    """All rank processes of the node; beyond `ranks_max` their reports are refused and counted."""

    def __init__(self, rows_max: int = ROWS_MAX, events_max: int = EVENTS_MAX, ranks_max: int = RANKS_MAX):
        if rows_max < 4 or events_max < 1 or ranks_max < 1:
            raise ValueError("a backlog holds at least 4 rows, 1 event and 1 rank")
        self.rows_max, self.events_max, self._ranks_max = rows_max, events_max, ranks_max
        self._waiting: dict[RankKey, RankBacklog] = {}  # least recently sent first
        # Since the start: rows merged into later ones, events dropped unsent, reports of too many processes.
        self.rows_thinned = self.events_dropped = self.reports_refused = 0

    def add(self, report: schema.RankReport) -> None:
        key = rank_key(report.identity)
        if key not in self._waiting:
            if len(self._waiting) >= self._ranks_max:
                self.reports_refused += 1
                return
            self._waiting[key] = RankBacklog(report, self)
        self._waiting[key].add(report)

    def pending(self, rows_max: int, ranks_max: int = RANKS_MAX) -> Batch:
        """The next batch, least recently sent ranks first, with at most `rows_max` rows and events.

        It has one process per rank, since a rejection names only run and rank.
        """
        reports, taken = [], set()
        for key, waiting in self._waiting.items():
            if not waiting.is_due:
                continue
            if rows_max <= 0 or len(reports) >= ranks_max or key[:2] in taken:
                return Batch(reports, True)
            report = waiting.report(rows_max)
            size = len(report.steps) + len(report.events)
            reports.append(report)
            taken.add(key[:2])
            rows_max -= size
            if size < len(waiting.rows) + len(waiting.events):
                return Batch(reports, True)
        return Batch(reports, False)

    def acknowledge(self, reports: list[schema.RankReport]) -> None:
        """Forget exactly what these reports contain."""
        for report in reports:
            key = rank_key(report.identity)
            waiting = self._waiting.pop(key, None)
            if waiting is not None:
                waiting.acknowledge(report)
                self._waiting[key] = waiting

    def is_acknowledged(self, key: RankKey) -> bool:
        """Whether everything of this process, its latest state included, was acknowledged."""
        waiting = self._waiting.get(key)
        return waiting is None or not waiting.is_due

    def forget(self, key: RankKey) -> None:
        """Drop a process whose page is gone; its unsent events count as dropped."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            self.events_dropped += len(waiting.events)

    @property
    def rows(self) -> int:
        """Step rows waiting."""
        return sum(len(waiting.rows) for waiting in self._waiting.values())


def without(waiting: list, sent: list) -> list:
    """The rows or events whose numbers are not in `sent`."""
    numbers = {record.number for record in sent}
    return [record for record in waiting if record.number not in numbers] if numbers else waiting


def widened(row: schema.StepRow, width: int) -> schema.StepRow:
    """The row with zeros for phases defined after it was written."""
    missing = width - len(row.totals)
    if missing <= 0:
        return row
    zeros = (0,) * missing
    return msgspec.structs.replace(row, totals=row.totals + zeros, outside=row.outside + zeros)
