"""One measured rate of a machine; more is always better."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """`value` is in `unit` ("FLOP/s", "B/s" or "1/s"), None where it is unknown for the reason in `note`.

    `spread` is half the distance between the quartiles of the repetitions over their median. `nominal` is the data
    sheet's, `index` the number of the accelerator on its node.
    """

    name: str
    value: float | None
    unit: str
    device: str = ""
    index: int | None = None
    spread: float | None = None
    nominal: float | None = None
    note: str = ""


def rate_of(amount: float, seconds: list[float]) -> tuple[float, float | None]:
    """The amount over the median of the seconds, and their spread; None of fewer than four."""
    middle = statistics.median(seconds)
    if len(seconds) < 4:
        return amount / middle, None
    low, _, high = statistics.quantiles(seconds, n=4)
    return amount / middle, (high - low) / 2 / middle
