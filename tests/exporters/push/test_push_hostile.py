"""A hostile aggregator: its answers reach no terminal, no label and little memory."""

import gzip
import logging
import socket
import time
import tracemalloc
from threading import Event, Thread

import pytest
from support.node.node_tree import collect
from support.node.report_rows import report, row
from support.servers import http_server

from goodput.wire import schema
from goodput_exporters.check import FAILED, _aggregator
from goodput_exporters.push.client import ANSWER_BYTES_MAX
from goodput_exporters.push.credentials import Credentials
from goodput_exporters.push.pusher import Pusher

ACK = schema.encode(schema.Ack(1))


class Hostile:
    """Answers each POST with `status`, `headers` and `body`, and keeps the request headers."""

    def __init__(self):
        outer = self
        self.status, self.headers, self.body, self.requested = 200, {}, ACK, []
        self.trickles: tuple[str, Event] | None = (
            None  # which part of an answer comes slowly, until the event
        )

        class Handler(http_server.Handler):
            protocol_version, wbufsize = "HTTP/1.1", 0

            def do_POST(self):
                self.body()
                outer.requested.append(dict(self.headers))
                if outer.trickles:
                    return self.trickle(*outer.trickles)
                self.answer(outer.status, outer.body, **outer.headers)

            def trickle(self, part: str, ended: Event):
                self.wfile.write(b"HTTP/1.1 %d OK\r\n" % outer.status)
                if part == "body":
                    self.wfile.write(b"Content-Length: 100000\r\n\r\n")
                try:
                    while not ended.wait(0.02):
                        self.wfile.write(b"x")
                except OSError:
                    pass
                self.close_connection = True

        server = http_server.HttpServer(Handler)
        self.url, self.close = server.url, server.close


@pytest.fixture
def hostile():
    found = Hostile()
    yield found
    found.close()


@pytest.fixture
def pusher(hostile):
    pusher = Pusher(hostile.url, "n0", timeout_seconds=5.0)
    pusher.add([report([row(1, 0)])])
    yield pusher
    pusher.stop(0.0)


def test_compressed_answers_are_not_decompressed(hostile, pusher):
    hostile.headers = {"Content-Encoding": "gzip"}
    hostile.body = gzip.compress(bytes(200 << 20), 9)
    assert len(hostile.body) < ANSWER_BYTES_MAX
    tracemalloc.start()
    try:
        assert pusher.push() == "unreachable"
        found = _aggregator(hostile.url, "n0", Credentials())
        assert tracemalloc.get_traced_memory()[1] < 2 * len(hostile.body) + (1 << 20)
    finally:
        tracemalloc.stop()
    assert found.status == FAILED and "Content-Encoding" in found.detail
    assert {requested["Accept-Encoding"] for requested in hostile.requested} == {"identity"} and len(
        hostile.requested
    ) == 2
    for encoding in ("identity", "", "gzip, gzip", "br"):
        hostile.headers, hostile.body = {"Content-Encoding": encoding}, ACK
        assert pusher.push() == "unreachable", encoding
    hostile.headers = {}
    assert pusher.push() == "accepted"


@pytest.mark.faults
@pytest.mark.parametrize("is_head", [True, False], ids=["head", "body"])
def test_trickled_answer_ends_at_the_timeout(hostile, is_head):
    """A byte comes before every timeout of the socket. What was pushed is kept, and arrives once answers do."""
    pusher = Pusher(hostile.url, "n0", timeout_seconds=0.3)
    pusher.add([report([row(1, 0)])])
    ended = Event()
    hostile.trickles = "head" if is_head else "body", ended
    pushing = Thread(target=lambda: pusher.push(), daemon=True)
    pushing.start()
    pushing.join(30)
    assert not pushing.is_alive()
    hostile.trickles = None
    ended.set()
    assert {key: value for key, value in collect(pusher).items() if "failures" in key[0] and value} == {
        ("goodput_node_push_failures_total", ("timeout",)): 1
    }
    assert pusher.push() == "accepted"
    pusher.stop(0.0)


