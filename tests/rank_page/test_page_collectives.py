"""Collectives in a page: what is written is read, and whatever else lies there is refused or left out."""

import random
import time
from array import array

import pytest
from support.rank_page.page_maker import Rank

from goodput.rank_page import collective_records as layout
from goodput.rank_page import page
from goodput.rank_page.reader import Reader
from goodput.sdk.recorder.collectives import CollectiveRecords

BASE = page.W_COLLECTIVES


class Group:
    """In place of a process group of torch."""

    def __init__(self, name: str, ranks: list[int]):
        self.name, self.ranks = name, ranks


class Tensor:
    nbytes, dtype = 64, "float32"


class Process:
    """A rank in this process whose calls are recorded."""

    def __init__(self, directory):
        self.rank = Rank(directory)
        describe = lambda group: (group.name, "", "gloo", 0, group.ranks)  # noqa: E731
        self.records = CollectiveRecords(self.rank.recorder, {"float32": 1}, describe, {}.__getitem__)
        self.rank.recorder.collectives = self.records
        self.call = self.records.wrap(lambda group, tensors: self.work, "all_reduce", tensors=1, group=0)
        self.wait = self.records.wrap(lambda work: None, "")
        self.work = object()

    def read(self, since=None) -> layout.Collectives:
        with Reader(str(self.rank.path)) as reader:
            found = reader.collectives(since)
        assert found is not None
        return found


@pytest.fixture
def process(tmp_path):
    return Process(tmp_path)


def test_call_is_open_until_it_is_waited_for(process):
    group = Group("dp", [0, 1])
    process.call(group, [Tensor(), Tensor()])
    (entered,) = process.read(since=0).records
    assert (entered.operation, entered.dtype, entered.bytes, entered.sequence) == (
        "all_reduce",
        "float32",
        128,
        1,
    )
    assert entered.enter_ns <= entered.return_ns and entered.exit_ns == 0
    process.wait(process.work)
    (left,) = process.read(since=0).records
    assert left.exit_ns >= left.return_ns and left[:10] == entered[:10]


def test_ring_keeps_the_last_records_and_sums_keep_all(process):
    groups = [Group("dp", [0, 1]), Group("tp", [0, 4, 8, 9])]
    for i in range(700):
        process.call(groups[i % 7 == 0], [Tensor()])
    found = process.read(since=0)
    assert [record.number for record in found.records] == list(range(700 - layout.RING + 1, 701))
    assert [(sums.calls, sums.bytes) for sums in found.sums] == [(100, 100 * 64), (600, 600 * 64)]
    assert [(group.name, group.size, group.calls) for group in found.groups] == [
        ("tp", 4, 100),
        ("dp", 2, 600),
    ]
    assert ranks_in(found.groups[0].ranks) == [0, 4, 8, 9]
    assert [record.sequence for record in process.read().records] == [100, 600]


def test_exposed_time_is_the_phase_communication(process):
    from goodput.sdk.recorder.phase import Phase

    recorder, group = process.rank.recorder, Group("dp", [0, 1])
    communication = Phase(recorder, "communication", page.PHASES.index("communication"))
    process.call(group, [Tensor()])
    process.wait(process.work)  # Outside the phase: no exposed time.
    for _ in range(5):
        with communication:
            process.call(group, [Tensor()])
            process.wait(process.work)
        process.records.settle()
    found = process.read(since=0)
    total = process.rank.words[page.W_TOTALS + page.PHASES.index("communication")]
    assert found.records[0].exposed_ns == 0
    assert sum(record.exposed_ns for record in found.records) == found.sums[0].exposed_ns == total > 0


def test_next_page_goes_on_with_the_sequence(process, tmp_path):
    group = Group("dp", [0, 1])
    process.call(group, [Tensor()])
    second = Rank(tmp_path / "second")
    process.rank.recorder.open(second.words, second.writer_start(), second.writer.fd)
    process.rank = second
    process.call(group, [Tensor()])
    found = process.read(since=0)
    assert [(record.number, record.sequence) for record in found.records] == [(1, 2)]
    assert found.groups[0].calls == 2 and found.sums[0].calls == 1


def test_groups_beyond_the_table_are_counted(process):
    groups = [Group(str(i), [0, 1]) for i in range(layout.GROUPS_MAX + 2)]
    for group in groups:
        process.call(group, [Tensor()])
    found = process.read()
    assert len(found.groups) == layout.GROUPS_MAX and found.dropped == 2


def test_destroyed_group_gives_its_place_to_no_other(process):
    for i in range(3):
        group = Group(str(i), [0, 1])
        process.call(group, [Tensor()])
        del group
    assert [group.name for group in process.read().groups] == ["0", "1", "2"]


