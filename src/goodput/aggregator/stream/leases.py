"""Leases of partitions in JetStream's key-value store: one holder at a time, who renews it within LEASE_SECONDS.

A key that is not renewed expires in the store; it is changed only by a holder that knows its last revision.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from nats.js.errors import KeyWrongLastSequenceError

from goodput.aggregator.stream.connection import FAILURES, LEASE_SECONDS, Stream

RENEW_SECONDS = LEASE_SECONDS / 3


class LeaseLost(Exception):
    """Another process has the lease."""


class Lease:
    """The lease of one partition. Methods raise LeaseLost, and StreamError where the store does not answer."""

    def __init__(
        self, stream: Stream, partition: int, holder: str, clock: Callable[[], float] = time.monotonic
    ):
        self.partition = partition
        self._stream, self._clock = stream, clock
        self._key, self._holder = f"partition.{partition}", holder.encode()
        self._revision, self._renewed = 0, 0.0

    def is_due(self) -> bool:
        return self._clock() - self._renewed > RENEW_SECONDS

    def is_valid(self) -> bool:
        """Whether it cannot have expired in the store, so that no other process has it."""
        return self._clock() - self._renewed < LEASE_SECONDS

    async def take(self) -> None:
        began = self._clock()
        with self._stream.errors():
            try:
                self._revision = await self._stream.leases.create(self._key, self._holder)
            except KeyWrongLastSequenceError:
                raise LeaseLost(self._key) from None
        self._renewed = began

    async def renew(self) -> None:
        """Extend it; one that has expired is taken again unless another process has it."""
        began = self._clock()
        leases = self._stream.leases
        with self._stream.errors():
            try:
                self._revision = await leases.update(self._key, self._holder, last=self._revision)
            except KeyWrongLastSequenceError:
                await self.take()
        self._renewed = began

    async def give_back(self) -> None:
        with suppress(*FAILURES):  # It expires.
            await self._stream.leases.delete(self._key, last=self._revision)
        self._renewed = -LEASE_SECONDS
