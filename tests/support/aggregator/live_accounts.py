"""Live accounts compared with accounts over all rows, with an in-memory ledger."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from types import SimpleNamespace

from support.account.account_history import assert_closes
from support.aggregator.exports import STALE, with_integers

from goodput.account import Account, EndMark, compute
from goodput.account.by_core.engine import CoreEngine
from goodput.aggregator.accounts.live import IncrementalAccount, RunIsDirty
from goodput.aggregator.accounts.past import Past, account_of, folded, without_rows
from goodput.aggregator.column_attempt import columns_of
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger.blocks import as_columns
from goodput.aggregator.ledger.page_reader import PageBounds
from goodput.aggregator.ledger.segments import Segment
from goodput.aggregator.records import NewRecords
from goodput.aggregator.run_states import StateError, decode, encode
from goodput.runlog import replay
from goodput.runlog.export import export
from goodput.wire import schema
from goodput.wire.step_columns import widened

STALL = 60.0


class MemoryLedger:
    """The part of a Ledger's interface that accounts read, filled with what a store accepted."""

    url = "in memory"
    rows_held = 1 << 20

    def __init__(self):
        self.reports: dict[tuple, schema.RankReport] = {}
        self.kept: dict[tuple, dict[int, schema.StepRow]] = {}
        self.reported_events: dict[tuple, dict[int, schema.EventRow]] = {}
        self.end_marks: dict[schema.StackRequest, EndMark] = {}
        self.kept_segments: list[Segment] = []

    def append(self, merged: NewRecords, late: dict | None = None) -> None:
        """`late` as Store.take_late has it: segments with these rows are wrong."""
        for numbers in (late or {}).values():
            self.kept_segments = [
                one
                for one in self.kept_segments
                if not any(one.numbers.get(key, -1) >= number for key, number in numbers.items())
            ]
        identity = merged.report.identity
        key = (identity.rank, identity.attempt)
        before = self.reports.get(key)
        if before is None or before.sequence < merged.report.sequence:
            self.reports[key] = merged.report
        self.kept.setdefault(key, {}).update((row.number, row) for row in merged.rows())
        self.reported_events.setdefault(key, {}).update((event.number, event) for event in merged.events)

    def fetch(self, *_) -> SimpleNamespace:
        """Nothing is found: it has no thinned steps."""
        return SimpleNamespace(scalar=lambda: None)

    def processes(self, _run: str) -> list[schema.RankReport]:
        return sorted(self.reports.values(), key=lambda one: (one.identity.start_ns, one.identity.rank))

    sources = processes

    def ends(self, _run: str) -> dict[schema.StackRequest, EndMark]:
        return self.end_marks

    def rows(self, identity: schema.Identity, start_ns: int | None = None, end_ns: int | None = None):
        rows = self.kept[identity.rank, identity.attempt]
        found = [rows[number] for number in sorted(rows)]
        found = [row for row in found if start_ns is None or row.end_ns >= start_ns]
        return iter([row for row in found if end_ns is None or row.start_ns <= end_ns])

    def columns(self, process: schema.RankReport, start_ns=None, end_ns=None, after=0, page_blocks=1):
        """Some rows at a time, as wide as a block of them would be."""
        rows = [row for row in self.rows(process.identity, start_ns, end_ns) if row.number > after]
        for at in range(0, len(rows), 7):
            values = columns_of(rows[at : at + 7])
            yield as_columns(widened(values, len(process.phases)))

    def pages(self, processes, bounds, _rows):
        return [
            (columns.values for columns in self.columns(process, after=self._after(process, one)))
            for process, one in zip(processes, bounds, strict=True)
        ]

    def _after(self, process: schema.RankReport, bounds: PageBounds) -> int:
        before = 0
        for row in self.rows(process.identity) if bounds.from_ns is not None else ():
            if row.end_ns >= bounds.from_ns:
                break
            before = row.number - 1
        return max(before, bounds.after)

    def segments(self, _run: str):
        return iter([one.body for one in sorted(self.kept_segments, key=Segment.rows, reverse=True)])

    def segment_rows(self, _run: str) -> list[int]:
        return sorted(one.rows() for one in self.kept_segments)

    def segment(self, _run: str, rows: int) -> bytes | None:
        return next((one.body for one in self.kept_segments if one.rows() == rows), None)

    def take_segment(self, folding: IncrementalAccount, store: Store) -> None:
        """Keep the state of a fold, whose rows are all here."""
        copied = folding.copy()
        if copied is not None and copied[1] == store.late_rows(folding.run.name):
            with suppress(StateError):
                body = encode(copied[0])
                self.kept_segments.append(Segment("r1", decode(body).numbers(), body))

    def events(self, identity: schema.Identity) -> list[schema.EventRow]:
        reported_events = self.reported_events[identity.rank, identity.attempt]
        return [reported_events[number] for number in sorted(reported_events)]


