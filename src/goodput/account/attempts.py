"""What was recorded of a run: its attempts with their step rows, events and last known moment.

Merging is a union keyed by number, and the newest live part wins, so it is commutative, associative and idempotent.
Rows carry cumulative totals, so a missing row loses no time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from goodput.account.collectives.operation_sums import NO_SUMS, OperationSums
from goodput.account.states import state_of
from goodput.wire.sampled_stacks import NO_STACKS, SampledStacks


class Row(NamedTuple):
    """A completed step. `totals` and `outside` are cumulative ns per phase column; times are unix ns.

    `device_ns` is the part of the steps' length so far that the device clock has divided into phases.
    """

    number: int
    step: int
    start_ns: int
    end_ns: int
    samples: int
    totals: tuple[int, ...]
    outside: tuple[int, ...]
    device_ns: int = 0


class Event(NamedTuple):
    number: int
    kind: str
    time_ns: int
    step: int
    text: str = ""


class Failure(NamedTuple):
    """The exception that ended a process, "" where none is known, and the step that was running or next."""

    step: int
    time_ns: int
    text: str


class EndMark(NamedTuple):
    """A declaration that a process's run has ended, and why; see Attempt.valid_end_mark."""

    reason: str  # "finished", "failed", "cancelled", or ABANDONED
    at_ns: int  # the run's earliest end; 0 for the last moment at which it was known to be alive
    until_ns: int  # on its host's clock; activity after this makes the mark invalid


# The reason of marks that the aggregator sets by itself on a run that has been silent for too long. They end the run's
# time, and say nothing about how a process ended.
ABANDONED = "abandoned"


SAVED_MAX = 4096
# Ranges of missing row numbers that are remembered below the trimmed rows, the newest.
HOLES_MAX = 64
# Fields that a rank declares besides its rank, attempt and start; the same names in every record of it.
DECLARED = (
    *("host", "device", "device_uuid", "devices", "group", "role", "worker"),
    *("stage", "tensor", "microbatches", "total_steps", "dtype"),
    *("world_size", "flops_per_step", "hardware_flops_per_step", "peak_flops_per_second"),
    *("ideal_samples_per_second", "gpu_hour_cost", "gpu_power_watts", "submit_time", "flops_unknown"),
    *("reached_flops_per_second", "reached_bus_bytes_per_second"),
    *("h2d_bytes_per_second", "reached_h2d_bytes_per_second", "core_wait_ratio"),
    "clock_moved_seconds",
)


