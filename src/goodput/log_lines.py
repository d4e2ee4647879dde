"""The lines of a run log from an attempt's records, exact to the nanosecond: what `goodput.runlog` reads.

A row's cumulative totals become a `step` line with its phases, and `phase` lines for the time between steps; a row of
several steps has a `count`. What follows the last step is in the attempt's last line, a `beat` or an `end`. Uses the
standard library alone, since it also runs beside a training whose installation has nothing else. A step takes 20 us.

    lines = AttemptLines(attempt)
    [lines.begin(), *lines.rows(attempt.ordered_rows()), lines.last(attempt)]    # (time in ns, line) each
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from operator import sub
from typing import Any, Protocol

from goodput.account import DECLARED, Attempt
from goodput.account.attempts import padded
from goodput.account.collectives.operation_sums import rows_of
from goodput.account.states import fit, state_of, vector
from goodput.wire.operation_row import UNKNOWN, OperationRow

# Cumulative GPU samples in a beat or an end: field, key of Attempt.hardware, digits after the point.
HARDWARE = (
    ("gpu_compute_seconds", "compute_ns", 9),
    ("gpu_idle_seconds", "idle_ns", 9),
    ("gpu_joules", "energy_mj", 3),
)
_text = json.encoder.encode_basestring
Entry = tuple[int, bytes]


class StepRow(Protocol):
    """A row of the account, or one as it travels."""

    @property
    def number(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def totals(self) -> tuple[int, ...]: ...
    @property
    def outside(self) -> tuple[int, ...]: ...
    @property
    def device_ns(self) -> int: ...


class EventRow(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def time_ns(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def text(self) -> str: ...


class _Number(str):
    """A number that is written as it stands: a float would lose the nanoseconds of a time."""


class AttemptLines:
    """The lines of one attempt, whose rows may come in several parts. `number` is how its lines call the attempt."""

    def __init__(self, attempt: Attempt, number: int | None = None):
        self._place = {"rank": attempt.rank, "attempt": attempt.attempt if number is None else number}
        self._totals: tuple[int, ...] = ()
        self._outside: tuple[int, ...] = ()
        self._number = self._samples = self._device_ns = 0
        self._end_ns = attempt.start_ns
        self._row_end_ns = 0
        self.merged = 0  # steps whose line stands for several

    def begin(self, attempt: Attempt, events: Iterable[EventRow]) -> Entry:
        """What is declared of it; `events` are those before its first step or more."""
        fields: dict[str, Any] = {
            name: value for name in DECLARED if (value := getattr(attempt, name)) not in (None, "")
        }
        events = list(events)
        resumed = [event.step for event in events if event.kind == "resumed"]
        if resumed:
            fields["resume_step"] = min(resumed)
        elif any(event.kind == "restored" for event in events):
            fields["restored"] = True
        if attempt.phase_states:
            fields["phase_states"] = attempt.phase_states
        return attempt.start_ns, line("attempt", attempt.start_ns, **self._place, **fields)

    def event(self, event: EventRow) -> Entry | None:
        """None for what is said in another line."""
        if event.kind.startswith("checkpoint_"):
            committed = event.kind == "checkpoint_committed"
            return event.time_ns, line(
                "checkpoint", event.time_ns, **self._place, step=event.step, committed=committed
            )
        if event.kind == "mark":
            return event.time_ns, line("mark", event.time_ns, **self._place, text=event.text)
        return None

    def rows(
        self, rows: Iterable[StepRow], phases: tuple[str, ...], phase_states: dict[str, str]
    ) -> Iterator[Entry]:
        """The lines of these rows, which follow those before."""
        states = [state_of(name, phase_states) for name in phases]
        for row in rows:
            yield from self._row(row, phases, states)

    def _row(self, row: StepRow, phases: tuple[str, ...], states: list[int]) -> Iterator[Entry]:
        width = len(phases)
        totals, outside = padded(row.totals, width), padded(row.outside, width)
        gap = list(map(sub, outside, padded(self._outside, width)))
        inside = [
            total - between
            for total, between in zip(map(sub, totals, padded(self._totals, width)), gap, strict=True)
        ]
        self._row_end_ns = max(row.end_ns, self._row_end_ns)
        spent = row.end_ns - self._end_ns
        is_cut = False
        if spent < 0 or min(gap) < 0 or min(inside) < 0 or sum(gap) + sum(inside) != spent:
            gap, inside, is_cut = _fitted(states, gap, inside, spent)
        end_ns, length = max(row.end_ns, self._end_ns), sum(inside)
        count, samples = row.number - self._number, max(row.samples - self._samples, 0)
        device_ns = min(max(row.device_ns - self._device_ns, 0), length)
        self._totals, self._outside, self._device_ns = totals, outside, row.device_ns
        self._number, self._samples, self._end_ns = row.number, row.samples, end_ns
        at = end_ns - length - sum(gap[1:])
        for name, ns in zip(phases[1:], gap[1:], strict=True):
            if ns:
                at += ns
                yield at, line("phase", at, **self._place, phase=name, seconds=seconds(ns))
        spent_in = {name: seconds(ns) for name, ns in zip(phases[1:], inside[1:], strict=True) if ns}
        more: dict[str, Any] = {"samples": samples} if samples else {}
        if count > 1:
            more["count"] = count
            self.merged += count
        if device_ns:
            more["device_seconds"] = seconds(device_ns)
        if is_cut:
            more["cut"] = True
        own = {"step": row.step, "seconds": seconds(length), "phases": spent_in, **more}
        yield end_ns, line("step", end_ns, **self._place, **own)

    def last(self, attempt: Attempt) -> Entry:
        """A beat, or the end: what the attempt did since its last row, and its cumulative figures.

        `attempt` needs no rows; when its rows ended is known here.
        """
        attempt.rows_end_ns = max(attempt.rows_end_ns, self._row_end_ns)
        tail = [
            max(total - before, 0)
            for total, before in zip(attempt.totals, padded(self._totals, len(attempt.totals)), strict=True)
        ]
        phases = {name: seconds(ns) for name, ns in zip(attempt.phases, tail, strict=False) if ns}
        end_ns = attempt.known_end_ns()
        kind, at_ns = ("beat", attempt.seen_ns) if end_ns is None else ("end", end_ns)
        fields: dict[str, Any] = {} if end_ns is None else {"reason": attempt.ended or "killed"}
        if end_ns is not None and attempt.failure is not None:
            fields |= {"step": attempt.failure.step, "text": attempt.failure.text}
        if (mark := attempt.valid_end_mark()) is not None:
            fields["over"] = mark.reason
            if mark.at_ns:
                fields["over_at"] = seconds(mark.at_ns)
        if attempt.unmeasured:
            fields["unmeasured_steps"] = attempt.unmeasured
        fields |= {
            name: decimal(attempt.hardware[of], digits)
            for name, of, digits in HARDWARE
            if attempt.hardware.get(of)
        }
        if attempt.stacks.samples or attempt.stacks.reason:
            fields["stack_samples"] = attempt.stacks._asdict()
        if attempt.collectives.keys:
            fields["collectives"] = [_operation(one) for one in rows_of(attempt.collectives)]
        if attempt.last_ns:
            fields["phase_seconds"] = seconds(max(at_ns - attempt.last_ns, 0))
        return at_ns, line(kind, at_ns, **self._place, **fields, phase=attempt.phase, phases=phases)


def _fitted(
    states: list[int], gap: list[int], inside: list[int], spent: int
) -> tuple[list[int], list[int], bool]:
    """Fit a row that contradicts the one before as the account does; a state's time goes to its first phase.

    And whether the account does: states may agree where phases do not.
    """
    by_state = vector(), vector()
    for into, values in zip(by_state, (gap, inside), strict=True):
        for state, ns in zip(states, values, strict=True):
            into[state] += ns
    is_cut = spent < 0 or min(map(min, by_state)) < 0 or sum(map(sum, by_state)) != spent
    fit(*by_state, max(spent, 0))
    found = []
    for sums in by_state:
        columns = [0] * len(states)
        for state, ns in enumerate(sums):
            if ns:
                columns[states.index(state)] += ns
        found.append(columns)
    return found[0], found[1], is_cut


def _operation(one: OperationRow) -> dict[str, Any]:
    return {
        "group": one.group,
        "operation": one.operation,
        "calls": one.calls,
        "bytes": one.bytes,
        "seconds": seconds(one.exposed_ns),
        "startup_seconds": seconds(one.before_ns),
        **({"issue_seconds": seconds(one.issue_ns)} if one.issue_ns else {}),
        **({"group_size": one.size} if one.size else {}),
        **_hidden(one),
        **({"local_ranks": one.local} if one.local else {}),
        **({"link_bytes_per_second": one.link_rate} if one.link_rate else {}),
        **_on_device(one),
    }


def _hidden(one: OperationRow) -> dict[str, _Number]:
    """{} where it is not known."""
    if UNKNOWN in (one.hidden_ns, one.hidden_max_ns):
        return {}
    return {"hidden_seconds": seconds(one.hidden_ns), "hidden_seconds_max": seconds(one.hidden_max_ns)}


def _on_device(one: OperationRow) -> dict[str, Any]:
    """{} of calls that the host waits for."""
    queued = {"queued": True} if one.queued else {}
    if one.device_ns == UNKNOWN:
        return queued
    return {**queued, "device_seconds": seconds(one.device_ns), "device_bytes": one.device_bytes}


def line(kind: str, time_ns: int, **fields) -> bytes:
    """A line with its newline; an optional field that is unknown is left out by the caller."""
    return _json({"kind": kind, "time": seconds(time_ns), **fields}).encode(errors="replace") + b"\n"


def seconds(ns: int) -> _Number:
    return decimal(ns, 9)


def decimal(value: int, digits: int) -> _Number:
    """A whole number of 10^-digits in JSON, exactly."""
    whole, part = divmod(abs(value), 10**digits)
    text = f"{'-' * (value < 0)}{whole}.{part:0{digits}d}".rstrip("0")
    return _Number(text + "0" if text.endswith(".") else text)


def _json(value: Any) -> str:
    kind = type(value)
    if kind is _Number:
        return value
    if kind is str:
        return _text(value)
    if kind is dict:
        return "{" + ",".join([f"{_text(name)}:{_json(one)}" for name, one in value.items()]) + "}"
    if kind in (list, tuple):
        return "[" + ",".join(map(_json, value)) + "]"
    if kind is float and not math.isfinite(value):
        return "null"
    return json.dumps(value)
