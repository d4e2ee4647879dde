"""The backlog: bounded for any input, thinning keeps the sums, acknowledging is exact."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.node.report_rows import PHASES, event, identity, report, row

from goodput.wire import schema
from goodput.wire.collectives import Collectives, GroupRow, ReportedOperation
from goodput_exporters.push.backlog import Backlog
from goodput_exporters.system.ranks import rank_key


def rows_of(backlog: Backlog) -> list[schema.StepRow]:
    return [row for waiting in backlog.pending(10**9).reports for row in waiting.steps]


def differences(rows: list[schema.StepRow]) -> tuple[int, ...]:
    """The sum of all differences of consecutive totals, from zero."""
    spent, before = [0] * len(PHASES), (0,) * len(PHASES)
    for one in rows:
        spent = [s + new - old for s, new, old in zip(spent, one.totals, before, strict=True)]
        before = one.totals
    return tuple(spent)


steps_spent = st.lists(st.tuples(*[st.integers(0, 1 << 40)] * len(PHASES)), min_size=1, max_size=300)


@given(
    spent=steps_spent,
    rows_max=st.integers(4, 40),
    named=st.sets(st.integers(0, 299), max_size=10),
    polls=st.integers(1, 30),
    first_step=st.integers(0, 1000),
)
@settings(deadline=None)
def test_thinning_keeps_sums_and_checkpoint_steps(spent, rows_max, named, polls, first_step):
    totals, rows = [0] * len(PHASES), []
    for number, one in enumerate(spent, 1):
        totals = [total + more for total, more in zip(totals, one, strict=True)]
        rows.append(row(number, first_step + number - 1, tuple(totals)))
    named = {first_step + at for at in list(named)[: rows_max // 2] if at < len(rows)}
    backlog = Backlog(rows_max)
    size = -(-len(rows) // polls)
    events_sent = 0
    for at in range(0, len(rows), size):
        # The event that names a step comes with the poll of its row, as when a checkpoint is begun.
        part = rows[at : at + size]
        events = []
        for one in part:
            if one.step in named:
                events_sent += 1
                events.append(event(events_sent, "checkpoint_begun", one.step))
        backlog.add(report(part, events, sequence=at + 1))
        kept = rows_of(backlog)
        assert len(kept) <= rows_max and backlog.rows == len(kept)
        assert kept[-1] == part[-1]  # the newest always stays
    kept = rows_of(backlog)
    assert [one.number for one in kept] == sorted({one.number for one in kept})
    assert set(kept) <= set(rows)
    assert differences(kept) == differences(rows) == tuple(totals)
    assert named <= {one.step for one in kept}
    assert len(kept) + backlog.rows_thinned == len(rows)
    if backlog.rows_thinned == 0:
        assert kept == rows


def test_all_ranks_keep_the_same_steps():
    """Whenever each was polled, coarse strides are within finer ones: common steps stay comparable."""
    kept = {}
    for rank, size in ((0, 7), (1, 64), (2, 1000)):
        backlog = Backlog(rows_max=32)
        for first in range(1, 1001, size):
            numbers = range(first, min(first + size, 1001))
            backlog.add(report([row(n, n - 1) for n in numbers], sequence=first, rank=rank))
        kept[rank] = {one.step for one in rows_of(backlog)}
        assert 16 <= len(kept[rank]) <= 32
        assert all((step + 1) % 32 == 0 for step in kept[rank] - {999})
    assert kept[0] == kept[1] == kept[2]


@given(st.data())
@settings(deadline=None)
def test_acknowledging_forgets_exactly_what_was_sent(data):
    """A model that keeps everything beside it: after any order of polls, batches and answers nothing is lost
    and nothing that was acknowledged comes again."""
    backlog, numbers, seen, acknowledged, in_flight = Backlog(rows_max=10_000), {}, set(), set(), []
    for sequence in range(1, data.draw(st.integers(1, 30))):
        act = data.draw(st.sampled_from(["poll", "poll", "send", "answer", "lose"]))
        if act == "poll":
            rank, count = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 5))
            first = numbers.get(rank, 0) + 1
            numbers[rank] = first + count - 1
            fresh = [row(number, number) for number in range(first, first + count)]
            events = [event(number, "mark", 0) for number in range(first, first + count)]
            seen |= {(rank, number) for number in range(first, first + count)}
            backlog.add(report(fresh, events, sequence, rank))
        elif act == "send":
            batch = backlog.pending(data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4)))
            assert sum(len(one.steps) + len(one.events) for one in batch.reports) <= 12
            in_flight.append(batch.reports)
        elif in_flight and act == "answer":
            sent = in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1)))
            backlog.acknowledge(sent)
            for one in sent:
                acknowledged |= {("step", one.identity.rank, s.number) for s in one.steps}
                acknowledged |= {("event", one.identity.rank, e.number) for e in one.events}
        elif in_flight:
            in_flight.pop()
        waiting = set()
        for one in backlog.pending(10**9, 10**9).reports:
            waiting |= {("step", one.identity.rank, s.number) for s in one.steps}
            waiting |= {("event", one.identity.rank, e.number) for e in one.events}
        everything = {(kind, *which) for kind in ("step", "event") for which in seen}
        assert waiting == everything - acknowledged


def test_batches_are_bounded_and_together_hold_everything():
    backlog = Backlog()
    for rank in range(5):
        backlog.add(report([row(n, n) for n in range(1, 11)], [event(1, "mark", 0)], rank=rank))
    taken = []
    while True:
        batch = backlog.pending(rows_max=7, ranks_max=3)
        assert 0 < sum(len(one.steps) + len(one.events) for one in batch.reports) <= 7
        taken += [(one.identity.rank, s.number) for one in batch.reports for s in one.steps]
        backlog.acknowledge(batch.reports)
        if not batch.truncated:
            break
    assert sorted(taken) == [(rank, n) for rank in range(5) for n in range(1, 11)]
    assert backlog.pending(7).reports == [] and backlog.rows == 0


def test_state_without_rows_is_sent_once():
    backlog = Backlog()
    backlog.add(report(sequence=5))
    key = rank_key(identity())
    (sent,) = backlog.pending(100).reports
    assert not backlog.is_acknowledged(key)
    backlog.add(report(sequence=6, alive=False))
    backlog.acknowledge([sent])
    assert not backlog.is_acknowledged(key)  # the rank died after the acknowledged report
    (last,) = backlog.pending(100).reports
    assert last.sequence == 6 and not last.live.alive
    backlog.acknowledge([last])
    assert backlog.is_acknowledged(key) and backlog.pending(100).reports == []


def test_collectives_wait_until_they_are_acknowledged():
    """A rank's collectives are reported at one poll of several before a push, which may fail, and not again."""
    reported = Collectives((GroupRow("0", "", "gloo", 2, ((0, 1, 2),), 1, ()),))
    with_collectives = report([], sequence=1)
    backlog = Backlog()
    backlog.add(
        msgspec.structs.replace(
            with_collectives, live=msgspec.structs.replace(with_collectives.live, collectives=reported)
        )
    )
    for sequence in (2, 3):
        backlog.add(report([], sequence=sequence))
        (sent,) = backlog.pending(10).reports
        assert (sent.sequence, sent.live.collectives) == (sequence, reported)
    backlog.acknowledge([sent])
    backlog.add(report([], sequence=4))
    assert backlog.pending(10).reports[0].live.collectives is None


