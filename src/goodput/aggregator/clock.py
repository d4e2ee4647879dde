"""The aggregator's clock: unix time that goes on steadily while the machine's wall clock is stepped.

It is read from the wall clock once and goes on with the time since boot, suspended time included. Where the wall clock
is set by an hour, ages and statuses stay what they are. A step is followed only where the nodes' clocks confirm it
(ingest.node_clocks).

    clock = SteadyClock(); clock()
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

# A clock that is off by more shows in the figures of a run; synchronised clocks differ by milliseconds.
SKEW_NS = 5 * 10**9
WIDE_NS = 10**9
WIDEST = (-(1 << 63), 1 << 63)  # of a clock of which nothing is known


def since_boot_ns() -> int:
    """A monotonic clock; on Linux it counts the time in which the machine was suspended too."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic_ns() if boot is None else time.clock_gettime_ns(boot)


class SteadyClock:
    """Unix ns when called."""

    def __init__(
        self, unix_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = since_boot_ns
    ):
        self._unix_ns, self._steady_ns = unix_ns, steady_ns
        self._ahead_ns = unix_ns() - steady_ns()

    def __call__(self) -> int:
        return self._steady_ns() + self._ahead_ns

    def step_ns(self) -> int:
        """How far the wall clock was stepped since the start or the last step that was followed; forward is positive."""
        return self._unix_ns() - self()

    def follow(self, step_ns: int) -> None:
        """Go on by the wall clock after a step. Times that were read before are `step_ns` off from now on."""
        self._ahead_ns += step_ns


class Offset(NamedTuple):
    """A node's clock less ours lies between these bounds."""

    low_ns: int
    high_ns: int

    @property
    def ns(self) -> int:
        """The estimate: the middle; of wide bounds the lower one, since the fastest push hardly took any time."""
        is_wide = self.high_ns - self.low_ns > WIDE_NS
        return self.low_ns if is_wide else (self.low_ns + self.high_ns) // 2

    @property
    def is_known(self) -> bool:
        """Whether it may be shown: a push that says nothing of its way back may only have come late."""
        return self.high_ns < WIDEST[1] or self.low_ns > 0

    @property
    def correction_ns(self) -> int:
        """The estimate where the clocks surely differ, else 0."""
        return 0 if self.low_ns <= 0 <= self.high_ns else self.ns

    @property
    def is_skewed(self) -> bool:
        """Whether the clocks surely differ by more than SKEW_NS."""
        return self.low_ns > SKEW_NS or self.high_ns < -SKEW_NS

    def plus(self, ns: int) -> Offset:
        """That of a clock which is so far ahead of the node's."""
        low, high = self
        return Offset(low if low == WIDEST[0] else low + ns, high if high == WIDEST[1] else high + ns)
