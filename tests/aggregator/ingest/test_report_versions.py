"""Steps as rows (version 1) and as blocks (version 2): the same account, and hostile blocks cost only their own rank."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple, replace
from support.account.account_history import Process
from support.aggregator.ledgers import NOW, account, aggregator, take
from support.aggregator.reports import body_of, node_report, rank_report, story

from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.wire import schema
from goodput.wire.step_blocks import StepBlock

# What an agent of the release with each version pushed, and the account that the aggregator of that release made of it.
# A new version gets a file of its own when it is released; these never change.
RECORDINGS = {
    version: json.loads(Path(__file__).with_name("recorded").joinpath(f"version_{version}.json").read_text())
    for version in schema.VERSIONS
}
RECORDED = RECORDINGS[1]
RANKS = [
    rank_report(Process(rank, world_size=3).steps(3, forward=1, loader=0.5).saved()) for rank in range(3)
]


class NoLedger:
    """A ledger that keeps nothing."""

    def append(self, batch, health, *more):
        pass


def push(*bodies: bytes) -> tuple[Ingest, list]:
    ingest = Ingest(Store(), NoLedger(), clock_ns=lambda: NOW)
    return ingest, take(ingest, *bodies)


def recorded_part(found, recorded):
    """An account without what later releases say of it beside, or in other words; dollars may be added up in another order."""
    if isinstance(recorded, dict):
        return {
            name: one if name == "advice" else recorded_part(found[name], one)
            for name, one in recorded.items()
        }
    if isinstance(recorded, list) and len(found) == len(recorded):
        return [recorded_part(one, other) for one, other in zip(found, recorded, strict=True)]
    if isinstance(recorded, float):
        return recorded if math.isclose(found, recorded, rel_tol=1e-14) else found
    return json.loads(json.dumps(found))


def with_block(report: schema.RankReport, **changes) -> schema.RankReport:
    (block,) = schema.in_blocks(report).blocks
    return replace(report, steps=[], blocks=[replace(block, **changes)])


@pytest.mark.faults
@pytest.mark.parametrize("version", schema.VERSIONS)
def test_recorded_pushes_give_their_account(ledger, version):
    ingest, recorded = aggregator(ledger), RECORDINGS[version]["account"]
    bodies = [base64.b64decode(body) for body in RECORDINGS[version]["pushes"]]
    assert {schema.decode(body).version for body in bodies} == {version}
    answers = take(ingest, *bodies)
    assert [(answer.accepted, answer.rejected) for answer in answers] == [(2, [])] * len(bodies)
    assert recorded_part(account(ingest), recorded) == recorded
    assert recorded_part(account(aggregator(ledger)), recorded) == recorded, "after a restart"
    assert len(list(ledger.health(10))) == 2


def test_both_versions_give_the_same_account():
    accounts = []
    for version in schema.VERSIONS:
        ingest, answers = push(*[body_of(*ranks, version=version) for ranks in story(ranks=4)])
        assert not any(answer.rejected for answer in answers)
        accounts.append(account(ingest))
    assert accounts[0] == accounts[1] and accounts[0]["steps"]["lost"]


def test_rows_of_version_1_may_repeat_and_go_back():
    mixed = replace(RANKS[0], steps=[RANKS[0].steps[at] for at in (2, 0, 1, 0)])
    (got, _), (want, _) = push(body_of(mixed, version=1)), push(body_of(RANKS[0]))
    assert account(got) == account(want)


def test_steps_in_several_blocks_are_merged():
    parts = [
        schema.in_blocks(replace(RANKS[0], steps=RANKS[0].steps[at : at + 1])).blocks for at in (2, 0, 1, 1)
    ]
    several = replace(RANKS[0], steps=[], blocks=[block for part in parts for block in part])
    (got, _), (want, _) = push(schema.encode(node_report(several))), push(body_of(RANKS[0]))
    assert account(got) == account(want)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": 0}, "0 rows"),
        ({"columns": b""}, "not described"),
        ({"cells": b"x"}, "bytes of cells"),
        ({"first": (0,) * 12}, "not described"),
    ],
)
def test_undecodable_block_is_refused_by_name(changes, words):
    (_, (ack,)) = push(body_of(RANKS[0], with_block(RANKS[1], **changes), RANKS[2]))
    (rejection,) = ack.rejected
    assert (ack.accepted, rejection.rank, rejection.reason) == (2, 1, "malformed")
    assert rejection.text.startswith("run 'r1' rank 1: step block 0: ") and words in rejection.text


def test_wrong_row_is_refused_by_block_and_row():
    rows = RANKS[1].steps
    wrong = schema.in_blocks(replace(RANKS[1], steps=[rows[0], replace(rows[1], samples=1 << 62), rows[2]]))
    blocks = [*schema.in_blocks(RANKS[1]).blocks, *wrong.blocks]
    ingest, (ack,) = push(body_of(RANKS[0], replace(wrong, blocks=blocks), RANKS[2]))
    (rejection,) = ack.rejected
    assert (
        rejection.text
        == "run 'r1' rank 1: step block 1: step row 2 (step 1): number, step or samples out of range"
    )
    assert account(ingest)["steps"]["kept"] == 6, "of ranks 0 and 2"


def test_numbers_that_go_back_in_a_block_are_refused():
    rows = RANKS[1].steps
    (_, (ack,)) = push(schema.encode(node_report(schema.in_blocks(replace(RANKS[1], steps=rows[::-1])))))
    assert [one.text for one in ack.rejected] == [
        "run 'r1' rank 1: step block 0: step row 2 does not follow the row before it"
    ]


@pytest.mark.faults
def test_few_bytes_cannot_claim_many_steps():
    """The ranks that claim the most are refused, so that an honest one beside them is not."""
    claim = StepBlock(schema.STEPS_MAX, b"\0\2\3", (1, 5, 5), (1, 0, 0), b"\0\0\0", b"")
    greedy = [replace(RANKS[rank], steps=[], blocks=[claim]) for rank in (1, 2)]
    (_, (ack,)) = push(body_of(RANKS[0], *greedy))
    assert (ack.accepted, [one.rank for one in ack.rejected]) == (1, [1, 2])
    assert (
        "200000 steps in a report that has 400003 with its other ranks, 200000 at most"
        in ack.rejected[0].text
    )
    twice = replace(greedy[0], blocks=[claim, claim])
    many = replace(greedy[0], blocks=[replace(claim, count=1)] * (schema.BLOCKS_MAX + 1))
    for report, words in ((twice, "400000 steps and"), (many, "1025 step blocks")):
        (_, (ack,)) = push(body_of(RANKS[0], report))
        assert (ack.accepted, [words in one.text for one in ack.rejected]) == (1, [True])


VALUE = st.one_of(st.integers(0, 3), st.integers(0, 1 << 40), st.integers(-(1 << 63), (1 << 64) - 1))


@st.composite
def hostile_blocks(draw):
    """Blocks of any content, most of which can be decoded, and honest ones with one field changed."""
    if draw(st.booleans()):
        (block,) = schema.in_blocks(RANKS[1]).blocks
        name = draw(st.sampled_from(StepBlock.__struct_fields__))
        given = draw(
            {"count": VALUE, "first": st.tuples(*[VALUE] * 8), "least": st.tuples(*[VALUE] * 8)}.get(
                name, st.binary(max_size=90)
            )
        )
        return replace(block, **{name: given})
    columns = bytes(sorted(draw(st.sets(st.integers(0, 40), max_size=8))))
    count, widths = draw(st.integers(0, 4)), bytes(draw(st.integers(0, 9)) for _ in columns)
    size = max(count - 1, 0) * sum(widths) + draw(st.sampled_from((0, 0, 0, 1)))
    values = st.integers(0, 9) | VALUE
    first, least = (tuple(draw(values) for _ in columns) for _ in range(2))
    return StepBlock(count, columns, first, least, widths, draw(st.binary(min_size=size, max_size=size)))


@given(st.lists(hostile_blocks(), min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_hostile_blocks_cost_only_their_rank(blocks):
    honest = [schema.in_blocks(one) for one in (RANKS[0], RANKS[2])]
    body = schema.encode(node_report(honest[0], replace(RANKS[1], steps=[], blocks=blocks), honest[1]))
    ingest = Ingest(Store(), NoLedger(), clock_ns=lambda: NOW)
    try:
        ack = asyncio.run(ingest.accept(body))
    except schema.SchemaError:
        return  # A number beyond 64 bits, which no agent of ours can encode, makes the body malformed.
    assert ack.accepted >= 2 and {one.rank for one in ack.rejected} <= {1}
    assert all(one.reason in ("malformed", "time") for one in ack.rejected)
    assert all("run 'r1' rank 1: " in one.text for one in ack.rejected)
    for rank in (0, 2):
        rows = ingest._store.runs["r1"].attempts[rank, 1].ordered_rows()
        assert rows == [astuple(row) for row in RANKS[rank].steps]


def test_version_1_body_is_what_old_agents_send():
    """The test's own version 1 has the same fields as the recorded one."""
    recorded = msgspec.msgpack.decode(base64.b64decode(RECORDED["pushes"][2]))
    made = msgspec.msgpack.decode(body_of(*RANKS, version=1))
    assert made.keys() - {"agent", "previous_sent_ns", "previous_took_ns"} == recorded.keys()
    assert made["version"] == recorded["version"] == 1
    assert made["ranks"][0].keys() <= recorded["ranks"][0].keys()
    assert len(made["ranks"][0]["steps"][0]) == len(recorded["ranks"][0]["steps"][0])
