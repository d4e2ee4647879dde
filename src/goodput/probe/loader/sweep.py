"""Which numbers of workers to measure: doubled until nothing is gained, then around the knee, several times in turn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace

from goodput.probe.loader.limit import CLOSE, STILL_FASTER, Point, knee, saturation

# Rates that decide are the median of so many measurements, made in turn so that a disturbance hits all.
ROUNDS = 3

Measure = Callable[[int], Point]


def sweep(
    measure: Measure, workers_max: int, progress: Callable[[int], None] = lambda _: None
) -> list[Point]:
    """Points by their number of workers, with 0 and 1 and at least one beyond the knee if `workers_max` has it."""
    measured: dict[int, list[Point]] = {}

    def add(workers: int) -> float:
        progress(workers)
        measured.setdefault(workers, []).append(measure(workers))
        return median(measured[workers]).rate

    add(0)
    workers, rate = 1, add(1)
    while workers < workers_max:
        before, workers = rate, min(2 * workers, workers_max)
        rate = add(workers)
        if rate < STILL_FASTER * before and workers > 2:
            break
    _find_knee(measured, add, workers)
    return [median(measured[workers]) for workers in sorted(measured)]


def _find_knee(measured: dict[int, list[Point]], add: Callable[[int], float], most: int) -> None:
    """Measure where the rates' rise and their plateau meet, and from there until the knee lies between neighbours."""
    rates = {workers: median(points).rate for workers, points in measured.items()}
    slope = statistics.median(rates[workers] / workers for workers in (1, 2) if workers in rates)
    guess = math.ceil(saturation(slope, max(rates.values())) * CLOSE)
    near = {min(max(1, guess + step), most) for step in (-1, 0, 1)}
    for workers in sorted(near - measured.keys()):
        add(workers)
    for _ in range(most):
        points = [median(found) for found in measured.values()]
        found = knee(points).workers
        compared = {max(0, found - 1), found, most}
        missing = {workers for workers in compared if len(measured.get(workers, ())) < ROUNDS}
        if not missing:
            return
        for workers in sorted(missing):
            add(workers)


def median(points: list[Point]) -> Point:
    """The point of the median rate; of two the mean rate, with the parts of the lower one."""
    ordered = sorted(points, key=lambda point: point.rate)
    middle = ordered[(len(ordered) - 1) // 2]
    return replace(middle, rate=statistics.median(point.rate for point in ordered))
