"""Step lengths of many attempts at once, for the stall threshold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from goodput.account.stall_threshold import StepLengths
from goodput.wire.step_blocks import END, NUMBER, START


def add_lengths(lengths: StepLengths, parts: Sequence[np.ndarray], after: Sequence[int]) -> None:
    """Add rows of several attempts as columns, each in order; the row before each has the number `after`.

    As StepLengths.add_rows: an attempt's first row, and those that stand for several steps, are left out.
    """
    both = [(part, number) for part, number in zip(parts, after, strict=True) if part.shape[1]]
    if both:
        counts = np.array([part.shape[1] for part, _ in both])
        columns = [np.concatenate([part[row] for part, _ in both]) for row in (NUMBER, START, END)]
        add_columns(lengths, columns, counts, np.array([number for _, number in both]))


def add_columns(
    lengths: StepLengths, columns: Sequence[np.ndarray], counts: np.ndarray, after: np.ndarray
) -> None:
    """As `add_lengths`, of attempts side by side with so many rows each: their numbers, starts and ends."""
    number, start, end = columns
    before = np.empty_like(number)
    before[1:] = number[:-1]
    # The first row of an attempt follows none.
    some = counts > 0
    before[(np.cumsum(counts) - counts)[some]] = np.where(after > 0, after, -1)[some]
    lengths.add_ns((end - start)[number == before + 1])
