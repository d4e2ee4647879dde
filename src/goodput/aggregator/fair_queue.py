"""A fair queue: one job at a time, round-robin over owners, the aggregator's own jobs first.

    queue = FairQueue(waiting_max=64, what="history queries")
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
    """Too many jobs are pending, of one owner or of all."""


class FairQueue:
    def __init__(self, waiting_max: int, what: str = "requests"):
        self._waiting_max, self._what = waiting_max, what
        self._is_busy = False
        # No queue is empty; the owner in front is next, and INTERNAL is always in front.
        self._queues: OrderedDict[str | None, deque[asyncio.Future]] = OrderedDict()

    @asynccontextmanager
    async def slot(self, owner: str | None, owner_max: int = 0):
        """Hold the only slot for the length of the block. Raises QueueFull."""
        if self._is_busy:
            await self._wait(owner, owner_max)
        self._is_busy = True
        try:
            yield
        finally:
            self._release()

    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    async def _wait(self, owner: str | None, owner_max: int) -> None:
        self._check_bounds(owner, owner_max)
        granted = asyncio.get_running_loop().create_future()
        self._put(owner, self._queues.get(owner, deque()))
        self._queues[owner].append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                # Granted and cancelled in the same iteration of the loop: pass the slot on.
                self._release()
            elif granted in self._queues.get(owner, ()):
                self._queues[owner].remove(granted)
                if not self._queues[owner]:
                    del self._queues[owner]
            raise

    def _check_bounds(self, owner: str | None, owner_max: int) -> None:
        if owner is INTERNAL:
            return
        if len(self._queues.get(owner, ())) >= owner_max:
            raise QueueFull(f"too many pending {self._what} for this token; try again in {RETRY_SECONDS} s")
        if self.waiting() - len(self._queues.get(INTERNAL, ())) >= self._waiting_max:
            raise QueueFull(f"too many pending {self._what}; try again in {RETRY_SECONDS} s")

    def _release(self) -> None:
        while self._queues:
            owner, queue = self._queues.popitem(last=False)
            granted = queue.popleft()
            if queue:
                self._put(owner, queue)
            if not granted.done():
                granted.set_result(None)
                return
        self._is_busy = False

    def _put(self, owner: str | None, queue: deque[asyncio.Future]) -> None:
        """Put an owner's queue behind the others, if it does not have a place."""
        self._queues[owner] = queue
        if owner is INTERNAL:
            self._queues.move_to_end(owner, last=False)
