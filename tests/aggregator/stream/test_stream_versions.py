"""Processes of two versions over one stream and one ledger: what either can read is read, the rest waits for the newer one."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import msgspec
import pytest
from support.account.account_history import ns
from support.aggregator.ledgers import account, aggregator, take
from support.aggregator.reports import body_of, story
from support.aggregator.unreadable import UNREADABLE
from support.servers.nats_server import NatsCluster

from goodput.access.tokens import EVERYTHING, Access
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.stream import messages, ownership
from goodput.aggregator.stream.connection import Stream, StreamSettings
from goodput.aggregator.stream.forwarding import AnswerPart, ForwardedRequest
from goodput.aggregator.stream.members import Heartbeat, Members
from goodput.aggregator.stream.ownership import Partitions
from goodput.aggregator.stream.partitions import partition_of
from goodput.aggregator.stream.publisher import Publisher
from goodput.wire import schema

# What the first release with a stream sent. A version that changes a message gets a file of its own; these never change.
RECORDED = json.loads(Path(__file__).with_name("recorded").joinpath("version_1.json").read_text())
PUSHES = [base64.b64decode(body) for _, body in RECORDED["pushes"]]
KINDS = {"answer": messages.Answer, "heartbeat": Heartbeat, "request": ForwardedRequest, "part": AnswerPart}


def test_recorded_pushes_are_read_and_give_their_account(ledger):
    assert [partition for partition, _ in RECORDED["pushes"]] == [partition_of("recorded", 4)] * len(PUSHES)
    read, direct = aggregator(ledger), Ingest(Store(), NoLedger(), clock_ns=lambda: ns(6000))
    found = [messages.decode_push(body) for body in PUSHES]
    assert {one.access() for one in found} == {Access("ci", ("ingest",), ("rec*",), "1f2e3d4c5b6a")}
    take(read, *[one.report for one in found])
    take(direct, *[body_of(*ranks) for ranks in story("recorded", ranks=1)])
    wanted = account(direct, "recorded")
    assert account(read, "recorded") == wanted and wanted["steps"] == {"kept": 16, "lost": 4}


class NoLedger:
    """A ledger that keeps nothing."""

    def append(self, batch, health, *more):
        pass


@pytest.mark.parametrize("name", KINDS)
def test_recorded_messages_of_other_kinds_are_read(name):
    """And what is written now still has all their fields, for programs of that release."""
    body = base64.b64decode(RECORDED[name])
    found, fields = msgspec.msgpack.decode(body, type=KINDS[name]), msgspec.msgpack.decode(body)
    now = msgspec.msgpack.decode(msgspec.msgpack.encode(found))
    assert {field: now[field] for field in fields} == fields


def test_pushes_now_have_what_the_first_release_reads():
    push = messages.PushMessage("n", b"", 5, "ci", "1f2e", ("rec*",), messages.VERSION, schema.VERSION)
    now, then = (msgspec.msgpack.decode(body) for body in (messages.encoded(push), PUSHES[0]))
    assert {field: type(value) for field, value in then.items()}.items() <= {
        field: type(value) for field, value in now.items()
    }.items()


def later(body: bytes, **changes) -> bytes:
    """A push as a later version may write it."""
    return msgspec.msgpack.encode(msgspec.msgpack.decode(body) | changes)


def test_push_of_a_later_version_is_distinguished_from_a_malformed_one():
    """A new field alone is no reason to leave a push; with a higher version a field may have become anything."""
    assert messages.decode_push(later(PUSHES[0], region="eu")) == messages.decode_push(PUSHES[0])
    for changes in ({"version": 2}, {"version": 2, "report": ["parts"]}, {"report_version": 3}):
        with pytest.raises(messages.TooNew, match="this program reads up to 1 and 2"):
            messages.decode_push(later(PUSHES[0], **changes))
    for wrong in (later(PUSHES[0], report=["parts"]), b"\xc1", *UNREADABLE):
        with pytest.raises(msgspec.DecodeError):
            messages.decode_push(wrong)


def test_parts_are_of_the_present_report_version():
    """So that an aggregator need not know all that its workers accept."""
    (ranks,) = [ranks for ranks in story(ranks=1) if ranks[0].steps][:1]
    old = schema.decode(body_of(*ranks, version=1))
    publisher = Publisher(Stream(StreamSettings(("nats://127.0.0.1:1",), 4)))
    publisher._stream.message_bytes_max = lambda: 1 << 20
    rejected, parts = publisher._parts(old, EVERYTHING)
    (part,) = [schema.decode(body) for _, body in parts]
    assert not rejected and part.version == schema.VERSION
    assert part.ranks[0].blocks and not part.ranks[0].steps


class Recorded:
    """Stands in for the ledger, its fence, and what serves runs: keeps the pushes that were accepted and positions."""

    def __init__(self):
        self.accepted: list[int] = []
        self.position, self.too_new, self.lost = 0, "", set()

    async def accept(self, body, access, memory, arrived_ns) -> schema.Ack:
        self.accepted.append(arrived_ns)
        return schema.Ack(1, [], [])

    def take(self, _partition):
        return self.position

    def keep(self, positions):
        self.position = positions[0]

    def drop(self, _partition):
        pass

    def verify(self):
        pass


class Serves:
    async def take(self, partition):
        pass

    async def drop(self, partition):
        pass

    async def flush(self):
        pass


async def member(settings: StreamSettings, name: str, ledger: Recorded) -> tuple[Partitions, asyncio.Task]:
    stream = Stream(settings)
    await asyncio.wait_for(stream.connect(), 30)
    partitions = Partitions(stream, Members(stream, name), lambda: ledger, Serves(), ledger)
    return partitions, asyncio.create_task(partitions.run())


async def until(holds) -> None:
    end = asyncio.get_running_loop().time() + 60
    while not holds():
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.05)


@pytest.mark.faults
def test_push_of_a_later_version_waits_for_a_later_program(tmp_path, monkeypatch, caplog):
    """An older aggregator gives its partition away, says why, and has written what came before."""
    monkeypatch.setattr(ownership, "POLL_SECONDS", 0.2)
    old, new = Recorded(), Recorded()

    def pushed(arrived_ns: int, **changes) -> bytes:
        return later(PUSHES[0], arrived_ns=arrived_ns, **changes)

    async def scenario(urls):
        settings = StreamSettings(tuple(urls), 1, replicas=1, bytes_max=1 << 24)
        older, running = await member(settings, "older", old)
        await until(lambda: older.holds(0))
        stream = older._stream
        await stream.publish(0, pushed(1), "a")
        await until(lambda: old.position == 1)
        await stream.publish(0, pushed(2, version=2), "b")
        await stream.publish(0, pushed(3), "c")
        await until(lambda: older.counts["newer"])
        await until(lambda: older.held() == [] and older.unowned() == [0])
        # The newer program comes, and reads all.
        monkeypatch.setattr(messages, "VERSION", 2)
        new.position = old.position
        newer, also = await member(settings, "newer", new)
        await until(lambda: newer.held() == [0] and new.position == 3)
        await until(lambda: older.unowned() == [])
        held = older.held()
        for one in (running, also):
            one.cancel()
        await asyncio.wait([running, also])
        for one in (stream, newer._stream):
            await one.close()
        return held

    with NatsCluster(tmp_path) as cluster:
        held = asyncio.run(scenario(cluster.urls))
    assert (old.accepted[0], old.position, held) == (1, 1, [])
    assert new.accepted == [2, 3]
    (logged,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "partition 0: the stream has a push of stream version 2" in logged and "update it" in logged
