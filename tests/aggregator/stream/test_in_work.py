import asyncio

import pytest

from goodput.aggregator.stream.in_work import InWork


class Gates:
    """Work on messages that ends when it is let go."""

    def __init__(self):
        self.open: dict[int, asyncio.Event] = {}
        self.done: list[int] = []

    async def work(self, sequence: int) -> None:
        self.open[sequence] = asyncio.Event()
        await self.open[sequence].wait()
        self.done.append(sequence)

    async def let_go(self, *sequences: int) -> None:
        await asyncio.sleep(0)  # until those that were just added have begun
        for sequence in sequences:
            self.open[sequence].set()
        for _ in range(3):
            await asyncio.sleep(0)


def test_one_that_waits_does_not_hold_up_those_behind_it():
    async def run():
        gates, work = Gates(), InWork(10)
        for sequence in (11, 14, 15, 20):  # numbers of other partitions are in between
            await work.add(sequence, gates.work(sequence))
        assert work.written == 10
        await gates.let_go(14, 20)
        assert gates.done == [14, 20] and work.written == 10
        await gates.let_go(11)
        assert work.written == 14
        await work.add(21, gates.work(21))
        await gates.let_go(21, 15)
        assert work.written == 21

    asyncio.run(run())


def test_so_many_wait_at_most():
    async def run():
        gates, work = Gates(), InWork(0, waiting_max=2)
        await work.add(1, gates.work(1))
        second = asyncio.create_task(work.add(2, gates.work(2)))
        await gates.let_go()
        assert not second.done()
        await gates.let_go(2)
        assert second.done() and work.written == 0

    asyncio.run(run())


def test_so_many_are_known_to_be_done_at_most():
    async def run():
        gates, work = Gates(), InWork(0, known_max=3)
        for sequence in (1, 2):
            await work.add(sequence, gates.work(sequence))
        third = asyncio.create_task(work.add(3, gates.work(3)))
        await gates.let_go(2)
        assert not third.done()
        await gates.let_go(1)
        await third
        assert work.written == 2

    asyncio.run(run())


def test_end_cancels_what_is_not_done():
    async def run():
        gates, work = Gates(), InWork(0)
        for sequence in (1, 2, 3):
            await work.add(sequence, gates.work(sequence))
        await gates.let_go(1, 3)
        await work.end()
        assert gates.done == [1, 3] and work.written == 1
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_error_is_raised_at_the_next_message():
    """The position stays before the message that failed."""

    async def run():
        async def fails() -> None:
            raise RuntimeError("unforeseen")

        gates, work = Gates(), InWork(0)
        await work.add(1, fails())
        await gates.let_go()
        with pytest.raises(RuntimeError, match="unforeseen"):
            await work.add(2, gates.work(2))
        assert work.written == 0
        await work.end()

    asyncio.run(run())
