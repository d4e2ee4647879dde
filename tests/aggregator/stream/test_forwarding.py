"""Requests that one aggregator forwards to another, over a real NATS server, and who is heard to be there."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from unittest.mock import AsyncMock

import msgspec
import pytest
from support.aggregator.unreadable import UNREADABLE
from support.servers.nats_server import NatsCluster

from goodput.access.tokens import Access
from goodput.aggregator.accounts.run_summaries import RunPage
from goodput.aggregator.api.responses import json_response
from goodput.aggregator.api.stream_member import StreamMember
from goodput.aggregator.http.middleware import FORWARDED
from goodput.aggregator.stream.connection import Stream, StreamSettings
from goodput.aggregator.stream.errors import StreamError
from goodput.aggregator.stream.forwarding import ForwardedAnswer, Forwarder, Responder, forwarded
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
    """Answers with the request, and many bytes on /large; /broken fails."""
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


def answers_to(settings, *requests, member: str = "b"):
    """The answers of member `b`, or the errors."""

    async def scenario():
        here, there = Stream(settings), Stream(settings)
        await asyncio.gather(here.connect(), there.connect())
        answering = asyncio.create_task(Responder(there, "b", echo).run())
        members = Members(here, "a")
        members.receive(msgspec.msgpack.encode(Heartbeat("b", [2])))
        await asyncio.sleep(0.05)
        for body in (b"\xc1", *UNREADABLE):
            await here.client.publish(reads_of("b"), body)
        forwarder = Forwarder(here, members)
        answers = await asyncio.gather(*(ask(forwarder) for ask in requests), return_exceptions=True)
        answering.cancel()
        await asyncio.gather(here.close(), there.close())
        return answers

    return asyncio.run(scenario())


def test_request_and_answer_arrive_whole(settings):
    """With the client's access and address, without its cookie; a large answer in parts."""
    small, large, broken, nobody = answers_to(
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
    gone, everybody = answers_to(
        settings,
        lambda forwarder: forwarder.to_member("gone", forwarded(scope())),
        lambda forwarder: forwarder.to_all(forwarded(scope())),
    )
    assert isinstance(gone, StreamError) and "aggregator gone does not answer" in str(gone)
    assert [(member, answer.status) for member, answer in everybody.items()] == [("b", 207)]


def test_answers_are_bounded(settings, monkeypatch):
    monkeypatch.setattr("goodput.aggregator.stream.forwarding.ANSWER_BYTES_MAX", 1 << 19)
    (large,) = answers_to(settings, lambda forwarder: forwarder.to_member("b", forwarded(scope("/large"))))
    assert isinstance(large, StreamError) and "is larger than 524288 bytes" in str(large)


@pytest.mark.parametrize("body", [b"", b'{"a": ' + b"[" * 100_000, b'{"runs": [], "total": "\xff"}'])
def test_list_that_cannot_be_read_is_missing(body):
    """The lists of the other aggregators are answered, with what is missing."""
    answers = {"b": ForwardedAnswer(200, [], body)}
    member = SimpleNamespace(_name="a", _forwarder=SimpleNamespace(to_all=AsyncMock(return_value=answers)))

    async def own(scope, receive, send) -> None:
        page = json_response(RunPage([], 0, False))
        await page(scope, receive, send)

    answering = StreamMember._ask_all(member, own, forwarded(scope("/api/v1/runs")), "", RunPage)
    found, failed = asyncio.run(answering)
    assert found == [RunPage([], 0, False)]
    assert [text.startswith("aggregator b: its answer cannot be read") for text in failed] == [True]


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


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"member": ""}, "'' is no aggregator's name"),
        ({"member": "b c"}, "'b c' is no aggregator's name"),
        ({"member": "b.>"}, "is no aggregator's name"),
        ({"member": "b\r\nPING"}, "is no aggregator's name"),
        ({"member": "b" * 5000}, "is no aggregator's name"),
        ({"held": [1, 4]}, "b has partition 4 of 0 to 3"),
        ({"given": [-1]}, "b has partition -1 of 0 to 3"),
        ({"held": [2**63]}, "b has partition 9223372036854775808 of 0 to 3"),
        ({"held": [1] * 5}, "b has 5 partitions of 4"),
        ({"given": [1] * 5}, "b has 5 partitions of 4"),
    ],
)
def test_heartbeats_that_cannot_be_ours(fields, text, caplog):
    """A server ends the connection of a client that publishes to a subject with a space or a line break."""
    members = Members(Stream(StreamSettings(("nats://127.0.0.1:1",), 4)), "a")
    members.receive(msgspec.msgpack.encode({"member": "b", "held": [], **fields}))
    assert not members.alive() and not members.given and text in caplog.text


def test_heartbeats_that_cannot_be_read(caplog):
    members = Members(Stream(StreamSettings(("nats://127.0.0.1:1",), 4)), "a")
    for body in UNREADABLE:
        members.receive(body)
    assert not members.alive() and len(caplog.records) == len(UNREADABLE)


def test_members_are_bounded(settings, monkeypatch):
    monkeypatch.setattr("goodput.aggregator.stream.members.MEMBERS_MAX", 3)
    members = Members(Stream(settings), "a")
    for number in range(9):
        members.receive(msgspec.msgpack.encode(Heartbeat(f"m{number}", [])))
    assert len(members.alive()) == 3
