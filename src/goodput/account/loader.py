"""What the waits for the data loader were for, over all ranks.

In: what each attempt's loader did so far (page_loader.FIGURES: cumulative ns and counts, of what is not 0). Out: a
Loading, with the waits by reason and what is known of the loader and its workers. Sums are of all attempts; what a
loader is (its workers, its batch size) is that of the rank that waited most. It gives no advice (causes/loader.py).

What a worker makes in the time of one batch bounds what a rank can take: with b seconds of a worker per batch, and a
step that takes p seconds besides waiting for its loader, b / p workers keep up (Little's law).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

REASONS = ("storage", "decode", "collate", "cpus", "queue", "startup")
# Steps that hardly do anything besides waiting are the small difference of two large numbers.
BESIDES_RATIO_MIN = 0.05


@dataclass(frozen=True)
class Loading:
    """Sums in ns over all ranks; `most` is what the rank that waited most says of itself, `host` where it is."""

    wait_ns: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    making_ns: int = 0
    batches: int = 0
    ready: int = 0
    most: dict[str, int] = field(default_factory=dict)
    host: str = ""
    ranks_on_host: int = 1

    def leading(self) -> tuple[str, float] | None:
        """The reason with the largest part of the waits and that part; None where less than half of them is known."""
        known = {**self.reasons, "startup": self.reasons.get("startup", 0) + self.making_ns}
        total = self.wait_ns + self.making_ns
        if not total or sum(known.values()) * 2 < total:
            return None
        reason = max(known, key=lambda name: known[name])
        return reason, known[reason] / total

    def says(self, name: str) -> int:
        """A figure of the rank that waited most; 0 is what it did not say."""
        return self.most.get(name, 0)

    def busy(self) -> float | None:
        """Part of the workers' time in which they fetched and collated; None without workers."""
        busy_ns = self.says("worker_dataset_ns") + self.says("worker_collate_ns")
        idle_ns = self.says("worker_idle_ns")
        return busy_ns / (busy_ns + idle_ns) if busy_ns else None

    def enough_workers(self) -> int | None:
        """How many workers would keep up with steps that never wait, if they did not get in each other's way.

        The time that the workers were there, less the waits, is what the steps take besides them.
        """
        seen, busy = self.says("worker_seen"), self.busy()
        if not seen or busy is None:
            return None
        busy_ns = self.says("worker_dataset_ns") + self.says("worker_collate_ns")
        there_ns = (busy_ns + self.says("worker_idle_ns")) / seen
        besides_ns = there_ns - (self.says("wait_ns") - self.says("wait_startup_ns"))
        if besides_ns < BESIDES_RATIO_MIN * there_ns:
            return None
        return ceil(busy_ns / besides_ns)

    def cores(self) -> int | None:
        """Cores for each rank of the host of the rank that waited most."""
        cores = self.says("cpus")
        return max(cores // max(self.ranks_on_host, 1), 1) if cores else None


def loading(attempts) -> Loading:
    """The loading of these attempts."""
    told = [attempt for attempt in attempts if attempt.loader]
    if not told:
        return Loading()
    each = lambda name: sum(attempt.loader.get(name, 0) for attempt in told)  # noqa: E731
    most = max(told, key=lambda attempt: (attempt.loader.get("wait_ns", 0), -attempt.rank))
    return Loading(
        wait_ns=each("wait_ns"),
        reasons={reason: each(f"wait_{reason}_ns") for reason in REASONS},
        making_ns=each("start_ns"),
        batches=each("batches"),
        ready=each("ready"),
        most=most.loader,
        host=most.host,
        ranks_on_host=len({attempt.rank for attempt in told if attempt.host == most.host}),
    )
