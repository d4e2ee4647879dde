"""Connections with bounds: uvicorn's own protocol, which neither counts a head's bytes nor minds how slow they come.

In: bytes. Out: what uvicorn makes of them, or the end. A client that sends a request's bytes one by one, or connects
and says nothing, is cut off; one whose head has no end is told so. Each is counted (limits.py).
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from goodput.aggregator.headers import SECURITY
from goodput.aggregator.limits import CONNECTIONS_MAX, HEAD_BYTES_MAX, IDLE_SECONDS_MAX, REQUEST_SECONDS_MAX
from goodput.aggregator.requests import Requests

_HEADERS = b"".join(name + b": " + value + b"\r\n" for name, value in SECURITY)


def connections(requests: Requests, files_max: int = CONNECTIONS_MAX) -> type[HttpToolsProtocol]:
    """The protocol for uvicorn.Config(http=...), which counts into `requests`."""
    bounds = {"requests": requests, "connections_max": min(files_max, CONNECTIONS_MAX)}
    return type("Connection", (Connection,), bounds)


class Connection(HttpToolsProtocol):
    requests: Requests
    connections_max: int
    _timer = None
    _is_in_head, _is_too_large, _has_begun = True, False, False
    _head_bytes = 0

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
        super().data_received(data)

    def on_headers_complete(self) -> None:
        # A head that came in one piece with its end is seen here.
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES_MAX:
            self._is_too_large = True
            raise ValueError("head too large")
        self._is_in_head, self._head_bytes = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_in_head, self._has_begun = True, False
        self._cancel()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What the parser cannot read, or the bounds refuse."""
        if self._is_too_large:
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

    def _await(self, seconds: float) -> None:
        self._cancel()
        self._timer = self.loop.call_later(seconds, self._is_late)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_late(self) -> None:
        self.requests.refused["slow"] += 1
        self.transport.abort()
