"""Long computations as generators that yield between their parts, so that an event loop can have a turn."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Slices = Generator[None, None, T]
# So many attempts or ranks are done between two turns.
AT_A_TIME = 128


def result_of(slices: Slices[T]) -> T:
    """Do all parts; returns the result."""
    while True:
        try:
            next(slices)
        except StopIteration as over:
            return over.value
