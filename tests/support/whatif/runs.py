"""Teams of ranks that wait for each other, made from own times, and run logs of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from goodput.whatif.steps import OWN, Team, align


def team_of(
    compute: np.ndarray,
    loader: np.ndarray | float = 0.0,
    *,
    exchange: float = 0.0,
    length: float | None = None,
    hosts: tuple[str, ...] = (),
    stages: tuple[int, ...] = (),
    microbatches: int | None = None,
) -> Team:
    """A team from seconds (steps, ranks); each step lasts until its slowest rank has come, or `length` seconds."""
    count, ranks = compute.shape
    own = np.zeros((count, ranks, len(OWN)))
    own[:, :, OWN.index("productive")] = compute * 1e9
    own[:, :, OWN.index("loader")] = np.broadcast_to(loader, compute.shape) * 1e9
    totals = own.sum(axis=2)
    ends = totals.max(axis=1) + exchange * 1e9 if length is None else np.full(count, length * 1e9)
    hosts = hosts or tuple(f"n{rank}" for rank in range(ranks))
    return Team(
        ranks=tuple(range(ranks)),
        hosts=hosts,
        devices=ranks,
        own=own,
        communication=ends[:, None] - totals,
        counts=np.ones(count, np.int64),
        steps=count,
        stages=stages,
        microbatches=microbatches,
        host_devices={host: hosts.count(host) for host in hosts},
    )


def simulated(compute: np.ndarray, loader: np.ndarray, exchange: float = 0.01, after: float = 0.2) -> Team:
    """Ranks with clocks of their own, one event after the other: batch, compute, the exchange, then the optimizer.

    The optimizer's part (`after`) of the compute follows the exchange, so a rank that is late with it makes others wait
    in their next step.
    """
    count, ranks = compute.shape
    clock, began = np.zeros(ranks), np.zeros(ranks)
    team = team_of(compute, loader)
    for step in range(count):
        began[:] = clock
        for rank in range(ranks):
            clock[rank] += loader[step, rank] + (1 - after) * compute[step, rank]
        met = max(clock) + exchange
        for rank in range(ranks):
            team.communication[step, rank] = (met - clock[rank]) * 1e9
            clock[rank] = met + after * compute[step, rank]
    own = team.own.copy()
    align(own, team.communication)
    return replace(team, own=own)


def write_run(path: Path, own: dict[str, np.ndarray], exchange: float = 0.01, **declared) -> str:
    """A run log of ranks with these seconds by phase, each (steps, ranks), that wait for each other in every step."""
    count, ranks = next(iter(own.values())).shape
    rounded = {phase: np.round(seconds, 9) for phase, seconds in own.items()}
    totals = np.sum(list(rounded.values()), axis=0)
    end, lines = 1.0, [{"kind": "run", "time": 0, "run": "run", "world_size": ranks, **declared}]
    hosts = [f"n{rank // 2}" for rank in range(ranks)]
    lines += [
        {"kind": "attempt", "time": 1.0, "rank": r, "attempt": 1, "host": hosts[r]} for r in range(ranks)
    ]
    for step in range(count):
        length = round(float(totals[step].max()) + exchange, 9)
        end = round(end + length, 9)
        for rank in range(ranks):
            phases = {phase: float(seconds[step, rank]) for phase, seconds in rounded.items()}
            phases["communication"] = round(length - float(totals[step, rank]), 9)
            one = {"kind": "step", "time": end, "rank": rank, "attempt": 1, "step": step, "seconds": length}
            lines.append({**one, "phases": phases})
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"kind": "run_end", "time": end}]))
    return str(path)
