"""The binding limit of a loader, from where the time of a batch goes with few and with many workers.

Beyond the knee more workers only queue for what limits them: in a closed queueing network all further time of a
customer is spent at the bottleneck (Denning and Buzen, "The Operational Analysis of Queueing Network Models", ACM
Computing Surveys 10(3), 1978). So the limit is the part of a batch's time that grows most from one worker to many. A
loader that is still faster with every worker is limited by its workers' own time, of which the largest part is named.

    saturation(1 / 0.060, 1 / 0.015)          # 4.0 workers: 60 ms a batch, of which 15 ms one at a time
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from goodput.account.text import milliseconds

# A rate of at least this share of another counts as equal.
CLOSE = 0.95
# Twice as many workers that are less than this faster are beyond the knee.
STILL_FASTER = 1.1
PARTS = ("cpu", "storage", "lock", "collate", "unknown")
WAIT_TEXT = {
    "cpu": "computing or waiting for a core",
    "storage": "waiting for files or the network",
    "lock": "waiting for a lock",
    "unknown": "waiting, for what is unknown",
}


@dataclass(frozen=True)
class Point:
    """What was measured with one number of workers. Times are seconds of one batch.

    `parts` is where a worker's time goes, by PARTS: the dataset's time by kind, and all time in the collate function.
    `collate_parts` is the latter by kind. `slept` is the share of "storage" that is sleep. `copy` and `transfer` are
    the main process's: the copy, and what it computes to receive the batch.
    """

    workers: int
    rate: float
    samples_per_batch: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    collate_parts: dict[str, float] = field(default_factory=dict)
    slept: float = 0.0
    copy: float = 0.0
    transfer: float = 0.0

    @property
    def idle(self) -> float:
        """Seconds that a worker waits for each batch until its results are taken."""
        return max(0.0, self.workers / self.rate - sum(self.parts.values()))


@dataclass(frozen=True)
class Limit:
    """`name`: cpu, storage, lock, collate, copy, transfer or unknown. `text` gives the figures that it follows from."""

    name: str
    saturated: bool
    text: str


def saturation(rate_of_one: float, rate_max: float) -> float:
    """Workers at which the rise of one worker's rate meets the highest rate."""
    return rate_max / rate_of_one


def plateau(points: list[Point]) -> float:
    """The rate that more workers do not raise: the median of the points from saturation on.

    Not the highest rate: that of several points alike is the one that a disturbance left out, and has no neighbours.
    """
    busy = [point for point in points if point.workers]
    slope = statistics.mean(point.rate / point.workers for point in busy if point.workers <= 2)
    most = max(point.rate for point in busy)
    enough = CLOSE * saturation(slope, most)
    beyond = [p.rate for p in busy if p.workers >= min(enough, max(p.workers for p in busy))]
    return statistics.median(beyond)


def knee(points: list[Point]) -> Point:
    """The point with the fewest workers whose rate is within 5 % of the plateau; 0 workers count too."""
    enough = CLOSE * plateau(points)
    return next(p for p in sorted(points, key=lambda p: p.workers) if p.rate >= enough)


def binding(points: list[Point]) -> Limit:
    """The limit of the loader; `points` has at least one with workers. See the module for the method."""
    busy = sorted((p for p in points if p.workers), key=lambda p: p.workers)
    few, many, best = busy[0], busy[-1], knee(points)
    if best.workers == many.workers:
        return _by_share(many)
    found = _by_growth(few, many)
    if found.name == "transfer" and not best.workers:
        text = (
            f"the main process makes a batch itself in {milliseconds(1 / best.rate)}; "
            f"to have one made by {many.workers} workers takes {milliseconds(1 / many.rate)}"
        )
        return Limit("transfer", True, text)
    return found


def _by_growth(few: Point, many: Point) -> Limit:
    """The limit of a loader that more workers do not make faster."""
    grown = {name: many.parts.get(name, 0.0) - few.parts.get(name, 0.0) for name in PARTS}
    idle = many.idle - few.idle
    longer = many.workers / many.rate - few.workers / few.rate
    name = max(grown, key=grown.__getitem__)
    if idle >= grown[name]:
        return _of_main(many)
    text = (
        f"with {many.workers} workers instead of {few.workers} a batch takes a worker {milliseconds(longer)} longer, "
        f"{milliseconds(grown[name])} of it {_doing(name, many)}"
    )
    return Limit(name, True, text)


def _of_main(many: Point) -> Limit:
    """The limit where workers wait for the main process."""
    cycle = 1 / many.rate
    if many.copy >= many.transfer:
        text = f"workers wait for the main process, which copies for {milliseconds(many.copy)} of the {milliseconds(cycle)} of a batch"
        return Limit("copy", True, text)
    text = (
        "workers wait for the main process, which receives batches one after the other: "
        f"{milliseconds(many.transfer)} of the {milliseconds(cycle)} of a batch"
    )
    return Limit("transfer", True, text)


def _by_share(many: Point) -> Limit:
    """The limit of a loader that every worker makes faster: what its workers mostly do."""
    name = max(many.parts, key=many.parts.__getitem__, default="unknown")
    whole = many.workers / many.rate
    text = (
        f"each worker still makes it faster; of the {milliseconds(whole)} that a batch takes a worker, "
        f"{milliseconds(many.parts.get(name, 0.0))} are {_doing(name, many)}"
    )
    return Limit(name, False, text)


def _doing(name: str, point: Point) -> str:
    if name == "collate":
        kind = max(point.collate_parts, key=point.collate_parts.__getitem__, default="unknown")
        return f"in the collate function, mostly {WAIT_TEXT[kind]}"
    if name == "storage" and point.slept >= 0.5:
        return "sleeping without a lock, which is taken for waiting for data"
    return WAIT_TEXT[name]
