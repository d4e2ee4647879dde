"""Connection limits over real sockets: endless heads and trailers, slow clients, pipelining, unread answers."""

import asyncio
import time
import zlib
from contextlib import contextmanager

import pytest
from fastapi import Response
from support.aggregator.raw_connection import Wire
from support.aggregator.serve_process import serving
from support.servers import servers

from goodput.access import token_file
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import make
from goodput.aggregator.api.app import create_app
from goodput.aggregator.http import limits
from goodput.aggregator.http.authentication import RequestAuthenticator
from goodput.cli import serve


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A client of a server with short timeouts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "REQUEST_SECONDS_MAX", 0.3)
        patch.setattr(limits, "ANSWER_SECONDS_MAX", 2.0)
        patch.setattr(limits, "UNREAD_SECONDS_MAX", 0.3)
        app = create_app(f"sqlite:///{tmp_path_factory.mktemp('limits')}/ledger.db")
        app.add_api_route("/test/much", much)
        app.add_api_route("/test/later", later)
        with serving(app) as running:
            # Not before: uvicorn's own timeout for idle connections stays long.
            patch.setattr(limits, "IDLE_SECONDS_MAX", 0.3)
            yield running


async def much() -> Response:
    """More than two sockets buffer."""
    return Response(bytes(64 << 20))


async def later() -> Response:
    """Answers after a client must have read it."""
    await asyncio.sleep(0.8)
    return Response("late")


def refused(client, reason: str) -> float:
    name = f'goodput_aggregator_requests_refused_total{{reason="{reason}"}} '
    (line,) = [line for line in client.get("/metrics").text.splitlines() if line.startswith(name)]
    return float(line.split()[-1])


@contextmanager
def refusing(client, reason: str, count: int = 1):
    """Checks that `count` requests are refused for this reason within the block."""
    before = refused(client, reason)
    yield
    assert refused(client, reason) == before + count


@pytest.mark.parametrize("is_in_pieces", [False, True])
@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n%s: x",
        b"GET /%s HTTP/1.1\r\nHost: localhost",
    ],
)
def test_endless_heads_are_refused(client, head, end, is_in_pieces):
    body = head % (b"x" * (limits.HEAD_BYTES_MAX + 1000)) + end
    with refusing(client, "head"), Wire(client) as wire:
        try:
            for at in range(0, len(body), 4096 if is_in_pieces else len(body)):
                wire.send(body[at : at + (4096 if is_in_pieces else len(body))])
                time.sleep(0.001 if is_in_pieces else 0)
        except OSError:
            pass  # It was refused before all of it was sent.
        answer = wire.all()
    # Where it still sends when it is refused, a reset may overtake the answer.
    assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""
    if answer:
        assert b"connection: close" in answer and b"nosniff" in answer


def test_many_small_headers_are_refused(client):
    with refusing(client, "head"), Wire(client) as wire:
        wire.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 20_000 + b"\r\n")
        assert wire.all()[:13] in (b"HTTP/1.1 431 ", b"")


def test_head_below_the_limit_is_read(client):
    filler = b"x" * (limits.HEAD_BYTES_MAX - 200)
    with Wire(client) as wire:
        wire.send(
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nA: " + filler + b"\r\n\r\n"
        )
        assert wire.all().startswith(b"HTTP/1.1 200 ")


def test_body_may_exceed_the_head_limit(client):
    head = b"POST /api/v1/ingest HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    with Wire(client) as wire:
        for size in (10, limits.HEAD_BYTES_MAX + 1, 60_000):
            wire.send(head % size + b"x" * size)
            assert wire.until(b"malformed report").startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "begun",
    [b"", b"G", b"\r\n", b"GET /healthz HTTP/1.1\r\nHost: loc", b"POST /api/v1/ingest HTTP/1.1\r\nHost: localhost\r\n"
     b"Content-Length: 100\r\n\r\nabc", b"POST /api/v1/ingest HTTP/1.1\r\nHost: localhost\r\n"
     b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n"],
)  # fmt: skip
def test_slow_requests_are_aborted(client, begun):
    with refusing(client, "slow"), Wire(client) as slow:
        slow.send(begun)
        assert client.get("/healthz").status_code == 200
        began = time.monotonic()
        assert slow.all() == b"" and time.monotonic() - began < 60