def test_exception_of_a_call_is_passed_on_and_marked(process):
    def fails(group, tensors):
        raise ValueError("on purpose")

    call = process.records.wrap(fails, "broadcast", tensors=1, group=0)
    with pytest.raises(ValueError, match="on purpose"):
        call(Group("dp", [0, 1]), [Tensor()])
    (record,) = process.read(since=0).records
    assert record.exit_ns and record.flags == {"raised"}


def test_wait_that_raises_is_marked(process):
    def fails(work):
        raise RuntimeError("Connection closed by peer")

    process.call(Group("dp", [0, 1]), [Tensor()])
    with pytest.raises(RuntimeError, match="closed"):
        process.records.wrap(fails, "")(process.work)
    (record,) = process.read(since=0).records
    assert record.exit_ns and record.flags == {"raised"}


def test_arguments_that_are_no_tensors_are_passed_on(process):
    class Broken:
        @property
        def nbytes(self):
            raise RuntimeError("no bytes")

    for tensors in (None, [], 3, [None], Broken(), [Broken()], {"a": 1}):
        assert process.call(Group("dp", [0, 1]), tensors) is process.work
    assert {(record.bytes, record.dtype) for record in process.read(since=0).records} == {(0, "")}


def ranks_in(runs) -> list[int]:
    return [first + step * i for first, step, count in runs for i in range(count)]


@pytest.mark.parametrize(
    "ranks", [[0], [0, 1], [3, 7, 11], [0, 1, 2, 3, 8, 9, 10, 11], [5, 3, 1], [0, 2, 4, 5, 6, 100]]
)
def test_runs_give_the_ranks_back(ranks):
    assert ranks_in(layout.runs_of(ranks)) == ranks


def test_any_content_is_read_or_refused(process):
    """Random words in every part of the region: the reader raises PageError or returns plausible records."""
    for _ in range(20):
        process.call(Group("dp", [0, 1]), [Tensor()])
    chosen = random.Random(7)
    words, good = process.rank.words, bytes(process.rank.words[BASE : BASE + layout.WORDS])
    refused = 0
    for _ in range(400):
        start = chosen.choice((0, layout.AT_GROUPS, layout.AT_SUMS, layout.AT_RING))
        for _ in range(chosen.randint(1, 4)):
            words[BASE + start + chosen.randrange(64)] = chosen.choice(
                (0, 1, 3, 1 << 16, 1 << 33, 1 << 62, (1 << 64) - 1, chosen.getrandbits(64))
            )
        try:
            with Reader(str(process.rank.path)) as reader:
                found = reader.collectives(since=0)
            for record in found.records if found else ():
                assert record.bytes < page.NS_MAX and record.operation and record.enter_ns > 0
        except page.PageError as error:
            assert error.reason == "value"
            refused += 1
        words[BASE : BASE + layout.WORDS] = memoryview(good).cast("Q")
    assert 30 < refused < 400


def test_time_before_the_first_step_is_separate(process):
    from goodput.sdk.recorder.phase import Phase

    recorder, group = process.rank.recorder, Group("dp", [0, 1])
    communication = Phase(recorder, "communication", page.PHASES.index("communication"))
    before = 0
    for _ in range(3):
        for is_inside in (False, True):
            if is_inside:
                recorder.begin_step(recorder.end_gap(time.perf_counter_ns()), None, 0)
            with communication:
                process.call(group, [Tensor()])
                process.wait(process.work)
            process.records.settle()
            before = before or process.read().sums[0].exposed_ns
        recorder.end_step(time.perf_counter_ns())
    (sums,) = process.read().sums
    assert 0 < sums.before_ns == before < sums.exposed_ns
    with Reader(str(process.rank.path)) as reader:
        assert reader.snapshot().steps[0].outside[page.PHASES.index("communication")] == before


def test_rows_by_operation_join_labels_and_sum_the_rest(process):
    for i, name in enumerate("abcdefgh"):
        process.call(Group(name, [0, 1]), [Tensor()])
        process.rank.words[BASE + layout.AT_SUMS + i * 64 + 1 * layout.SUM_WORDS + 2] = i + 1
    groups = [
        group._replace(description="dp" if group.name in "ab" else "undefined")
        for group in process.read().groups
    ]
    rows = layout.operation_rows(process.read()._replace(groups=tuple(groups)), 3)
    assert rows == [
        ("h", "all_reduce", 1, 64, 8, 0, 0, 2, -1, -1, 0, 0, 0, -1, 0),
        ("g", "all_reduce", 1, 64, 7, 0, 0, 2, -1, -1, 0, 0, 0, -1, 0),
        ("f", "all_reduce", 1, 64, 6, 0, 0, 2, -1, -1, 0, 0, 0, -1, 0),
        ("", "other", 5, 5 * 64, 5 + 4 + 3 + 2 + 1, 0, 0, 0, -1, -1, 0, 0, 0, -1, 0),
    ]
    assert ("dp", "all_reduce", 2, 128, 3, 0, 0, 2, -1, -1, 0, 0, 0, -1, 0) in layout.operation_rows(
        process.read()._replace(groups=tuple(groups))
    )


