"""Runs long computations of the event loop in slices, with other tasks in between."""

from __future__ import annotations

import asyncio
import time

from goodput.slices import Slices, T

AT_A_TIME_SECONDS = 0.005


async def in_slices(parts: Slices[T]) -> T:
    """The result of a generator; other tasks run whenever AT_A_TIME_SECONDS have passed."""
    last = time.monotonic()
    while True:
        try:
            next(parts)
        except StopIteration as over:
            return over.value
        if time.monotonic() - last > AT_A_TIME_SECONDS:
            await asyncio.sleep(0)
            last = time.monotonic()
