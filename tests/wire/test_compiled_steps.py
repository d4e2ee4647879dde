"""What is compiled gives what NumPy and Python give, for any block, and never reads or writes beyond one."""

from __future__ import annotations

import random
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.account.account_history import Process
from support.aggregator.reports import rank_report

from goodput.aggregator.ingest.pushed_steps import decode_steps
from goodput.wire import compiled, schema
from goodput.wire.packed_rows import pack, unpack
from goodput.wire.step_blocks import END, NUMBER, TOTALS, BlockError, StepBlock, check_block, encode_rows
from goodput.wire.step_columns import decode, wrong_rows

pytestmark = pytest.mark.skipif(compiled.steps is None, reason="goodput.wire._steps is not compiled here")
PHASES = 3
MOST = (1 << 62) - 1
VALUE = st.one_of(st.integers(0, 3), st.integers(0, 5_000_000_000), st.integers(0, MOST))


def in_python(function, *arguments):
    with patch.object(compiled, "steps", None):
        return function(*arguments)


@st.composite
def any_blocks(draw):
    """Blocks that can be decoded, with any values in them."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        columns = sorted(draw(st.sets(st.sampled_from([*range(6), *range(8, 8 + 2 * PHASES)]), max_size=12)))
        count, widths = draw(st.integers(1, 5)), bytes(draw(st.integers(0, 8)) for _ in columns)
        size = (count - 1) * sum(widths)
        cells = draw(st.binary(min_size=size, max_size=size))
        first = tuple(draw(VALUE) for _ in columns)
        least = tuple(draw(st.integers(-3, 3) | st.integers(-(1 << 63), (1 << 63) - 1)) for _ in columns)
        found.append(StepBlock(count, bytes(columns), first, least, widths, cells))
    return found


@st.composite
def plain_blocks(draw):
    """Blocks of rows that are right, or nearly."""
    found, start = [], draw(st.integers(0, 10**12))
    for _ in range(draw(st.integers(1, 3))):
        rows = []
        for number in range(1, draw(st.integers(2, 8))):
            totals = tuple(draw(st.integers(0, 9)) + 9 * number for _ in range(PHASES))
            device = draw(st.integers(0, sum(totals) + 1))
            end = start + 10 * number + draw(st.integers(-1, 9))
            rows.append(
                schema.StepRow(
                    number + draw(st.integers(0, 1)), number, start + 10 * number, end, 5 * number,
                    totals, tuple(one - draw(st.integers(-1, 9)) for one in totals), device,
                )
            )  # fmt: skip
        rows = [
            msgspec.structs.replace(row, outside=tuple(max(one, 0) for one in row.outside)) for row in rows
        ]
        found.append(encode_rows(rows, PHASES))
    return found


@given(
    any_blocks() | plain_blocks(),
    st.integers(-1, 9),
    st.none() | VALUE | st.integers(0, 80),
    st.integers(1, 6),
)
def test_a_page_is_a_part_of_the_decoded_rows(blocks, after, near, most):
    assert compiled.steps is not None
    for block in blocks:
        values = in_python(decode, [block], PHASES).values
        number, end = values[NUMBER], values[END]
        from_ns = near if near is None else int(end[0]) - 5 + near if near <= 80 else near
        found = compiled.steps.decode_page(pack(block), PHASES, len(values), 100, after, from_ns, most)
        if number[0] > MOST or (np.diff(number) < 1).any() or number.max() > MOST:
            assert found is None
            continue
        begin, is_reached = int((number <= after).sum()), True
        if from_ns is not None:
            reached = np.flatnonzero(end[begin:] >= from_ns)
            is_reached = bool(len(reached))
            begin = begin + max(int(reached[0]) - 1, 0) if is_reached else max(begin, len(number) - 1)
        want = values[:, begin : begin + most] if (number > after).any() else values[:, :0]
        page, rows, was_reached = found
        assert np.array_equal(np.frombuffer(page, np.int64).reshape(len(values), rows), want)
        assert bool(was_reached) == is_reached


@given(plain_blocks(), st.binary(max_size=200), st.integers(0, 300))
def test_a_page_of_any_bytes_is_none_or_rows_of_a_block(blocks, others, at):
    assert compiled.steps is not None
    columns = TOTALS + 2 * PHASES
    for phases, width in ((PHASES, columns), (0, columns), (PHASES, columns - 1), (60, 200)):
        assert compiled.steps.decode_page(others, phases, width, 100, 0, None, 9) is None
    right = pack(blocks[0])
    changed = right[: at % len(right)] + others[:1] + right[at % len(right) + 1 :]
    found = compiled.steps.decode_page(changed, PHASES, columns, 100, 0, None, 9)
    if found is not None:
        try:
            block = unpack(changed)
            check_block(block, PHASES, 100)
        except (msgspec.DecodeError, BlockError) as error:
            raise AssertionError(f"it is no block: {error}") from None
        values = in_python(decode, [block], PHASES).values
        assert np.array_equal(np.frombuffer(found[0], np.int64).reshape(columns, -1), values[:, :9])


def test_a_page_has_no_phases_that_its_block_may_not_have():
    assert compiled.steps is not None
    row = schema.StepRow(1, 0, 5, 9, 1, (1, 1, 2), (0, 0, 0))
    block = pack(encode_rows([row], PHASES))
    assert compiled.steps.decode_page(block, PHASES, 30, 100, 0, None, 9) is not None
    assert compiled.steps.decode_page(block, PHASES - 1, 30, 100, 0, None, 9) is None


@given(any_blocks() | plain_blocks())
def test_decoded_rows_are_those_of_numpy(blocks):
    columns = in_python(decode, blocks, PHASES)
    found = decode(blocks, PHASES)
    assert np.array_equal(found.values, columns.values) and np.array_equal(found.begins, columns.begins)
    assert compiled.steps is not None
    (first, last, step, start, end), is_wrong = compiled.steps.decode(blocks, np.empty_like(columns.values))
    assert bool(is_wrong) == bool(wrong_rows(columns).any())
    heads = columns.number[0], columns.number[-1], columns.step[0], columns.start.min(), columns.end.max()
    assert (first, last, step, start, end) == heads


@given(any_blocks() | plain_blocks(), st.integers(PHASES, PHASES + 1))
def test_steps_of_a_report_are_those_of_numpy(blocks, width):
    plain = rank_report(Process(0).steps(1, forward=1))
    phases = tuple(f"p{at}" for at in range(width))
    report = msgspec.structs.replace(plain, steps=[], phases=phases, blocks=blocks)
    (found,), (expected,) = decode_steps([report]), in_python(decode_steps, [report])
    assert type(found) is type(expected)
    if isinstance(expected, Exception):
        assert str(found) == str(expected)
    else:
        assert np.array_equal(found[0], expected[0])
        assert found[1:] == expected[1:]


FIELDS = ("count", "columns", "first", "least", "widths", "cells")


@given(any_blocks(), st.data())
def test_what_check_block_refuses_is_not_counted(blocks, data):
    """Also of a block with a field of another one, of other values, or of another type."""
    at, field = data.draw(st.integers(0, len(blocks) - 1)), data.draw(st.sampled_from(FIELDS))
    other = data.draw(
        st.sampled_from([getattr(one, field) for one in blocks])
        | {"count": st.integers(-1, 9) | st.just(1 << 60), "first": st.just((1 << 62,)), "least": st.just((1 << 70,))}
        .get(field, st.binary(max_size=9))
    )  # fmt: skip
    blocks = [*blocks]
    blocks[at] = msgspec.structs.replace(blocks[at], **{field: other})
    try:
        for block in blocks:
            check_block(block, PHASES, 4)
        expected = sum(block.count for block in blocks)
    except BlockError:
        expected = -1
    assert compiled.steps is not None
    assert compiled.steps.count_rows(blocks, PHASES, 4) == expected


@pytest.mark.parametrize(
    "changes",
    [
        *({"count": count} for count in (0, -1, 3, 5, 1 << 61, 1 << 80)),
        *({"cells": cells} for cells in (b"", b"x" * 1000, "text")),
        *({"columns": columns} for columns in (b"", bytes(range(240, 250)), None)),
        *({"widths": widths} for widths in (b"", b"\x09" * 10, b"\xff" * 9)),
        *({"first": first} for first in ((), (1,) * 50, (1 << 70,) * 10, [1], ("a",) * 10)),
        {"least": ()},
    ],
)
def test_block_that_does_not_fit_is_refused(changes):
    rows = [schema.StepRow(n, n, n, n + 1, n, (3 * n, 2 * n * n), (0, 0)) for n in range(1, 5)]
    block = msgspec.structs.replace(encode_rows(rows, 2), **changes)
    assert compiled.steps is not None
    with pytest.raises((ValueError, TypeError, OverflowError)):
        compiled.steps.decode([block], np.zeros((12, 4), np.int64))
    assert compiled.steps.count_rows([block], 2, 100) == -1


@pytest.mark.parametrize(
    "into", [np.zeros((12, 3), np.int64), np.zeros((12, 5), np.int64), np.zeros((8, 4), np.int64),
             np.zeros((12, 4), np.int32), np.zeros(48, np.int64), np.zeros((4, 12), np.int64).T, bytes(384)],
)  # fmt: skip
def test_room_of_another_size_is_refused(into):
    rows = [schema.StepRow(n, n, n, n + 1, n, (n, n), (0, 0)) for n in range(1, 5)]
    assert compiled.steps is not None
    with pytest.raises((ValueError, BufferError)):
        compiled.steps.decode([encode_rows(rows, 2)], into)


def test_long_block_is_the_same():
    """One that is decoded without the interpreter's lock."""
    rng = random.Random(1)
    totals, rows = [0] * PHASES, []
    for number in range(1, 20_000):
        totals = [one + rng.randrange(1 << rng.randrange(40)) for one in totals]
        rows.append(schema.StepRow(number, number, number, number + 1, number, tuple(totals), (0,) * PHASES))
    block = encode_rows(rows, PHASES)
    assert np.array_equal(
        decode([block, block], PHASES).values, in_python(decode, [block, block], PHASES).values
    )
