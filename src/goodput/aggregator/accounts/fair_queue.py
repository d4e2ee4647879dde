"""Whose turn it is: one at a time, and those who ask by turns, so that nobody keeps the others waiting for long.

In: the name of who asks, or none for the aggregator itself. Out: a turn, or Full. What the aggregator asks itself comes
before what others do and is never refused. Of the others each has its own queue of at most `owner_max`, and the next turn
is of the one whose last is longest ago. It does not know what a turn is for.

    turns = Turns(); async with turns.of("token 1f2e"): ...
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import asynccontextmanager

ITSELF = None


class Full(Exception):
    """So many wait that another would wait too long; the text says whose they are."""


class Turns:
    def __init__(self, waiting_max: int):
        self._waiting_max = waiting_max  # of all owners together
        self._is_taken = False
        self._ahead: deque[asyncio.Future] = deque()
        # None is empty; in front is the one whose turn it is.
        self._queues: OrderedDict[str, deque[asyncio.Future]] = OrderedDict()

    @asynccontextmanager
    async def of(self, owner: str | None, owner_max: int = 0):
        """Waits for a turn, which is over when the block is. Raises Full."""
        await self._wait(owner, owner_max)
        try:
            yield
        finally:
            self._next()

    def waiting(self) -> int:
        return len(self._ahead) + sum(map(len, self._queues.values()))

    async def _wait(self, owner: str | None, owner_max: int) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue(owner, owner_max).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # It came in the moment in which nobody wanted it any more.
                self._next()
            else:
                self._leave(owner, turn)
            raise

    def _queue(self, owner: str | None, owner_max: int) -> deque:
        if owner is ITSELF:
            return self._ahead
        if len(self._queues.get(owner, ())) >= owner_max:
            raise Full(f"{owner_max} questions of yours wait for accounts of the past; try again later")
        if self.waiting() - len(self._ahead) >= self._waiting_max:
            raise Full(f"{self._waiting_max} others wait for accounts of the past; try again later")
        return self._queues.setdefault(owner, deque())

    def _leave(self, owner: str | None, turn: asyncio.Future) -> None:
        queue = self._ahead if owner is ITSELF else self._queues.get(owner, deque())
        if turn in queue:
            queue.remove(turn)
        if owner is not ITSELF and not queue:
            self._queues.pop(owner, None)

    def _next(self) -> None:
        while self._ahead or self._queues:
            if self._ahead:
                turn = self._ahead.popleft()
            else:
                owner, queue = self._queues.popitem(last=False)
                turn = queue.popleft()
                if queue:
                    self._queues[owner] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False