def test_older_and_repeated_reports_are_ignored():
    backlog = Backlog()
    backlog.add(report([row(1, 0), row(2, 1)], sequence=9))
    backlog.add(report([row(1, 0), row(2, 1), row(3, 2)], sequence=8))
    (one,) = backlog.pending(100).reports
    assert one.sequence == 9 and [s.number for s in one.steps] == [1, 2, 3]


def test_rows_are_widened_for_new_phases():
    backlog = Backlog()
    backlog.add(report([row(1, 0)], sequence=1))
    backlog.add(report([row(2, 1, (0, 2, 20, 5))], sequence=2, phases=(*PHASES, "mine")))
    (one,) = backlog.pending(100).reports
    assert [s.totals for s in one.steps] == [(0, 1, 10, 0), (0, 2, 20, 5)]
    schema.check(one)


def test_batch_has_one_process_per_rank():
    backlog = Backlog()
    backlog.add(report([row(1, 0)], attempt=1))
    backlog.add(report([row(1, 0)], attempt=2))
    batch = backlog.pending(100)
    assert len(batch.reports) == 1 and batch.truncated
    backlog.acknowledge(batch.reports)
    other = backlog.pending(100)
    assert len(other.reports) == 1 and not other.truncated
    assert {batch.reports[0].identity.attempt, other.reports[0].identity.attempt} == {1, 2}


