"""The pushes of one partition that are merged at the same time, and up to which one all are in the ledger.

A push waits while its run is read from the ledger, which may take seconds after a takeover; those of other runs do not
wait for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine

from goodput.aggregator.stream import cancellation

# Bounds of the pushes that wait for the ledger or their run, and of those from the first that is not done. While the last
# runs are read after a takeover, pushes of the partition's other runs are merged only as long as those that wait fit here:
# 1 250 ranks of each of 8 partitions push 16 times a second. The memory bound counts the pushes themselves.
WAITING_MAX, KNOWN_MAX = 1024, 65_536


class InWork:
    """`written` is the sequence number up to which all pushes are in the ledger."""

    def __init__(self, written: int, waiting_max: int = WAITING_MAX, known_max: int = KNOWN_MAX):
        self.written = written
        self._waiting_max, self._known_max = waiting_max, known_max
        self._tasks: dict[int, asyncio.Task] = {}
        self._known: deque[int] = deque()  # all from the first that is not done
        self._failed: list[asyncio.Task] = []
        self._has_ended = asyncio.Event()  # set where a task has ended

    async def add(self, sequence: int, work: Coroutine[None, None, None]) -> None:
        """Begin `work` of the next message, once there is room for it. Raises what the work of an earlier one raised."""
        task = self._tasks[sequence] = asyncio.create_task(work)
        self._known.append(sequence)
        task.add_done_callback(lambda _: self._note(sequence))
        while len(self._tasks) >= self._waiting_max or len(self._known) >= self._known_max:
            self.raise_failed()
            self._has_ended.clear()
            await self._has_ended.wait()
        self.raise_failed()

    def _note(self, sequence: int) -> None:
        self._has_ended.set()
        task = self._tasks[sequence]
        if task.cancelled() or task.exception() is not None:
            self._failed.append(task)
            return
        del self._tasks[sequence]
        while self._known and self._known[0] not in self._tasks:
            self.written = self._known.popleft()

    def raise_failed(self) -> None:
        """Raise what the work of a message raised."""
        if self._failed:
            self._failed[0].result()

    async def end(self) -> None:
        """Cancel all work that is not done."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        for task in tasks:
            await cancellation.end(task)
