"""The ledger's records of a run as a run log, whose replay gives the same account to the nanosecond.

A row's cumulative totals become a `step` line with its phases, and `phase` lines for the time between steps; a row
of several steps has a `count`. What follows the last step is in the attempt's last line, a `beat` or an `end`. A run
that has not ended closes with a `look`, the time up to which the log goes. Memory is a few rows per process.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from operator import sub
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from goodput.account import DECLARED, Attempt, EndMark
from goodput.account.fold import padded, state_of
from goodput.account.states import fit, vector
from goodput.runlog.lines import HARDWARE
from goodput.wire.collectives import ReportedOperation
from goodput.wire.operation_row import UNKNOWN
from goodput.wire.schema import EventRow, Identity, RankReport, StackRequest, StepRow, stack_request

_encode = msgspec.json.encode


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
    yield _line("run", start_ns, run=run)
    end_marks = ledger.ends(run)
    parts = [
        _process(
            p, ledger.rows(p.identity), ledger.events(p.identity), end_marks.get(stack_request(p.identity))
        )
        for p in processes
    ]
    for _, line in heapq.merge(*parts, key=lambda entry: entry[0]):
        yield line
    newest = max(p.identity.attempt for p in processes)
    last = {p.identity.rank: p.live for p in processes}
    # A rank without a part in the newest attempt may have gone silent in an earlier one.
    silent = any(live.alive and not live.ended for live in last.values())
    if silent or any(p.live.ended != "finished" for p in processes if p.identity.attempt == newest):
        yield _line("look", now_ns)


def _process(
    report: RankReport, rows: Iterable[StepRow], events: list[EventRow], end_mark: EndMark | None
) -> Iterator[tuple[int, bytes]]:
    """(time, line) of one attempt."""
    identity, live = report.identity, report.live
    place = {"rank": identity.rank, "attempt": identity.attempt}
    fields: dict[str, Any] = {
        name: value for name in DECLARED if (value := getattr(identity, name)) not in (None, "")
    }
    resumed = [event.step for event in events if event.kind == "resumed"]
    if resumed:
        fields["resume_step"] = min(resumed)
    elif any(event.kind == "restored" for event in events):
        fields["restored"] = True
    if report.phase_states:
        fields["phase_states"] = report.phase_states
    yield identity.start_ns, _line("attempt", identity.start_ns, **place, **fields)
    steps = _Steps(report, place)
    saved = (_event(event, place) for event in sorted(events, key=lambda event: event.time_ns))
    stepped = (line for row in rows for line in steps.lines(row))
    yield from heapq.merge(stepped, filter(None, saved), key=lambda entry: entry[0])
    tail = [
        max(total - before, 0)
        for total, before in zip(live.totals, padded(steps.totals, len(live.totals)), strict=True)
    ]
    phases = {name: _seconds(ns) for name, ns in zip(report.phases, tail, strict=False) if ns}
    attempt = _attempt(report, steps.row_end_ns, end_mark)
    end_ns = attempt.known_end_ns()
    kind, at_ns = ("beat", live.now_ns) if end_ns is None else ("end", end_ns)
    last: dict[str, Any] = {} if end_ns is None else {"reason": live.ended or "killed"}
    if (mark := attempt.valid_end_mark()) is not None:
        last["over"] = mark.reason
        if mark.at_ns:
            last["over_at"] = _seconds(mark.at_ns)
    if live.unmeasured:
        last["unmeasured_steps"] = live.unmeasured
    last |= {
        name: _decimal(live.hardware[of], digits) for name, of, digits in HARDWARE if live.hardware.get(of)
    }
    if live.stacks is not None:
        last["stack_samples"] = msgspec.structs.asdict(live.stacks)
    if live.operations:
        last["collectives"] = [
            {
                "group": one.group,
                "operation": one.operation,
                "calls": one.calls,
                "bytes": one.bytes,
                "seconds": _seconds(one.exposed_ns),
                "startup_seconds": _seconds(one.before_ns),
                **({"issue_seconds": _seconds(one.issue_ns)} if one.issue_ns else {}),
                **({"group_size": one.size} if one.size else {}),
                **_hidden(one),
                **({"local_ranks": one.local} if one.local else {}),
                **({"link_bytes_per_second": one.link_rate} if one.link_rate else {}),
                **_on_device(one),
            }
            for one in live.operations
        ]
    if live.last_ns:
        last["phase_seconds"] = _seconds(max(at_ns - live.last_ns, 0))
    yield at_ns, _line(kind, at_ns, **place, **last, phase=live.phase, phases=phases)


def _hidden(one: ReportedOperation) -> dict[str, Raw]:
    """{} where it is not known."""
    if UNKNOWN in (one.hidden_ns, one.hidden_max_ns):
        return {}
    return {"hidden_seconds": _seconds(one.hidden_ns), "hidden_seconds_max": _seconds(one.hidden_max_ns)}


def _on_device(one: ReportedOperation) -> dict[str, Any]:
    """{} of calls that the host waits for."""
    queued = {"queued": True} if one.queued else {}
    if one.device_ns == UNKNOWN:
        return queued
    return {**queued, "device_seconds": _seconds(one.device_ns), "device_bytes": one.device_bytes}


def _attempt(report: RankReport, rows_end_ns: int, end_mark: EndMark | None) -> Attempt:
    """The process as the account sees it, to determine whether and when it ended."""
    identity, live = report.identity, report.live
    return Attempt(
        *(identity.rank, identity.attempt, identity.start_ns),
        seen_ns=live.now_ns,
        last_ns=live.last_ns,
        alive=live.alive,
        ended=live.ended,
        end_ns=live.end_ns,
        rows_end_ns=rows_end_ns,
        end_mark=end_mark,
    )


class _Steps:
    """A process's rows as steps, and as phases between them."""

    def __init__(self, report: RankReport, place: dict):
        self._phases, self._place = report.phases, place
        self._states = [state_of(name, report.phase_states) for name in report.phases]
        self.totals = self._outside = (0,) * len(report.phases)
        self._number = self._samples = self._device_ns = 0
        self._end_ns = report.identity.start_ns
        self.row_end_ns = 0

    def lines(self, row: StepRow) -> Iterator[tuple[int, bytes]]:
        width = len(self._phases)
        totals, outside = padded(row.totals, width), padded(row.outside, width)
        gap = list(map(sub, outside, self._outside))
        inside = [total - between for total, between in zip(map(sub, totals, self.totals), gap, strict=True)]
        self.row_end_ns = max(row.end_ns, self.row_end_ns)
        spent = row.end_ns - self._end_ns
        is_cut = False
        if spent < 0 or min(gap) < 0 or min(inside) < 0 or sum(gap) + sum(inside) != spent:
            gap, inside, is_cut = self._fitted(gap, inside, spent)
        end_ns, length = max(row.end_ns, self._end_ns), sum(inside)
        count, samples = row.number - self._number, max(row.samples - self._samples, 0)
        device_ns = min(max(row.device_ns - self._device_ns, 0), length)
        self.totals, self._outside, self._device_ns = totals, outside, row.device_ns
        self._number, self._samples, self._end_ns = row.number, row.samples, end_ns
        at = end_ns - length - sum(gap[1:])
        for name, ns in zip(self._phases[1:], gap[1:], strict=True):
            if ns:
                at += ns
                yield at, _line("phase", at, **self._place, phase=name, seconds=_seconds(ns))
        phases = {name: _seconds(ns) for name, ns in zip(self._phases[1:], inside[1:], strict=True) if ns}
        more: dict[str, Any] = {"samples": samples} if samples else {}
        if count > 1:
            more["count"] = count
        if device_ns:
            more["device_seconds"] = _seconds(device_ns)
        if is_cut:
            more["cut"] = True
        yield (
            end_ns,
            _line(
                "step", end_ns, **self._place, step=row.step, seconds=_seconds(length), phases=phases, **more
            ),
        )

    def _fitted(self, gap: list[int], inside: list[int], spent: int) -> tuple[list[int], list[int], bool]:
        """Fit a row that contradicts the one before as the account does; a state's time goes to its first phase.

        And whether the account does: states may agree where phases do not.
        """
        by_state = vector(), vector()
        for into, values in zip(by_state, (gap, inside), strict=True):
            for state, ns in zip(self._states, values, strict=True):
                into[state] += ns
        is_cut = spent < 0 or min(map(min, by_state)) < 0 or sum(map(sum, by_state)) != spent
        fit(*by_state, max(spent, 0))
        found = []
        for states in by_state:
            columns = [0] * len(self._phases)
            for state, ns in enumerate(states):
                if ns:
                    columns[self._states.index(state)] += ns
            found.append(columns)
        return found[0], found[1], is_cut


def _event(event: EventRow, place: dict) -> tuple[int, bytes] | None:
    if event.kind.startswith("checkpoint_"):
        committed = event.kind == "checkpoint_committed"
        return event.time_ns, _line(
            "checkpoint", event.time_ns, **place, step=event.step, committed=committed
        )
    if event.kind == "mark":
        return event.time_ns, _line("mark", event.time_ns, **place, text=event.text)
    return None


def _line(kind: str, time_ns: int, **fields) -> bytes:
    return _encode({"kind": kind, "time": _seconds(time_ns), **fields}) + b"\n"


def _seconds(ns: int) -> Raw:
    return _decimal(ns, 9)


def _decimal(value: int, digits: int) -> Raw:
    """A whole number of 10^-digits in JSON, exactly."""
    whole, part = divmod(abs(value), 10**digits)
    text = f"{'-' * (value < 0)}{whole}.{part:0{digits}d}".rstrip("0")
    return Raw((text + "0" if text.endswith(".") else text).encode())
