"""Single flight: concurrent requests for the same key share one computation.

    flights = SingleFlight()
    document = await flights.run(("run", 60), lambda: compute("run", 60))

A caller that is cancelled does not cancel the computation. Nothing is cached once it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable


class SingleFlight:
    def __init__(self):
        self.tasks: dict[Hashable, asyncio.Task] = {}

    async def run(self, key: Hashable, compute: Callable[[], Awaitable]):
        """The result of `compute()`, or its exception; it is called only if none is under way for this key."""
        if key not in self.tasks:
            task = self.tasks[key] = asyncio.ensure_future(compute())
            task.add_done_callback(lambda done: self._remove(key, done))
        return await asyncio.shield(self.tasks[key])

    def _remove(self, key: Hashable, done: asyncio.Task) -> None:
        del self.tasks[key]
        if not done.cancelled():
            done.exception()  # Retrieved, or asyncio logs it when every caller was cancelled.