def test_gaps_in_row_numbers_count_as_thinned():
    backlog = Backlog()
    backlog.add(report([row(500, 499)], sequence=1))  # rows from before the agent's start are not counted
    backlog.add(report([row(510, 509)], sequence=2))
    assert backlog.rows_thinned == 9


def test_events_are_bounded_and_marks_go_first():
    backlog = Backlog(events_max=4)
    kinds = ["mark", "checkpoint_begun", "mark", "mark", "checkpoint_committed", "resumed"]
    backlog.add(report(events=[event(n, kind, n) for n, kind in enumerate(kinds, 1)]))
    (one,) = backlog.pending(100).reports
    assert [e.kind for e in one.events] == ["checkpoint_begun", "mark", "checkpoint_committed", "resumed"]
    assert backlog.events_dropped == 2


def test_rows_all_claiming_checkpoints_are_bounded():
    backlog = Backlog(rows_max=8)
    backlog.add(report(events=[event(1, "checkpoint_begun", 5)], sequence=1))
    backlog.add(report([row(n, 5) for n in range(1, 101)], sequence=2))
    assert backlog.rows == 8 and rows_of(backlog)[-1].number == 100 and backlog.rows_thinned == 92


def test_thinning_ends_once_rows_are_acknowledged():
    backlog = Backlog(rows_max=8)
    backlog.add(report([row(n, n - 1) for n in range(1, 101)], sequence=1))
    backlog.acknowledge(backlog.pending(100).reports)
    backlog.add(report([row(n, n - 1) for n in range(101, 108)], sequence=2))
    assert [one.number for one in rows_of(backlog)] == list(range(101, 108))


def test_forgetting_a_rank_keeps_its_counts():
    backlog = Backlog(rows_max=4, ranks_max=2)
    for rank in range(3):
        backlog.add(report([row(n, n - 1) for n in range(1, 11)], [event(1, "mark", 0)], rank=rank))
    assert backlog.reports_refused == 1 and len(backlog.pending(1000).reports) == 2
    thinned = backlog.rows_thinned
    backlog.forget(rank_key(identity(0)))
    assert backlog.rows_thinned == thinned and backlog.events_dropped == 1
    assert backlog.is_acknowledged(rank_key(identity(0)))
    backlog.forget(rank_key(identity(0)))


def test_too_small_bounds_raise_value_error():
    with pytest.raises(ValueError):
        Backlog(rows_max=3)


def test_what_is_reported_once_waits_for_its_acknowledgement():
    """Collectives are in one report of several between two pushes, and a push may fail."""
    reported = Collectives((GroupRow("0", "", "gloo", 2, ((0, 1, 2),), 1, ()),))
    spent = (ReportedOperation("0", "all_reduce", 1, 64, 10, 0),)

    def live(sequence: int, **fields) -> schema.RankReport:
        one = report([], [], sequence=sequence)
        return msgspec.structs.replace(one, live=msgspec.structs.replace(one.live, **fields))

    def waiting() -> tuple:
        return next(((one.live.collectives, one.live.operations) for one in backlog.pending(9).reports), ())

    backlog = Backlog()
    backlog.add(live(1, collectives=reported))
    backlog.add(live(2, operations=spent))
    backlog.add(live(3))
    sent = backlog.pending(9).reports
    assert waiting() == (reported, spent)
    backlog.add(live(4))
    assert waiting() == (reported, spent), "the push may have failed"
    backlog.acknowledge(backlog.pending(9).reports)
    assert waiting() == ()
    backlog.add(live(5))
    assert waiting() == (None, None) and sent[0].sequence == 3
