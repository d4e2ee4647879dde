"""When a run last saved its work, how often it does, and how long the last time took.

In: the events of each report, once each. Out: per run the time of its newest commit, the median time between commits,
and the length of the newest save, from begun to committed. Cost: about 1 us for each checkpoint event, nothing for
steps; memory is bounded per run and per process.

Lengths are told by one process's own clock. Only the age of the newest commit crosses clocks: it is the process's age
of the event when it was looked at, and our own clock since then. Where the ledger told of it, the event's own time
stands for both. It does not judge whether that is too seldom.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median

KEPT = 32


@dataclass
class ProcessCheckpoints:
    """What one process has begun and committed last: (step, unix ns)."""

    begun: tuple[int, int] | None = None
    committed: tuple[int, int] | None = None


@dataclass
class CheckpointTimes:
    """The saves of one run. Every rank may save its part: a step of one attempt counts once, with its slowest part."""

    newest: tuple[int, int] | None = None  # (attempt, step)
    committed_ns: int = 0  # the newest commit, on our clock
    save_ns: int | None = None  # its length
    intervals_ns: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT))
    _counted: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def take(self, saver: ProcessCheckpoints, attempt: int, events, ahead_ns: int) -> None:
        """Events of one process that are new. `ahead_ns` is what its clock is ahead of ours."""
        for event in sorted(events, key=attrgetter("number")):
            if event.kind == "checkpoint_begun":
                saver.begun = (event.step, event.time_ns)
            elif event.kind == "checkpoint_committed":
                self._commit(saver, (attempt, event.step), event.time_ns, ahead_ns)

    def _commit(self, saver: ProcessCheckpoints, which: tuple[int, int], time_ns: int, ahead_ns: int) -> None:
        took = None
        if saver.begun is not None and saver.begun[0] == which[1] and time_ns >= saver.begun[1]:
            took = time_ns - saver.begun[1]
        before, saver.committed = saver.committed, (which[1], time_ns)
        if before is not None and before[0] != which[1] and which not in self._counted:
            self.intervals_ns.append(max(time_ns - before[1], 0))
            self._counted.append(which)
        if self.newest is None or which > self.newest:
            self.newest, self.save_ns = which, took
        elif which == self.newest and took is not None:
            self.save_ns = max(took, self.save_ns or 0)
        self.committed_ns = max(time_ns - ahead_ns, self.committed_ns)

    def age_seconds(self, now_ns: int) -> float | None:
        """Since the newest commit; None where none was ever told of."""
        return max(now_ns - self.committed_ns, 0) / 1e9 if self.newest is not None else None

    def interval_seconds(self) -> float | None:
        """The median, None with fewer than two commits of one process."""
        return median(self.intervals_ns) / 1e9 if self.intervals_ns else None
