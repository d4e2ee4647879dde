"""What an ingest worker does with pushes, over a real NATS server: nothing is acknowledged that the stream does not have."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from support.account.account_history import ns
from support.aggregator.reports import Process, body_of, health_event, rank_report
from support.aggregator.unreadable import UNREADABLE
from support.servers.nats_server import NatsCluster

from goodput.access.tokens import Access
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.stream import messages
from goodput.aggregator.stream.connection import NAME, Stream, StreamSettings
from goodput.aggregator.stream.errors import StreamError
from goodput.aggregator.stream.ownership import note_clock
from goodput.aggregator.stream.partitions import ANSWERS, partition_of
from goodput.aggregator.stream.publisher import Answers, Publisher
from goodput.aggregator.stream.reader import PartitionReader
from goodput.wire import schema

COUNT, STREAM_BYTES = 4, 64 << 10


@pytest.fixture(scope="module")
def nats(tmp_path_factory):
    with NatsCluster(tmp_path_factory.mktemp("nats")) as found:
        yield found


@pytest.fixture
def settings(nats):
    nats.ask(lambda client: client.jetstream().delete_stream(NAME))  # of the test before
    return StreamSettings(tuple(nats.urls), COUNT, replicas=1, bytes_max=STREAM_BYTES)


def rank(number: int, run: str = "r1") -> schema.RankReport:
    return rank_report(Process(number, world_size=8).steps(3, forward=1), run)


async def connected(settings: StreamSettings) -> Stream:
    stream = Stream(settings)
    await asyncio.wait_for(stream.connect(), 30)
    return stream


async def read(stream: Stream, partition: int, after: int = 0) -> list[schema.NodeReport]:
    reader = PartitionReader(stream, partition, after)
    found = [messages.decode_push(one.body) for one in await reader.next()]
    await reader.close()
    return [schema.decode(one.report) for one in found]


def test_a_push_is_in_the_stream_when_it_is_acknowledged(settings):
    async def scenario():
        stream = await connected(settings)
        ack = await Publisher(stream, lambda: 7).accept(body_of(rank(0), rank(1), rank(0, "other")))
        found = {run: await read(stream, partition_of(run, COUNT)) for run in ("r1", "other")}
        await stream.close()
        return ack, found

    ack, found = asyncio.run(scenario())
    assert (ack.accepted, ack.rejected) == (3, [])
    ranks = {
        run: [(one.identity.run, one.identity.rank) for part in parts for one in part.ranks]
        for run, parts in found.items()
    }
    assert ("r1", 1) in ranks["r1"] and ("other", 0) in ranks["other"]


def test_partitions_know_a_nodes_clock_from_all_its_pushes(settings):
    """Ten minutes behind: an aggregator sees only the push with ranks of its partition, of which nothing is known alone."""
    behind, worker_ns = ns(600), ns(100_000)
    began = Process(0, start=(worker_ns - behind) / 1e9, world_size=1).steps(3, forward=1)
    report = replace(rank_report(began, "r1"), sequence=began.now_ns)

    async def scenario():
        stream, now = await connected(settings), [worker_ns]
        publisher = Publisher(stream, lambda: now[0])
        sent_ns = began.now_ns
        await publisher.accept(body_of(sent_ns=sent_ns))
        now[0] += ns(1)
        more = {"previous_sent_ns": sent_ns, "previous_took_ns": ns(0.1)}
        await publisher.accept(body_of(report, sent_ns=sent_ns + ns(1), **more))
        reader = PartitionReader(stream, partition_of("r1", COUNT), 0)
        found = [messages.decode_push(one.body) for one in await reader.next()]
        await reader.close()
        await stream.close()
        return [one for one in found if schema.decode(one.report).ranks]

    (message,) = asyncio.run(scenario())
    store = Store()
    ingest = Ingest(store, NoLedger(), clock_ns=lambda: worker_ns + ns(2))

    async def take():
        note_clock(ingest, message)
        return await ingest.accept(message.report, message.access(), arrived_ns=message.arrived_ns)

    assert asyncio.run(take()).rejected == []
    ((_, moved_ns),) = store.moved["r1"].items()
    assert moved_ns == pytest.approx(behind - 3e9, abs=0.2e9)


class NoLedger:
    """A ledger that keeps nothing."""

    def append(self, *records):
        pass


def test_bad_ranks_are_rejected_and_others_published(settings):
    """A malformed one, and one that the token is not for; its health events and stacks stay away too."""
    wrong = replace(rank(1), identity=replace(rank(1).identity, attempt=0))

    async def scenario():
        stream = await connected(settings)
        publisher, access = Publisher(stream), Access("ci", ("ingest",), ("r*",), "1f2e")
        body = body_of(rank(0), wrong, rank(0, "secret"), health=[health_event(1, 2.0, 0, run="secret")])
        ack = await publisher.accept(body, access)
        parts = await read(stream, partition_of("r1", COUNT))
        with pytest.raises(schema.SchemaError):
            await publisher.accept(b"\xc1")
        await stream.close()
        return ack, parts, publisher.counts

    ack, parts, counts = asyncio.run(scenario())
    assert [(one.run, one.rank, one.reason) for one in ack.rejected] == [
        ("secret", 0, "scope"),
        ("r1", 1, "malformed"),
    ]
    assert ack.accepted == 1
    assert [(one.identity.rank, part.health) for part in parts for one in part.ranks] == [(0, [])]
    assert (counts["rejection", "scope"], counts["rejection", "malformed"]) == (1, 1)
    assert (counts["report", "malformed"], counts["report", "accepted"]) == (1, 1)


def test_full_stream_acknowledges_nothing(settings):
    """And drops nothing that it acknowledged; once something was purged it takes pushes again."""
    runs = [f"r{number}" for number in range(500)]

    async def scenario():
        stream = await connected(settings)
        publisher, taken = Publisher(stream), 0
        with pytest.raises(StreamError, match="maximum bytes exceeded"):
            for run in runs:
                await publisher.accept(body_of(rank(0, run)))
                taken += 1
        info = await stream.js.stream_info(NAME)
        for partition in range(COUNT):
            await stream.purge(partition, info.state.last_seq + 1)
        ack = await publisher.accept(body_of(rank(0)))
        await stream.close()
        return taken, info.state.messages, ack.accepted, publisher.counts["stream", "error"]

    taken, kept, accepted, errors = asyncio.run(scenario())
    assert 10 < taken == kept
    assert (accepted, errors) == (1, 1)


def test_no_stream(settings):
    """The address is shown without its password."""
    publisher = Publisher(Stream(settings._replace(urls=("nats://me:secret@127.0.0.1:1",))))
    with pytest.raises(StreamError, match=r"^stream nats://127\.0\.0\.1:1: not connected yet$"):
        asyncio.run(publisher.accept(body_of(rank(0))))


def test_processes_of_different_partitions(settings):
    async def scenario():
        await (await connected(settings)).close()
        with pytest.raises(
            StreamError, match=r"has the subjects goodput.pushes.4.\*, not goodput.pushes.8.\*"
        ):
            await connected(settings._replace(count=8))

    asyncio.run(scenario())


def test_more_replicas_than_servers(settings):
    async def scenario():
        with pytest.raises(StreamError, match="3 replicas need as many servers"):
            await connected(settings._replace(replicas=3))

    asyncio.run(scenario())


def test_answers_reach_the_node_with_its_next_push(settings):
    """What an aggregator rejects, and the stacks that it wants; a token for some runs hears of these only."""
    wanted = [schema.stack_request(rank(0, run).identity) for run in ("r1", "secret")]
    rejected = [schema.Rejection(run, 0, "claim", "taken") for run in ("r1", "secret")]

    async def scenario():
        stream = await connected(settings)
        publisher = Publisher(stream)
        listening = asyncio.create_task(publisher.run())
        await asyncio.sleep(0.05)
        body = messages.encoded(messages.Answer("n", rejected, wanted))
        for unreadable in (b"\xc1", *UNREADABLE):
            await stream.client.publish(ANSWERS, unreadable)
        await stream.client.publish(ANSWERS, body)
        await stream.client.flush()
        while not len(publisher.answers):
            await asyncio.sleep(0.01)
        access = Access("ci", ("ingest",), ("r*",), "1f2e")
        acks = [await publisher.accept(body_of(rank(0)), access) for _ in range(2)]
        listening.cancel()
        await stream.close()
        return acks, publisher.answers.dropped

    (first, second), dropped = asyncio.run(scenario())
    assert (first.rejected, first.wanted) == (rejected[:1], wanted[:1])
    assert (second.rejected, second.wanted) == ([], []), "each is given once"
    assert dropped == 1 + len(UNREADABLE)


def test_answers_are_bounded(monkeypatch):
    monkeypatch.setattr("goodput.aggregator.stream.publisher.ANSWERS_MAX", 3)
    now = 0.0
    answers = Answers(lambda: now)
    for node in range(5):
        answers.add(messages.encoded(messages.Answer(f"n{node}")))
    assert (len(answers), answers.dropped) == (3, 2)
    assert answers.take("n0") == [] and len(answers.take("n4")) == 1
    now = 61.0
    assert answers.take("n3") == [], "too old"
    for _ in range(9):
        answers.add(messages.encoded(messages.Answer("n2")))
    assert len(answers.take("n2")) == 4


def test_reader_goes_on_where_it_was(settings):
    """Over any number of readers, in the order of the stream, each message once."""

    async def scenario():
        stream = await connected(settings)
        publisher, partition = Publisher(stream, lambda: ns(1)), partition_of("r1", COUNT)
        for number in range(6):
            await publisher.accept(body_of(rank(number)))
        reader, found = PartitionReader(stream, partition, 0), []
        first = await reader.next()
        found += [one.body for one in first[:2]]
        await reader.close()
        again = PartitionReader(stream, partition, first[1].sequence)
        rest = await again.next()
        assert again.pending == 0 and await again.next() == []
        await publisher.accept(body_of(rank(7)))
        rest += await again.next()
        await again.close()
        await stream.close()
        return [messages.decode_push(body).report for body in [*found, *(one.body for one in rest)]]

    found = [schema.decode(one).ranks[0].identity.rank for one in asyncio.run(scenario())]
    assert found == [0, 1, 2, 3, 4, 5, 7]


def test_stream_is_distinguished_from_one_of_the_same_name(nats, settings):
    """Processes that make it at the same time have the same one; one that is made later is another."""

    async def connected_at_once() -> set[str]:
        streams = await asyncio.gather(*[connected(settings) for _ in range(4)])
        for stream in streams:
            await stream.close()
        return {stream.id for stream in streams}

    first = asyncio.run(connected_at_once())
    assert len(first) == 1 and asyncio.run(connected_at_once()) == first
    nats.ask(lambda client: client.jetstream().delete_stream(NAME))
    assert not first & asyncio.run(connected_at_once())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"discard": "old"}, "discard is old"),
        ({"max_age": 86_400.0}, "max_age is 86400.0"),
        ({"max_msgs_per_subject": 5}, "max_msgs_per_subject is 5"),
    ],
)
def test_stream_that_drops_pushes_is_refused(nats, settings, change, text):
    """Somebody has edited it; it is mended in the same way."""

    async def scenario() -> None:
        stream = await connected(settings)
        config = (await stream.js.stream_info(NAME)).config
        await stream.js.update_stream(config.evolve(**change))
        with pytest.raises(StreamError, match=f"loses pushes that were acknowledged: {text}; mend it"):
            await connected(settings)
        await stream.js.update_stream(config)
        await (await connected(settings)).close()
        await stream.close()

    asyncio.run(scenario())
