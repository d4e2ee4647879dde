"""Waits for the data loader by reason, summed over all ranks, and the loader of the rank that waited most.

With b seconds of worker time per batch, and steps that take p seconds besides waiting for the loader, b / p workers
keep up (Little's law).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import ceil

REASONS = ("storage", "decode", "collate", "cpus", "queue", "startup")
# Below this share the time besides waiting is the small difference of two large numbers.
BESIDES_RATIO_MIN = 0.05


@dataclass(frozen=True)
class LoaderSummary:
    """The loader figures that ranks report: `total` over all ranks, `most` of the rank that waited most, on `host`."""

    total: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)
    host: str = ""
    ranks_on_host: int = 1

    def leading(self) -> tuple[str, float] | None:
        """The reason with the largest part of the waits and that part; None where less than half of them is known."""
        known = {reason: self.total[f"wait_{reason}_ns"] for reason in REASONS}
        known["startup"] += self.total["start_ns"]
        total = self.total["wait_ns"] + self.total["start_ns"]
        if not total or sum(known.values()) * 2 < total:
            return None
        reason = max(known, key=lambda name: known[name])
        return reason, known[reason] / total

    def busy(self) -> float | None:
        """Part of the workers' time in which they fetched and collated; None without workers."""
        busy_ns = self.most["worker_dataset_ns"] + self.most["worker_collate_ns"]
        idle_ns = self.most["worker_idle_ns"]
        return busy_ns / (busy_ns + idle_ns) if busy_ns else None

    def enough_workers(self) -> int | None:
        """How many workers would keep up with steps that never wait, if they do not slow each other down."""
        seen, busy = self.most["worker_seen"], self.busy()
        if not seen or busy is None:
            return None
        busy_ns = self.most["worker_dataset_ns"] + self.most["worker_collate_ns"]
        there_ns = (busy_ns + self.most["worker_idle_ns"]) / seen
        besides_ns = there_ns - (self.most["wait_ns"] - self.most["wait_startup_ns"])
        if besides_ns < BESIDES_RATIO_MIN * there_ns:
            return None
        return ceil(busy_ns / besides_ns)

    def cores(self) -> int | None:
        """Cores for each rank of the host of the rank that waited most."""
        cores = self.most["cpus"]
        return max(cores // max(self.ranks_on_host, 1), 1) if cores else None


def summarize_loaders(attempts) -> LoaderSummary:
    """The summary of these attempts."""
    reported = [attempt for attempt in attempts if attempt.loader]
    if not reported:
        return LoaderSummary()
    total = Counter()
    for attempt in reported:
        total.update(attempt.loader)
    most = max(reported, key=lambda attempt: (attempt.loader.get("wait_ns", 0), -attempt.rank))
    ranks_on_host = len({attempt.rank for attempt in reported if attempt.host == most.host})
    return LoaderSummary(total, Counter(most.loader), most.host, ranks_on_host)
