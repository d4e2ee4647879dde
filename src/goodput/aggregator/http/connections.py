"""Connections with bounds: uvicorn's own protocol, which neither counts a head's bytes nor minds how slow they come.

In: bytes. Out: what uvicorn makes of them, or the end. A client that sends a request's bytes one by one, or connects
and says nothing, is cut off, and so is one that does not read its answers or asks on without waiting for them; one
whose head has no end is told so. Each is counted (limits.py). What follows a body is no header of the request.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from goodput.aggregator.http.headers import SECURITY
from goodput.aggregator.http.limits import (
    CONNECTIONS_MAX,
    HEAD_BYTES_MAX,
    IDLE_SECONDS_MAX,
    READ_SECONDS_MAX,
    REQUEST_SECONDS_MAX,
    WAITING_MAX,
)
from goodput.aggregator.http.request_metrics import Requests

_HEADERS = b"".join(name + b": " + value + b"\r\n" for name, value in SECURITY)


def connections(requests: Requests, files_max: int = CONNECTIONS_MAX) -> type[HttpToolsProtocol]:
    """The protocol for uvicorn.Config(http=...), which counts into `requests`."""
    bounds = {"requests": requests, "connections_max": min(files_max, CONNECTIONS_MAX)}
    return type("Connection", (Connection,), bounds)


class Connection(HttpToolsProtocol):
    requests: Requests
    connections_max: int
    # Three bounds follow each other in every request; the timer, which costs more than they do, is set once a minute.
    _timer = None
    _due = _timer_due = 0.0
    _is_in_head, _is_too_large, _is_too_many, _has_begun = True, False, False, False
    _head_bytes = _beside_bytes = 0  # the latter of chunks' sizes and trailers: what came without a body

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        self.requests.connections = len(self.connections)
        if len(self.connections) > self.connections_max:
            self.requests.refused["busy"] += 1
            self._end(b"503 Service Unavailable", b"too many connections\n")
            return
        self._await(IDLE_SECONDS_MAX)

    def connection_lost(self, exc) -> None:
        super().connection_lost(exc)
        # Where the connection broke uvicorn leaves its own timer running.
        self._unset_keepalive_if_required()
        self._cancel()
        self.requests.connections = len(self.connections)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_in_head:
            if not self._has_begun:
                # Here and not where the parser says so: a lone line end is no message yet.
                self._has_begun = True
                self._await(REQUEST_SECONDS_MAX)
            self._head_bytes += len(data)
            super().data_received(data)
            # Zero again where the head has ended within these bytes.
            if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self._is_too_large = True
                self.send_400_response("")
            return
        self._beside_bytes += len(data)
        super().data_received(data)
        if self._beside_bytes > HEAD_BYTES_MAX and not self._is_in_head and not self.transport.is_closing():
            self._is_too_large = True
            self.send_400_response("")

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer comes when the head was already acted on: taken for a header it could be a late token.
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        # A head that came in one piece with its end is seen here.
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES_MAX:
            self._is_too_large = True
            raise ValueError("head too large")
        if len(self.pipeline) >= WAITING_MAX:
            self._is_too_many = True
            raise ValueError("too many requests at a time")
        self._is_in_head, self._head_bytes, self._beside_bytes = False, 0, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._beside_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_head, self._has_begun = True, False
        self._await(READ_SECONDS_MAX, self._is_unread)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # Of a request that is still coming the time goes on.
        if not self._has_begun:
            if self.cycle.response_complete:
                # Nobody asks for it any more, and of 10 000 that wait for their next push it would be 23 MiB.
                self.scope = self.headers = self.cycle.scope = None
            self._await(READ_SECONDS_MAX, self._is_unread)

    def send_400_response(self, msg: str) -> None:
        """What the parser cannot read, or the bounds refuse."""
        if self._is_too_many:
            # A line to it would be taken for the answer to the first of them.
            self.requests.refused["busy"] += 1
            self.transport.abort()
        elif self._is_too_large:
            self.requests.refused["head"] += 1
            text = b"request line and headers of over %d bytes\n" % HEAD_BYTES_MAX
            self._end(b"431 Request Header Fields Too Large", text)
        else:
            self.requests.refused["malformed"] += 1
            self._end(b"400 Bad Request", b"this is no HTTP request\n")

    def _end(self, status: bytes, text: bytes) -> None:
        head = b"HTTP/1.1 %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n" % (status, len(text))
        self.transport.write(head + _HEADERS + b"connection: close\r\n\r\n" + text)
        self.transport.close()
        self._await(READ_SECONDS_MAX, self._is_unread)

    def _await(self, seconds: float, then=None) -> None:
        """Call `then` in so long, instead of what was to be called. A timer that runs is set anew only when it is due."""
        self._due, self._then = self.loop.time() + seconds, then or self._is_late
        if self._timer is None or self._timer_due > self._due:
            self._cancel()
            self._set_timer(seconds)

    def _set_timer(self, seconds: float) -> None:
        self._timer_due = self._due
        self._timer = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        left = self._due - self.loop.time()
        # Of a millisecond clock that was rounded.
        if left > 0.002:
            self._set_timer(left)
        else:
            self._then()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_late(self) -> None:
        self.requests.refused["slow"] += 1
        self.transport.abort()

    def _is_unread(self) -> None:
        if self.transport.get_write_buffer_size():
            self._is_late()
        elif self.cycle is not None and not self.cycle.response_complete:
            # It is we who take long.
            self._await(READ_SECONDS_MAX, self._is_unread)
        else:
            # Where the answer came before the request's end uvicorn waits for the next one without a timer.
            self._await(IDLE_SECONDS_MAX, self.transport.close)