def live_account(folding: IncrementalAccount, rows: MemoryLedger, now_ns: int):
    """The live account, folded again from `rows` where it needs the ledger."""
    for _ in range(2):
        try:
            return folding.account(now_ns)
        except RunIsDirty as needs:
            read = folded(rows, without_rows(folding.run), needs.facts, STALL)
            folding.begin(*read, late=needs.late)
    return folding.account(now_ns)


def differing_fields(found, expected) -> list[str]:
    return [name for name in expected.__dataclass_fields__ if getattr(found, name) != getattr(expected, name)]


def account_or_refold(folded: IncrementalAccount, whole, now_ns: int):
    """The live account, folded again from all rows where it needs the ledger, and whether it was."""
    try:
        return folded.account(now_ns), 0
    except RunIsDirty as needs:
        engine = CoreEngine(folded.run, needs.facts, 60.0)
        for own in needs.facts.by_rank.values():
            for one in own:
                key = one.rank, one.attempt
                to_ns, rows = needs.facts.bounds[key].to_ns, whole.attempts[key].ordered_rows()
                engine.rows(key, takewhile(lambda row, to_ns=to_ns: row.end_ns <= to_ns, rows))
        folded.begin(engine)
        return folded.account(now_ns), 1


@dataclass
class TwoStores:
    """A store that trims rows, with a ledger, and one that keeps all; every push goes to both."""

    some: Store = field(default_factory=Store)
    whole: Store = field(default_factory=Store)
    rows: MemoryLedger = field(default_factory=MemoryLedger)
    folding: IncrementalAccount | None = None

    def push(self, report, now_ns: int) -> int:
        """The number of new rows."""
        merged = self.some.merge(report, now_ns)
        self.rows.append(merged, self.some.take_late())
        self.whole.merge(report, now_ns)
        run = self.some.runs["r1"]
        self.folding = self.folding or IncrementalAccount(run, stall_seconds=STALL, stale_seconds=STALE)
        return len(merged.rows())

    def full(self, now_ns: int) -> Account:
        return compute(self.whole.runs["r1"], now_ns, stale_seconds=STALE, known_only=True)

    def compare(self, now_ns: int) -> bool:
        """Compare the accounts; False, without comparing, while a returned rank's backlog is incomplete."""
        found, expected = live_account(self.folding, self.rows, now_ns), self.full(now_ns)
        self.rows.take_segment(self.folding, self.some)
        assert_closes(found, elastic=True)
        if found.end_ns > expected.end_ns and expected.status == "running":
            return False
        assert differing_fields(found, expected) == []
        return True

    def compare_log_and_history(self, now_ns: int, path) -> None:
        """Compare history and replay; both lack the time of reception, so each rank's own clock counts."""
        for store in (self.some, self.whole):
            for process in store.processes.values():
                process.attempt.received_ns = 0
        expected = self.full(now_ns)
        path.write_bytes(b"".join(export(self.rows, "r1", now_ns)))
        (one,) = replay(str(path))
        found = with_integers(one.account)
        assert {
            name: found[name] for name, value in with_integers(expected).items() if found[name] != value
        } == {}
        past = Past(self.some.runs["r1"], now_ns, expected.threshold_ns, STALE)
        found = account_of(self.rows, past, (None, None))
        assert found.straggler == expected.straggler
        assert [rank.states for rank in found.ranks] == [rank.states for rank in expected.ranks]
        assert found.restarts == expected.restarts
