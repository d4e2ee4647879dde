"""Which aggregators are alive and which partitions they hold, from the heartbeat of each once a second on core NATS.

An aggregator decides by this which partitions it tries to take. Leases decide which one holds a partition (leases.py),
and the ledger which one writes it (ledger/fence.py).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection

import msgspec

from goodput.aggregator.stream.connection import Stream
from goodput.aggregator.stream.decoding import decode
from goodput.aggregator.stream.partitions import MEMBERS

log = logging.getLogger("goodput.aggregator")
# An aggregator without a heartbeat for so long does not count; others may try to take its partitions, whose leases it may
# hold for two seconds more.
SILENT_SECONDS = 3.0
MEMBERS_MAX = 256
# Names are parts of subjects. A server ends the connection of a client that publishes to a malformed one.
_NAME = re.compile(r"[A-Za-z0-9-]{1,128}")


class Heartbeat(msgspec.Struct, frozen=True):
    """The partitions that one aggregator holds, and those it gave away since its last one; `stays` is False when it leaves."""

    member: str
    held: list[int]
    given: list[int] = []
    stays: bool = True


_decoder = msgspec.msgpack.Decoder(Heartbeat)


class Members:
    """All aggregators but this one, by their last heartbeats."""

    def __init__(self, stream: Stream, own: str, clock: Callable[[], float] = time.monotonic):
        self.own = own
        self._stream, self._clock = stream, clock
        self._last: dict[str, tuple[float, Heartbeat]] = {}  # by member, with when it arrived
        self.changed = clock()  # when one came or went
        self.given: set[int] = set()  # partitions that others gave away and no heartbeat claims yet
        self.on_given: Callable[[], object] = lambda: None

    async def listen(self) -> None:
        """Receive the heartbeats of others, until cancelled."""
        async for message in self._stream.messages(MEMBERS):
            self.receive(message.data)

    async def publish(self, held: Collection[int], given: Collection[int] = (), stays: bool = True) -> None:
        """Publish this aggregator's heartbeat."""
        beat = Heartbeat(self.own, sorted(held), sorted(given), stays)
        await self._stream.client.publish(MEMBERS, msgspec.msgpack.encode(beat))

    def receive(self, body: bytes) -> None:
        """Take one heartbeat; a malformed one is logged."""
        try:
            beat = decode(_decoder, body)
            self._check(beat)
        except msgspec.DecodeError as error:
            log.warning("a message of another aggregator cannot be read: %s", error)
            return
        if beat.member == self.own:
            return
        self.given = (self.given - set(beat.held)) | set(beat.given)
        if beat.given:
            self.on_given()
        if beat.member not in self._last and len(self._last) >= MEMBERS_MAX:
            return
        if (beat.member in self._last) != beat.stays:
            self.changed = self._clock()
        if beat.stays:
            self._last[beat.member] = (self._clock(), beat)
        else:
            self._last.pop(beat.member, None)

    def _check(self, beat: Heartbeat) -> None:
        """Raises msgspec.DecodeError for a heartbeat that no aggregator of this installation sends."""
        if not _NAME.fullmatch(beat.member):
            raise msgspec.DecodeError(f"{beat.member[:64]!r} is no aggregator's name")
        count = self._stream.count
        for claimed in (beat.held, beat.given):
            if len(claimed) > count:
                raise msgspec.DecodeError(f"{beat.member} has {len(claimed)} partitions of {count}")
            if wrong := [one for one in claimed if not 0 <= one < count]:
                raise msgspec.DecodeError(f"{beat.member} has partition {wrong[0]} of 0 to {count - 1}")

    def alive(self) -> dict[str, list[int]]:
        """The partitions of each other aggregator with a heartbeat within SILENT_SECONDS."""
        now = self._clock()
        gone = [member for member, (at, _) in self._last.items() if now - at > SILENT_SECONDS]
        for member in gone:
            del self._last[member]
            self.changed = now
        return {member: beat.held for member, (_, beat) in self._last.items()}
