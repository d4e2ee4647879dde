"""Runs work over the ledger in a thread, with a clear error where none can be started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from goodput.aggregator.ledger.database import LedgerError


class NoThread(LedgerError):
    """No thread can be started: the process or its user has as many as it may."""


async def in_thread(function: Callable, *arguments) -> Any:
    """`function(*arguments)`. Raises NoThread, and what the function raises."""
    try:
        running = asyncio.get_running_loop().run_in_executor(None, partial(function, *arguments))
    except RuntimeError as error:
        raise NoThread(
            f"no thread can be started ({error}): raise the limit of processes (ulimit -u, TasksMax, pids.max) or end "
            "others"
        ) from None
    return await running
