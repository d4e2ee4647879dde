"""Ranks that are forked from a script's own process, which has imported PyTorch for all of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def forked_ranks(count: int, run_rank: Callable[[int], object]) -> Iterator[list[int]]:
    """The pids of `count` processes, each of which calls `run_rank` with its rank; killed at the end if they still run."""
    pids: list[int] = []
    try:
        for rank in range(count):
            pid = os.fork()
            if pid == 0:
                try:
                    run_rank(rank)
                finally:
                    os._exit(1)
            pids.append(pid)
        yield pids
    finally:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass  # It was waited for before.