def test_many_calls_are_waited_for_in_any_order(process):
    """As in a pipeline, which waits for what it has sent at the end of its step."""
    works = [object() for _ in range(64)]
    group = Group("pp", [0, 1])
    for work in works:
        process.work = work
        process.call(group, [Tensor()])
    random.Random(3).shuffle(works)
    for work in works:
        process.wait(work)
    assert [record.number for record in process.read(since=0).records if not record.exit_ns] == []


def ring_of(*calls: tuple[int, int, int, int, str], flags: int = 0) -> memoryview:
    """A ring with these calls: step, ns of enter, return and exit, and the operation."""
    words = memoryview(bytearray(8 * layout.RING * layout.RECORD_WORDS)).cast("Q")
    for number, (step, enter, returned, left, operation) in enumerate(calls, 1):
        at = (number - 1) * layout.RECORD_WORDS
        words[at] = words[at + layout.R_SEAL] = number
        words[at + layout.R_KIND] = layout.OPERATIONS.index(operation) | flags << 16
        words[at + layout.R_STEP] = step + page.STEP_BIAS
        words[at + layout.R_ENTER], words[at + layout.R_RETURN] = enter, returned
        words[at + layout.R_EXIT] = left
    return words


def test_issue_time_is_the_median_of_steps_by_hand():
    """Two all-reduces a step, which return after 3 and 4 ns; one step has a pause, the first and the last do not count."""
    calls = []
    for step in range(10):
        pause = {0: 5_000, 4: 1_000, 9: 7_000}.get(step, 0)
        calls += [(step, 10, 13 + pause, 90, "all_reduce"), (step, 20, 24, 90, "all_reduce")]
        calls += [(step, 30, 60, 60, "barrier"), (step, 40, 70, 90, "send"), (step, 50, 0, 0, "all_gather")]
    assert layout.issue_times(ring_of(*calls)) == {(0, "all_reduce"): 7}
    assert layout.issue_times(ring_of(*calls[5:])) == {}  # 9 steps, 7 of which are whole
    assert layout.issue_times(ring_of(*calls, flags=1 << layout.FLAGS.index("raised"))) == {}


def test_issue_time_of_rare_calls_is_zero():
    calls = [(step, 10, 12, 90, "all_reduce") for step in range(12)]
    calls += [(step, 20, 900, 990, "broadcast") for step in range(3, 8)]
    assert layout.issue_times(ring_of(*calls)) == {(0, "all_reduce"): 2, (0, "broadcast"): 0}


def test_issue_times_of_a_hostile_ring_have_bounds():
    chosen = random.Random(4)
    edges = (0, 1, 7, page.NS_MAX - 1, page.NS_MAX, (1 << 64) - 1)
    words = memoryview(bytearray(8 * layout.RING * layout.RECORD_WORDS)).cast("Q")
    for _ in range(20):
        for at in range(len(words)):
            words[at] = chosen.choice(edges)
        for at in range(0, len(words), layout.RECORD_WORDS):
            words[at] = words[at + layout.R_SEAL] = 1
            words[at + layout.R_KIND], words[at + layout.R_STEP] = 1, chosen.randrange(20)
        assert all(0 <= ns < page.NS_MAX for ns in layout.issue_times(words).values())


def test_slow_call_shows_in_its_issue_time(process, monkeypatch):
    group = Group("dp", [0, 1])
    slow = process.records.wrap(
        lambda group, tensors: time.sleep(0.002) or process.work, "all_gather", tensors=1, group=0
    )
    for step in range(12):
        process.rank.recorder.step_next = step
        process.call(group, [Tensor()])
        slow(group, [Tensor()])
        process.wait(process.work)
    with Reader(str(process.rank.path)) as reader:
        assert reader.collectives().issue_ns == {}
        rows = {
            row.operation: row.issue_ns for row in layout.operation_rows(reader.collectives(with_issue=True))
        }
    assert rows["all_gather"] >= 2_000_000 > rows["all_reduce"] > 0


def waited_for(process, seconds: float, calls: int = 1) -> list[layout.Record]:
    """The records of calls that are waited for together, after 2 ms of other work each, for so long."""
    from goodput.sdk.recorder.phase import Phase

    group, records = Group("dp", [0, 1]), process.records
    communication = Phase(process.rank.recorder, "communication", page.PHASES.index("communication"))
    wait = records.wrap(lambda work: time.sleep(seconds) if seconds else None, "")
    records.reducing = calls > 1
    for _ in range(calls):
        process.call(group, [Tensor()])
        time.sleep(0.002)
    records.reducing = 0
    with communication:
        if calls == 1:
            wait(process.work)
        else:
            time.sleep(seconds)
            records.leave_reduced()
    return list(process.read(since=0).records)


