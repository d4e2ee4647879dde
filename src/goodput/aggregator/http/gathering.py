"""Batches of the pushes that connections have received.

A push that is processed alone, some 8 ms after the one before, finds hardly anything that it needs in the processor's
caches, and takes several times as long as one that is processed right after others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# Since the first of them was received. After a pause twice as long none waits.
SECONDS = 0.025
BYTES_MAX = 4 << 20


class Gathering:
    def __init__(self):
        self._waiting: list[Callable[[], object]] = []
        self._bytes, self._last = 0, -SECONDS
        self._timer: asyncio.TimerHandle | None = None

    def add(self, received: int, take: Callable[[], object] | None) -> None:
        """Call `take` soon; `received` is the number of bytes that wait for it, or for one that was given before."""
        loop = asyncio.get_running_loop()
        self._bytes += received
        if take is not None:
            self._waiting.append(take)
        if self._bytes > BYTES_MAX or loop.time() - self._last >= 2 * SECONDS:
            self._take(loop)
        elif self._timer is None:
            self._timer = loop.call_later(SECONDS, self._take, loop)

    def _take(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, []
        self._bytes, self._last, self._timer = 0, loop.time(), None
        for take in waiting:
            loop.call_soon(take)
