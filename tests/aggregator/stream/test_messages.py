"""Node reports as messages: of bounded size, each run's in its partition, and together what the report was."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.account.account_history import ns
from support.aggregator.reports import Process, rank_report

from goodput.access.tokens import EVERYTHING, Access
from goodput.account import compute, document
from goodput.aggregator.ingest.pushed_steps import PushedSteps, decode_steps
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.stream import messages
from goodput.aggregator.stream.partitions import partition_of, partition_of_node
from goodput.wire import schema

COUNT = 8


def node_report(*ranks: schema.RankReport, **fields) -> schema.NodeReport:
    return schema.NodeReport("n1", ns(5000), list(ranks), **fields)


def split(report: schema.NodeReport, bytes_max: int = 1 << 20) -> list[tuple[int, schema.NodeReport]]:
    found = list(messages.split(report, [schema.in_blocks(one) for one in report.ranks], COUNT, bytes_max))
    assert all(len(body) <= bytes_max for _, body in found)
    return [(partition, schema.decode(body)) for partition, body in found]


def test_partition_is_the_same_everywhere():
    """Fixed for good: processes of all versions must agree. BLAKE2b by the standard's digest of 8 bytes."""
    digest = hashlib.blake2b(b"vision/resnet", digest_size=8).digest()
    assert partition_of("vision/resnet", 16) == int.from_bytes(digest, "big") % 16
    found = Counter(partition_of(f"run {number}", 16) for number in range(16_000))
    assert min(found.values()) > 800 and max(found.values()) < 1200


def test_each_run_in_its_partition():
    runs = [f"run {number}" for number in range(20)]
    ranks = [rank_report(Process(0).steps(3, forward=1), run) for run in runs]
    parts = split(node_report(*ranks))
    assert len({partition for partition, _ in parts}) > 3
    found = {rank.identity.run: partition for partition, part in parts for rank in part.ranks}
    assert found == {run: partition_of(run, COUNT) for run in runs}
    assert all((part.node, part.sent_ns) == ("n1", ns(5000)) for _, part in parts)


def test_what_is_no_runs():
    """Events and stacks go to the runs that they are of, events of none and an empty report to the node's partition."""
    home = partition_of_node("n1", COUNT)
    assert [(partition, part.ranks) for partition, part in split(node_report())] == [(home, [])]
    far = next(run for run in map(str, range(99)) if partition_of(run, COUNT) != home)
    events = [
        schema.Health(1, "xid", "g0", ns(10), hits=[(far, 0), (far, 1)]),
        schema.Health(2, "xid", "g1", ns(11)),
    ]
    stack = schema.Stack(schema.StackRequest(far, 0, "n1", 7, ns(1)), ns(12), "at a line")
    parts = dict(split(node_report(health=events, stacks=[stack])))
    assert [event.number for event in parts[home].health] == [2]
    assert [event.number for event in parts[partition_of(far, COUNT)].health] == [1]
    assert parts[partition_of(far, COUNT)].stacks == [stack]


def merge(store: Store, report: schema.RankReport) -> None:
    (steps,) = decode_steps([report])
    assert isinstance(steps, PushedSteps)
    store.merge(report, ns(9000), steps=steps)


@settings(max_examples=20)
@given(st.integers(1, 6000), st.integers(0, 300), st.integers(20_000, 400_000))
def test_parts_together_are_the_whole(steps, marks, bytes_max):
    """The account of the parts, in any number of them, is that of the report."""
    process = Process(0, world_size=1).steps(steps, forward=1)
    report = schema.in_blocks(rank_report(process))
    events = [schema.EventRow(number, "mark", ns(number), 0, "x" * 100) for number in range(1, marks + 1)]
    report = replace(report, events=events)
    whole, parts = Store(), Store()
    merge(whole, report)
    for _, part in split(node_report(report), bytes_max):
        for rank in part.ranks:
            merge(parts, rank)
    assert whole.new == parts.new == steps + marks
    found = [document(compute(one.runs["r1"], ns(9000), stale_seconds=30), []) for one in (whole, parts)]
    assert found[0] == found[1]


def test_rank_that_fits_nowhere():
    """It is named, so that the others can go on without it."""
    report = rank_report(Process(0).steps(1, forward=1))
    large = replace(report, identity=replace(report.identity, device="x" * 9000))
    with pytest.raises(messages.TooLarge, match=r"rank 0.*bytes without its steps, 4096 at most") as error:
        split(node_report(large), 16_384)
    assert error.value.report.identity == large.identity


def test_access_travels_with_the_message():
    message = messages.PushMessage("n1", b"", 5, "ci", "1f2e", ("vision/*",))
    found = messages.decode_push(messages.encoded(message)).access()
    assert found == Access("ci", ("ingest",), ("vision/*",), "1f2e")
    assert messages.PushMessage("n1", b"", 5).access() is EVERYTHING
