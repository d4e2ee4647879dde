"""A fair queue: one job at a time, round-robin over owners, the aggregator's own jobs first.

    queue = FairQueue(waiting_max=64)
    async with queue.slot("token 1f2e", owner_max=2):
        ...

Each owner has at most `owner_max` pending jobs and all owners together `waiting_max`; beyond that QueueFull is raised.
Jobs of INTERNAL are never refused.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import asynccontextmanager

INTERNAL = None  # the owner of the aggregator's own jobs
RETRY_SECONDS = 5


class QueueFull(Exception):
    """Too many jobs are pending; the text says whose."""


class FairQueue:
    def __init__(self, waiting_max: int):
        self._waiting_max = waiting_max
        self._is_busy = False
        self._internal: deque[asyncio.Future] = deque()
        # No queue is empty; the owner in front is next.
        self._queues: OrderedDict[str | None, deque[asyncio.Future]] = OrderedDict()

    @asynccontextmanager
    async def slot(self, owner: str | None, owner_max: int = 0):
        """Hold the only slot for the length of the block. Raises QueueFull."""
        await self._acquire(owner, owner_max)
        try:
            yield
        finally:
            self._release()

    def waiting(self) -> int:
        return len(self._internal) + sum(map(len, self._queues.values()))

    async def _acquire(self, owner: str | None, owner_max: int) -> None:
        if not self._is_busy:
            self._is_busy = True
            return
        granted = asyncio.get_running_loop().create_future()
        self._queue(owner, owner_max).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                # Granted and cancelled in the same iteration of the loop: pass the slot on.
                self._release()
            else:
                self._remove(owner, granted)
            raise

    def _queue(self, owner: str | None, owner_max: int) -> deque:
        if owner is INTERNAL:
            return self._internal
        if len(self._queues.get(owner, ())) >= owner_max:
            raise QueueFull(
                f"too many pending history queries for this token; try again in {RETRY_SECONDS} s"
            )
        if self.waiting() - len(self._internal) >= self._waiting_max:
            raise QueueFull(f"too many pending history queries; try again in {RETRY_SECONDS} s")
        return self._queues.setdefault(owner, deque())

    def _remove(self, owner: str | None, granted: asyncio.Future) -> None:
        queue = self._internal if owner is INTERNAL else self._queues.get(owner, deque())
        if granted in queue:
            queue.remove(granted)
        if owner is not INTERNAL and not queue:
            self._queues.pop(owner, None)

    def _release(self) -> None:
        while self._internal or self._queues:
            if self._internal:
                granted = self._internal.popleft()
            else:
                owner, queue = self._queues.popitem(last=False)
                granted = queue.popleft()
                if queue:
                    self._queues[owner] = queue
            if not granted.done():
                granted.set_result(None)
                return
        self._is_busy = False
