"""Answers that several wait for: whoever asks what is being made waits for that one.

In: a question's key, and what makes its answer. Out: the answer, or what making it raised, for all who wait. Nobody takes
it from the others by going away, and it is made to the end if all do. Nothing is kept once it is there. It does not
know what is asked.

    asked = Asked(); document = await asked.of(("run", 60), lambda: make("run", 60))
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable


class Asked:
    """The answers that are being made, by key."""

    def __init__(self):
        self.coming: dict[Hashable, asyncio.Task] = {}

    async def of(self, key: Hashable, make: Callable[[], Awaitable]):
        """What `make()` gives; it is called only if nobody waits for the same."""
        if key not in self.coming:
            task = self.coming[key] = asyncio.ensure_future(make())
            task.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(self.coming[key])

    def _end(self, key: Hashable, done: asyncio.Task) -> None:
        del self.coming[key]
        if not done.cancelled():
            done.exception()  # Where nobody waits any more, it is told to nobody.
