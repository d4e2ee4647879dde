"""Reading a partition: pushes of a run that is being read from the ledger do not hold up those of others."""

import asyncio
import time
from contextlib import nullcontext
from types import SimpleNamespace

import msgspec
from nats.js.errors import KeyWrongLastSequenceError
from support.aggregator.reports import body_of, story

from goodput.access.tokens import EVERYTHING
from goodput.aggregator.ledger.ledger import LedgerError
from goodput.aggregator.stream import messages, ownership
from goodput.aggregator.stream.leases import Lease
from goodput.aggregator.stream.members import Heartbeat, Members
from goodput.aggregator.stream.ownership import Partitions
from goodput.aggregator.stream.reader import Message
from goodput.wire import schema


class Reader:
    """Two batches of a stream in which messages of other partitions lie between."""

    pending = 0

    def __init__(self, batches):
        self._batches = list(batches)

    async def next(self):
        if not self._batches:
            await asyncio.sleep(0.01)
            return []
        batch = self._batches.pop(0)
        if isinstance(batch, Exception):
            raise batch
        return [
            Message(sequence, messages.encoded(messages.PushMessage(node, body, time.time_ns(), "token")))
            for sequence, node, body in batch
        ]

    async def close(self):
        pass


class Ingest:
    """Accepts pushes of the run `slow` when the test lets it, others at once."""

    def __init__(self, failing: dict[str, int] | None = None):
        self.has_loaded = asyncio.Event()
        self.accepted = []
        self._failing = failing or {}  # by run, how often the ledger fails

    async def accept(self, body, access=EVERYTHING, memory=None, arrived_ns=None) -> schema.Ack:
        run = schema.decode(body).ranks[0].identity.run
        if run == "slow":
            await self.has_loaded.wait()
        if self._failing.get(run, 0):
            self._failing[run] -= 1
            raise LedgerError("it is away")
        self.accepted.append(run)
        return schema.Ack(1, [], [])


class Runs:
    async def take(self, partition):
        pass

    async def drop(self, partition):
        pass

    async def flush(self):
        pass


def served(monkeypatch, batches, ingest) -> tuple[Partitions, ownership._Held]:
    """A partition that is taken with message 10 in the ledger."""
    monkeypatch.setattr(ownership, "PartitionReader", lambda *_: Reader(batches))
    stream = SimpleNamespace(count=1)
    partitions = Partitions(stream, Members(stream, "a"), lambda: None, Runs(), ingest)
    partitions._fence = SimpleNamespace(
        take=lambda _: 10,
        keep=lambda _: None,
        drop=lambda _: None,
        lost=set(),
        too_new="",
        verify=lambda: None,
    )
    held = partitions._held[0] = ownership._Held(Lease(stream, 0, "a"))
    held.task = asyncio.create_task(partitions._serve(held))
    return partitions, held


async def until(condition):
    async def wait():
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), 30)


def test_a_run_that_is_still_read_holds_up_no_other(monkeypatch):
    slow, fast = (body_of(*story(run, ranks=1)[0]) for run in ("slow", "fast"))

    async def main():
        ingest = Ingest()
        batches = [[(12, "n0", slow), (13, "n1", fast)], [(17, "n1", fast), (18, "n2", fast)]]
        partitions, held = served(monkeypatch, batches, ingest)
        await until(lambda: len(ingest.accepted) == 3)
        assert ingest.accepted == ["fast"] * 3
        # What is noted in the ledger is before the one that waits.
        assert held.written == 10
        ingest.has_loaded.set()
        await until(lambda: held.written == 18)
        assert ingest.accepted[-1] == "slow"
        await partitions._end(held)

    asyncio.run(main())


def test_last_message_is_left_to_a_later_program(monkeypatch):
    """Also where no other message comes, whose reading would raise what this one's raised."""
    body = body_of(*story("later", ranks=1)[0])

    def decode_push(_):
        raise messages.TooNew("a push of version 9")

    monkeypatch.setattr(messages, "decode_push", decode_push)

    async def main():
        partitions, held = served(monkeypatch, [[(11, "n0", body)]], Ingest())
        await until(lambda: partitions.counts["newer"] == 1)
        assert held.too_new == "partition 0: the stream has a push of version 9" and held.written == 10
        await partitions._end(held)

    asyncio.run(main())


def test_pushes_of_a_node_stay_in_order(monkeypatch):
    """Another order leaves steps out of the windows, which count a step whose predecessor is known."""
    monkeypatch.setattr(ownership, "RETRY_SECONDS", 0.01)
    first, second, other = (body_of(*story(run, ranks=1)[0]) for run in ("first", "second", "other"))

    async def main():
        ingest = Ingest(failing={"first": 3})
        batch = [(11, "n0", first), (12, "n0", second), (13, "n1", other)]
        partitions, held = served(monkeypatch, [batch], ingest)
        await until(lambda: held.written == 13)
        assert ingest.accepted == ["other", "first", "second"]
        assert not held.node_locks
        await partitions._end(held)

    asyncio.run(main())


