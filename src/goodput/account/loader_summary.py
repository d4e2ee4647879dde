"""Waits for the data loader by reason, summed over all ranks, and the loader of the rank that waited most.

With b seconds of worker time per batch, and steps that take p seconds besides waiting for the loader, b / p workers keep
up (Little's law).
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
    """Sums in ns over all ranks; `most` has the figures of the rank that waited most (0 if unknown), `host` its host."""

    wait_ns: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    making_ns: int = 0
    batches: int = 0
    ready: int = 0
    most: Counter[str] = field(default_factory=Counter)
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
    each = lambda name: sum(attempt.loader.get(name, 0) for attempt in reported)  # noqa: E731
    most = max(reported, key=lambda attempt: (attempt.loader.get("wait_ns", 0), -attempt.rank))
    return LoaderSummary(
        wait_ns=each("wait_ns"),
        reasons={reason: each(f"wait_{reason}_ns") for reason in REASONS},
        making_ns=each("start_ns"),
        batches=each("batches"),
        ready=each("ready"),
        most=Counter(most.loader),
        host=most.host,
        ranks_on_host=len({attempt.rank for attempt in reported if attempt.host == most.host}),
    )
