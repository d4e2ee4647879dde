"""Pushes that a connection reads and answers itself: the same as through ASGI, whatever comes and in whatever pieces."""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.account.account_history import Process
from support.aggregator.raw_connection import Wire
from support.aggregator.reports import body_of, rank_report
from support.aggregator.serve_process import samples, serving
from support.servers import servers

from goodput.access import token_file
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import make
from goodput.aggregator.api.app import create_app
from goodput.aggregator.api.ingest_route import DirectPush, IngestRoute
from goodput.aggregator.http import connections, limits
from goodput.aggregator.http.authentication import RequestAuthenticator
from goodput.aggregator.http.connections import BoundedProtocol, _answer_head
from goodput.aggregator.http.push_head import PushHead, push_head
from goodput.aggregator.ingest.hangs import HangDetector
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.memory_bound import MemoryBound
from goodput.wire import compiled

needs_known_ranks = pytest.mark.skipif(
    compiled.steps is None, reason="goodput.wire._steps is not compiled here"
)
HEAD = (
    b"POST /api/v1/ingest HTTP/1.1\r\nHost: localhost:9471\r\nAccept: */*\r\nAccept-Encoding: identity\r\n"
    b"Connection: keep-alive\r\nUser-Agent: goodput-node\r\nContent-Length: %d\r\n"
    b"Content-Type: application/msgpack\r\nAuthorization: Bearer %s\r\n\r\n"
)
REFUSED = b"POST /login HTTP/1.1\r\nHost: localhost:9471\r\nOrigin: https://elsewhere.example\r\nContent-Length: %d\r\n\r\n"
GET = b"GET /%s HTTP/1.1\r\nHost: localhost:9471\r\n\r\n"


class Site:
    """A server with tokens; `through_asgi` counts pushes that its connections left to ASGI."""

    def __init__(
        self, client, authenticator, texts: dict[str, bytes], path, memory: MemoryBound | None = None
    ):
        self.client, self.metrics, self.texts, self.path = client, authenticator.metrics, texts, path
        self.memory = memory or MemoryBound()
        self.through_asgi, self.steps = 0, Process().steps(2, forward=1)

    def request(self, token: str = "agent", number: int = 0) -> bytes:
        """The next push of rank 0, or the same one again."""
        one = self.steps
        if not number:
            one.step(forward=1)
        body = body_of(rank_report(one, rows=one.rows[-1:]))
        return HEAD % (len(body), self.texts[token]) + body

    def requests(self, status: str) -> float:
        """How many pushes were answered so."""
        return self.sample("goodput_aggregator_requests_total", "ingest", status)

    def sample(self, name: str, *labels: str) -> float:
        self.client.headers["authorization"] = f"Bearer {self.texts['reader'].decode()}"
        return samples(self.client).get((name, *labels), 0)

    @contextmanager
    def leaving_to_asgi(self, count: int):
        before = self.through_asgi
        yield
        assert self.through_asgi == before + count
        held = lambda: self.metrics.body_bytes or self.memory._reserved  # noqa: E731
        servers.wait_until(lambda: held() == 0, 60, "memory is released", every_seconds=0.001)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("direct")
    made = {name: make(name, scope, **more) for name, scope, more in (
        ("agent", "ingest", {}), ("other", "ingest", {}), ("some", "ingest", {"runs": ("r*",)}), ("reader", "read", {}))}  # fmt: skip
    path = folder / "tokens.json"
    with token_file.changing(path) as tokens:
        tokens += [token for _, token in made.values()]
    authenticator = RequestAuthenticator(TokenCache(path))
    memory = MemoryBound()
    app = create_app(f"sqlite:///{folder}/ledger.db", authenticator=authenticator, memory=memory)
    with pytest.MonkeyPatch.context() as patch, serving(app) as client:
        texts = {name: text.encode() for name, (text, _) in made.items()}
        found = Site(client, authenticator, {**texts, "wrong": b"goodput_ingest_0_0"}, path, memory)
        accept = IngestRoute.__call__

        async def counted(self, scope, receive, send):
            found.through_asgi += 1
            await accept(self, scope, receive, send)

        patch.setattr(IngestRoute, "__call__", counted)
        with Wire(client) as wire:
            wire.send(found.request())
            answer(wire)  # Now the rank is known.
        yield found