@pytest.mark.faults
def test_trickled_bytes_do_not_extend_the_timeout(client):
    with refusing(client, "slow"), Wire(client) as slow:
        slow.send(b"GET /")
        with pytest.raises(OSError):
            trickle(slow, time.monotonic() + 60)


def trickle(wire: Wire, end: float) -> None:
    while time.monotonic() < end:
        wire.send(b"x")
        time.sleep(0.02)


def test_used_connections_stay_open(client):
    with refusing(client, "slow", 0), Wire(client) as wire:
        for _ in range(4):
            wire.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert wire.until(b"ok\n").startswith(b"HTTP/1.1 200 ")
            time.sleep(0.15)  # Four of them take longer than one request may.


def test_connections_beyond_the_limit_get_503(tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "_connections_max", lambda: 4)
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db")) as client:
        assert client.get("/healthz").status_code == 200  # Its connection stays: one.
        held = [Wire(client) for _ in range(3)]
        with refusing(client, "busy"), Wire(client) as wire:
            assert wire.all().startswith(b"HTTP/1.1 503 ")
        for one in held:
            one.socket.close()
        servers.wait_until(lambda: is_answered(client), 60, "room again", every_seconds=0.01)


def is_answered(client) -> bool:
    with Wire(client) as wire:
        wire.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return wire.all().startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "junk",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), b"SSH-2.0-x\r\n\r\n", b"GET\r\n\r\n", bytes(500),
     b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
     b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nabcde",
     b"GET / HTTP/1.1\r\nBad Header: x\r\n\r\n", b"\xff\xfe\xfd\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
)  # fmt: skip
def test_malformed_requests_get_400_and_no_log(client, junk, caplog):
    with Wire(client) as wire:
        wire.send(junk)
        answer = wire.all()
    assert answer.startswith(b"HTTP/1.1 4") and client.get("/healthz").status_code == 200
    assert "Traceback" not in caplog.text and not caplog.records


