"""Step blocks: what was encoded is decoded, in pure Python and in NumPy alike, and nothing hostile is."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput.wire import schema
from goodput.wire.step_blocks import (
    BlockError,
    StepBlock,
    check_block,
    encode_rows,
)
from goodput.wire.step_columns import StepColumns, decode, encode, step_rows, wrong_rows

MOST = (1 << 62) - 1
VALUE = st.one_of(st.integers(0, 3), st.integers(0, 5_000_000_000), st.integers(0, MOST))


@st.composite
def rows(draw, most=12):
    """Rows of one attempt with any values at all, also such as contradict each other."""
    width = draw(st.integers(1, 6))
    numbers = sorted(draw(st.sets(st.integers(1, 40) | st.integers(1, MOST), min_size=1, max_size=most)))
    found = []
    for number in numbers:
        start, end = sorted((draw(VALUE), draw(VALUE)))
        parts = [sorted((draw(VALUE), draw(VALUE))) for _ in range(width)]
        totals, outside = tuple(high for _, high in parts), tuple(low for low, _ in parts)
        device = min(draw(VALUE), sum(totals) - sum(outside))
        found.append(schema.StepRow(number, draw(VALUE), start, end, draw(VALUE), totals, outside, device))
    return width, found


def decoded(columns: StepColumns, width: int) -> list[list[schema.StepRow]]:
    """The rows that columns have, block by block."""
    return [step_rows(columns, *ends, width) for ends in pairwise(columns.begins)]


def wrong_blocks(columns: StepColumns) -> list[bool]:
    """Which blocks have a wrong row."""
    wrong = wrong_rows(columns)
    return [bool(wrong[begin:end].any()) for begin, end in pairwise(columns.begins)]


@given(st.lists(rows(), min_size=1, max_size=5))
def test_blocks_decode_to_the_same_rows(parts):
    widest = max(width for width, _ in parts)
    blocks = [encode_rows(own, width) for width, own in parts]
    for block, (width, own) in zip(blocks, parts, strict=True):
        check_block(block, width, len(own))
    columns = decode(blocks, widest)
    assert not wrong_rows(columns).any()
    for (width, own), found in zip(parts, decoded(columns, widest), strict=True):
        padding = (0,) * (widest - width)
        assert [
            msgspec.structs.replace(row, totals=row.totals + padding, outside=row.outside + padding)
            for row in own
        ] == found


@given(rows())
def test_numpy_encodes_the_same_block(part):
    width, own = part
    block = encode_rows(own, width)
    assert encode(decode([block], width).values) == block


@given(rows())
def test_block_survives_messagepack(part):
    width, own = part
    block = encode_rows(own, width)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(block), type=StepBlock) == block


def steps(count, width=8, seconds=1.0):
    """Steps of six phases that vary by some per cent, as a trainer has them."""
    random = np.random.default_rng(1)
    totals, end, found = np.zeros(width, np.int64), 1_700_000_000_000_000_000, []
    for number in range(1, count + 1):
        spent = (random.normal(1, 0.02, 6) * seconds * 1e9 / 6).astype(np.int64)
        totals[1:7] += spent
        start, end = end, end + int(spent.sum())
        found.append(
            schema.StepRow(
                number, number - 1, start, end, 512 * number, tuple(map(int, totals)), (0,) * width
            )
        )
    return found


def test_ordinary_step_takes_at_most_48_bytes():
    block = encode_rows(steps(1024), 8)
    assert len(msgspec.msgpack.encode(block)) / 1024 < 30
    assert len(msgspec.msgpack.encode(encode_rows(steps(10), 8))) / 10 < 48


GOOD = encode_rows(steps(4), 8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": 0}, "0 rows"),
        ({"count": 1 << 40}, "rows, 1 to"),
        ({"columns": GOOD.columns[::-1]}, "columns"),
        ({"columns": GOOD.columns[:-1] + b"\x3f"}, "columns"),
        ({"columns": bytes([0, 1, 2, 3, 4, 6, *GOOD.columns[6:]])}, "without a meaning"),
        ({"first": GOOD.first[:-1]}, "described"),
        ({"first": (-1, *GOOD.first[1:])}, "first row"),
        ({"first": (1 << 62, *GOOD.first[1:])}, "first row"),
        ({"least": (1 << 70, *GOOD.least[1:])}, "differences"),
        ({"widths": b"\x09" + GOOD.widths[1:]}, "more than 8 bytes"),
        ({"cells": GOOD.cells + b"\0"}, "bytes of cells"),
        ({"cells": b""}, "bytes of cells"),
    ],
)
def test_undecodable_block_is_refused_with_its_reason(changes, words):
    with pytest.raises(BlockError, match=words):
        check_block(msgspec.structs.replace(GOOD, **changes), 8, 4096)


@given(st.data())
def test_any_accepted_block_decodes(data):
    """Whatever its cells are: values may be wrong, which `wrong_rows` finds, but nothing fails."""
    columns = bytes(sorted(data.draw(st.sets(st.sampled_from([*range(6), *range(8, 14)]), max_size=8))))
    count = data.draw(st.integers(1, 4))
    widths = bytes(data.draw(st.integers(0, 8)) for _ in columns)
    block = StepBlock(
        count,
        columns,
        tuple(data.draw(VALUE) for _ in columns),
        tuple(data.draw(st.integers(-(1 << 63), (1 << 63) - 1)) for _ in columns),
        widths,
        data.draw(st.binary(min_size=(count - 1) * sum(widths), max_size=(count - 1) * sum(widths))),
    )
    check_block(block, 3, 4)
    found = decode([GOOD, block, GOOD], 8)
    assert wrong_blocks(found)[::2] == [False, False]
    assert decoded(found, 8)[0] == decoded(found, 8)[2]


@pytest.mark.parametrize(
    "row",
    [
        schema.StepRow(1, 0, 5, 4, 0, (0, 0), (0, 0)),
        schema.StepRow(0, 0, 4, 5, 0, (0, 0), (0, 0)),
        schema.StepRow(1, 0, 4, 5, 0, (0, 1), (0, 2)),
        schema.StepRow(1, 0, 4, 5, 0, (3, 1), (0, 0), 5),
    ],
)
def test_impossible_row_is_found(row):
    fine = schema.StepRow(1, 0, 4, 5, 0, (3, 1), (0, 1), 3)
    columns = decode([encode_rows([fine], 2), encode_rows([row], 2), encode_rows([fine], 2)], 2)
    assert wrong_blocks(columns) == [False, True, False]


@given(rows(), st.data())
def test_wrong_rows_are_those_that_check_step_refuses(part, data):
    """One value of honest or contradictory rows is changed to any that a block can carry."""
    width, own = part
    columns = decode([encode_rows(own, width)], width)
    used = [*range(6), *range(8, len(columns.values))]
    at = data.draw(st.sampled_from(used)), data.draw(st.integers(0, len(own) - 1))
    columns.values[at] = data.draw(VALUE | st.integers(-(1 << 63), (1 << 63) - 1))
    before = 0
    for row, wrong in zip(step_rows(columns, 0, len(own), width), wrong_rows(columns), strict=True):
        try:
            schema.check_step(row, width, "here")
            is_right = row.number > before
        except schema.SchemaError:
            is_right = False
        before = row.number
        assert is_right != wrong


def test_numbers_that_do_not_grow_are_found():
    own = steps(3)
    columns = decode([encode_rows([own[0], own[2], own[1]], 8), encode_rows(own, 8)], 8)
    assert wrong_blocks(columns) == [True, False]