def answer(wire: Wire) -> tuple[bytes, bytes]:
    """Head, without the date, and body of the next answer."""
    found = wire.until(b"\r\n\r\n")
    head, _, body = found.partition(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head)[1])
    while len(body) < length:
        body += wire.socket.recv(65536)
    assert len(body) == length
    return re.sub(rb"date: [^\r]*\r\n", b"", head), body


def test_idle_connection_holds_no_request(site, monkeypatch):
    """Of the last one that uvicorn took, 4 KiB would stay for as long as an agent is connected."""
    made = []
    accept = connections.BoundedProtocol.connection_made
    monkeypatch.setattr(
        connections.BoundedProtocol, "connection_made", lambda self, to: (made.append(self), accept(self, to))
    )
    with Wire(site.client) as wire:
        pushed = site.request().replace(b"Accept: */*\r\n", b"X-A: b\r\n")
        for requests, statuses in (
            ([pushed], [b"200"]),
            ([GET % b"api/v1/runs", pushed], [b"401", b"200"]),
        ):
            wire.send(b"".join(requests))
            found = wire.until(b"HTTP/1.1 ", len(requests))
            while b"HTTP/1.1 200 OK" not in found:
                found += wire.socket.recv(65536)
            assert re.findall(rb"HTTP/1.1 (\d+)", found) == statuses
            servers.wait_until(lambda: made[0].cycle is None, 60, "no request is held", every_seconds=0.001)
            assert (len(made), made[0].scope, made[0].headers) == (1, None, [])


@needs_known_ranks
@pytest.mark.parametrize("token", ["agent", "some", "wrong", "reader"])
def test_answers_are_those_of_asgi(site, token):
    """Only pushes with a token for all runs are taken without it; with any other header none is."""
    with Wire(site.client) as wire:
        with site.leaving_to_asgi(int(token == "some")):
            wire.send(site.request(token))
            direct = answer(wire)
        wire.send(site.request(token).replace(b"Accept: */*\r\n", b"X-A: b\r\n"))
        assert answer(wire) == direct
    assert direct[0].startswith(
        {"wrong": b"HTTP/1.1 401 ", "reader": b"HTTP/1.1 403 "}.get(token, b"HTTP/1.1 200 ")
    )


@needs_known_ranks
def test_failure_of_the_ledger_is_answered_as_by_asgi(site, monkeypatch):
    def fail(*_):
        raise LedgerError("the disk is full")

    monkeypatch.setattr(Ledger, "append", fail)
    failed = site.sample("goodput_aggregator_reports_total", "failed")
    with Wire(site.client) as wire:
        with site.leaving_to_asgi(0):
            wire.send(site.request())
            direct = answer(wire)
        wire.send(site.request().replace(b"Accept: */*\r\n", b"X-A: b\r\n"))
        assert answer(wire) == direct
        assert direct[0].startswith(b"HTTP/1.1 503 ") and b"retry-after: 5" in direct[0]
    assert site.sample("goodput_aggregator_reports_total", "failed") == failed + 2


