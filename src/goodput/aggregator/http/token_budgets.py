"""What each token for some runs may push: bytes and CPU time, as token buckets, and bytes held at a time.

Tokens for all runs belong to the installation and have no budget. A push is admitted while its token's buckets are not
empty, and what it takes is charged whole, so a bucket may be below zero for a while; then pushes are refused with 429
and the seconds after which one is admitted again. Agents keep what is refused and push it later.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from goodput.access.responses import Refusal
from goodput.access.tokens import Access
from goodput.aggregator.http.limits import BODIES_BYTES_MAX

# What a token that was idle may take at once, in seconds of its rate.
BURST_SECONDS = 10.0
# One token may hold BODIES_BYTES_MAX divided by this.
HELD_DIVISOR = 4
RETRY_SECONDS_MAX = 60
BUDGETS_MAX, NAMES_MAX = 10_000, 256
OTHER = "other"


class TokenLimits(NamedTuple):
    """The bounds of each token that is limited to some runs; 0 is no bound.

    An agent with 8 ranks pushes 2 KiB a second, and takes 0.0005 s.
    """

    bytes_per_second: float = 4 << 20
    cpu_share: float = 0.25


@dataclass
class _Budget:
    """What is left of a token's buckets, and when that was, by the monotonic clock; bytes of bodies being held."""

    bytes_left: float
    seconds_left: float
    since: float
    held_bytes: int = 0


class TokenBudgets:
    """`refusals` counts by (token name, bound), a bounded number of names."""

    def __init__(self, limits: TokenLimits | None = None, clock: Callable[[], float] = time.monotonic):
        self.limits, self._clock = limits or TokenLimits(), clock
        self.refusals: Counter[tuple[str, str]] = Counter()
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()  # the last used at the end

    @contextmanager
    def push(self, access: Access, length: int) -> Iterator[Push]:
        """One push of a body of so many bytes, as far as is known. Raises Refusal."""
        if access.is_of_all:
            yield Push(self, access, None)
            return
        push = Push(self, access, self._budget(access.token_id or access.name))
        try:
            push.admit(length)
            yield push
        finally:
            push.release()

    def used_shares(self) -> dict[str, float]:
        """The used part of the buckets of the token that has used most of each."""
        for key in list(self._budgets):
            self._refill(self._budgets[key])
        rates = {"bytes": self.limits.bytes_per_second, "seconds": self.limits.cpu_share}
        return {
            f"token_push_{what}": max(
                (1 - getattr(one, f"{what}_left") / (rate * BURST_SECONDS) for one in self._budgets.values()),
                default=0.0,
            )
            if rate
            else 0.0
            for what, rate in rates.items()
        }

    def refusal(self, access: Access, bound: str, seconds: float) -> Refusal:
        """Count a refusal, and make it."""
        names = {name for name, _ in self.refusals}
        name = access.name if access.name in names or len(names) < NAMES_MAX else OTHER
        self.refusals[name, bound] += 1
        after = min(max(math.ceil(seconds), 1), RETRY_SECONDS_MAX)
        return Refusal(
            "quota", f"token {access.name} has pushed more {_WHAT[bound]}; push it again in {after} s", after
        )

    def _budget(self, key: str) -> _Budget:
        budget = self._budgets.pop(key, None)
        if budget is None:
            rate, share = self.limits
            budget = _Budget(rate * BURST_SECONDS, share * BURST_SECONDS, self._clock())
        self._budgets[key] = budget
        while len(self._budgets) > BUDGETS_MAX:
            self._budgets.popitem(last=False)
        self._refill(budget)
        return budget

    def _refill(self, budget: _Budget) -> None:
        now, (rate, share) = self._clock(), self.limits
        passed, budget.since = now - budget.since, now
        budget.bytes_left = min(budget.bytes_left + passed * rate, rate * BURST_SECONDS)
        budget.seconds_left = min(budget.seconds_left + passed * share, share * BURST_SECONDS)


_WHAT = {
    "bytes": "bytes than it may",
    "time": "than the CPU time it may take allows",
    "held": "at the same time than it may",
}


class Push:
    """One push and its token's budget, None for no bound."""

    def __init__(self, budgets: TokenBudgets, access: Access, budget: _Budget | None):
        self._budgets, self._access, self._budget = budgets, access, budget
        self._announced = self._read = 0

    def admit(self, length: int) -> None:
        """Charge the announced length. Raises Refusal."""
        budget, share = self._budget, self._budgets.limits.cpu_share
        assert budget is not None
        if share and budget.seconds_left <= 0:
            raise self._budgets.refusal(self._access, "time", -budget.seconds_left / share)
        self._charge(length)
        self._announced = length

    def read(self, count: int) -> None:
        """Count `count` more bytes of the body. Raises Refusal."""
        if self._budget is None:
            return
        if self._budget.held_bytes + count > BODIES_BYTES_MAX // HELD_DIVISOR:
            raise self._budgets.refusal(self._access, "held", 1)
        self._read += count
        self._budget.held_bytes += count
        if self._read > self._announced:
            self._charge(self._read - self._announced)
            self._announced = self._read

    def spend(self, seconds: float) -> None:
        """Charge CPU time."""
        if self._budget is not None and self._budgets.limits.cpu_share:
            self._budget.seconds_left -= seconds

    def release(self) -> None:
        """The body is not held any more."""
        if self._budget is not None:
            self._budget.held_bytes -= self._read

    def _charge(self, count: int) -> None:
        """Charge bytes while the bucket is not empty. Raises Refusal."""
        budget, rate = self._budget, self._budgets.limits.bytes_per_second
        if budget is None or not rate or not count:
            return
        if budget.bytes_left <= 0:
            raise self._budgets.refusal(self._access, "bytes", -budget.bytes_left / rate)
        budget.bytes_left -= count