def test_trickled_answer_after_a_slow_name_ends(hostile, monkeypatch):
    """There is no connection to end yet when the time is over, since the name was not resolved within it."""
    pusher, ended, resolve = Pusher(hostile.url, "n0", timeout_seconds=0.3), Event(), socket.getaddrinfo
    pusher.add([report([row(1, 0)])])
    hostile.trickles = "head", ended
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *names, **how: time.sleep(0.5) or resolve(*names, **how)
    )
    pushing = Thread(target=lambda: pusher.push(), daemon=True)
    pushing.start()
    pushing.join(30)
    assert not pushing.is_alive()
    ended.set()
    assert collect(pusher)["goodput_node_push_failures_total", ("timeout",)] == 1
    pusher.stop(0.0)


def test_redirect_is_not_counted_as_a_client_error(hostile, pusher):
    for status, reason in ((302, "http_3xx"), (308, "http_3xx"), (404, "http_4xx"), (503, "http_5xx")):
        before = collect(pusher)["goodput_node_push_failures_total", (reason,)]
        hostile.status, hostile.headers = status, {"Location": "http://127.0.0.1:9/"} if status < 400 else {}
        assert pusher.push() in ("rejected", "unreachable")
        assert collect(pusher)["goodput_node_push_failures_total", (reason,)] == before + 1


def test_long_answers_are_not_read(hostile, pusher):
    hostile.body = bytes(ANSWER_BYTES_MAX + (1 << 20))
    assert pusher.push() == "unreachable"
    found = _aggregator(hostile.url, "n0", Credentials())
    assert found.status == FAILED and "too long" in found.detail


@pytest.mark.parametrize("how", ["long", "compressed", "trickled"])
@pytest.mark.parametrize(
    "status, outcome, failure",
    [(413, "accepted", "http_4xx"), (429, "rejected", "quota"), (503, "unreachable", "http_5xx")],
)
def test_status_of_a_refusal_counts_whatever_comes_with_it(hostile, caplog, how, status, outcome, failure):
    """A report of one row that is too large is dropped, one that is refused for now is kept."""
    hostile.status, ended = status, Event()
    if how == "long":
        hostile.body = b"x" * (ANSWER_BYTES_MAX + (1 << 20))
    elif how == "compressed":
        hostile.headers, hostile.body = {"Content-Encoding": "gzip"}, gzip.compress(b"x")
    else:
        hostile.trickles = "body", ended
    pusher = Pusher(hostile.url, "n0", timeout_seconds=0.3 if how == "trickled" else 5.0)
    pusher.add([report([row(1, 0)])])
    try:
        assert pusher.push() == outcome
        assert collect(pusher)["goodput_node_push_failures_total", (failure,)] == 1
        assert f"HTTP {status}" in caplog.text and len(caplog.text) < 1000
    finally:
        ended.set()
        pusher.stop(0.0)


@pytest.mark.parametrize("reason", ["\x1b]0;owned\x07", "x" * 4000, 'a"} 1\nfoo', "", "lie", "claim"])
def test_answers_cannot_inject_log_or_labels(hostile, pusher, caplog, reason):
    text = "\x1b[2J\r\ngoodput node: all is well\x9b31m\u202e"
    hostile.body = schema.encode(schema.Ack(0, [schema.Rejection("r1", 0, reason, text)]))
    with caplog.at_level(logging.WARNING):
        assert pusher.push() == "accepted"
    known = reason if reason == "claim" else "other"
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"({known})" in line and line.isprintable() and "all is well" in line and len(line) < 500
    assert collect(pusher)["goodput_node_push_rejections_total", (known,)] == 1


def test_rejection_reasons_are_bounded(hostile, pusher, caplog):
    for number in range(1, 25):
        hostile.body = schema.encode(schema.Ack(0, [schema.Rejection("r1", 0, f"r{number}", "no")]))
        pusher.add([report([row(number, 0)], sequence=number)])
        assert pusher.push() == "accepted"
    assert [key[1] for key in collect(pusher) if key[0].endswith("rejections_total")] == [("other",)]
    assert len([one for one in caplog.records if one.name.startswith("goodput")]) == 1