@needs_known_ranks
def test_unexpected_error_is_answered_as_by_asgi(site, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(Ledger, "append", fail)
    with Wire(site.client) as wire:
        with site.leaving_to_asgi(0):
            wire.send(site.request())
            direct = answer(wire)
        wire.send(site.request().replace(b"Accept: */*\r\n", b"X-A: b\r\n"))
        assert answer(wire) == direct and direct[0].startswith(b"HTTP/1.1 500 ")
    assert caplog.text.count("ingest failed") == caplog.text.count("RuntimeError: unforeseen") == 2


@needs_known_ranks
def test_error_after_the_commit_is_answered_as_by_asgi(site, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("unforeseen")

    with Wire(site.client) as wire, site.leaving_to_asgi(1):
        with monkeypatch.context() as patch:
            patch.setattr(HangDetector, "stack_requests", fail)
            wire.send(site.request())
            direct = answer(wire)
            wire.send(site.request().replace(b"Accept: */*\r\n", b"X-A: b\r\n"))
            assert answer(wire) == direct and direct[0].startswith(b"HTTP/1.1 500 ")
        wire.send(site.request())
        assert answer(wire)[0].startswith(b"HTTP/1.1 200 ")
    assert caplog.text.count("RuntimeError: unforeseen") == 2


@needs_known_ranks
def test_push_that_cannot_be_answered_leaves_the_others_answered(site, monkeypatch, caplog):
    """They share a transaction, and are answered one after the other when it is committed."""
    is_committing, may_commit, append = threading.Event(), threading.Event(), Ledger.append
    accept, accepted, answered = DirectPush.accept, [], []

    def slow(self, *of):
        is_committing.set()
        assert may_commit.wait(60)
        return append(self, *of)

    def counted(self, respond):
        accepted.append(self)
        return accept(self, respond)

    def failing_second(status, headers, is_tls, is_last):
        answered.append(headers)
        if len(answered) == 2:
            raise RuntimeError("unforeseen")
        return _answer_head(status, headers, is_tls, is_last)

    with (
        Wire(site.client) as first,
        Wire(site.client) as second,
        Wire(site.client) as third,
        site.leaving_to_asgi(0),
        monkeypatch.context() as patch,
    ):
        patch.setattr(Ledger, "append", slow)
        patch.setattr(DirectPush, "accept", counted)
        patch.setattr(connections, "_answer_head", failing_second)
        first.send(site.request())
        assert is_committing.wait(60)  # of the first; accepted from now on are those of the next transaction
        for number, wire in ((2, second), (3, third)):
            wire.send(site.request())
            servers.wait_until(lambda: len(accepted) == number, 60, "push waits", every_seconds=0.001)  # noqa: B023
        may_commit.set()
        assert answer(first)[0].startswith(b"HTTP/1.1 200 ")
        assert answer(third)[0].startswith(b"HTTP/1.1 200 ")
    assert len(answered) == 3 and caplog.text.count("a push was not answered") == 1


@needs_known_ranks
def test_any_pieces_are_one_push(site, monkeypatch):
    request, taken = site.request(), []
    end = request.index(b"\r\n\r\n") + 4

    def note(name: str) -> None:
        take = getattr(BoundedProtocol, name)

        def noted(self, *given):
            take(self, *given)
            taken.append(name)

        monkeypatch.setattr(BoundedProtocol, name, noted)

    note("_take_gathered")
    note("_parse")
    accepted = site.requests("200")
    with Wire(site.client) as wire:
        # A head that does not come whole is left to ASGI.
        for at, through_asgi in ((end, 0), (end + 1, 0), (len(request) - 1, 0), (end - 1, 1), (3, 1)):
            with site.leaving_to_asgi(through_asgi):
                taken.clear()
                wire.send(request[:at])
                servers.wait_until(lambda: taken, 60, "it has come", every_seconds=0.001)
                wire.send(request[at:])
                assert answer(wire)[0].startswith(b"HTTP/1.1 200 ")
    assert site.requests("200") == accepted + 5


@needs_known_ranks
def test_requests_behind_a_push_are_answered_in_turn(site):
    request, health = site.request(), b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with Wire(site.client) as wire:
        wire.send(request)
        wire.send(health)
        assert b"accepted" in wire.until(b"ok\n")
        with site.leaving_to_asgi(1):
            wire.send(request + health)  # In one read, it is for ASGI.
            assert b"accepted" in wire.until(b"ok\n")
        wire.send(health)
        assert answer(wire)[1].startswith(b"ok")
        with site.leaving_to_asgi(0):
            wire.send(request)
            assert answer(wire)[0].startswith(b"HTTP/1.1 200 ")


def test_body_of_a_refused_request_shares_a_read_with_the_next(site):
    """Both are answered at their heads, while the body of the second is still to come."""
    with Wire(site.client) as wire:
        wire.send(REFUSED % 1)
        assert answer(wire)[0].startswith(b"HTTP/1.1 403 ")
        wire.send(b"x" + REFUSED % 3)
        assert answer(wire)[0].startswith(b"HTTP/1.1 403 ")
        wire.send(b"abc")
        wire.send(GET % b"healthz")
        assert answer(wire)[1].startswith(b"ok")


@needs_known_ranks
def test_push_within_the_body_of_a_refused_request_is_none(site):
    """Behind a proxy another client may have sent that body."""
    push, before = site.request(), site.requests("200")
    with Wire(site.client) as wire, site.leaving_to_asgi(0):
        wire.send(REFUSED % 1)
        assert answer(wire)[0].startswith(b"HTTP/1.1 403 ")
        wire.send(b"x" + REFUSED % len(push))
        assert answer(wire)[0].startswith(b"HTTP/1.1 403 ")
        wire.send(push)
        wire.send(GET % b"healthz")
        assert answer(wire)[1].startswith(b"ok")
    assert site.requests("200") == before


@needs_known_ranks
def test_unknown_rank_or_wrong_body_is_left_to_asgi(site):
    request = site.request()
    unknown = body_of(rank_report(Process(5).steps(2, forward=1), "other run"))
    wrong = request[request.index(b"\r\n\r\n") + 4 :][:-1] + b"\xc1"
    with Wire(site.client) as wire, site.leaving_to_asgi(3):
        for body, status in ((unknown, b"200"), (wrong, b"400"), (b"", b"400")):
            wire.send(HEAD % (len(body), site.texts["agent"]) + body)
            assert answer(wire)[0].startswith(b"HTTP/1.1 " + status)


@needs_known_ranks
def test_client_that_goes_in_the_middle_is_counted(site):
    before = site.requests("499")
    with site.leaving_to_asgi(0), Wire(site.client) as wire:
        wire.send(site.request()[:-1])
        servers.wait_until(lambda: site.metrics.body_bytes > 0, 60, "it has come", every_seconds=0.001)
    assert site.requests("499") == before + 1


@needs_known_ranks
def test_full_bounds_are_left_to_asgi(site, monkeypatch):
    with Wire(site.client) as wire, site.leaving_to_asgi(2):
        with monkeypatch.context() as patch:
            patch.setattr(limits, "BODIES_BYTES_MAX", 10)
            wire.send(site.request())
            assert answer(wire)[0].startswith(b"HTTP/1.1 503 ")
        monkeypatch.setattr(MemoryBound, "reserve_at_once", lambda self, more: False)
        wire.send(site.request())
        assert answer(wire)[0].startswith(b"HTTP/1.1 200 ")


@needs_known_ranks
def test_slow_push_is_aborted(site, monkeypatch):
    monkeypatch.setattr(limits, "REQUEST_SECONDS_MAX", 0.2)
    refused = site.metrics.refused["slow"]
    with site.leaving_to_asgi(0), Wire(site.client) as wire:
        wire.send(site.request()[:-1])
        assert wire.all() == b""
    assert site.metrics.refused["slow"] == refused + 1


@needs_known_ranks
def test_revoked_token_is_refused_at_the_next_push(site):
    with Wire(site.client) as wire:
        with site.leaving_to_asgi(0):
            wire.send(site.request("other"))
            assert answer(wire)[0].startswith(b"HTTP/1.1 200 ")
        with token_file.changing(site.path) as tokens:
            tokens[:] = [token for token in tokens if token.name != "other"]

        def is_refused() -> bool:
            wire.send(site.request("other"))
            return answer(wire)[0].startswith(b"HTTP/1.1 401 ")

        servers.wait_until(is_refused, 60, "the token is revoked", every_seconds=0.05)


@needs_known_ranks
def test_idle_connection_is_closed_after_a_push(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "IDLE_SECONDS_MAX", 0.3)
    authenticator = RequestAuthenticator()
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db", authenticator=authenticator)) as client, Wire(client) as wire:  # fmt: skip
        site = Site(client, authenticator, {"agent": b"none"}, None)
        for _ in range(3):
            wire.send(site.request())
            assert answer(wire)[0].startswith(b"HTTP/1.1 200 ")
        assert wire.all() == b"" and authenticator.metrics.refused["slow"] == 0


@needs_known_ranks
def test_server_that_ends_answers_a_push(tmp_path, monkeypatch):
    """As one through ASGI: the answer tells the client that the connection is closed."""
    authenticator, append, wires = RequestAuthenticator(), Ledger.append, []

    def slow(self, *of):
        while not server_is_ending:
            time.sleep(0.001)
        time.sleep(0.2)
        return append(self, *of)

    server_is_ending = [True]
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db", authenticator=authenticator)) as client:
        site, wire = Site(client, authenticator, {"agent": b"none"}, None), Wire(client)
        wires.append(wire)
        wire.send(site.request())
        answer(wire)
        server_is_ending.clear()
        monkeypatch.setattr(Ledger, "append", slow)
        wire.send(site.request())
        servers.wait_until(
            lambda: authenticator.metrics.body_bytes > 0, 60, "it has come", every_seconds=0.001
        )
        server_is_ending.append(True)
    found = wires[0].all()
    assert found.startswith(b"HTTP/1.1 200 ") and b"connection: close" in found


# ---- Heads


@example(b"Content-Length: 5")
@example(b"content-length: 05")
@example(b"Content-Length: 5\r\nContent-Length: 5")
@example(b"Host: a\r\nHost: b\r\nContent-Length: 5")
@example(b"Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5")
@example(b"Content-Length: 5\r\nExpect: 100-continue")
@example(b"Content-Length: 5\r\nConnection: close")
@example(b"Content-Length: +5")
@example(b"Content-Length : 5")
@example(b"Content-Length: 5\r\n Host: a")
@example(b"Content-Length: 5\nHost: a")
@example("Content-Length: ٣".encode())
@given(st.lists(st.sampled_from([b"Host: a", b"Content-Length: 5", b"Accept: x\x01", b"Authorization: Bearer x",
       b"Connection: keep-alive", b"Origin: b", b"Cookie: c", b": x", b"Accept:y"]), max_size=4).map(b"\r\n".join))  # fmt: skip
def test_only_plain_heads_are_read(lines):
    head = b"POST /api/v1/ingest HTTP/1.1\r\n" + lines + b"\r\n\r\n"
    found = push_head(head + b"abcde")
    fields = [line.split(b": ") for line in lines.split(b"\r\n")]
    names = [name.lower() for name, *_ in fields]
    is_plain = (
        {*names} <= {b"host", b"content-length", b"authorization", b"connection"}
        and len({*names}) == len(names)
        and all(len(one) == 2 for one in fields)
        and (b"content-length", b"5") in {(one[0].lower(), one[1].lstrip(b"0")) for one in fields}
        and [b"Connection", b"close"] not in fields
    )
    assert (found is not None) == is_plain
    if found is not None:
        hosts = ["a"] if b"host" in names else []
        tokens = [b"Bearer x"] if b"authorization" in names else []
        assert found == PushHead(len(head), 5, hosts, tokens)


@pytest.mark.parametrize("begin", [b"POST /api/v1/ingest HTTP/1.0", b"POST /api/v1/ingest?a HTTP/1.1",
                                   b"POST  /api/v1/ingest HTTP/1.1", b"PUT /api/v1/ingest HTTP/1.1", b"\r\nPOST"])  # fmt: skip
def test_other_requests_are_not_read(begin):
    assert push_head(begin + b"\r\nContent-Length: 5\r\n\r\nabcde") is None
    assert push_head(b"POST /api/v1/ingest HTTP/1.1\r\nContent-Length: 5\r\n") is None
    assert (
        push_head(b"POST /api/v1/ingest HTTP/1.1\r\nHost: %b\r\nContent-Length: 5\r\n\r\n" % (b"x" * 3000))
        is None
    )
