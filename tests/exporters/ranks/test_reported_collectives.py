"""A rank's collectives are reported when it makes no progress or has died, and when they have changed."""

import random
import time

import pytest
from msgspec.structs import replace
from support.rank_page.page_maker import Rank

from goodput.rank_page import collective_records as layout
from goodput.rank_page import page
from goodput.rank_page.collective_records import FLAG
from goodput.rank_page.reader import Reader
from goodput.sdk.recorder.collectives import CollectiveRecords
from goodput.wire.collectives import ReportedOperation, operations_problem, problem
from goodput_exporters.collectors.ranks.reported_collectives import (
    AFTER_NS,
    AGAIN_NS,
    OPERATIONS_NS,
    ReportedCollectives,
    ReportedOperations,
)

SECOND = 10**9


class Group:
    def __init__(self, name: str):
        self.name = name


class Tensor:
    nbytes, dtype = 64, "float32"


class Process:
    """A rank whose calls are recorded, and what its agent reports at a time after its last step."""

    def __init__(self, directory):
        self.rank = Rank(directory).train(3)
        describe = lambda group: (group.name, "", "gloo", 0, [0, 1])  # noqa: E731
        records = CollectiveRecords(self.rank.recorder, {"float32": 1}, describe, {}.__getitem__)
        self.records = records
        self.call = records.wrap(lambda group, tensors: self, "all_reduce", tensors=1, group=0)
        self.wait = records.wrap(lambda work: None, "")
        self.reported = ReportedCollectives()
        self.reader = Reader(str(self.rank.path))
        self.began_ns = time.perf_counter_ns()

    def poll(self, after_ns: int, alive: bool = True):
        snapshot = self.reader.snapshot(since_step=3)
        return self.reported.poll(self.reader, snapshot, self.began_ns + after_ns, alive, "/proc")


@pytest.fixture
def process(tmp_path):
    made = Process(tmp_path)
    yield made
    made.reader.close()


def test_rank_that_makes_progress_reports_nothing(process):
    process.call(Group("0"), [Tensor()])
    assert process.poll(AFTER_NS // 2) is None


def test_silent_rank_reports_its_calls_once_until_they_change(process):
    group = Group("0")
    process.call(group, [Tensor()])
    first = process.poll(2 * AFTER_NS)
    assert first is not None and first.is_whole and not first.is_stopped
    assert [(g.name, g.ranks, g.calls) for g in first.groups] == [("0", ((0, 1, 2),), 1)]
    (call,) = first.groups[0].recent
    assert (call.sequence, call.operation, call.dtype, call.bytes, call.exit_ns) == (
        1,
        "all_reduce",
        "float32",
        64,
        0,
    )
    assert process.poll(2 * AFTER_NS + SECOND) is None
    process.wait(process)
    left = process.poll(2 * AFTER_NS + 2 * SECOND)
    assert left is not None and left.groups[0].recent[0].exit_ns > 0
    assert process.poll(2 * AFTER_NS + 2 * SECOND + AGAIN_NS) == left


def test_rank_that_died_reports_at_once(process):
    process.call(Group("0"), [Tensor()])
    assert process.poll(0, alive=False) is not None


def test_report_is_bounded(process):
    groups = [Group(str(i)) for i in range(20)]
    for group in groups:
        for _ in range(6):
            process.call(group, [Tensor()])
    found = process.poll(2 * AFTER_NS)
    assert found is not None and not found.is_whole
    assert [group.name for group in found.groups] == [str(i) for i in range(19, 3, -1)]
    assert all([call.sequence for call in group.recent] == [3, 4, 5, 6] for group in found.groups)


def test_rank_without_collectives_reports_none(process):
    assert process.poll(2 * AFTER_NS) is None


def test_costs_are_reported_every_ten_seconds_and_at_the_end(process):
    reported, group = ReportedOperations(), Group("0")
    assert reported.poll(process.reader, 1, False) is None, "no process group was used"
    process.call(group, [Tensor()])
    assert reported.poll(process.reader, OPERATIONS_NS, False) is None
    (row,) = reported.poll(process.reader, 1 + OPERATIONS_NS, False)
    assert row == ReportedOperation("0", "all_reduce", 1, 64, 0, 0, 0, 2) and reported.rows == (row,)
    assert reported.poll(process.reader, 1 + 2 * OPERATIONS_NS, False) is None, "nothing has changed"
    process.call(group, [Tensor()])
    assert reported.poll(process.reader, 2 + 2 * OPERATIONS_NS, True) == (replace(row, calls=2, bytes=128),)
    assert reported.poll(process.reader, 2 + 2 * OPERATIONS_NS + AGAIN_NS, False) == reported.rows, (
        "for a new aggregator"
    )


def test_page_of_any_content_is_reported_as_an_aggregator_takes_it(process):
    """Numbers that no writer writes, in a good page: what they are in is left out, and nothing else of the rank is lost."""
    for group in (Group("0"), Group("1")):
        for _ in range(20):
            process.wait(process.call(group, [Tensor()]))
    base, words, chosen = page.W_COLLECTIVES, process.rank.words, random.Random(5)
    good = bytes(words[base : base + layout.WORDS])
    places = [*range(layout.AT_GROUPS, layout.AT_GROUPS + 2 * layout.GROUP_WORDS)]
    places += range(layout.AT_RING, layout.AT_RING + 40 * layout.RECORD_WORDS)
    places += range(layout.AT_SUMS, layout.AT_SUMS + 2 * layout.OPERATION_SLOTS * layout.SUM_WORDS)
    whole = odd = 0
    for _ in range(1500):
        for _ in range(chosen.randint(1, 4)):
            value = chosen.choice(
                (0, 1 << 20, 1 << 31, (1 << 62) - 1, chosen.getrandbits(61), chosen.getrandbits(64))
            )
            words[base + chosen.choice(places)] = value
        found = ReportedCollectives().poll(
            process.reader, process.reader.snapshot(), process.began_ns + AFTER_NS, False, "/proc"
        )
        operations = ReportedOperations().poll(process.reader, process.began_ns, True) or ()
        assert operations_problem(operations) == ""
        if found is not None:
            assert problem(found) == ""
            whole, odd = whole + found.is_whole, odd + (not found.is_whole)
        words[base : base + layout.WORDS] = memoryview(good).cast("Q")
    assert whole > 50 and odd > 5


def test_call_whose_future_was_taken_is_open_only_while_it_is_waited_for(process):
    """A callback of the user's own may have seen its end: no verdict on a hang may name it."""
    records, future = process.records, object()
    work = process.call(Group("g"), [Tensor()])
    (call,) = process.poll(AFTER_NS).groups[0].recent
    assert not call.exit_ns
    records.passed_on(work, future, 0)
    (call,) = process.poll(AFTER_NS + AGAIN_NS).groups[0].recent
    assert call.exit_ns >= call.enter_ns > 0
    seen = []
    wait = records.wrap(
        lambda awaited: seen.append(process.poll(AFTER_NS + 2 * AGAIN_NS)), "", flags=FLAG["future"]
    )
    wait(future)
    assert not seen[0].groups[0].recent[0].exit_ns
    (call,) = process.poll(AFTER_NS + 3 * AGAIN_NS).groups[0].recent
    assert call.exit_ns
