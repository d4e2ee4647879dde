"""How long processes were ready to run without a core: the control that keeps bounds of time right on a busy machine."""

from __future__ import annotations

import contextlib
import os
import time


def core_wait_seconds(pid: int | str = "self") -> float:
    """Of all threads of a process, by the kernel's schedstat; close to 0 on a quiet machine."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/schedstat") as file:
                total += int(file.read().split()[1])
        except OSError:
            continue  # The thread has ended, or this kernel has no such counters.
    return total / 1e9


@contextlib.contextmanager
def within(seconds: float):
    """Inside takes less than this and what this process's threads waited for cores; yields a list for the seconds."""
    took, began, waited = [], time.monotonic(), core_wait_seconds()
    yield took
    took.append(time.monotonic() - began)
    waited = max(core_wait_seconds() - waited, 0.0)
    assert took[0] < seconds + waited, f"took {took[0]:.2f} s, {waited:.2f} s of them without a core"
