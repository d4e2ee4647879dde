"""Ends a task for certain: `asyncio.wait_for` loses a cancellation that comes together with its result (Python 3.11)."""

from __future__ import annotations

import asyncio

AGAIN_SECONDS = 0.5


async def end(task: asyncio.Task | None) -> None:
    """Cancel a task, again until it has ended; nothing without one, or for the one that calls this."""
    if task is None or task is asyncio.current_task():
        return
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=AGAIN_SECONDS)