def test_work_of_a_given_partition_is_not_noted(monkeypatch):
    """What was in work when it was given away."""
    slow, fast = (body_of(*story(run, ranks=1)[0]) for run in ("slow", "fast"))

    async def main():
        ingest = Ingest()
        partitions, held = served(
            monkeypatch, [[(11, "n1", fast), (12, "n0", slow), (13, "n1", fast)]], ingest
        )
        await until(lambda: len(ingest.accepted) == 2)
        await partitions._end(held)
        assert held.written == 11 and ingest.accepted == ["fast"] * 2

    asyncio.run(main())


def test_partition_whose_reading_failed_is_let_go(monkeypatch):
    """So that its lease ends, and it is taken and read anew; before, it was held and nobody read it."""

    async def main():
        partitions, held = served(monkeypatch, [RuntimeError("unforeseen")], Ingest())
        await until(held.task.done)
        for work in ("_take_free", "_give_too_much"):
            monkeypatch.setattr(partitions, work, lambda: asyncio.sleep(0))
        monkeypatch.setattr(partitions, "_purge", lambda now: asyncio.sleep(0))
        assert partitions.serves(0)
        await partitions._manage(partitions._fence)
        assert not partitions.serves(0) and partitions._held == {}

    asyncio.run(main())


def given_by(late: dict[int, float], others: dict[str, list[int]], monkeypatch) -> list[int]:
    """What an aggregator gives away that serves all partitions but those of `others`, as soon as it knows them.

    `late` has how many seconds the oldest push of a partition waits.
    """

    async def main():
        published = []

        async def publish(subject, body):
            published.append(body)

        stream = SimpleNamespace(count=8, client=SimpleNamespace(publish=publish))
        members = Members(stream, "a")
        partitions = Partitions(stream, members, lambda: None, Runs(), Ingest())
        for member, held in others.items():
            members.receive(msgspec.msgpack.encode(Heartbeat(member, held)))
        for one in set(range(8)).difference(*others.values()):
            held = partitions._held[one] = ownership._Held(Lease(stream, one, "a"))
            held.is_serving = True
            if one in late:
                held.arrivals_ns.append(time.time_ns() - int(late[one] * 1e9))
        given = []

        async def give(partition):
            given.append(partition)
            del partitions._held[partition]

        monkeypatch.setattr(partitions, "_give", give)
        await partitions._give_too_much()
        assert len(published) == len(given)
        return given

    return asyncio.run(main())


def test_partitions_behind_are_given_at_once(monkeypatch):
    """Those that are furthest behind, as many as are too much here and too few there; others wait for a settled time."""
    late = {0: 1.0, 1: 4.0, 2: 9.0, 3: 7.0, 4: 5.0, 5: 6.0}
    assert given_by(late, {"b": []}, monkeypatch) == [2, 3, 5, 4]
    assert given_by(late, {"b": [6, 7]}, monkeypatch) == [2, 3]
    assert given_by(late, {"b": [0, 4, 6, 7]}, monkeypatch) == []
    assert given_by(late, {"b": [0, 4], "c": [1, 2, 3, 5]}, monkeypatch) == []
    assert given_by({1: 2.9}, {"b": []}, monkeypatch) == []
    assert given_by(late, {}, monkeypatch) == []


def taken_at(expires: float, others: dict[str, list[int]], monkeypatch) -> tuple[dict[int, float], int]:
    """When each partition is taken that `b` held until it was killed at 0, whose leases run out at `expires`; and how
    often was tried in 20 s."""
    now, tries, taken = [-1.0], [], {}

    async def create(key, holder):
        tries.append(now[0])
        if now[0] < expires:
            raise KeyWrongLastSequenceError
        taken[int(key.split(".")[1])] = now[0]

    async def main():
        clock = lambda: now[0]  # noqa: E731
        members = Members(SimpleNamespace(count=4), "a", clock)
        stream = SimpleNamespace(count=4, leases=SimpleNamespace(create=create), errors=nullcontext)
        partitions = Partitions(stream, members, lambda: None, Runs(), Ingest(), clock=clock)
        monkeypatch.setattr(partitions, "_serve", lambda held: asyncio.sleep(0))
        members.receive(msgspec.msgpack.encode(Heartbeat("b", [0, 1])))
        while now[0] < 20:
            for member, held in others.items():
                members.receive(msgspec.msgpack.encode(Heartbeat(member, held)))
            await partitions._take_free()
            now[0] += partitions._pause_seconds()

    asyncio.run(main())
    return taken, len(tries)


def test_partitions_are_taken_once_leases_run_out(monkeypatch):
    """Of a killed aggregator, which gave none away."""
    for expires in (3.0, 4.1, 4.9, 5.3, 6.1):
        taken, tries = taken_at(expires, {"c": [2, 3]}, monkeypatch)
        assert sorted(taken) == [0, 1]
        # Its silence of 3 s is seen up to a second late, and its partitions are to be free for 1.5 s.
        earliest, latest = max(expires, -1 + 3 + 1.5), max(expires, -1 + 3 + 1 + 1.5) + 0.21
        assert all(earliest <= at <= latest for at in taken.values()), (expires, taken)
        assert tries < 60


def test_a_lease_that_does_not_run_out_is_not_requested_often(monkeypatch):
    """Its holder lives and is not heard."""
    _, tries = taken_at(1e9, {"c": [2, 3]}, monkeypatch)
    assert 20 <= tries <= 2 * (5 * 6.5 + 12)
