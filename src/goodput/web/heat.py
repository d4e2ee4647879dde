"""The heat map of ranks over time for a page in a file, in the shape of the API's: own time per step by rank and bucket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median, quantiles

from goodput.account import Account
from goodput.account.facts import Key

RANKS_SHOWN = 64


def heat(whole: Account, until: Sequence[Account]) -> dict | None:
    """The ranks that deviate most, at most RANKS_SHOWN, and the others as quantiles; None where no ranks are compared.

    `until` has the accounts from the start up to the end of each column.
    """
    own: dict[int, list[float | None]] = {}
    before: dict[Key, tuple[int, float]] = {}
    for column, account in enumerate(until):
        found = account.straggler
        sums = {key: (sum(found.own_ns[key]), steps) for key, steps in found.steps.items()}
        for (rank, attempt), (ns, steps) in sums.items():
            ns_before, steps_before = before.get((rank, attempt), (0, 0.0))
            if steps - steps_before > 0.5:  # whole steps, as sums of fractions
                seconds = (ns - ns_before) / (steps - steps_before) / 1e9
                own.setdefault(rank, [None] * len(until))[column] = float(f"{seconds:.5g}")
        before = sums
    if not own:
        return None
    middle = [_median(values) for values in zip(*own.values(), strict=True)]
    worst = sorted(own, key=lambda rank: -_deviation(own[rank], middle))
    shown = sorted(worst[:RANKS_SHOWN])
    others = [own[rank] for rank in worst[RANKS_SHOWN:]]
    hosts = whole.hosts()
    return {
        "start": whole.start_ns / 1e9,
        "end": whole.end_ns / 1e9,
        "columns": len(until),
        "median": middle,
        "ranks": [{"rank": rank, "host": hosts.get(rank, ""), "own_seconds": own[rank]} for rank in shown],
        "others": _others(others) if others else None,
    }


def _others(rows: Sequence[Sequence[float | None]]) -> dict:
    columns = [sorted(value for value in column if value is not None) for column in zip(*rows, strict=True)]
    return {
        "ranks": len(rows),
        **{
            f"p{percent}": [_quantile(column, percent) for column in columns] for percent in (10, 50, 90, 100)
        },
    }


def _quantile(values: Sequence[float], percent: int) -> float | None:
    if len(values) < 2 or percent == 100:
        return max(values, default=None)
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _deviation(own: Sequence[float | None], middle: Sequence[float | None]) -> float:
    """The largest ratio of a rank's own time to the median, in either direction."""
    ratios = [a / b for a, b in zip(own, middle, strict=True) if a and b]
    return max((max(ratio, 1 / ratio) for ratio in ratios), default=0.0)
