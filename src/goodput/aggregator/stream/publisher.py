"""An ingest worker's part of a push: checks it, publishes its parts, and acknowledges once the stream has stored them.

It keeps no state of runs. Aggregators may reject ranks later, and request stacks; the node gets both with the answer to
one of its next pushes, within ANSWER_SECONDS.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from goodput.access.tokens import EVERYTHING, Access
from goodput.aggregator.clock import Offset
from goodput.aggregator.fair_queue import FairQueue
from goodput.aggregator.ingest.checks import (
    BODY_BYTES_AT_ONCE,
    LARGE_WAITING_MAX,
    allowed_part,
    checked,
    merged_bytes,
    out_of_scope,
    rejection,
)
from goodput.aggregator.ingest.ingest import Reservation
from goodput.aggregator.ingest.node_clocks import NodeClocks
from goodput.aggregator.ledger.threads import in_thread
from goodput.aggregator.stream import messages
from goodput.aggregator.stream.connection import Stream
from goodput.aggregator.stream.partitions import ANSWERS
from goodput.metrics import Families
from goodput.wire import schema

log = logging.getLogger("goodput.aggregator")
# Answers that no node has fetched by its next pushes are dropped, and the oldest where there are many.
ANSWER_SECONDS, ANSWERS_MAX = 60.0, 8192


class Publisher:
    """Takes pushes in the place of Ingest, for the ingest route. `counts` are by (series, label)."""

    def __init__(self, stream: Stream, clock_ns: Callable[[], int] = time.time_ns):
        self._stream, self._clock_ns = stream, clock_ns
        self.counts: Counter = Counter()
        self.seconds = 0.0
        self.answers = Answers()
        self._clocks = NodeClocks(clock_ns)
        self._large = FairQueue(LARGE_WAITING_MAX, "large pushes")

    async def run(self) -> None:
        """Receive the aggregators' answers, until cancelled."""
        async for message in self._stream.messages(ANSWERS):
            self.answers.add(message.data)

    async def accept(
        self,
        body: bytes,
        access: Access = EVERYTHING,
        memory: Reservation | None = None,
        spent: Callable[[float], object] = lambda seconds: None,
    ) -> schema.Ack:
        """Publish one push. Raises SchemaError (nothing was accepted), StreamError or QueueFull (push it again)."""
        arrived_ns, took = self._clock_ns(), 0.0

        async def work(function: Callable, *arguments):
            nonlocal took
            result, seconds = await self._work(is_large, function, *arguments)
            took += seconds
            return result

        is_large, owner = len(body) > BODY_BYTES_AT_ONCE, access.token_id or access.name
        try:
            async with self._slot(owner, is_large):
                try:
                    report = await work(schema.decode, body)
                except schema.SchemaError:
                    self.counts["report", "malformed"] += 1
                    raise
                if memory is not None:
                    what = f"a report of {len(report.ranks)} ranks of node {report.node[:64]!r}"
                    await memory.add(merged_bytes(report), what)
                rejected, parts = await work(self._parts, report, access)
            # As in Ingest, a token for some runs says nothing of a node, which it may name as it likes.
            clock = self._clocks.add(report, arrived_ns) if access.is_of_all else None
            await self._publish(report.node, parts, access, arrived_ns, clock)
        finally:
            self.seconds += took
            spent(took)
        self.counts["report", "accepted"] += 1
        later = self.answers.take(report.node)
        for one in later:
            rejected += [again for again in one.rejected if access.may(again.run)]
        wanted = [of for one in later for of in one.wanted if access.may(of.run)]
        return schema.Ack(len(report.ranks) - len(rejected), rejected, wanted[: schema.STACK_REQUESTS_MAX])

    def collect(self, families: Families) -> None:
        published = {
            "published": self.counts["stream", "published"],
            "failed": self.counts["stream", "error"],
        }
        families.add_counts("goodput_aggregator_stream_messages_total", "outcome", published)
        families.add("goodput_aggregator_stream_answers_dropped_total", {}, self.answers.dropped)

    @asynccontextmanager
    async def _slot(self, owner: str, is_large: bool):
        """A slot for a large push: one at a time, fair between tokens. Others need none. Raises QueueFull."""
        if not is_large:
            yield
            return
        async with self._large.slot(owner, LARGE_WAITING_MAX):
            yield

    async def _work(self, is_large: bool, function: Callable, *arguments):
        def timed():
            began = time.thread_time()
            return function(*arguments), time.thread_time() - began

        return await in_thread(timed) if is_large else timed()

    def _parts(
        self, report: schema.NodeReport, access: Access
    ) -> tuple[list[schema.Rejection], list[tuple[int, bytes]]]:
        """Rejections of ranks, and (partition, encoded node report) of the rest."""
        report, refused = allowed_part(report, access)
        rejected = [rejection(one, "scope", out_of_scope(one, access)) for one in refused]
        self.counts["rejection", "scope"] += len(refused)
        found = checked(report.ranks, lambda _report: False, False)
        wrong = list(found.wrong)
        limit, count = self._stream.message_bytes_max(), self._stream.count
        valid = [part.report for part in found.parts]
        while True:
            try:
                parts = list(messages.split(report, valid, count, limit))
                break
            except messages.TooLarge as error:
                wrong.append((error.report, schema.SchemaError(str(error))))
                valid.remove(error.report)
        for one, error in wrong:
            if not isinstance(error, schema.SchemaError):
                raise error
            self.counts["rejection", "malformed"] += 1
            rejected.append(rejection(one.identity, "malformed", str(error)))
        return rejected, parts

    async def _publish(
        self,
        node: str,
        parts: Sequence[tuple[int, bytes]],
        access: Access,
        arrived_ns: int,
        clock: Offset | None,
    ) -> None:
        """All parts at the same time. Raises StreamError where one could not be published."""
        of = {} if access.is_of_all else {"token_id": access.token_id or access.name, "runs": access.runs}
        publishing = []
        for partition, report in parts:
            message = messages.PushMessage(
                node,
                report,
                arrived_ns,
                access.name,
                **of,
                version=messages.VERSION,
                report_version=schema.VERSION,
                clock=clock,
            )
            body, id = messages.encoded(message), messages.message_id(report)
            publishing.append(self._stream.publish(partition, body, id))
        results = await asyncio.gather(*publishing, return_exceptions=True)
        failed = [result for result in results if isinstance(result, BaseException)]
        if failed:
            self.counts["report", "failed"] += 1
            self.counts["stream", "error"] += 1
            raise failed[0]
        self.counts["stream", "published"] += len(parts)


class Answers:
    """Answers of aggregators, by node, until its next push; bounded in number and age."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._of: OrderedDict[str, list[tuple[float, messages.Answer]]] = OrderedDict()  # by node
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._of)

    def add(self, body: bytes) -> None:
        try:
            answer = messages.decode_answer(body)
        except msgspec.DecodeError as error:
            self.dropped += 1
            log.warning("an answer of an aggregator cannot be read: %s", error)
            return
        kept = self._of.setdefault(answer.node, [])
        kept.append((self._clock(), answer))
        del kept[:-4]
        self._of.move_to_end(answer.node)
        while len(self._of) > ANSWERS_MAX:
            self._of.popitem(last=False)
            self.dropped += 1

    def take(self, node: str) -> list[messages.Answer]:
        """The answers for a node, each once."""
        since = self._clock() - ANSWER_SECONDS
        return [answer for at, answer in self._of.pop(node, ()) if at > since]
