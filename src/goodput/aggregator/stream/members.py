"""Which aggregators are alive, and which partitions they hold, as each of them tells once a second on core NATS.

This decides who tries to take what. Who holds a partition is decided by leases (leases.py), and who writes it by the
ledger (ledger/fence.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

import msgspec

from goodput.aggregator.stream.connection import Stream
from goodput.aggregator.stream.partitions import MEMBERS, PARTITIONS_MAX

log = logging.getLogger("goodput.aggregator")
# An aggregator that was not heard for so long does not count; others may try its partitions, whose leases it may have for
# two seconds more.
SILENT_SECONDS = 3.0
MEMBERS_MAX = 256


class Heartbeat(msgspec.Struct, frozen=True):
    """What one aggregator tells: the partitions that it holds, those that it just gave away, and whether it stays."""

    member: str
    held: list[int]
    given: list[int] = []
    stays: bool = True


_decoder = msgspec.msgpack.Decoder(Heartbeat)


class Members:
    """All aggregators but this one, by what they told last."""

    def __init__(self, stream: Stream, own: str, clock: Callable[[], float] = time.monotonic):
        self.own = own
        self._stream, self._clock = stream, clock
        self._heard: dict[str, tuple[float, Heartbeat]] = {}
        self.changed = clock()  # when one came or went
        self.given: set[int] = set()  # partitions that others gave away, until somebody is heard to hold them
        self.on_given: Callable[[], object] = lambda: None

    async def listen(self) -> None:
        """Hear what others tell, until cancelled."""
        subscription = await self._stream.client.subscribe(MEMBERS)
        async for message in subscription.messages:
            self.hear(message.data)

    async def tell(self, held: Collection[int], given: Collection[int] = (), stays: bool = True) -> None:
        """Tell the others what this one holds, and what it gave away since it told that last."""
        beat = Heartbeat(self.own, sorted(held), sorted(given), stays)
        await self._stream.client.publish(MEMBERS, msgspec.msgpack.encode(beat))

    def hear(self, body: bytes) -> None:
        try:
            beat = _decoder.decode(body)
        except msgspec.DecodeError as error:
            log.warning("a message of another aggregator cannot be read: %s", error)
            return
        if beat.member == self.own or max(len(beat.held), len(beat.given)) > PARTITIONS_MAX:
            return
        self.given = (self.given - set(beat.held)) | set(beat.given)
        if beat.given:
            self.on_given()
        if beat.member not in self._heard and len(self._heard) >= MEMBERS_MAX:
            return
        if (beat.member in self._heard) != beat.stays:
            self.changed = self._clock()
        if beat.stays:
            self._heard[beat.member] = (self._clock(), beat)
        else:
            self._heard.pop(beat.member, None)

    def alive(self) -> dict[str, list[int]]:
        """The partitions of each other aggregator that was heard lately."""
        now = self._clock()
        gone = [member for member, (at, _) in self._heard.items() if now - at > SILENT_SECONDS]
        for member in gone:
            del self._heard[member]
            self.changed = now
        return {member: beat.held for member, (_, beat) in self._heard.items()}
