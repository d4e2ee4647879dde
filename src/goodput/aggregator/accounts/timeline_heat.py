"""The rank heat map: own time per step by rank and time, as much of it as a person can look at.

In: each rank's own time and steps by column. Out: the worst ranks by themselves, the others as quantiles, so an answer
has a bound whatever the run's size. Own time is a step without waiting for other ranks: in lock step all steps are
equally long, and only this says who makes them so.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import quantiles

COLUMNS_MAX = 60
RANKS_SHOWN = 64


@dataclass
class Own:
    """A rank's own time (step less waiting for others) and steps, by column; a step is shared out as its time lies."""

    ns: list[int]
    steps: list[float]


def heat(own: dict[int, Own], worst: list[int], start: float, end: float) -> dict | None:
    """Own seconds per step by rank and column: the worst ranks by themselves, the others as quantiles."""
    seconds = {
        rank: [ns / steps / 1e9 if steps else None for ns, steps in zip(one.ns, one.steps, strict=True)]
        for rank, one in own.items()
        if any(one.steps)
    }
    if not seconds:
        return None
    width = len(next(iter(seconds.values())))
    shown = [rank for rank in worst if rank in seconds]
    if len(seconds) <= RANKS_SHOWN:
        shown = sorted(seconds)
    shown = shown[:RANKS_SHOWN]
    others = [values for rank, values in seconds.items() if rank not in set(shown)]
    return {
        "start": start,
        "end": end,
        "columns": width,
        "median": _round([_quantile(seconds.values(), i, 50) for i in range(width)]),
        "ranks": [{"rank": rank, "own_seconds": _round(seconds[rank])} for rank in shown],
        "others": {
            "ranks": len(others),
            **{f"p{p}": _round([_quantile(others, i, p) for i in range(width)]) for p in (10, 50, 90, 100)},
        }
        if others
        else None,
    }


def _quantile(rows, column: int, percent: int) -> float | None:
    values = [row[column] for row in rows if row[column] is not None]
    if len(values) < 2 or percent == 100:
        return max(values, default=None)
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _round(values: list[float | None]) -> list[float | None]:
    return [None if value is None else float(f"{value:.5g}") for value in values]
