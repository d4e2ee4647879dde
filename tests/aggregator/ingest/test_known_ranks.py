"""Pushes of known ranks: the compiled pass gives what the schema gives, and leaves to the schema what is not plain."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import astuple, replace
from support.account.account_history import Process
from support.aggregator.reports import body_of, health_event, rank_report

from goodput.aggregator.ingest import known_ranks
from goodput.aggregator.ingest.checks import checked, decoded, merged_bytes
from goodput.aggregator.ingest.known_ranks import KnownRanks, Rank
from goodput.aggregator.ingest.store import Store
from goodput.wire import compiled, schema
from goodput.wire.collectives import ReportedOperation
from goodput.wire.packed_rows import pack, unpack

pytestmark = pytest.mark.skipif(compiled.steps is None, reason="goodput.wire._steps is not compiled here")
ROWS_MAX = 64
MOST = schema.TIME_NS_MAX - 1
TIME = (
    st.integers(0, 300)
    | st.integers(0, MOST)
    | st.sampled_from([2**n + d for n in (7, 8, 15, 16, 31, 32) for d in (-1, 0)])
)
FIGURES = st.dictionaries(
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=32), TIME, max_size=3
)


def reports(steps: int = 3) -> list[schema.RankReport]:
    """Of three ranks: one with steps, one with phases of its own and samples, one without steps."""
    own = Process(1, user={"mine": "loader"}).steps(steps, forward=1, mine=2)
    return [
        rank_report(Process(0).steps(steps, forward=1), world_size=3, stage=1, flops_per_step=1e15),
        rank_report(own, world_size=3),
        rank_report(Process(2), world_size=3),
    ]


def knowing(*ranks: schema.RankReport) -> KnownRanks:
    """What knows these ranks from a push."""
    store = Store()
    for report in ranks:
        store.merge(report, 0)
    known, body = KnownRanks(store), body_of(*ranks)
    assert known.decode(body, ROWS_MAX) is None
    known.note(body, schema.decode(body).ranks, ROWS_MAX)
    return known


def by_schema(body: bytes):
    """Node, times and agent of a push, its reports without blocks, and their steps. Raises SchemaError."""
    report = schema.decode(body)
    found = checked(report.ranks, lambda _: False, False)
    if found.wrong or found.fields:
        raise schema.SchemaError("a rank is wrong")
    steps = decoded(found.parts)
    for one in steps:
        if isinstance(one, Exception):
            raise one
    return report, [replace(part.report, blocks=[]) for part in found.parts], steps


def ranks_of(known: KnownRanks, body: bytes) -> list[Rank]:
    found = known.decode(body, ROWS_MAX)
    assert found is not None
    return [Rank(*rank) for rank in found.part.ranks]


def assert_is_as_by_schema(known: KnownRanks, body: bytes) -> None:
    found, own = known.decode(body, ROWS_MAX), ranks_of(known, body)
    assert found is not None
    report, ranks, steps = by_schema(body)
    for name in ("node", "sent_ns", "previous_sent_ns", "previous_took_ns", "agent"):
        assert getattr(found, name) == getattr(report, name)
    assert (list(found.health), list(found.stacks)) == ([], [])
    assert [rank.identity for rank in found.ranks] == [rank.identity for rank in ranks]
    assert [rank.report() for rank in own] == ranks
    assert found.part.rows == sum(one.values.shape[1] for one in steps)
    assert found.part.nbytes == sum(one.values.nbytes for one in steps)
    assert [list(map(type, astuple(rank.live))) for rank in own] == [
        list(map(type, astuple(rank.live))) for rank in ranks
    ]
    for rank, expected, pushed in zip(own, steps, report.ranks, strict=True):
        of = rank.steps()
        assert np.array_equal(of.values, expected.values) and of[1:6] == expected[1:6]
        assert (rank.rows, *rank[4:9]) == (expected.values.shape[1], *expected[1:6])
        assert rank.last_row == (expected.values[:, -1].tobytes() if rank.rows else None)
        # Its bytes may differ where a number takes more of them than it needs.
        assert [unpack(rank.block)] == pushed.blocks if rank.block else not pushed.blocks


def test_known_ranks_are_decoded_as_by_the_schema():
    ranks = reports()
    known = knowing(*ranks)
    assert_is_as_by_schema(
        known, body_of(*ranks, sent_ns=5, previous_sent_ns=4, previous_took_ns=3, agent="1.0")
    )
    body = body_of(*reports(30)[::-1], node="näme")
    assert_is_as_by_schema(known, body)
    blocks = [rank.blocks[0] for rank in schema.decode(body).ranks if rank.blocks]
    assert [rank.block for rank in ranks_of(known, body) if rank.block] == list(map(pack, blocks))
    found = known.decode(body, ROWS_MAX)
    assert found is not None and found.part.runs() == {"r1"}
    assert merged_bytes(found) <= merged_bytes(schema.decode(body))


@given(
    st.builds(
        dict,
        **dict.fromkeys(
            ("now_ns", "last_ns", "steps_done", "samples", "end_ns", "cost_ns", "unmeasured"), TIME
        ),
        step_next=st.just(-1) | TIME.map(lambda ns: ns - 1),
        alive=st.booleans(),
        ended=st.sampled_from(["", "finished", "failed", "resumed"]),
        phase=st.sampled_from(["none", "forward"]),
        **dict.fromkeys(("drops", "loader", "hardware"), FIGURES),
    ),
    TIME,
)
def test_any_live_part_is_decoded_as_by_the_schema(live, sequence):
    ranks = reports()
    known = knowing(*ranks)
    ranks[0] = replace(ranks[0], sequence=sequence, live=replace(ranks[0].live, **live))
    assert_is_as_by_schema(known, body_of(*ranks))


def test_rarer_fields_of_a_live_part_are_decoded_by_the_schema():
    """Such as operations: a rank that trains with process groups reports them all the time."""
    ranks = reports()
    known, live = knowing(*ranks), ranks[0].live
    ranks[0] = replace(
        ranks[0], live=replace(live, operations=(ReportedOperation("dp", "all_reduce", 1, 2, 3, 4),))
    )
    assert_is_as_by_schema(known, body_of(*ranks))
    ranks[0] = replace(ranks[0], live=replace(live, drops={"ä": 1}, stacks=schema.SampledStacks({"a": 1}, 2)))
    assert_is_as_by_schema(known, body_of(*ranks))
    ranks[0] = replace(ranks[0], live=replace(live, stacks=schema.SampledStacks({"a": 3}, 2)))
    assert known.decode(body_of(*ranks), ROWS_MAX) is None


WRONG_LIVE = [
    {"now_ns": -1}, {"last_ns": 1 << 62}, {"step_next": -2}, {"step_next": MOST}, {"unmeasured": 1 << 63},
    {"phase": "other"}, {"ended": "no"}, {"alive": 1}, {"totals": (1,)}, {"totals": (-1,) * 20}, {"cost_ns": 1.0},
    {"drops": {"x" * 33: 1}}, {"drops": {"x": -1}}, {"drops": {f"d{i}": 1 for i in range(33)}},
    {"loader": {f"d{i}": 1 for i in range(65)}}, {"hardware": {f"d{i}": 1 for i in range(33)}}, {"hardware": {"\n": 1}},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_LIVE, ids=str)
def test_wrong_live_part_is_left_to_the_schema(wrong):
    ranks = reports()
    known = knowing(*ranks)
    ranks[1] = replace(ranks[1], live=replace(ranks[1].live, **wrong))
    assert known.decode(body_of(*ranks), ROWS_MAX) is None


def test_what_is_not_plain_is_left_to_the_schema():
    ranks = reports()
    known, plain = knowing(*ranks), body_of(*ranks)
    one, other = ranks[0], rank_report(Process(0).steps(3, forward=1), world_size=3, device="H100")
    block = schema.decode(plain).ranks[0].blocks[0]
    wrong = msgspec.structs.replace(block, first=(0, *block.first[1:]))
    assert known.decode(plain, ROWS_MAX) is not None
    for name, body in {
        "version 1": body_of(*ranks, version=1),
        "a health event": body_of(*ranks, health=[health_event(1, 1.0)]),
        "a stack": body_of(*ranks, stacks=[schema.Stack(schema.stack_request(one.identity), 1, "")]),
        "an event": body_of(replace(one, events=[schema.EventRow(1, "mark", 1, 1)])),
        "another identity": body_of(other, *ranks[1:]),
        "other phases": body_of(
            replace(one, phases=(*one.phases, "more"), live=replace(one.live, totals=(*one.live.totals, 0)))
        ),
        "another state of a phase": body_of(replace(ranks[1], phase_states={"mine": "h2d"})),
        "two blocks": body_of(replace(one, steps=[], blocks=[block, block])),
        "a wrong row": body_of(replace(one, steps=[], blocks=[wrong])),
        "more rows than are decoded at once": body_of(*reports(ROWS_MAX // 2 + 1)),
        "a sequence beyond 62 bits": body_of(replace(one, sequence=1 << 62)),
        "something after the end": plain + b"\x00",
        "less than all": plain[:-1],
        "nothing": b"",
    }.items():
        assert known.decode(body, ROWS_MAX) is None, name


@given(st.data())
@example(None)
def test_changed_bytes_are_accepted_as_by_the_schema(data):
    """Also where a block's bytes say that there is more of it than there is."""
    ranks = reports()
    known, body = knowing(*ranks), bytearray(body_of(*ranks, agent="1"))
    bodies = [bytes(body)]
    for _ in range(20 if data else 0):
        at = data.draw(st.integers(0, len(body) - 1))
        changed = bytearray(body)
        if data.draw(st.booleans()):
            changed[at] = data.draw(st.integers(0, 255))
        else:
            changed[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
        bodies.append(bytes(changed))
    for one in bodies:
        if known.decode(one, ROWS_MAX) is not None:
            assert_is_as_by_schema(known, one)


# Sizes beyond the end, deep nesting, and the greatest integers.
LIES = (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\x7f\xff\xff\xff",
        b"\x91" * 2000, b"\x81" * 2000, b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7), b"\xc1")  # fmt: skip


def test_cut_off_and_lying_bytes_are_accepted_as_by_the_schema():
    """At each place; under a sanitizer a read beyond the end shows (tests/wire/test_steps_sanitized.py)."""
    ranks = reports()
    known, body = knowing(*ranks), body_of(*ranks, agent="1")
    for at in range(len(body)):
        assert known.decode(body[:at], ROWS_MAX) is None
        for number, lie in enumerate(LIES):
            one = body[:at] + lie + body[at + (at + number) % 9 :]
            if known.decode(one, ROWS_MAX) is not None:
                assert_is_as_by_schema(known, one)
            assert known.decode(body[:at] + lie, ROWS_MAX) is None


def test_identities_of_gone_processes_are_forgotten(monkeypatch):
    monkeypatch.setattr(known_ranks, "STALE_MORE", 0)
    store = Store()
    known = KnownRanks(store)
    for at in range(9):
        report = rank_report(Process(0).steps(1, forward=1), f"r{at}")
        store.merge(report, 0)
        body = body_of(report)
        known.note(body, schema.decode(body).ranks, ROWS_MAX)
        assert known.decode(body, ROWS_MAX) is not None
        store.forget(f"r{at - 1}")
        assert len(known._known) <= 5
