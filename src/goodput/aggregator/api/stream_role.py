"""What a process does where several share a stream: takes pushes, serves partitions, or both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine

from goodput.access.tokens import Access
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.api.ingest_route import Pushed
from goodput.aggregator.api.run_memory import RunMemory
from goodput.aggregator.api.stream_member import StreamMember
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.memory_bound import MemoryBound, Reservation
from goodput.aggregator.stream.connection import Stream, StreamSettings
from goodput.aggregator.stream.errors import StreamError
from goodput.aggregator.stream.publisher import Publisher
from goodput.wire import schema


class StreamRole:
    """`pushed` takes the pushes, `stream` is the connection."""

    def __init__(self, settings: StreamSettings, name: str, takes_pushes: bool):
        """`name` is this process's, unique among all, without dots or spaces."""
        self.stream, self.name = Stream(settings, name), name
        self.publisher = Publisher(self.stream) if takes_pushes else None
        self.pushed: Pushed = self.publisher or NoPushes()

    def member(
        self, ledger: Ledger, ingest: Ingest, accounts: Accounts, runs: RunMemory, memory: MemoryBound
    ) -> StreamMember:
        return StreamMember(self.stream, self.name, ledger, ingest, accounts, runs, memory, self.publisher)

    def works(self) -> list[Callable[[], Coroutine]]:
        """What runs beside requests once the stream is connected."""
        return [self.publisher.run] if self.publisher else []


class NoPushes:
    """Refuses pushes: agents keep them until they reach an ingest worker."""

    def __init__(self):
        self.counts: Counter = Counter()

    async def accept(
        self, body: bytes, access: Access, memory: Reservation, spent: Callable[[float], object]
    ) -> schema.Ack:
        raise StreamError(
            "this aggregator takes no pushes (--role aggregate); push to one with --role ingest or all"
        )