@dataclass(slots=True)
class Attempt:
    """One rank process: one start of one rank. Times are unix ns of its host."""

    rank: int
    attempt: int
    start_ns: int
    host: str = ""
    device: str = ""
    device_uuid: str = ""
    devices: int = 1
    group: str = ""
    role: str = ""
    worker: str = ""  # of a process without a rank, whose rank is a number: its name in its program
    stage: int | None = None
    world_size: int = 1
    tensor: int | None = None
    microbatches: int | None = None
    total_steps: int | None = None  # of the whole training, by index: those before a resume included
    dtype: str = ""
    flops_per_step: float | None = None
    hardware_flops_per_step: float | None = None
    peak_flops_per_second: float | None = None
    ideal_samples_per_second: float | None = None
    gpu_hour_cost: float | None = None
    gpu_power_watts: float | None = None
    submit_time: float | None = None
    flops_unknown: str = ""  # why there are no flops_per_step
    reached_flops_per_second: float | None = None  # by its devices together, as probed on its node
    # Of an all-reduce over as many ranks, as probed on its node.
    reached_bus_bytes_per_second: float | None = None
    h2d_bytes_per_second: float | None = None  # copies to the device in its last traced step
    reached_h2d_bytes_per_second: float | None = None  # pinned copies, as probed on its node
    core_wait_ratio: float | None = None  # of its time its main thread was ready to run without a core
    clock_moved_seconds: float | None = None  # by which its times were moved, since its clock was off
    phases: tuple[str, ...] = ("none",)
    phase_states: dict[str, str] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    events: dict[int, Event] = field(default_factory=dict)
    # The newest known moment: when it was observed, the last phase boundary and the phase then.
    seen_ns: int = 0
    last_ns: int = 0
    phase: str = "none"
    totals: Sequence[int] = ()
    unmeasured: int = 0  # steps so far whose phases were not measured
    loader: dict[str, int] = field(default_factory=dict)  # cumulative loader figures, see loader_summary
    stacks: SampledStacks = NO_STACKS  # of its main thread in no phase, cumulative
    collectives: OperationSums = NO_SUMS  # by process group and operation, cumulative
    hardware: dict[str, int] = field(default_factory=dict)  # cumulative GPU figures, see hardware
    alive: bool = True
    ended: str = ""  # "", "finished", "failed", "resumed"; not alive and "" means killed
    end_ns: int = 0
    end_mark: EndMark | None = None
    received_ns: int = 0  # when the aggregator last received a report of it, on the aggregator's clock
    trimmed: int = 0  # rows up to this number have been dropped
    holes: list[tuple[int, int]] = field(default_factory=list)  # (first, last) of missing row numbers
    late_count: int = 0  # rows and groups that arrived out of order, after which the run must be folded anew
    top_number: int = 0
    # Known of all rows and events, also of those that are not kept.
    first_number: int = 0
    first_step: int | None = None  # index of the attempt's first step
    rows_end_ns: int = 0
    has_rollout: bool = False  # in logs, whose attempts have no totals
    end_step: int = -1  # in logs, whose rows have no numbers: the highest step that ends at rows_end_ns
    declared_resume_step: int | None = None  # the lowest one that the process reported
    restored: bool = False  # a checkpoint of an unknown step was loaded
    failure: Failure | None = None  # what its process said when it failed
    begun: bool = False  # a checkpoint was begun
    committed: int | None = None  # the last step that a checkpoint covers
    commits: int = 0
    first_commit_ns: int | None = None
    last_commit_ns: int = 0
    declared_changes: int = field(default=0, compare=False)  # how often a field of DECLARED was set anew
    # Steps of committed checkpoints; a second report does not count.
    saved: AbstractSet[int] = frozenset()

    def add_rows(self, rows) -> int:
        """Merge rows; returns how many were new."""
        before = len(self.rows)
        for row in rows:
            if self.lacks(row.number):
                self.rows[row.number] = row
                if row.number <= self.trimmed:
                    self._fill(row.number)
                self.late_count += row.number < self.top_number
                self.top_number = max(row.number, self.top_number)
                if self.first_step is None or row.number < self.first_number:
                    self.first_number, self.first_step = row.number, row.step - row.number + 1
                self.rows_end_ns = max(row.end_ns, self.rows_end_ns)
        return len(self.rows) - before

    def lacks(self, number: int) -> bool:
        """Whether a row of this number would be new, also one that is late."""
        return number not in self.rows and (number > self.trimmed or self._hole(number) is not None)

    def _hole(self, number: int) -> int | None:
        at = bisect_right(self.holes, number, key=lambda hole: hole[0]) - 1
        return at if at >= 0 and number <= self.holes[at][1] else None

    def _fill(self, number: int) -> None:
        at = self._hole(number)
        if at is None:
            return
        low, high = self.holes[at]
        parts = (low, number - 1), (number + 1, high)
        self.holes[at : at + 1] = [(first, last) for first, last in parts if first <= last]

    def group_name(self) -> str:
        """The ranks that it is compared with: those of its group, else of its role."""
        return self.group or self.role

    def is_used(self) -> bool:
        """Whether it has completed a step, has a role, or has made a rollout."""
        if self.first_step is not None or self.role or self.has_rollout:
            return True
        states = zip(self.phases, self.totals, strict=False)
        return any(ns and (self.phase_states.get(name) or name) == "rollout" for name, ns in states)

    def add_events(self, events) -> int:
        """Merge events; returns how many were new."""
        before = len(self.events)
        for event in events:
            if self.events.setdefault(event.number, event) is event:
                self.note_event(event.kind, event.step, event.time_ns, event.text)
        return len(self.events) - before

    def note_event(self, kind: str, step: int, time_ns: int, text: str = "") -> None:
        """Note what `facts` needs of an event; idempotent."""
        if kind == "failed":
            self.failure = Failure(step, time_ns, text)
        elif kind == "resumed":
            declared = self.declared_resume_step
            self.declared_resume_step = step if declared is None else min(step, declared)
        elif kind == "restored":
            self.restored = True
        elif kind == "checkpoint_begun":
            self.begun = True
        elif kind == "checkpoint_committed":
            self.begun = True
            if step not in self.saved:
                self.commits += 1
                if len(self.saved) < SAVED_MAX:
                    # Most ranks save nothing, and a set takes 216 bytes.
                    self.saved = self.saved if isinstance(self.saved, set) else set(self.saved)
                    self.saved.add(step)
            self.committed = step if self.committed is None else max(step, self.committed)
            first_ns = self.first_commit_ns
            self.first_commit_ns = time_ns if first_ns is None else min(time_ns, first_ns)
            self.last_commit_ns = time_ns if first_ns is None else max(time_ns, self.last_commit_ns)

    def ordered_rows(self) -> list[Row]:
        return [self.rows[number] for number in sorted(self.rows)]

    def known_end_ns(self) -> int | None:
        """When the process ended, None while it may be alive."""
        if self.ended or not self.alive:
            return max(self.end_ns or self.last_ns, self.start_ns)
        if self.end_mark is None:
            return None
        mark = self.valid_end_mark()
        if mark is None or mark.reason == ABANDONED:
            return None
        return max(self.beat_ns(), mark.at_ns)

    def valid_end_mark(self) -> EndMark | None:
        """Its end mark, unless it has reported anything since."""
        if self.end_mark is None:
            return None
        seen_ns = self.seen_ns if self.alive and not self.ended else 0
        newest_ns = max(self.last_ns, self.rows_end_ns, self.end_ns, seen_ns)
        return self.end_mark if newest_ns <= self.end_mark.until_ns else None

    def end_reason(self) -> str:
        """How it ended: as it reported, else as its end mark has it; "" if it was killed or still runs."""
        mark = self.valid_end_mark()
        return self.ended or ("" if mark is None or mark.reason == ABANDONED else mark.reason)

    def beat_ns(self) -> int:
        """The last moment at which the process is known to have been alive."""
        return max(
            self.start_ns, self.last_ns, self.rows_end_ns, self.seen_ns if self.alive else self.start_ns
        )


