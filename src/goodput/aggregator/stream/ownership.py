"""The partitions of this aggregator: takes free ones, reads their pushes, and gives away those beyond its share.

The share is the number of partitions divided by that of aggregators, rounded up. A partition that stays free for
ANYBODY_SECONDS is taken beyond the share, so that no run is without an aggregator.

An aggregator that reads a message or a ledger of a later version of the program gives all its partitions away, loses
nothing by it, and from then on takes only partitions that stay free.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

import msgspec

from goodput.access.responses import Refusal
from goodput.aggregator.clock import Offset
from goodput.aggregator.fair_queue import QueueFull
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ledger.fence import Fence
from goodput.aggregator.ledger.ledger import LedgerError
from goodput.aggregator.ledger.threads import in_thread
from goodput.aggregator.memory_bound import MemoryBound
from goodput.aggregator.stream import cancellation, messages
from goodput.aggregator.stream.connection import LEASE_SECONDS, Stream
from goodput.aggregator.stream.errors import StreamError
from goodput.aggregator.stream.in_work import InWork
from goodput.aggregator.stream.leases import Lease, LeaseLost
from goodput.aggregator.stream.members import Members
from goodput.aggregator.stream.partitions import ANSWERS, partition_of
from goodput.aggregator.stream.reader import PartitionReader
from goodput.wire import schema

log = logging.getLogger("goodput.aggregator")
# How often leases are renewed and free partitions taken; the second while the lease of a free one within the share expires.
POLL_SECONDS, WANTED_POLL_SECONDS = 1.0, 0.2
# A partition that no heartbeat claims for FREE_SECONDS is free: one heartbeat may be missed.
FREE_SECONDS, ANYBODY_SECONDS = 1.5, 3 * LEASE_SECONDS
# One partition is given away at a time, once no aggregator has come or gone for so long.
SETTLED_SECONDS, GIVE_SECONDS = 10.0, 2.0
# A partition whose oldest push has waited for so long is given at once to an aggregator that holds less than its share:
# after a takeover two then read in parallel what one alone would read in twice the time.
BEHIND_SECONDS = 3.0
PURGE_SECONDS = 2.0
# Messages that are in the ledger are kept for KEPT_SECONDS, in case the database is restored from an earlier state, unless
# the stream is fuller than FULL_SHARE.
KEPT_SECONDS, FULL_SHARE = 600.0, 0.5
RETRY_SECONDS = 0.5
# The delay of the last push of a partition is shown for so long; then nothing is late.
DELAY_SECONDS = 60.0
# How often a push is tried that fails with an unexpected error.
TRIES = 3


class Runs(Protocol):
    """What the owner of partitions does with their runs."""

    async def take(self, partition: int) -> None:
        """Serve the runs that the ledger has of a partition. Raises LedgerError."""
        ...

    async def drop(self, partition: int) -> None:
        """Drop the runs of a partition from memory, with what of them is not written."""
        ...

    async def flush(self) -> None:
        """Write what is merged. Raises LedgerError."""
        ...


class _Position(NamedTuple):
    at: float
    sequence: int


class _Held:
    """A partition whose lease this process holds."""

    def __init__(self, lease: Lease):
        self.lease = lease
        self.task: asyncio.Task | None = None
        self.is_lost = False
        self.too_new = ""  # why this program must not read on
        self.is_serving = False  # its runs are here, and up to date but for what is pending
        self.work = InWork(0)
        self.noted = 0  # the last message that the ledger records as written
        self.history: list[_Position] = []
        self.pending = 0
        # When the pushes arrived that are read and not in the ledger yet, unix ns.
        self.arrivals_ns: list[int] = []
        # By node; a lock is granted in the order of the requests for it.
        self.node_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.last_delay_seconds, self.last_read_ns = 0.0, 0

    @property
    def written(self) -> int:
        """The sequence number of the last message whose push, and all before it, are in the ledger."""
        return self.work.written

    def waited_seconds(self, now_ns: int) -> float:
        """How old the oldest push in work is, 0 without one."""
        return (now_ns - min(self.arrivals_ns)) / 1e9 if self.arrivals_ns else 0.0

    def delay_seconds(self, now_ns: int) -> float:
        """How old the oldest push in work is; without one, the delay of the last one, for DELAY_SECONDS."""
        if self.arrivals_ns:
            return self.waited_seconds(now_ns)
        return self.last_delay_seconds if now_ns - self.last_read_ns < DELAY_SECONDS * 1e9 else 0.0


class Partitions:
    """`counts` are by what happened, such as "takeovers". `run` does the work."""

    def __init__(
        self,
        stream: Stream,
        members: Members,
        fence: Callable[[], Fence],
        runs: Runs,
        ingest: Ingest,
        memory: MemoryBound | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`fence` is called once, when the stream is connected and the ledger open."""
        self._stream, self._members, self._make_fence = stream, members, fence
        self._runs, self._ingest, self._memory = runs, ingest, memory or MemoryBound()
        self._clock = clock
        self._fence: Fence | None = None
        self._held: dict[int, _Held] = {}
        self._free_since: dict[int, float] = {}
        self._wanted: set[int] = set()  # free partitions of this one's share, whose leases run out
        self._gave = self._purged = clock()
        # Why this program takes only partitions that stay free, "" where it may serve all.
        self._outdated = ""
        self._is_given = asyncio.Event()  # set where another aggregator gave a partition away
        members.on_given = self._is_given.set
        self.counts: Counter = Counter()

    # ---- What is held

    def holds(self, partition: int) -> bool:
        """Whether this process serves a partition, and its lease excludes all others."""
        return self.serves(partition) and self._held[partition].lease.is_valid()

    def serves(self, partition: int) -> bool:
        """Whether this process serves a partition, as far as it knows: it may have been stopped for a while."""
        held = self._held.get(partition)
        return held is not None and held.is_serving

    def held(self) -> list[int]:
        return sorted(one for one in self._held if self.holds(one))

    def unowned(self) -> list[int]:
        """The partitions that no aggregator is known to serve."""
        owned = {one for held in self._members.alive().values() for one in held}
        return [one for one in range(self._stream.count) if one not in owned and not self.holds(one)]

    def pending(self) -> int:
        """Messages of the held partitions that are not read yet."""
        return sum(one.pending for one in self._held.values())

    def delay_seconds(self) -> float:
        """How long pushes take until the ledger has them, of the partition that is furthest behind."""
        now_ns = time.time_ns()
        return max((one.delay_seconds(now_ns) for one in self._held.values()), default=0.0)

    # ---- Work

    async def run(self) -> None:
        """Hold partitions until cancelled."""
        fence = self._fence = await self._until_done(lambda: in_thread(self._make_fence))
        # Leases in a task of their own: a ledger that does not answer must not lose them.
        works = (
            self._members.listen(),
            self._repeat(self._keep_leases),
            self._repeat(lambda: self._manage(fence)),
        )
        running = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.gather(*running)
        finally:
            for task in (*running, *(held.task for held in self._held.values())):
                if task:
                    task.cancel()

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        """Call `work` every POLL_SECONDS, whatever fails, and at once where another aggregator gave a partition away."""
        is_logged = False
        while True:
            try:
                await work()
                is_logged = False
            except (StreamError, LedgerError) as error:
                if not is_logged:
                    log.warning("partitions: %s", error)
                is_logged = True
            except Exception:
                log.exception("partitions: unexpected error")
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._is_given.wait(), self._pause_seconds())
            self._is_given.clear()

    def _pause_seconds(self) -> float:
        return WANTED_POLL_SECONDS if self._wanted else POLL_SECONDS

    async def stop(self) -> None:
        """Give all partitions away, so that other aggregators take them at once."""
        given = list(self._held)
        for partition in given:
            try:
                await self._give(partition)
            except (StreamError, LedgerError) as error:
                log.warning("partition %d was not given away: %s", partition, error)
        with suppress(StreamError):
            await self._publish(given, stays=False)

    async def _keep_leases(self) -> None:
        async def renew(held: _Held) -> None:
            try:
                await held.lease.renew()
            except LeaseLost:
                log.warning("partition %d: another aggregator has its lease", held.lease.partition)
                held.is_lost, held.is_serving = True, False

        due = [renew(held) for held in self._held.values() if held.lease.is_due() and not held.is_lost]
        failed = [one for one in await asyncio.gather(*due, return_exceptions=True) if one is not None]
        await self._publish()
        if failed:
            raise failed[0]

    async def _manage(self, fence: Fence) -> None:
        for partition in fence.lost & self._held.keys():
            log.warning("partition %d: another aggregator writes it", partition)
            self._held[partition].is_lost = True
        for partition, held in self._held.items():
            if held.task and held.task.done() and not held.task.cancelled() and held.task.exception():
                log.error("partition %d: reading it failed", partition, exc_info=held.task.exception())
                held.is_lost = True
        for partition in [one for one, held in self._held.items() if held.is_lost]:
            await self._lose(partition)
        if too_new := fence.too_new or next(filter(None, (one.too_new for one in self._held.values())), ""):
            await self._leave(too_new)
            fence.too_new = ""
        await self._take_free()
        await self._give_too_much()
        await self._note_positions(fence)
        await in_thread(fence.verify)

    async def _leave(self, reason: str) -> None:
        """Give all partitions away, since this program cannot serve them; what is not written stays in the stream."""
        if reason != self._outdated:
            log.error(
                "%s; this aggregator gives its partitions away and takes only those that stay free: update it",
                reason,
            )
        self._outdated = reason
        given = list(self._held)
        for partition in given:
            lease = self._held[partition].lease
            try:
                await self._give(partition)
            except LedgerError:
                await lease.give_back()
        await self._publish(given, stays=False)

    async def _publish(self, given: Collection[int] = (), stays: bool = True) -> None:
        try:
            held = [one for one, held in self._held.items() if stays and not held.is_lost]
            await self._members.publish(held, given, stays and (bool(held) or not self._outdated))
        except Exception as error:
            raise self._stream.error(error) from None

    async def _take_free(self) -> None:
        others = self._members.alive()
        owned = {one for held in others.values() for one in held} | self._held.keys()
        now = self._clock()
        free = [one for one in range(self._stream.count) if one not in owned]
        self._free_since = {one: self._free_since.get(one, now) for one in free}
        share = -(-self._stream.count // (len(others) + 1))
        # Each aggregator has an order of its own, so that two with the same view do not compete for the same partitions.
        ranked = sorted(free, key=lambda one: partition_of(f"{self._members.own} {one}", 1 << 16))
        self._wanted.clear()
        for partition in ranked:
            waited = now - self._free_since[partition]
            least = 0.0 if partition in self._members.given else FREE_SECONDS
            is_wanted = len(self._held) < share and not self._outdated
            if waited >= (least if is_wanted else ANYBODY_SECONDS):
                await self._take(partition)
            if is_wanted and partition not in self._held and waited < FREE_SECONDS + LEASE_SECONDS:
                self._wanted.add(partition)

    async def _take(self, partition: int) -> None:
        lease = Lease(self._stream, partition, self._members.own, self._clock)
        try:
            await lease.take()
        except LeaseLost:
            return
        held = self._held[partition] = _Held(lease)
        held.task = asyncio.create_task(self._serve(held))
        self.counts["takeovers"] += 1

    async def _give_too_much(self) -> None:
        others, now = self._members.alive(), self._clock()
        share = -(-self._stream.count // (len(others) + 1))
        behind = self._furthest_behind()
        room = sum(max(share - len(held), 0) for held in others.values())
        given = behind[: max(min(len(self._held) - share, room), 0)]
        settled_seconds = now - max(self._members.changed, self._gave + GIVE_SECONDS - SETTLED_SECONDS)
        serving = [one for one, held in self._held.items() if held.is_serving]
        if not given and len(serving) > share and others and settled_seconds > SETTLED_SECONDS:
            given = [min(serving)]
        for partition in given:
            self._gave = now
            await self._give(partition)
            await self._publish([partition])

    def _furthest_behind(self) -> list[int]:
        """The partitions whose oldest push has waited for BEHIND_SECONDS, the longest first."""
        now_ns = time.time_ns()
        waited = {one: held.waited_seconds(now_ns) for one, held in self._held.items() if held.is_serving}
        late = [one for one, seconds in waited.items() if seconds > BEHIND_SECONDS]
        return sorted(late, key=lambda one: -waited[one])

    async def _give(self, partition: int) -> None:
        """Give a partition away, with all that was read of it in the ledger. Raises LedgerError."""
        held = self._held[partition]
        held.is_serving = False
        await self._end(held)
        try:
            await self._runs.flush()
            if self._fence and held.written > held.noted:
                await in_thread(self._fence.keep, {partition: held.written})
        finally:
            await self._lose(partition)
        await held.lease.give_back()
        log.info("partition %d was given away", partition)

    async def _lose(self, partition: int) -> None:
        held = self._held.get(partition)
        if held is None:
            return
        held.is_serving = False
        await self._end(held)
        await self._runs.drop(partition)
        if self._fence:
            self._fence.drop(partition)
        self._held.pop(partition, None)

    async def _end(self, held: _Held) -> None:
        task, held.task = held.task, None
        await cancellation.end(task)

    async def _note_positions(self, fence: Fence) -> None:
        positions = {one: held.written for one, held in self._held.items() if held.written > held.noted}
        now = self._clock()
        if positions:
            await in_thread(fence.keep, positions)
        for one, position in positions.items():
            held = self._held.get(one)
            if held:
                held.noted = position
                held.history.append(_Position(now, position))
        if now - self._purged > PURGE_SECONDS:
            self._purged = now
            await self._purge(now)

    async def _purge(self, now: float) -> None:
        """Delete messages from the stream that are in the ledger: old ones, or all where it is full."""
        kept = 0.0 if await self._stream.used_share() > FULL_SHARE else KEPT_SECONDS
        for partition, held in list(self._held.items()):
            old = [position for position in held.history if now - position.at >= kept]
            if old:
                held.history = held.history[len(old) :]
                await self._stream.purge(partition, old[-1].sequence + 1)

    # ---- Reading

    async def _serve(self, held: _Held) -> None:
        """Take the runs of a partition and read its pushes, until cancelled."""
        partition = held.lease.partition
        position = await self._until_done(lambda: self._begin(partition))
        held.work, held.noted = InWork(position), position
        reader = PartitionReader(self._stream, partition, position)
        held.is_serving = True
        log.info("partition %d is served from message %d on", partition, position + 1)
        try:
            while True:
                for one in await self._until_done(reader.next):
                    await held.work.add(one.sequence, self._accept(held, one.body))
                held.work.raise_failed()  # Also of the stream's last message, which no other one follows.
                held.pending = reader.pending
                if not held.pending:
                    self._outdated = ""
        except messages.TooNew as error:
            held.too_new = f"partition {partition}: the stream has {error}"
            self.counts["newer"] += 1
        finally:
            await held.work.end()
            await reader.close()

    async def _begin(self, partition: int) -> int:
        assert self._fence
        position = await in_thread(self._fence.take, partition)
        await self._runs.take(partition)
        return position

    async def _until_done(self, work: Callable[[], Awaitable]):
        """The result of `work`, tried again while stream or ledger fail."""
        is_logged = False
        while True:
            try:
                return await work()
            except (StreamError, LedgerError) as error:
                if not is_logged:
                    log.warning("%s; trying again", error)
                is_logged = True
            await asyncio.sleep(RETRY_SECONDS)

    async def _accept(self, held: _Held, body: bytes) -> None:
        """Returns once the ledger has the push, or it can never be accepted. Raises messages.TooNew."""
        try:
            message = messages.decode_push(body)
        except msgspec.DecodeError as error:
            self.counts["malformed"] += 1
            log.error("partition %d: a message cannot be read: %s", held.lease.partition, error)
            return
        held.arrivals_ns.append(message.arrived_ns)
        try:
            # In order, also where one is tried again: a step that comes before the one before it has no length.
            async with held.node_locks.setdefault(message.node, asyncio.Lock()):
                ack = await self._tried(held, message)
        finally:
            held.arrivals_ns.remove(message.arrived_ns)
        if ack is None:
            return
        held.last_read_ns = time.time_ns()
        held.last_delay_seconds = (held.last_read_ns - message.arrived_ns) / 1e9
        self.counts["read"] += 1
        if ack.rejected or ack.wanted:
            answer = messages.Answer(message.node, ack.rejected, ack.wanted)
            try:
                await self._stream.client.publish(ANSWERS, messages.encoded(answer))
            except Exception as error:
                log.debug("an answer to node %r was lost: %s", message.node, error)

    async def _tried(self, held: _Held, message: messages.PushMessage) -> schema.Ack | None:
        """None for a push that can never be accepted."""
        for left in reversed(range(TRIES)):
            try:
                return await self._accepted(message)
            except schema.SchemaError:
                return None  # counted by ingest
            except Exception:
                log.exception("partition %d: a push failed", held.lease.partition)
                if left:
                    await asyncio.sleep(RETRY_SECONDS)
        self.counts["failed"] += 1
        return None

    async def _accepted(self, message: messages.PushMessage) -> schema.Ack:
        """Tried until the ledger has it."""
        note_clock(self._ingest, message)
        while True:
            try:
                async with self._memory.reservation() as memory:
                    return await self._ingest.accept(
                        message.report, message.access(), memory, arrived_ns=message.arrived_ns
                    )
            except (LedgerError, QueueFull, Refusal):
                await asyncio.sleep(RETRY_SECONDS)


def note_clock(ingest: Ingest, message: messages.PushMessage) -> None:
    """Let the ingest know what the worker knew of the node's clock, before it takes the message's push."""
    if message.clock is not None and message.access().is_of_all:
        ingest.clocks.narrow(message.node, Offset(*message.clock), message.arrived_ns)
