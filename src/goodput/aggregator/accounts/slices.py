"""Runs long computations of the event loop in slices, with other tasks in between."""

from __future__ import annotations

import asyncio
import math
import time

from goodput.slices import Slices, T

AT_A_TIME_SECONDS = 0.005


class CpuTime:
    """The CPU time that computations take, without what runs between their slices."""

    def __init__(self, budget_seconds: float = math.inf, has_used_up: asyncio.Event | None = None):
        """`has_used_up` is set once they have taken `budget_seconds`."""
        self.seconds, self._budget_seconds, self._has_used_up = 0.0, budget_seconds, has_used_up

    def of(self, parts: Slices[T]) -> Slices[T]:
        """The same computation, whose CPU time is added."""
        while True:
            began = time.thread_time()
            try:
                next(parts)
            except StopIteration as over:
                return over.value
            finally:
                self.seconds += time.thread_time() - began
                if self._has_used_up is not None and self.seconds > self._budget_seconds:
                    self._has_used_up.set()
            yield


async def in_slices(parts: Slices[T]) -> T:
    """The result of a generator, which holds the event loop for half of the time.

    Once it has run for AT_A_TIME_SECONDS it sleeps for as long as it has run. One turn for the other tasks would not do: a
    push takes several, and would wait for a slice at each.
    """
    began = time.monotonic()
    while True:
        try:
            next(parts)
        except StopIteration as over:
            return over.value
        spent = time.monotonic() - began
        if spent > AT_A_TIME_SECONDS:
            await asyncio.sleep(spent)
            began = time.monotonic()
