"""Runs whose steps take random times, and those times by phase."""

from __future__ import annotations

import random

from support.account.account_history import Process

from goodput.aggregator.ingest.recent.recent_times import STEP

START = 1_000_020.0  # the start of a minute


def run_of(ranks: int, steps: int, rng: random.Random, start: float = START) -> list[Process]:
    """Ranks with log-normal times in two phases, of which one is in some steps only, and time outside steps."""
    found = []
    for rank in range(ranks):
        one = Process(rank, 1, start, world_size=ranks)
        for _ in range(steps):
            more = {"loader": rng.lognormvariate(-4, 1)} if rng.random() < 0.3 else {}
            one.step(forward=rng.lognormvariate(-1, 0.3), none=0.01, **more)
            one.between(loader=0.02)
        found.append(one)
    return found


def times_of(processes: list[Process], after: int = 0) -> dict[str, list[int]]:
    """The length of each step in ns, as STEP, and the times in each phase within steps; without each first `after`."""
    times: dict[str, list[int]] = {}
    for one in processes:
        before = (0,) * len(one.phases)
        for row in one.rows:
            inside = tuple(a - b for a, b in zip(row.totals, row.outside, strict=True))
            if row.number <= after:
                before = inside
                continue
            times.setdefault(STEP, []).append(row.end_ns - row.start_ns)
            for phase, now, then in zip(one.phases[1:], inside[1:], before[1:], strict=True):
                if now > then:
                    times.setdefault(phase, []).append(now - then)
            before = inside
    return times
