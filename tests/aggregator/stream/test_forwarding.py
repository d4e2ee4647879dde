"""Requests that one aggregator forwards to another, over a real NATS server, and who is heard to be there."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from support.servers.nats_server import NatsCluster

from goodput.access.tokens import Access
from goodput.aggregator.http.middleware import FORWARDED
from goodput.aggregator.stream.connection import Stream, StreamSettings
from goodput.aggregator.stream.errors import StreamError
from goodput.aggregator.stream.forwarding import Forwarder, Responder, forwarded
from goodput.aggregator.stream.members import Heartbeat, Members
from goodput.aggregator.stream.partitions import reads_of

ACCESS = Access("ci", ("read",), ("r*",), "1f2e")


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    with NatsCluster(tmp_path_factory.mktemp("nats")) as found:
        yield StreamSettings(tuple(found.urls), 4, replicas=1, bytes_max=1 << 20)


def scope(path: str = "/api/v1/runs/r1", method: str = "GET") -> dict:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"a=1",
        "headers": [(b"accept", b"*/*"), (b"cookie", b"secret")],
        "client": ("10.0.0.9", 4),
        "access": ACCESS,
    }


async def echo(scope, receive, send) -> None:
    """Answers with what it was asked, and many bytes on /large; /broken fails."""
    body = (await receive())["body"]
    if scope["path"] == "/broken":
        raise RuntimeError("unforeseen")
    text = repr(
        (scope["method"], scope["query_string"], scope["headers"], scope["client"][0], scope["access"], body)
    )
    await send({"type": "http.response.start", "status": 207, "headers": [(b"x-run", b"r1")]})
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b"x" * (1 << 20) if scope["path"] == "/large" else b""})
    assert scope[FORWARDED]


def asked(settings, *requests, member: str = "b"):
    """The answers of member `b`, or the errors."""

    async def scenario():
        here, there = Stream(settings), Stream(settings)
        await asyncio.gather(here.connect(), there.connect())
        answering = asyncio.create_task(Responder(there, "b", echo).run())
        members = Members(here, "a")
        members.receive(msgspec.msgpack.encode(Heartbeat("b", [2])))
        await asyncio.sleep(0.05)
        await here.client.publish(reads_of("b"), b"\xc1")
        forwarder = Forwarder(here, members)
        answers = await asyncio.gather(*(ask(forwarder) for ask in requests), return_exceptions=True)
        answering.cancel()
        await asyncio.gather(here.close(), there.close())
        return answers

    return asyncio.run(scenario())


def test_request_and_answer_arrive_whole(settings):
    """With the client's access and address, without its cookie; a large answer in parts."""
    small, large, broken, nobody = asked(
        settings,
        lambda forwarder: forwarder.to_owner(2, forwarded(scope(method="POST"), b"{}")),
        lambda forwarder: forwarder.to_member("b", forwarded(scope("/large"))),
        lambda forwarder: forwarder.to_member("b", forwarded(scope("/broken"))),
        lambda forwarder: forwarder.to_owner(1, forwarded(scope())),
    )
    want = ("POST", b"a=1", [(b"accept", b"*/*")], "10.0.0.9", ACCESS, b"{}")
    assert (small.status, small.headers, small.body.decode()) == (207, [(b"x-run", b"r1")], repr(want))
    assert large.status == 207 and large.body.endswith(b"x" * (1 << 20))
    assert (broken.status, broken.body) == (500, b"internal error\n")
    assert isinstance(nobody, StreamError) and "no aggregator serves this run at the moment" in str(nobody)


def test_aggregator_that_is_gone(settings):
    """Known at once, from the server, and not after a timeout; lists have the answers of the others."""
    gone, everybody = asked(
        settings,
        lambda forwarder: forwarder.to_member("gone", forwarded(scope())),
        lambda forwarder: forwarder.to_all(forwarded(scope())),
    )
    assert isinstance(gone, StreamError) and "aggregator gone does not answer" in str(gone)
    assert [(member, answer.status) for member, answer in everybody.items()] == [("b", 207)]


def test_members_are_those_that_were_heard_lately(settings):
    now = 0.0
    members, woken = Members(Stream(settings), "a", lambda: now), []
    members.on_given = lambda: woken.append(sorted(members.given))

    def receive(member: str, held: list[int], **more) -> None:
        members.receive(msgspec.msgpack.encode(Heartbeat(member, held, **more)))

    receive("a", [1])
    receive("b", [2, 3])
    members.receive(b"\xc1")
    members.receive(msgspec.msgpack.encode({"member": "c", "held": ["x"]}))
    receive("d", list(range(300)))
    assert members.alive() == {"b": [2, 3]}
    now = 4.0
    receive("c", [])
    receive("b", [3], given=[2])
    assert (members.alive(), members.given, woken, members.changed) == ({"b": [3], "c": []}, {2}, [[2]], 4.0)
    now = 6.0
    receive("c", [2])
    assert members.given == set(), "b holds it"
    receive("c", [], given=[2], stays=False)
    assert (members.alive(), members.given, members.changed) == ({"b": [3]}, {2}, 6.0)
    now = 9.5
    assert (members.alive(), members.changed) == ({}, 9.5)


def test_members_are_bounded(settings, monkeypatch):
    monkeypatch.setattr("goodput.aggregator.stream.members.MEMBERS_MAX", 3)
    members = Members(Stream(settings), "a")
    for number in range(9):
        members.receive(msgspec.msgpack.encode(Heartbeat(f"m{number}", [])))
    assert len(members.alive()) == 3
