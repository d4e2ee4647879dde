"""Tasks that are ended, also one that loses a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from goodput.aggregator.stream import cancellation


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_task_ends_though_cancellations_are_lost(lost, monkeypatch):
    monkeypatch.setattr(cancellation, "AGAIN_SECONDS", 0.001)
    came = []

    async def work():
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                came.append(None)
                if len(came) > lost:
                    raise

    async def story():
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        await asyncio.wait_for(cancellation.end(task), 30)
        assert task.cancelled() and len(came) == lost + 1

    asyncio.run(story())


def test_what_needs_no_end():
    async def story():
        async def failed():
            raise ValueError

        task = asyncio.create_task(failed())
        await asyncio.sleep(0)
        await cancellation.end(task)
        assert isinstance(task.exception(), ValueError)
        await cancellation.end(None)
        await cancellation.end(asyncio.current_task())

    asyncio.run(story())
