"""POST /api/v1/ingest: a NodeReport in MessagePack in, an Ack out.

A raw ASGI route, since agents call it thousands of times a second and FastAPI would cost as much as the push itself.
Statuses: 400 malformed, 413 too large, 415 compressed, 503 not stored or no memory for it (push it again). Every answer
lists the supported report versions in the header `goodput-report-versions`; agents of other versions continue in one of
these.
"""

from __future__ import annotations

from goodput.access.responses import Refusal
from goodput.aggregator.http import limits
from goodput.aggregator.http.headers import header_values
from goodput.aggregator.http.request_metrics import RequestMetrics
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ledger.ledger import LedgerError
from goodput.aggregator.memory_bound import MemoryBound, Reservation
from goodput.wire import schema

PATH = "/api/v1/ingest"
# A byte of a body takes up to so many once it is decoded, without its steps as columns.
DECODED_BYTES = 8
_RETRY_AFTER = b"retry-after", b"5"
_VERSIONS = schema.VERSIONS_HEADER.encode(), ", ".join(map(str, schema.VERSIONS)).encode()


class IngestRoute:
    def __init__(self, ingest: Ingest, metrics: RequestMetrics, memory: MemoryBound):
        self._ingest, self._metrics, self._memory = ingest, metrics, memory

    async def __call__(self, scope, receive, send) -> None:
        try:
            with self._memory.reservation() as memory:
                body = await self._body(scope["headers"], receive, memory)
                ack = None if body is None else await self._ingest.accept(body, scope["access"], memory)
        except Refusal as refused:
            self._metrics.refused[refused.reason] += 1
            if refused.reason == "body":
                self._ingest.counts["report", "malformed"] += 1
            return await _send_error(send, refused.status, refused)
        except schema.SchemaError as error:
            return await _send_error(send, 400, error)
        except LedgerError as error:
            return await _send_error(send, 503, error)
        if ack is not None:
            await _send(send, 200, schema.encode(ack), schema.CONTENT_TYPE)

    async def _body(self, headers, receive, memory: Reservation) -> bytes | None:
        """The whole body, None if the client disconnected. Raises Refusal."""
        if header_values(headers, b"content-encoding"):
            # A compressed body could unpack to any size.
            raise Refusal("encoding", "send reports without Content-Encoding")
        length = (header_values(headers, b"content-length") or [b"0"])[0]
        if len(length) > 15 or int(length) > schema.BODY_BYTES_MAX:
            raise _too_large()
        body, more = bytearray(), True
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                part, more = message.get("body", b""), message.get("more_body", False)
                if self._metrics.reading_bytes + len(part) > limits.BODIES_BYTES_MAX:
                    raise Refusal("busy", "too many reports at a time; push it again")
                await memory.add(DECODED_BYTES * len(part), "a report")
                self._metrics.reading_bytes += len(part)
                body += part
                if len(body) > schema.BODY_BYTES_MAX:
                    raise _too_large()
        finally:
            self._metrics.reading_bytes -= len(body)
        return bytes(body)


def _too_large() -> Refusal:
    return Refusal("body", f"report too large: {schema.BODY_BYTES_MAX} bytes at most")


async def _send_error(send, status: int, error: Exception) -> None:
    await _send(send, status, f"{error}\n".encode(), "text/plain")


async def _send(send, status: int, body: bytes, content_type: str) -> None:
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        _VERSIONS,
        *([_RETRY_AFTER] if status == 503 else ()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