def test_hidden_time_is_known_where_the_wait_took_time(process):
    (record,) = waited_for(process, 0.003)
    hidden = record.exit_ns - record.enter_ns - record.exposed_ns
    assert process.read().hidden == {(0, "all_reduce"): (1, hidden, hidden)} and hidden >= 2_000_000
    (row,) = layout.operation_rows(process.read())
    assert (row.hidden_ns, row.hidden_max_ns) == (hidden, hidden)


def test_hidden_time_of_a_complete_call_has_bounds(process):
    """When it was complete is not known: at the latest when it was waited for."""
    (record,) = waited_for(process, 0)
    hidden = record.exit_ns - record.enter_ns - record.exposed_ns
    least = hidden if record.exposed_ns >= layout.WAITED_NS else 0  # where the machine was busy
    assert process.read().hidden == {(0, "all_reduce"): (1, least, hidden)} and hidden >= 2_000_000


def test_hidden_time_of_a_reducers_calls_is_one(process):
    """All are waited for at the end of the backward pass, the last one for sure until then."""
    first, _, last = waited_for(process, 0.003, calls=3)
    waited = sum(record.exposed_ns for record in process.read(since=0).records)
    least, most = (last.exit_ns - record.enter_ns - waited for record in (last, first))
    assert process.read().hidden == {(0, "all_reduce"): (3, least, most)}
    assert least >= 2_000_000 and least + 4_000_000 <= most


def test_call_that_returns_complete_hides_nothing(process):
    process.work = None
    process.call(Group("dp", [0, 1]), [Tensor()])
    assert process.read().hidden == {(0, "all_reduce"): (1, 0, 0)}


@pytest.mark.parametrize("why", ["device", "not waited", "raised", "earlier"])
def test_hidden_time_is_unknown(process, why):
    """Where the wait ends before the call, calls were not waited for, have failed, or the writer knows nothing of it."""
    if why == "raised":
        process.call(Group("dp", [0, 1]), [Tensor()])
        with pytest.raises(ZeroDivisionError):
            process.records.wrap(lambda work: 1 / 0, "")(process.work)
    else:
        waited_for(process, 0)
    if why == "not waited":
        process.call(Group("dp", [0, 1]), [Tensor()])
    found = process.read()
    if why == "device":
        found = found._replace(groups=(found.groups[0]._replace(backend="nccl"),))
    if why == "earlier":
        found = found._replace(hidden={})
    (row,) = layout.operation_rows(found)
    assert (row.hidden_ns, row.hidden_max_ns) == (-1, -1)


def test_hidden_time_of_joined_rows(process):
    """The hidden time of joined rows is known if that of all of them is."""
    waited_for(process, 0.001)
    process.call(Group("tp", [0, 1]), [Tensor()])  # It is not waited for.
    found = process.read()
    groups = tuple(group._replace(description="all") for group in found.groups)
    (row,) = layout.operation_rows(found._replace(groups=groups))
    assert row.hidden_ns == row.hidden_max_ns == -1
    hidden = {(0, "all_reduce"): layout.Hidden(1, 5, 7), (1, "all_reduce"): layout.Hidden(1, 10, 20)}
    (row,) = layout.operation_rows(found._replace(groups=groups, hidden=hidden))
    assert (row.hidden_ns, row.hidden_max_ns) == (15, 27)


def test_hidden_time_has_room_for_some_operations(process):
    process.work = None
    for i in range(layout.HIDDEN_MAX + 2):
        process.call(Group(str(i), [0, 1]), [Tensor()])
    assert set(process.read().hidden) == {(i, "all_reduce") for i in range(layout.HIDDEN_MAX)}


def test_hidden_time_of_a_group_that_was_added_meanwhile_waits(process):
    """A page is read in parts: its groups were counted before this one's first call."""
    words = [layout.OPERATION_SLOTS + 1 + layout.OPERATIONS.index("all_reduce"), 1, 5, 7] + 4 * [0]
    assert layout.entries_of(memoryview(array("Q", words)), 1) == {}
    assert layout.entries_of(memoryview(array("Q", words)), 2) == {(1, "all_reduce"): (1, 5, 7)}
    for at, value in ((0, 1 << 40), (0, layout.OPERATION_SLOTS), (1, 1 << 62), (3, 1 << 62)):
        with pytest.raises(ValueError, match="hidden time"):
            layout.entries_of(memoryview(array("Q", [*words[:at], value, *words[at + 1 :]])), 2)
