"""How long processes were ready to run without a core: the control that keeps bounds of time right on a busy machine."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable


class CoreWait:
    """The wait of all threads of processes since this was made, by the kernel's schedstat; near 0 on a quiet machine.

    A thread that ends takes its count with it, so that only those that are there at the end count.
    """

    def __init__(self, processes: Callable[[], Iterable[int | str]] = lambda: ("self",)):
        self._processes = processes
        self._begun = self._by_thread()

    def seconds(self) -> float:
        """Never negative: 0 where the kernel has no such counters."""
        return sum(max(ns - self._begun.get(at, 0), 0) for at, ns in self._by_thread().items()) / 1e9

    def _by_thread(self) -> dict[str, int]:
        """Nanoseconds since each thread began, by its path in procfs."""
        found = {}
        for pid in self._processes():
            with contextlib.suppress(
                OSError
            ):  # The process or thread has ended, or there are no such counters.
                for thread in os.scandir(f"/proc/{pid}/task"):
                    with contextlib.suppress(OSError), open(f"{thread.path}/schedstat") as file:
                        found[thread.path] = int(file.read().split()[1])
        return found


@contextlib.contextmanager
def within(seconds: float):
    """Inside takes less than this and what this process's threads waited for cores; yields a list for the seconds."""
    took, began, waited = [], time.monotonic(), CoreWait()
    yield took
    took.append(time.monotonic() - began)
    assert took[0] < seconds + waited.seconds(), (
        f"took {took[0]:.2f} s, {waited.seconds():.2f} s of them without a core"
    )
