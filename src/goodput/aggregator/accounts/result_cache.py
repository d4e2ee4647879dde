"""Single flight, and a cache of costly results about runs that uses it."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, NamedTuple

RESULTS_MAX = 64
AGE_SECONDS = 10.0


class SingleFlight:
    """Concurrent requests for the same key share one computation.

        document = await flights.run(("run", 60), lambda: compute("run", 60))

    A caller that is cancelled does not cancel the computation. Nothing is cached once it is done.
    """

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


class _Cached(NamedTuple):
    result: Any
    revision: int
    at: float
    took_seconds: float

    def is_fresh(self, revision: int, is_final: bool) -> bool:
        if is_final and revision == self.revision:
            return True
        return time.monotonic() - self.at < max(AGE_SECONDS, 10 * self.took_seconds)


class ResultCache:
    """Each result costs at most a tenth of a core, however many clients poll it.

    A result of a final run serves until the run changes. Any other is computed again once it is older than AGE_SECONDS
    and than ten times what it took. RESULTS_MAX are kept, the last used.
    """

    def __init__(self):
        self._cached: OrderedDict[Hashable, _Cached] = OrderedDict()
        self._flights = SingleFlight()

    async def get(
        self,
        key: Hashable,
        revision: int,
        is_final: bool,
        compute: Callable[[], Awaitable[tuple[Any, float]]],
    ):
        """The result for `key`; `compute()` gives a new one with the seconds that it took.

        `revision` is the run's now, and `is_final` whether only a change of it can change the result.
        """
        cached = self._cached.get(key)
        if cached is not None and cached.is_fresh(revision, is_final):
            self._cached.move_to_end(key)
            return cached.result
        return await self._flights.run(key, lambda: self._compute(key, revision, compute))

    async def _compute(self, key: Hashable, revision: int, compute) -> Any:
        result, took_seconds = await compute()
        self._cached[key] = _Cached(result, revision, time.monotonic(), took_seconds)
        self._cached.move_to_end(key)
        while len(self._cached) > RESULTS_MAX:
            self._cached.popitem(last=False)
        return result
