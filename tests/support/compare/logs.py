"""Run logs of simulated steps whose phases are autocorrelated."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def autocorrelated(random, count: int, coefficient: float, series: int = 1) -> np.ndarray:
    """Stationary series with mean 0 and standard deviation 1, a row each."""
    from scipy.signal import lfilter  # Takes most of a second.

    shocks = random.standard_normal((series, count + 200)) * (1 - coefficient**2) ** 0.5
    return lfilter([1], [1, -coefficient], shocks, axis=1)[:, 200:]


def write_log(
    path: Path,
    lengths: np.ndarray,
    loader: float | np.ndarray = 0.1,
    *,
    ranks: int = 2,
    samples: int = 32,
    name: str = "run",
    **declared,
) -> str:
    """One step for each of `lengths` (seconds), of which `loader` is waiting; all ranks alike. Returns the path."""
    loader = np.broadcast_to(loader, len(lengths))
    end, lines = 1.0, [{"kind": "run", "time": 0, "run": name, "world_size": ranks, **declared}]
    lines += [{"kind": "attempt", "time": end, "rank": rank, "attempt": 1} for rank in range(ranks)]
    for step, (length, waited) in enumerate(zip(lengths.round(9), loader.round(9), strict=True)):
        end = round(end + length, 9)
        phases = {"loader": waited, "forward": round(length - waited, 9)}
        one = {"kind": "step", "time": end, "attempt": 1, "step": step, "seconds": length, "phases": phases}
        lines += [{**one, "rank": rank, "samples": samples} for rank in range(ranks)]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"kind": "run_end", "time": end}]))
    return str(path)
