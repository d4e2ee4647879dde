"""How late pushes are, as an aggregator over a stream shows it."""

import asyncio
import time
from types import SimpleNamespace

from support.aggregator.reports import body_of, story

from goodput.access.tokens import EVERYTHING
from goodput.aggregator.stream import messages, ownership
from goodput.aggregator.stream.leases import Lease
from goodput.aggregator.stream.members import Members
from goodput.aggregator.stream.ownership import Partitions
from goodput.wire import schema


class WaitingIngest:
    """Accepts a push when the test lets it."""

    def __init__(self):
        self.may_write = asyncio.Event()

    async def accept(self, body, access=EVERYTHING, memory=None, arrived_ns=None) -> schema.Ack:
        await self.may_write.wait()
        return schema.Ack(1, [], [])


def push(arrived_ns: int) -> bytes:
    report = body_of(*story("r", ranks=1)[0])
    return messages.encoded(messages.PushMessage("n0", report, arrived_ns, "token"))


def test_delay_is_that_of_the_oldest_push_in_work(monkeypatch):
    """Also while the ledger fails; and nothing is late a minute after the last push."""

    async def main():
        ingest, stream = WaitingIngest(), SimpleNamespace(count=1)
        partitions = Partitions(stream, Members(stream, "a"), lambda: None, None, ingest)
        held = partitions._held[0] = ownership._Held(Lease(stream, 0, "a"))
        assert partitions.delay_seconds() == 0
        now_ns = time.time_ns()
        accepting = [
            asyncio.create_task(partitions._accept(held, push(now_ns - seconds * 10**9)))
            for seconds in (90, 300)
        ]
        await asyncio.sleep(0)
        assert 300 <= partitions.delay_seconds() < 330
        ingest.may_write.set()
        await asyncio.gather(*accepting)
        assert 90 <= partitions.delay_seconds() < 330 and partitions.counts["read"] == 2
        monkeypatch.setattr(ownership, "DELAY_SECONDS", 0.0)
        assert partitions.delay_seconds() == 0

    asyncio.run(main())
