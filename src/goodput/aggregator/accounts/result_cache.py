"""Single flight, and a cache of costly results about runs that uses it."""

from __future__ import annotations

import asyncio
import time
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

    def has(self, key: Hashable) -> bool:
        """Whether a computation is under way for this key."""
        return key in self.tasks and not self.tasks[key].done()

    async def run(self, key: Hashable, compute: Callable[[], Awaitable]):
        """The result of `compute()`, or its exception; it is called only if none is under way for this key."""
        # One that is done is removed a turn of the loop later, which awaiting it would not give.
        if not self.has(key):
            task = self.tasks[key] = asyncio.ensure_future(compute())
            task.add_done_callback(lambda done: self._remove(key, done))
        return await asyncio.shield(self.tasks[key])

    def _remove(self, key: Hashable, done: asyncio.Task) -> None:
        if self.tasks.get(key) is done:
            del self.tasks[key]
        if not done.cancelled():
            done.exception()  # Retrieved, or asyncio logs it when every caller was cancelled.


def costs_a_tenth(took_seconds: float) -> float:
    """The age at which a result is computed again, so that it takes a tenth of a core at most."""
    return max(AGE_SECONDS, 10 * took_seconds)


class _Cached(NamedTuple):
    result: Any
    final_revision: int | None
    until_seconds: float

    def serves(self, final_revision: int | None, now_seconds: float) -> bool:
        """Whether it is the result for a run that has this final revision, or, without one, is recent."""
        if final_revision != self.final_revision:
            return False
        return final_revision is not None or now_seconds < self.until_seconds


class ResultCache:
    """Results by key, computed again at `age_seconds(seconds that it took)`; RESULTS_MAX are kept, the last used.

    A result of a final run serves until the run changes. Concurrent requests share one computation.
    """

    def __init__(self, age_seconds: Callable[[float], float] = costs_a_tenth):
        self._age_seconds = age_seconds
        self._cached: dict[Hashable, _Cached] = {}  # the last used at the end
        self._flights = SingleFlight()

    async def get(
        self,
        key: Hashable,
        compute: Callable[[], Awaitable[tuple[Any, float]]],
        final_revision: int | None = None,
    ):
        """The result for `key`; `compute()` gives a new one with the seconds that it took.

        `final_revision` is the revision of a run that has ended: only a change of it changes the result.
        """
        now_seconds = time.monotonic()
        for old, one in list(self._cached.items()):
            if now_seconds >= one.until_seconds and one.final_revision is None:
                del self._cached[old]
        cached = self._cached.pop(key, None)
        if cached is not None and cached.serves(final_revision, now_seconds):
            self._cached[key] = cached
            return cached.result
        # Not one that began before the run ended, or went on.
        flight = key, final_revision
        return await self._flights.run(flight, lambda: self._compute(key, compute, final_revision))

    def clear(self) -> int:
        """Drop all results; returns how many there were."""
        count = len(self._cached)
        self._cached.clear()
        return count

    async def _compute(self, key: Hashable, compute, final_revision: int | None) -> Any:
        result, took_seconds = await compute()
        age_seconds = self._age_seconds(took_seconds)
        if age_seconds > 0 or final_revision is not None:
            self._cached[key] = _Cached(result, final_revision, time.monotonic() + age_seconds)
        while len(self._cached) > RESULTS_MAX:
            del self._cached[next(iter(self._cached))]
        return result