def test_websocket_upgrade_is_ignored(client):
    with Wire(client) as wire:
        wire.send(
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
        assert wire.socket.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_compressed_reports_are_refused(client):
    bomb = zlib.compress(bytes(50 << 20), 9)
    with refusing(client, "encoding", 5):
        for encoding in ("gzip", "deflate", "zstd", "br", "identity"):
            answer = client.post("/api/v1/ingest", content=bomb, headers={"content-encoding": encoding})
            assert answer.status_code == 415


def test_body_is_not_read_without_a_token(tmp_path):
    """The answer is immediate, and the rest of the body is discarded."""
    path = tmp_path / "tokens.json"
    with token_file.changing(path) as tokens:
        tokens.append(make("one", "ingest")[1])
    with (
        serving(
            create_app(
                f"sqlite:///{tmp_path}/ledger.db", authenticator=RequestAuthenticator(TokenCache(path))
            )
        ) as client,
        Wire(client) as wire,
    ):
        wire.send(b"POST /api/v1/ingest HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n\r\nabc")
        assert wire.socket.recv(65536).startswith(b"HTTP/1.1 401 ")
        for _ in range(64):
            wire.send(bytes(100_000))
        assert client.get("/healthz").status_code == 200


# ---- Trailers and chunks

CHUNKED = b"POST /api/v1/ingest HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"


@pytest.mark.parametrize("is_in_pieces", [False, True])
def test_trailers_are_not_headers(tmp_path, is_in_pieces):
    path = tmp_path / "tokens.json"
    text, token = make("one", "ingest")
    with token_file.changing(path) as tokens:
        tokens.append(token)
    trailer = b"Authorization: Bearer " + text.encode()
    app = create_app(f"sqlite:///{tmp_path}/ledger.db", authenticator=RequestAuthenticator(TokenCache(path)))
    with serving(app) as client, Wire(client) as wire:
        pieces = [CHUNKED, b"0\r\n" + trailer + b"\r\n\r\n"]
        for piece in pieces if is_in_pieces else [b"".join(pieces)]:
            wire.send(piece)
        assert wire.until(b"scope ingest\n").startswith(b"HTTP/1.1 401 ")
        # Nor does it belong to the next request.
        wire.send(b"GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert wire.socket.recv(65536).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    "without_end", [b"0\r\n" + b"a: b\r\n" * 100_000, b"0\r\na: " + b"x" * 500_000, b"0;" + b"x" * 500_000]
)
def test_endless_trailers_are_refused(client, without_end):
    with refusing(client, "head"), Wire(client) as wire:
        try:
            wire.send(CHUNKED)
            for at in range(0, len(without_end), 10_000):
                wire.send(without_end[at : at + 10_000])
        except OSError:
            pass  # It was refused before all of it was sent.
        wire.all()


def test_a_body_of_many_small_chunks_is_read(client):
    with refusing(client, "head", 0), Wire(client) as wire:
        for _ in range(3):
            wire.send(CHUNKED + b"1\r\nx\r\n" * 20_000)
            wire.send(b"1\r\nx\r\n" * 20_000 + b"0\r\nA: trailer\r\n\r\n")
            wire.until(b"malformed report")


# ---- Answers

ASK = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_two_pipelined_requests_are_answered(client):
    with refusing(client, "busy", 0), Wire(client) as wire:
        for _ in range(3):
            wire.send(ASK + ASK)
            wire.until(b"ok\n", 2)


def test_excessive_pipelining_is_refused(client):
    with refusing(client, "busy"), Wire(client) as wire:
        try:
            wire.send(ASK * 1000)
        except OSError:
            pass
        assert wire.all().count(b"ok\n") <= 2


def test_unread_answers_time_out(client):
    with refusing(client, "slow"), Wire(client) as wire:
        wire.send(b"GET /test/much HTTP/1.1\r\nHost: localhost\r\n\r\n")
        before = refused(client, "slow")
        servers.wait_until(lambda: refused(client, "slow") > before, 60, "the end", every_seconds=0.05)
        assert 0 < len(wire.all()) < 64 << 20


def test_large_answers_are_delivered(client, monkeypatch):
    """However long they take against the time for a request."""
    monkeypatch.setattr(limits, "ANSWER_SECONDS_MAX", 60.0)
    monkeypatch.setattr(limits, "UNREAD_SECONDS_MAX", 60.0)
    with refusing(client, "slow", 0):
        assert len(client.get("/test/much").content) == 64 << 20


def test_slow_handlers_are_not_timed_out(client):
    with refusing(client, "slow", 0), Wire(client) as wire:
        wire.send(b"GET /test/later HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert wire.socket.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_connection_answered_before_its_body_times_out(client):
    """uvicorn sets no timer of its own there."""
    with Wire(client) as wire:
        wire.send(b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n")
        assert wire.until(b'Allowed"}').startswith(b"HTTP/1.1 405 ")
        wire.send(b"abc")
        assert wire.all() == b""


def test_request_timeout_replaces_the_idle_timeout(client, monkeypatch):
    monkeypatch.setattr(limits, "IDLE_SECONDS_MAX", 300.0)
    with refusing(client, "slow"), Wire(client) as wire:
        assert refused(client, "slow") >= 0, "the server has taken the connection meanwhile"
        wire.send(b"GET /healthz HTTP/1.1\r\nHost:")
        assert wire.all() == b""