@dataclass
class Run:
    """A run: its attempts by (rank, attempt), and the start and end declared for the whole."""

    name: str
    attempts: dict[tuple[int, int], Attempt] = field(default_factory=dict)
    start_ns: int | None = None
    end_ns: int | None = None
    only_ranks: tuple[int, ...] | None = None  # expect only these ranks: the view of one process or host
    is_without_gpu: bool = False  # the host of ranks that name no device is known to have no GPU
    is_of_pages: bool = False  # rows are those in the rings of pages, each beginning at a step of its own

    def starts(self) -> dict[int, int]:
        """When the first rank of each attempt number began."""
        starts: dict[int, int] = {}
        for (_, number), attempt in self.attempts.items():
            if attempt.start_ns < starts.setdefault(number, attempt.start_ns):
                starts[number] = attempt.start_ns
        return starts

    def is_of_workers(self) -> bool:
        """Whether it has several processes and none has a rank, so that each works and restarts by itself."""
        attempts = self.attempts.values()
        return all(attempt.worker for attempt in attempts) and len({attempt.rank for attempt in attempts}) > 1

    def workers(self) -> list[Run]:
        """Each worker's attempts as a run. A number may have been of several workers, one after the other."""
        parts: dict[tuple[int, str], Run] = {}
        for key, attempt in self.attempts.items():
            part = parts.setdefault((attempt.rank, attempt.worker), Run(self.name))
            part.attempts[key] = attempt
        return list(parts.values())

    def left_out(self) -> set[int]:
        """Numbers of workers without a step or a rollout, such as the parent, once another has made one."""
        if not self.is_of_workers():
            return set()
        ranks = {rank for rank, _ in self.attempts}
        used = {rank for (rank, _), attempt in self.attempts.items() if attempt.is_used()}
        return ranks - used if used else set()

    def newest(self) -> int:
        """The newest attempt number, 0 without attempts."""
        return max([number for _, number in self.attempts], default=0)

    def stepping(self) -> int:
        """Number of ranks that have completed a step."""
        return len({rank for (rank, _), attempt in self.attempts.items() if attempt.first_step is not None})

    def by_rank(self) -> dict[int, list[Attempt]]:
        """Attempts of each reported rank, in the order of their starts."""
        ranks: dict[int, list[Attempt]] = {}
        for attempt in sorted(self.attempts.values(), key=attrgetter("rank", "start_ns", "attempt")):
            ranks.setdefault(attempt.rank, []).append(attempt)
        return ranks


def has_time(attempt: Attempt, phase: str) -> bool:
    """Whether an attempt charged time to a phase that automatic instrumentation defines for what it estimates."""
    if phase not in attempt.phase_states:
        return False
    if phase not in attempt.phases:
        return True  # Of a run log, which names the phases that have time.
    column = attempt.phases.index(phase)
    return len(attempt.totals) > column and attempt.totals[column] > 0


def states_of_phases(attempt: Attempt) -> tuple[int, ...]:
    """The state of each of an attempt's phases, the same object for ranks whose phases are alike."""
    return _states_of(attempt.phases, tuple(attempt.phase_states.items()))


@lru_cache(maxsize=1024)
def _states_of(phases: tuple[str, ...], user_states: tuple[tuple[str, str], ...]) -> tuple[int, ...]:
    states = dict(user_states)
    return tuple(state_of(name, states) for name in phases)


def padded(values: Sequence[int], width: int) -> tuple[int, ...]:
    """Pad with zeros: rows from before further user phases were defined have fewer columns."""
    return tuple(values[:width]) + (0,) * (width - len(values))
