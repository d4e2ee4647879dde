"""The ledger's records of a run as a run log, whose replay gives the same account to the nanosecond.

A run that has not ended closes with a `look`, the time up to which the log goes. Memory is a few rows per process.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from msgspec.structs import astuple

from goodput.account import DECLARED, Attempt, EndMark
from goodput.account.collectives.operation_sums import NO_SUMS, sums_of
from goodput.log_lines import AttemptLines, line
from goodput.wire.sampled_stacks import NO_STACKS, SampledStacks
from goodput.wire.schema import EventRow, Identity, RankReport, StackRequest, StepRow, stack_request


class RunRecords(Protocol):
    """What `export` reads; aggregator.ledger has it."""

    def processes(self, run: str) -> Sequence[RankReport]: ...
    def rows(self, identity: Identity) -> Iterable[StepRow]: ...
    def events(self, identity: Identity) -> list[EventRow]: ...
    def ends(self, run: str) -> dict[StackRequest, EndMark]: ...


def export(ledger: RunRecords, run: str, now_ns: int) -> Iterator[bytes]:
    """The lines of a run, each with its newline, about in order of time."""
    processes = ledger.processes(run)
    if not processes:
        return
    start_ns = min(process.identity.start_ns for process in processes)
    yield line("run", start_ns, run=run)
    end_marks = ledger.ends(run)
    parts = [
        _process(
            p, ledger.rows(p.identity), ledger.events(p.identity), end_marks.get(stack_request(p.identity))
        )
        for p in processes
    ]
    for _, text in heapq.merge(*parts, key=lambda entry: entry[0]):
        yield text
    newest = max(p.identity.attempt for p in processes)
    last = {p.identity.rank: p.live for p in processes}
    # A rank without a part in the newest attempt may have gone silent in an earlier one.
    silent = any(live.alive and not live.ended for live in last.values())
    if silent or any(p.live.ended != "finished" for p in processes if p.identity.attempt == newest):
        yield line("look", now_ns)


def _process(
    report: RankReport, rows: Iterable[StepRow], events: list[EventRow], end_mark: EndMark | None
) -> Iterator[tuple[int, bytes]]:
    """(time, line) of one attempt."""
    attempt = _attempt(report, end_mark)
    for event in events:
        if event.kind == "failed":
            attempt.note_event(event.kind, event.step, event.time_ns, event.text)
    lines = AttemptLines(attempt)
    yield lines.begin(attempt, events)
    ordered = sorted(events, key=lambda event: event.time_ns)
    said = (entry for event in ordered if (entry := lines.event(event)) is not None)
    stepped = lines.rows(rows, attempt.phases, attempt.phase_states)
    yield from heapq.merge(stepped, said, key=lambda entry: entry[0])
    yield lines.last(attempt)


def _attempt(report: RankReport, end_mark: EndMark | None) -> Attempt:
    """The process as the account sees it, without its rows."""
    identity, live = report.identity, report.live
    attempt = Attempt(
        *(identity.rank, identity.attempt, identity.start_ns),
        **{name: getattr(identity, name) for name in DECLARED},
        phases=report.phases,
        phase_states=report.phase_states,
        seen_ns=live.now_ns,
        last_ns=live.last_ns,
        phase=live.phase,
        totals=live.totals,
        unmeasured=live.unmeasured,
        hardware=live.hardware,
        alive=live.alive,
        ended=live.ended,
        end_ns=live.end_ns,
        end_mark=end_mark,
    )
    attempt.stacks = NO_STACKS if live.stacks is None else SampledStacks(*astuple(live.stacks))
    attempt.collectives = sums_of(map(astuple, live.operations)) if live.operations else NO_SUMS
    return attempt
