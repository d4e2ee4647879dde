"""The messages of one partition, in the order of the stream, from a position on.

The JetStream consumer is in memory and may be lost with its server: the position is in the ledger. A gap in a consumer's
sequence numbers means that a message was missed; a new consumer then begins after the last one that was read.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import NamedTuple

from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.client import JetStreamContext

from goodput.aggregator.stream.connection import FAILURES, NAME, Stream
from goodput.aggregator.stream.partitions import pushes

log = logging.getLogger("goodput.aggregator")
BATCH = 128
# How long to wait for a message; then the server is asked whether the consumer still exists.
WAIT_SECONDS = 1.0
# The server deletes a consumer that is not used for so long.
UNUSED_SECONDS = 60.0
# No server answers for a consumer whose server has stopped, nor for a stream without a leader.
ANSWER_SECONDS = 2.0


class Message(NamedTuple):
    sequence: int
    body: bytes


class PartitionReader:
    """`position` is the sequence number of the last message returned, `pending` the number of messages after it."""

    def __init__(self, stream: Stream, partition: int, position: int):
        self._stream, self._partition = stream, partition
        self.position, self.pending = position, 0
        self._subscription: JetStreamContext.PullSubscription | None = None
        self._number = 0  # of the consumer's last message

    async def next(self) -> list[Message]:
        """The next messages, at most BATCH; [] after WAIT_SECONDS without one. Raises StreamError."""
        try:
            return await self._next()
        except FAILURES as error:
            await self.close()
            raise self._stream.error(error) from None

    async def _next(self) -> list[Message]:
        if self._subscription is None:
            self._subscription = await asyncio.wait_for(self._subscribe(), ANSWER_SECONDS)
            self._number = 0
        try:
            found = await self._subscription.fetch(BATCH, timeout=WAIT_SECONDS)
        except asyncio.TimeoutError:
            await asyncio.wait_for(self._subscription.consumer_info(), ANSWER_SECONDS)
            return []
        messages = []
        for message in found:
            at = message.metadata
            if at.sequence.consumer != self._number + 1:
                log.info("partition %d: a message was missed; reading it again", self._partition)
                await self.close()
                break
            self._number = at.sequence.consumer
            self.position, self.pending = at.sequence.stream, at.num_pending or 0
            messages.append(Message(at.sequence.stream, message.data))
        return messages

    async def _subscribe(self) -> JetStreamContext.PullSubscription:
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self.position + 1,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=UNUSED_SECONDS,
            mem_storage=True,
            num_replicas=1,
        )
        subject = pushes(self._stream.count, self._partition)
        return await self._stream.js.pull_subscribe(subject, stream=NAME, config=config)

    async def close(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with suppress(*FAILURES):
                await subscription.unsubscribe()
