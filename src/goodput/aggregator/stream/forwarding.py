"""Forwards requests about runs of other aggregators to their owners over NATS.

The aggregator that receives a request authenticates its client, and forwards what the token permits with it. So only
aggregators and ingest workers may have access to NATS. An answer is sent in parts of PART_BYTES, since messages are
bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import NoRespondersError
from starlette.types import Scope

from goodput.access.tokens import Access
from goodput.aggregator.http.authentication import address_of
from goodput.aggregator.http.middleware import FORWARDED
from goodput.aggregator.stream.connection import FAILURES, Stream
from goodput.aggregator.stream.decoding import decode
from goodput.aggregator.stream.errors import StreamError
from goodput.aggregator.stream.members import Members
from goodput.aggregator.stream.partitions import reads_of

log = logging.getLogger("goodput.aggregator")
# Timeouts for the first part of an answer, which may be computed from the ledger first, and for each further part.
FIRST_SECONDS, NEXT_SECONDS = 20.0, 5.0
PART_BYTES = 256 << 10
ANSWER_BYTES_MAX = 1 << 30  # far above any real answer
ANSWERING_MAX = 64
_KEPT_HEADERS = {b"accept", b"content-type"}


class ForwardedRequest(msgspec.Struct, frozen=True):
    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    access: Access
    address: str = ""  # the client's


class AnswerPart(msgspec.Struct, frozen=True):
    """A part of an answer; the first one has a status and headers, the last one is the last."""

    body: bytes = b""
    status: int = 0
    headers: list[tuple[bytes, bytes]] = []
    is_last: bool = False


class ForwardedAnswer(msgspec.Struct, frozen=True):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(ForwardedRequest)
_parts = msgspec.msgpack.Decoder(AnswerPart)


def forwarded(scope: Scope, body: bytes = b"") -> ForwardedRequest:
    """An authenticated request as it is forwarded."""
    headers = [(name, value) for name, value in scope["headers"] if name in _KEPT_HEADERS]
    return ForwardedRequest(
        method=scope["method"],
        path=scope["path"],
        raw_path=scope["raw_path"],
        query=scope["query_string"],
        headers=headers,
        body=body,
        access=scope["access"],
        address=address_of(scope),
    )


class Forwarder:
    """Sends requests to other aggregators. Methods raise StreamError."""

    def __init__(self, stream: Stream, members: Members):
        self._stream, self._members = stream, members

    async def to_owner(self, partition: int, request: ForwardedRequest) -> ForwardedAnswer:
        """The answer of the aggregator that serves a partition."""
        for member, held in self._members.alive().items():
            if partition in held:
                return await self.to_member(member, request)
        raise StreamError("no aggregator serves this run at the moment; try again in some seconds")

    async def to_all(self, request: ForwardedRequest) -> dict[str, ForwardedAnswer | StreamError]:
        """The answers of all other aggregators, by member."""

        async def answer(member: str) -> ForwardedAnswer | StreamError:
            try:
                return await self.to_member(member, request)
            except StreamError as error:
                return error

        others = list(self._members.alive())
        return dict(zip(others, await asyncio.gather(*map(answer, others)), strict=True))

    async def to_member(self, member: str, request: ForwardedRequest) -> ForwardedAnswer:
        """The answer of one aggregator."""
        try:
            return await self._request(reads_of(member), request)
        except NoRespondersError:
            raise StreamError(f"aggregator {member} does not answer; try again in some seconds") from None

    async def _request(self, subject: str, request: ForwardedRequest) -> ForwardedAnswer:
        client = self._stream.client
        inbox = client.new_inbox()
        try:
            subscription = await client.subscribe(inbox)
            try:
                await client.publish(subject, _encoder.encode(request), reply=inbox)
                return await self._answer(subscription)
            finally:
                await subscription.unsubscribe()
        except NoRespondersError:
            raise
        except asyncio.TimeoutError:
            raise StreamError("the aggregator of this run did not answer in time") from None
        except (*FAILURES, msgspec.DecodeError) as error:
            raise self._stream.error(error) from None

    async def _answer(self, subscription: Subscription) -> ForwardedAnswer:
        head: AnswerPart | None = None
        body = bytearray()
        while True:
            message = await subscription.next_msg(FIRST_SECONDS if head is None else NEXT_SECONDS)
            if (message.headers or {}).get("Status") == "503":
                raise NoRespondersError
            part = decode(_parts, message.data)
            head = head or part
            body += part.body
            if len(body) > ANSWER_BYTES_MAX:
                raise StreamError(
                    f"the answer of the aggregator of this run is larger than {ANSWER_BYTES_MAX} bytes"
                )
            if part.is_last:
                return ForwardedAnswer(head.status, head.headers, bytes(body))


class Responder:
    """Answers the requests that other aggregators forward to this one, by `app`, which trusts FORWARDED."""

    def __init__(self, stream: Stream, member: str, app):
        self._stream, self._member, self._app = stream, member, app
        self._answering: set[asyncio.Task] = set()

    async def run(self) -> None:
        """Answer until cancelled."""
        async for message in self._stream.messages(reads_of(self._member)):
            if len(self._answering) < ANSWERING_MAX:
                task = asyncio.create_task(self._answer(message))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)

    async def _answer(self, message: Msg) -> None:
        try:
            request = decode(_requests, message.data)
        except msgspec.DecodeError as error:
            log.warning("a forwarded request cannot be read: %s", error)
            return
        try:
            answer = await answer_of(self._app, request)
        except Exception:
            log.exception("a forwarded request failed")
            answer = ForwardedAnswer(500, [], b"internal error\n")
        try:
            for part in in_parts(answer):
                await message.respond(_encoder.encode(part))
        except FAILURES as error:
            log.warning("the answer to a forwarded request was not sent: %s", error)


async def answer_of(app, request: ForwardedRequest) -> ForwardedAnswer:
    """The response of an ASGI app to a request that another aggregator has authenticated."""
    status, headers, body = 500, [], bytearray()
    received = asyncio.Event()

    async def receive() -> dict:
        if received.is_set():
            await asyncio.Event().wait()  # The client stays until it has its answer.
        received.set()
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def send(event: dict) -> None:
        nonlocal status, headers
        if event["type"] == "http.response.start":
            status = event["status"]
            headers = [(bytes(name), bytes(value)) for name, value in event["headers"]]
        else:
            body.extend(event.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": request.method,
        "path": request.path,
        "raw_path": request.raw_path,
        "root_path": "",
        "query_string": request.query,
        "headers": request.headers,
        "client": (request.address, 0),
        "server": None,
        "access": request.access,
        FORWARDED: True,
    }
    await app(scope, receive, send)
    return ForwardedAnswer(status, headers, bytes(body))


def in_parts(answer: ForwardedAnswer) -> Iterator[AnswerPart]:
    size = len(answer.body)
    for at in range(0, max(size, 1), PART_BYTES):
        head = (answer.status, answer.headers) if at == 0 else (0, [])
        yield AnswerPart(answer.body[at : at + PART_BYTES], *head, at + PART_BYTES >= size)
