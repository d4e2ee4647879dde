"""What came in about a run: attempts of ranks with their step rows, events and last known moment.

In: rows and events in any order, any number of times. Out: attributes that cut.py and resume.py read. Merging
is a union keyed by number (and for the live part the newest wins), so it is commutative, associative and
idempotent. A row carries cumulative totals, so rows may be missing in between without losing time. It knows
nothing of states.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Row(NamedTuple):
    """A completed step. `totals` and `outside` are cumulative ns per phase column; times are unix ns."""

    number: int
    step: int
    start_ns: int
    end_ns: int
    samples: int
    totals: tuple[int, ...]
    outside: tuple[int, ...]


class Event(NamedTuple):
    number: int
    kind: str
    time_ns: int
    step: int
    text: str = ""


# What a rank says of itself besides rank, attempt and start: fields of the same name in every record of it.
TOLD = (
    *("host", "device", "device_uuid", "devices", "group", "stage", "tensor", "microbatches", "dtype"),
    *("world_size", "flops_per_step", "hardware_flops_per_step", "peak_flops_per_second"),
    *("ideal_samples_per_second", "gpu_hour_cost", "gpu_power_watts", "submit_time"),
)


@dataclass
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
    stage: int | None = None
    world_size: int = 1
    tensor: int | None = None
    microbatches: int | None = None
    dtype: str = ""
    flops_per_step: float | None = None
    hardware_flops_per_step: float | None = None
    peak_flops_per_second: float | None = None
    ideal_samples_per_second: float | None = None
    gpu_hour_cost: float | None = None
    gpu_power_watts: float | None = None
    submit_time: float | None = None
    phases: tuple[str, ...] = ("none",)
    phase_states: dict[str, str] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    events: dict[int, Event] = field(default_factory=dict)
    # The newest known moment: when it was looked at, the last boundary and the phase the rank was in.
    seen_ns: int = 0
    last_ns: int = 0
    phase: str = "none"
    totals: tuple[int, ...] = ()
    alive: bool = True
    ended: str = ""  # "", "finished", "failed", "resumed"; not alive and "" means killed
    end_ns: int = 0
    heard_ns: int = 0  # when the aggregator last heard of it, on the aggregator's clock
    version: int = 0  # grows with every new row, so that what was derived from rows can be kept

    def add_rows(self, rows) -> int:
        """Merge rows; returns how many were new."""
        before = len(self.rows)
        for row in rows:
            self.rows.setdefault(row.number, row)
        new = len(self.rows) - before
        self.version += new
        return new

    def add_events(self, events) -> int:
        """Merge events; returns how many were new."""
        before = len(self.events)
        for event in events:
            self.events.setdefault(event.number, event)
        return len(self.events) - before

    def ordered_rows(self) -> list[Row]:
        return [self.rows[number] for number in sorted(self.rows)]

    def known_end_ns(self) -> int | None:
        """When the process ended, None while it may be alive."""
        if self.ended or not self.alive:
            return max(self.end_ns or self.last_ns, self.start_ns)
        return None

    def beat_ns(self) -> int:
        """The last moment at which the process is known to have been alive."""
        last_row = max((row.end_ns for row in self.rows.values()), default=0)
        return max(self.start_ns, self.last_ns, last_row, self.seen_ns if self.alive else 0)


@dataclass
class Run:
    """A run: its attempts by (rank, attempt), and what was said about the whole."""

    name: str
    attempts: dict[tuple[int, int], Attempt] = field(default_factory=dict)
    start_ns: int | None = None
    end_ns: int | None = None
    only_ranks: tuple[int, ...] | None = None  # expect these alone: one process's or one host's own view

    def expected_ranks(self) -> tuple[int, ...]:
        return self.only_ranks if self.only_ranks is not None else tuple(range(self.world_size()))

    def world_size(self) -> int:
        """Ranks expected: what the newest attempt says, and at least every rank that was seen."""
        if not self.attempts:
            return 1
        newest = max(attempt.attempt for attempt in self.attempts.values())
        said = max(a.world_size for a in self.attempts.values() if a.attempt == newest)
        return max(said, 1 + max(rank for rank, _ in self.attempts))

    def by_rank(self) -> dict[int, list[Attempt]]:
        """Attempts of each rank that was seen, in the order of their starts."""
        ranks: dict[int, list[Attempt]] = {}
        for attempt in sorted(self.attempts.values(), key=lambda a: (a.rank, a.start_ns, a.attempt)):
            ranks.setdefault(attempt.rank, []).append(attempt)
        return ranks
