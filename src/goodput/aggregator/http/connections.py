"""Connection limits that no setting of uvicorn provides with the httptools parser.

uvicorn's `h11_max_incomplete_event_size` would bound a request's head, but the h11 parser costs 140 µs more per push
than httptools, and no setting limits how slowly a head arrives or closes connections beyond a maximum
(`limit_concurrency` only answers their requests with 503). The class overrides asyncio's and httptools' callbacks; of
uvicorn's own attributes it reads only `cycle.response_complete`. Unread answers are bounded by TCP_USER_TIMEOUT on the
listening socket, idle connections by `timeout_keep_alive`.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from goodput.aggregator.http import limits
from goodput.aggregator.http.headers import SECURITY
from goodput.aggregator.http.request_metrics import RequestMetrics

_HEADERS = b"".join(name + b": " + value + b"\r\n" for name, value in SECURITY)


def bounded_protocol(
    metrics: RequestMetrics, files_max: int = limits.CONNECTIONS_MAX
) -> type[HttpToolsProtocol]:
    """The protocol class for uvicorn.Config(http=...); refusals are counted in `metrics`."""
    metrics.connections_max = min(files_max, limits.CONNECTIONS_MAX)
    attributes = {"metrics": metrics}
    return type("Connection", (BoundedProtocol,), attributes)


class BoundedProtocol(HttpToolsProtocol):
    metrics: RequestMetrics

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        self._transport, self._timer = transport, None
        self._clock = asyncio.get_running_loop()
        self._deadline = self._timer_at = 0.0
        self._is_receiving, self._is_in_head = False, True
        # Bytes since the last part of a body, and requests begun in this read.
        self._non_body_bytes = self._begun = 0
        self._refused_bytes = 0  # of a body whose request was answered before its end
        self._set_timer(limits.IDLE_SECONDS_MAX)
        self.metrics.connections += 1
        if self.metrics.connections > self.metrics.connections_max:
            self._refuse("busy", b"503 Service Unavailable", b"too many connections\n")

    def connection_lost(self, exc) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        self.metrics.connections -= 1
        if isinstance(exc, TimeoutError):  # TCP_USER_TIMEOUT
            self.metrics.refused["slow"] += 1

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        if not self._is_receiving:
            # Not in on_message_begin: a lone line end is no message yet.
            self._is_receiving = True
            self._set_timer(limits.REQUEST_SECONDS_MAX)
        self._begun, self._non_body_bytes = 0, self._non_body_bytes + len(data)
        super().data_received(data)
        if self._transport.is_closing():
            self.metrics.refused["busy" if self._begun > limits.PIPELINED_MAX else "malformed"] += 1
        elif self._non_body_bytes > limits.HEAD_BYTES_MAX:
            self._refuse("head", b"431 Request Header Fields Too Large", limits.HEAD_TOO_LARGE.encode())

    def on_message_begin(self) -> None:
        self._is_in_head, self._begun = True, self._begun + 1
        if self._begun > limits.PIPELINED_MAX:
            raise ValueError("too many pipelined requests")
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer arrives after the head was acted on: as a header it could be a late token.
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head, self._non_body_bytes, self._refused_bytes = False, 0, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._non_body_bytes = 0
        super().on_body(body)
        if self.cycle.response_complete:
            self._refused_bytes += len(body)
            if self._refused_bytes > limits.REFUSED_BODY_BYTES_MAX:
                self._transport.abort()

    def on_message_complete(self) -> None:
        self._is_receiving, self._non_body_bytes = False, 0
        # uvicorn has no timer after an answer that was sent before the request's end.
        self._set_timer(limits.ANSWER_SECONDS_MAX)
        super().on_message_complete()

    def _refuse(self, reason: str, status: bytes, text: bytes) -> None:
        self.metrics.refused[reason] += 1
        head = b"HTTP/1.1 %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n" % (status, len(text))
        self._transport.write(head + _HEADERS + b"connection: close\r\n\r\n" + text)
        self._transport.close()

    def _set_timer(self, seconds: float) -> None:
        """Let the connection be closed in so many seconds, unless this is called again.

        A request does so twice, so the timer itself is only set anew when it runs out, or was to run out too late.
        """
        self._deadline = self._clock.time() + seconds
        if self._timer is None or self._deadline < self._timer_at:
            self._start_timer()

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # No later than the shortest limit from now, or each request would set it anew after a longer one.
        self._timer_at = min(self._deadline, self._clock.time() + limits.REQUEST_SECONDS_MAX)
        self._timer = self._clock.call_at(self._timer_at, self._time_out)

    def _time_out(self) -> None:
        if self._clock.time() < self._deadline:
            return self._start_timer()
        self.metrics.refused["slow"] += 1
        self._transport.abort()
