"""Connection limits that no setting of uvicorn provides with the httptools parser, and pushes read without it.

uvicorn's `h11_max_incomplete_event_size` would bound a request's head, but the h11 parser costs 140 µs more per push
than httptools, and no setting limits how slowly a head arrives or closes connections beyond a maximum
(`limit_concurrency` only answers their requests with 503). The class overrides asyncio's, httptools' and uvicorn's
callbacks. Unread answers are bounded by TCP_USER_TIMEOUT on the listening socket, idle connections by
`timeout_keep_alive`.

A parser, a task and an ASGI scope for each push take longer than the push itself. So a push of an agent that is known
(DirectPush) is read and answered here; whatever is unusual about one is found before it is accepted, and then uvicorn is
given all of its bytes as if they had just been received.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from goodput.aggregator.http import limits
from goodput.aggregator.http.gathering import Gathering
from goodput.aggregator.http.headers import SECURITY, Headers, with_security_headers
from goodput.aggregator.http.push_head import BEGIN
from goodput.aggregator.http.request_metrics import CLIENT_DISCONNECTED, RequestMetrics

_HEADERS = b"".join(name + b": " + value + b"\r\n" for name, value in SECURITY)


@lru_cache(maxsize=256)
def _answer_head(status: int, headers: tuple[tuple[bytes, bytes], ...], is_tls: bool, is_last: bool) -> bytes:
    """The head of an answer, the same for most pushes of a second: then its date changes."""
    secured = with_security_headers(list(headers), is_tls)
    lines = [b"%s: %s\r\n" % header for header in secured]
    ending = b"connection: close\r\n" if is_last else b""
    return b"".join((STATUS_LINE[status], *lines, ending, b"\r\n"))


class DirectPush(Protocol):
    """A push that the connection reads itself. `data` are its bytes so far, with the head."""

    data: bytes
    is_whole: bool

    def add(self, data: bytes) -> bool:
        """Take more of its bytes; False if uvicorn has to handle the request."""
        ...

    def accept(self, answer: Callable[[int, Headers, bytes], object]) -> bool:
        """Accept a whole push, and call `answer` with a status, headers and a body; False as for `add`."""
        ...

    def end(self, status: int) -> None:
        """Release what it holds. `status` is that of the answer, CLIENT_DISCONNECTED, or 0 where uvicorn handles it."""
        ...


def bounded_protocol(
    metrics: RequestMetrics,
    files_max: int = limits.CONNECTIONS_MAX,
    begin_push: Callable[[bytes, float], DirectPush | None] = lambda data, since: None,
) -> type[HttpToolsProtocol]:
    """The protocol class for uvicorn.Config(http=...); refusals are counted in `metrics`.

    `begin_push` is called with what may be a push, and when that was received, by the monotonic clock.
    """
    metrics.connections_max = min(files_max, limits.CONNECTIONS_MAX)
    attributes = {"metrics": metrics, "begin_push": staticmethod(begin_push), "gathering": Gathering()}
    return type("Connection", (BoundedProtocol,), {"__slots__": (), **attributes})


class _Pipeline(list):
    """What uvicorn uses of a deque, which takes 700 bytes without any request."""

    __slots__ = ()

    def appendleft(self, one) -> None:
        self.insert(0, one)


class BoundedProtocol(HttpToolsProtocol):
    # As slots, since objects of more than 30 other attributes take 1.3 KiB more. There is one for each agent.
    __slots__ = (
        *("_transport", "_timer", "_clock", "_deadline", "_timer_at", "_is_receiving", "_is_in_head"),
        *("_non_body_bytes", "_begun", "_refused_bytes", "_push", "_is_idle", "_is_ending"),
        *("_next", "_gathered", "_since"),
    )
    metrics: RequestMetrics
    begin_push: Callable[[bytes, float], DirectPush | None]
    gathering: Gathering

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        self.pipeline = _Pipeline()  # type: ignore[assignment]
        self._transport, self._timer = transport, None
        self._clock = asyncio.get_running_loop()
        self._deadline = self._timer_at = 0.0
        self._is_receiving, self._is_in_head = False, True
        # Bytes since the last part of a body, and requests begun in this read.
        self._non_body_bytes = self._begun = 0
        self._refused_bytes = 0  # of a body whose request was answered before its end
        self._push: DirectPush | None = None
        self._is_idle = self._is_ending = False  # after a push that was read here; once that is answered
        self._next = b""  # received after a push that is not answered yet
        # Bytes of a push that wait for Gathering, and when the first of them came, by the monotonic clock.
        self._gathered, self._since = b"", 0.0
        self._set_timer(limits.IDLE_SECONDS_MAX)
        self.metrics.connections += 1
        if self.metrics.connections > self.metrics.connections_max:
            self._refuse("busy", b"503 Service Unavailable", b"too many connections\n")

    def connection_lost(self, exc) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        self.metrics.connections -= 1
        if self._gathered and self._push is None:
            self._push = self.begin_push(self._gathered, self._since)
        if self._push is not None and not self._push.is_whole:
            # One that came whole is accepted, as another one would be.
            is_taken = self._push.add(self._gathered) and self._push.is_whole
            if not (is_taken and self._push.accept(self._answer_push)):
                self._push.end(CLIENT_DISCONNECTED)
        self._gathered = b""
        if isinstance(exc, TimeoutError):  # TCP_USER_TIMEOUT
            self.metrics.refused["slow"] += 1

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        if self._push is not None and self._push.is_whole:
            self._next += data
            self._transport.pause_reading()
        elif self._gathered:
            self._gathered += data
            if len(self._gathered) > limits.HEAD_BYTES_MAX:
                self._take_gathered()  # So that uvicorn's parser sees each read of what is not a push.
            else:
                self.gathering.add(len(data), None)
        elif self._push is not None or self._may_begin_push(data):
            self._gathered, self._since = data, time.monotonic()
            self.gathering.add(len(data), self._take_gathered)
        else:
            self._parse(data)

    def _take_gathered(self) -> None:
        data, self._gathered = self._gathered, b""
        if not data or self._transport.is_closing():
            return
        if self._push is None:
            self._push = self.begin_push(data, self._since)
            if self._push is None:
                self._leave(data)
                return
            self._unset_keepalive_if_required()
            self._is_receiving, self._is_idle = True, False
            self._set_timer(limits.REQUEST_SECONDS_MAX)
        self._add_to_push(self._push, data)

    def _leave(self, data: bytes) -> None:
        """Let uvicorn take a request."""
        self._parse(data)
        if self._is_ending:
            super().shutdown()

    def _may_begin_push(self, data: bytes) -> bool:
        if not data.startswith(BEGIN):
            return False
        is_between = self.cycle is None or (self.cycle.response_complete and not self.pipeline)
        return is_between and not self._is_receiving and not self.flow.write_paused

    def _add_to_push(self, push: DirectPush, data: bytes) -> None:
        is_taken = push.add(data)
        if is_taken and push.is_whole:
            self._is_receiving = False
            self._set_timer(limits.ANSWER_SECONDS_MAX)
            is_taken = push.accept(self._answer_push)
        if not is_taken:
            self._push, self._is_receiving = None, False
            push.end(0)
            self._leave(push.data)

    def _answer_push(self, status: int, headers: Headers, body: bytes) -> None:
        push, self._push, later, self._next = self._push, None, self._next, b""
        assert push is not None
        push.end(status)
        self.server_state.total_requests += 1
        if self._transport.is_closing():
            return None
        head = _answer_head(
            status, (*self.server_state.default_headers, *headers), self.scheme == "https", self._is_ending
        )
        self._transport.write(head + body)
        if self._is_ending:
            return self._transport.close()
        self._is_idle = True
        self._set_timer(self.timeout_keep_alive)
        if later:
            self._transport.resume_reading()
            self.data_received(later)

    def shutdown(self) -> None:
        if self._push is None and not self._gathered:
            return super().shutdown()
        self._is_ending = True

    def _parse(self, data: bytes) -> None:
        """Give uvicorn what was received."""
        self._is_idle = False
        if not self._is_receiving:
            # Not in on_message_begin alone: a lone line end is no message yet.
            self._begin_receiving()
        self._begun, self._non_body_bytes = 0, self._non_body_bytes + len(data)
        super().data_received(data)
        if self._transport.is_closing():
            self.metrics.refused["busy" if self._begun > limits.PIPELINED_MAX else "malformed"] += 1
        elif self._non_body_bytes > limits.HEAD_BYTES_MAX:
            self._refuse("head", b"431 Request Header Fields Too Large", limits.HEAD_TOO_LARGE.encode())

    def _begin_receiving(self) -> None:
        self._is_receiving = True
        self._set_timer(limits.REQUEST_SECONDS_MAX)

    def on_message_begin(self) -> None:
        self._is_in_head, self._begun = True, self._begun + 1
        if not self._is_receiving:
            self._begin_receiving()  # The one before ended in the same read.
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
        self._let_go_of_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._let_go_of_request()

    def _let_go_of_request(self) -> None:
        """Of one that is over uvicorn keeps 4 KiB until the next, which may never come, since pushes are read here."""
        if not self._is_receiving and self.cycle.response_complete:
            self.cycle = self.scope = None  # type: ignore[assignment]
            self.headers = []

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
        if self._is_idle:
            return self._transport.close()
        self.metrics.refused["slow"] += 1
        self._transport.abort()
