"""The aggregator's clock: unix time that goes on steadily while the machine's wall clock is stepped.

It is read from the wall clock once and goes on with the time since boot, suspended time included. Where the wall clock
is set by an hour, ages and statuses stay what they are. A step is followed only where the nodes' clocks confirm it
(ingest.node_clocks).

    clock = SteadyClock(); clock()
"""

from __future__ import annotations

import time
from collections.abc import Callable


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
