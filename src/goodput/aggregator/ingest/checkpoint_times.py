"""When a run last committed a checkpoint, how often it does, and how long the last save took.

Cost: about 1 us per checkpoint event, nothing per step; memory is bounded per run and per process. Lengths are measured
by one process's own clock. Only the age of the newest commit crosses clocks: the event's age on its host when it was
read, and our own clock since then; for events restored from the ledger, the event's own time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median

KEPT = 32


@dataclass(slots=True)
class ProcessCheckpoints:
    """The last checkpoint that a process began and that it committed: (step, unix ns)."""

    begun: tuple[int, int] | None = None
    committed: tuple[int, int] | None = None


@dataclass
class CheckpointTimes:
    """Of one run. Every rank may save a shard: a step of an attempt counts once, with its slowest shard."""

    newest: tuple[int, int] | None = None  # (attempt, step)
    committed_ns: int = 0  # the newest commit, on our clock
    save_ns: int | None = None  # how long the newest save took
    intervals_ns: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT))
    _counted: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, process: ProcessCheckpoints, attempt: int, events, ahead_ns: int) -> None:
        """Add new events of one process, whose clock is `ahead_ns` ahead of ours."""
        for event in sorted(events, key=attrgetter("number")):
            if event.kind == "checkpoint_begun":
                process.begun = (event.step, event.time_ns)
            elif event.kind == "checkpoint_committed":
                self._commit(process, (attempt, event.step), event.time_ns, ahead_ns)

    def _commit(
        self, process: ProcessCheckpoints, checkpoint: tuple[int, int], time_ns: int, ahead_ns: int
    ) -> None:
        took_ns = None
        if process.begun is not None and process.begun[0] == checkpoint[1] and time_ns >= process.begun[1]:
            took_ns = time_ns - process.begun[1]
        before, process.committed = process.committed, (checkpoint[1], time_ns)
        if before is not None and before[0] != checkpoint[1] and checkpoint not in self._counted:
            self.intervals_ns.append(max(time_ns - before[1], 0))
            self._counted.append(checkpoint)
        if self.newest is None or checkpoint > self.newest:
            self.newest, self.save_ns = checkpoint, took_ns
        elif checkpoint == self.newest and took_ns is not None:
            self.save_ns = max(took_ns, self.save_ns or 0)
        self.committed_ns = max(time_ns - ahead_ns, self.committed_ns)

    def age_seconds(self, now_ns: int) -> float | None:
        """Since the newest commit, None without one."""
        return max(now_ns - self.committed_ns, 0) / 1e9 if self.newest is not None else None

    def interval_seconds(self) -> float | None:
        """The median time between commits, None with fewer than two of one process."""
        return median(self.intervals_ns) / 1e9 if self.intervals_ns else None
