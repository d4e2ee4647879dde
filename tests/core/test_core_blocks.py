"""Step blocks in the core: the same rows as from the wire's encoder, and refusals of what cannot be decoded."""

from __future__ import annotations

from array import array
from random import Random
from types import SimpleNamespace

import pytest
from support.core.core_lives import STATES_OF_PHASES, columns_of, found_of, open_run, random_lives

from goodput._core import CoreError, CoreRun
from goodput.account import Row
from goodput.wire.step_blocks import StepBlock, encode_rows

PHASES = len(STATES_OF_PHASES)
MOST = (1 << 62) - 1


def rows_of(values: list[array]) -> list[Row]:
    """As a rank reports them; a start is that of a step, which the core does not need."""
    found, before = [], 0
    for number, step, end, samples, device, *phases in values:
        start = max(before, end - 7)
        found.append(
            Row(number, step, start, end, samples, tuple(phases[:PHASES]), tuple(phases[PHASES:]), device)
        )
        before = end
    return found


@pytest.mark.parametrize("seed", range(100))
def test_blocks_are_the_same_rows(seed):
    random = Random(seed)
    lives = random_lives(random)
    plain, packed = open_run(lives, 10**9), open_run(lives, 10**9)
    for at, life in enumerate(lives):
        rows = columns_of(life)
        while rows:
            count = random.randint(1, 12)
            plain.fold(at, array("q", [value for row in rows[:count] for value in row]))
            packed.fold_block(at, encode_rows(rows_of(rows[:count]), PHASES))
            del rows[:count]
    assert packed.save() == plain.save()
    assert found_of(packed, lives) == found_of(plain, lives)


def changed(**given) -> SimpleNamespace:
    """A block of three rows, with these fields instead of its own."""
    rest = (0,) * (PHASES - 3)
    rows = [
        Row(1, 0, 0, 9, 5, (2, 3, 4, *rest), (1, 0, 0, *rest), 0),
        Row(2, 1, 9, 18, 9, (4, 6, 8, *rest), (2, 0, 0, *rest), 0),
        Row(3, 2, 20, 38, 11, (6, 7, 25, *rest), (3, 0, 0, *rest), 0),
    ]
    block = encode_rows(rows, PHASES)
    return SimpleNamespace(
        **{**{name: getattr(block, name) for name in StepBlock.__struct_fields__}, **given}
    )


@pytest.fixture
def run() -> CoreRun:
    run = CoreRun()
    run.attempt(0, 0, run.group(), STATES_OF_PHASES)
    return run


@pytest.mark.parametrize(
    "given",
    [
        {"count": 0},
        {"count": 4},
        {"count": 5000},
        {"cells": b""},
        {"cells": b"x" * 99},
        {"columns": b"\x00\x01\x03\x04\x08\x09\x0a\xff"},
        {"widths": b""},
        {"widths": bytes([9] * 8)},
        {"first": ()},
        {"first": (1 << 70,) * 8},
        {"least": (0,)},
    ],
)
def test_what_is_no_block_is_refused(run, given):
    before = run.save()
    with pytest.raises(CoreError):
        run.fold_block(0, changed(**given))
    assert run.save() == before
    assert run.fold_block(0, changed()) == (3, 0, 0)


def test_values_out_of_range_are_left_out(run):
    assert run.fold_block(0, changed(first=(MOST + 1,) * len(changed().first))).wrong == 3
    assert run.fold_block(0, changed(least=(-(1 << 63),) * len(changed().least))).folded == 1
