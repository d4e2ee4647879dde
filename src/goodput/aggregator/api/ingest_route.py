"""POST /api/v1/ingest: a NodeReport in MessagePack in, an Ack out.

A raw ASGI route, since agents call it thousands of times a second and FastAPI would cost as much as the push itself.
Where all ranks of a push are known not even that: see DirectPush.
Statuses: 400 malformed, 413 too large, 415 compressed, 429 more than the token may push, 503 not stored or no memory for
it; what got 429 or 503 is to be pushed again. Every answer
lists the supported report versions in the header `goodput-report-versions`; agents of other versions continue in one of
these.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from goodput.access.responses import Refusal
from goodput.access.tokens import Access
from goodput.aggregator.fair_queue import RETRY_SECONDS, QueueFull
from goodput.aggregator.http import limits
from goodput.aggregator.http.authentication import RequestAuthenticator, address_of
from goodput.aggregator.http.headers import Headers, header_values
from goodput.aggregator.http.middleware import internal_error
from goodput.aggregator.http.push_head import KnownHeads
from goodput.aggregator.http.request_metrics import RequestMetrics
from goodput.aggregator.http.token_budgets import Push
from goodput.aggregator.ingest.checks import BODY_BYTES_AT_ONCE
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ledger.ledger import LedgerError
from goodput.aggregator.memory_bound import MemoryBound, Reservation
from goodput.aggregator.stream.errors import StreamError
from goodput.wire import schema

log = logging.getLogger("goodput.aggregator")
PATH = "/api/v1/ingest"
# A byte of a body takes up to so many once it is decoded, without its steps as columns.
DECODED_BYTES = 8
UNAVAILABLE = (LedgerError, QueueFull, StreamError)
_VERSIONS = schema.VERSIONS_HEADER.encode(), ", ".join(map(str, schema.VERSIONS)).encode()


class Pushed(Protocol):
    """What takes pushes: Ingest, or one that sends them to a stream. `counts` are by (series, label)."""

    counts: Counter

    async def accept(
        self, body: bytes, access: Access, memory: Reservation, spent: Callable[[float], object]
    ) -> schema.Ack: ...


class IngestRoute:
    """`check(route)` may raise Refusal."""

    def __init__(
        self,
        ingest: Pushed,
        authenticator: RequestAuthenticator,
        memory: MemoryBound,
        check: Callable[[str], None],
    ):
        self._ingest, self._metrics, self._memory = ingest, authenticator.metrics, memory
        self._budgets, self._audit = authenticator.budgets, authenticator.audit
        self._heads, self._check = KnownHeads(authenticator), check

    async def __call__(self, scope, receive, send) -> None:
        try:
            ack = await self._ack(scope, receive)
        except Refusal as refused:
            self._metrics.refused[refused.reason] += 1
            if refused.reason == "quota":
                name, route = scope["access"].name, "ingest"
                self._audit.refusal("quota", address_of(scope), route=route, token=name, text=str(refused))
            if refused.reason == "body":
                self._ingest.counts["report", "malformed"] += 1
            return await _send_error(send, refused.status, refused, refused.retry_after)
        except schema.SchemaError as error:
            return await _send_error(send, 400, error)
        except UNAVAILABLE as error:
            return await _send_error(send, 503, error)
        if ack is not None:
            await _send(send, 200, *_answer(schema.encode(ack), schema.CONTENT_TYPE))

    def begin_push(self, data: bytes, since: float) -> DirectPush | None:
        """The push that begins so, None for any other request, and where any of the checks before a push refuses it."""
        found, ingest = self._heads.find(data), self._ingest
        if found is None or found[1] > BODY_BYTES_AT_ONCE or not isinstance(ingest, Ingest):
            return None
        try:
            self._check("ingest")
        except Refusal:
            return None
        return DirectPush(*found, since, ingest, self._metrics, self._memory)

    async def _ack(self, scope, receive) -> schema.Ack | None:
        """None if the client disconnected."""
        access, length, held = scope["access"], _length(scope["headers"]), _Held(self._metrics)
        with held, self._memory.reservation() as memory, self._budgets.push(access, length) as push:
            body = await self._body(receive, memory, push, held)
            return None if body is None else await self._ingest.accept(body, access, memory, push.spend)

    async def _body(self, receive, memory: Reservation, push: Push, held: _Held) -> bytes | None:
        """The whole body, None if the client disconnected. Raises Refusal."""
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part, more = message.get("body", b""), message.get("more_body", False)
            push.read(len(part))
            held.add(len(part))
            await memory.add(DECODED_BYTES * len(part), "a report")
            body += part
            if len(body) > schema.BODY_BYTES_MAX:
                raise _too_large()
        return bytes(body)


class DirectPush:
    """A push that a connection reads and answers itself, see http.connections: of known ranks, with a token for all runs."""

    def __init__(
        self,
        body_at: int,
        length: int,
        access: Access,
        since: float,
        ingest: Ingest,
        metrics: RequestMetrics,
        memory: MemoryBound,
    ):
        self._since, self.data, self.is_whole = since, b"", False
        self._body_at, self._size, self._owner = body_at, body_at + length, access.token_id or access.name
        self._ingest, self._metrics = ingest, metrics
        self._held, self._memory = _Held(metrics), memory.reservation()

    def add(self, data: bytes) -> bool:
        self.data += data
        self.is_whole = len(self.data) == self._size
        return (
            len(self.data) <= self._size
            and self._held.fits(len(data))
            and self._memory.fits(DECODED_BYTES * len(data))
        )

    def accept(self, answer: Callable[[int, Headers, bytes], object]) -> bool:
        def then(found: schema.Ack | BaseException) -> None:
            if isinstance(found, schema.Ack):
                answer(200, *_answer(schema.encode(found), schema.CONTENT_TYPE))
            elif isinstance(found, UNAVAILABLE):
                answer(503, *_error(found, RETRY_SECONDS))
            else:
                log.error("ingest failed", exc_info=found)
                response = internal_error()
                answer(500, response.raw_headers, bytes(response.body))

        try:
            body = self.data[self._body_at :]
            return self._ingest.accept_known(body, self._owner, self._memory, self._since, then)
        except Exception:
            return False  # As it will be again, where it is logged.

    def end(self, status: int) -> None:
        self._held.__exit__()
        self._memory.__exit__()
        if status:
            self._metrics.observe("ingest", status, time.monotonic() - self._since)


class _Held:
    """The bytes of one report, which count until it was accepted or refused."""

    def __init__(self, metrics: RequestMetrics):
        self._metrics, self._bytes = metrics, 0

    def add(self, count: int) -> None:
        """Raises Refusal."""
        if not self.fits(count):
            raise Refusal("busy", "too many reports at a time; push it again")

    def fits(self, count: int) -> bool:
        """Whether there is room for so many more; then they are added."""
        if self._metrics.body_bytes + count > limits.BODIES_BYTES_MAX:
            return False
        self._metrics.body_bytes += count
        self._bytes += count
        return True

    def __enter__(self) -> _Held:
        return self

    def __exit__(self, *_) -> None:
        self._metrics.body_bytes -= self._bytes


def _length(headers) -> int:
    """The announced length of the body, 0 where it is not. Raises Refusal."""
    if header_values(headers, b"content-encoding"):
        # A compressed body could unpack to any size.
        raise Refusal("encoding", "send reports without Content-Encoding")
    length = (header_values(headers, b"content-length") or [b"0"])[0]
    if len(length) > 15 or int(length) > schema.BODY_BYTES_MAX:
        raise _too_large()
    return int(length)


def _too_large() -> Refusal:
    return Refusal("body", f"report too large: {schema.BODY_BYTES_MAX} bytes at most")


async def _send_error(send, status: int, error: Exception, retry_after: int | None = None) -> None:
    await _send(send, status, *_error(error, RETRY_SECONDS if status == 503 else retry_after))


async def _send(send, status: int, headers: Headers, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _error(error: BaseException, retry_after: int | None) -> tuple[Headers, bytes]:
    return _answer(f"{error}\n".encode(), "text/plain", retry_after)


def _answer(body: bytes, content_type: str, retry_after: int | None = None) -> tuple[Headers, bytes]:
    """The headers and the body."""
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        _VERSIONS,
        *([] if retry_after is None else [(b"retry-after", str(retry_after).encode())]),
    ]
    return headers, body
