"""Rows held as packed blocks behave as the same rows held as columns, through any merging, dropping and putting back."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.account.account_history import Process
from support.seeds import cases

from goodput.aggregator.column_attempt import ColumnAttempt, columns_of, rows_after
from goodput.wire import compiled
from goodput.wire.packed_rows import PackedRows, pack
from goodput.wire.step_blocks import NUMBER
from goodput.wire.step_columns import encode

ROWS = columns_of(Process().steps(60, forward=0.5, communication=0.25).rows)
PHASES = tuple(f"phase {at}" for at in range((len(ROWS) - 8) // 2 + 1))  # one that no row has yet


class Pair:
    """An attempt that holds what follows as packed blocks, and one that holds all rows as columns."""

    def __init__(self):
        self.both = [ColumnAttempt(0, 1, 0, phases=PHASES) for _ in range(2)]

    def add(self, low: int, high: int) -> None:
        """Add rows low + 1 to high, in the way of Process.add_steps."""
        values = ROWS[:, low:high].copy()
        block = PackedRows(pack(encode(values)), (len(values) - 8) // 2, low + 1, high)
        for attempt, rows in zip(self.both, (block, values), strict=True):
            if attempt.top_number == low:
                attempt.add_following(rows, low + 1, high, int(values[1, 0]), int(values[3].max()))
            else:
                attempt.add_columns(values)

    def check(self, rng: random.Random) -> None:
        packed, plain = self.both
        assert packed.kept_rows() == plain.kept_rows()
        assert packed.ordered_rows() == plain.ordered_rows()
        number = rng.randrange(-1, 62)
        want = plain.after(number)
        assert len(want) == 8 + 2 * len(PHASES)
        found, counts, used = rows_after([(packed, number)], len(PHASES))
        assert np.array_equal(packed.after(number), want) and np.array_equal(found, want)
        assert counts.tolist() == [want.shape[1]]
        assert not found[~used].any()
        most = rng.randrange(1, 12)
        first, counts, _ = rows_after([(packed, number)], len(PHASES), most)
        assert np.array_equal(first, want[:, :most]) and counts.tolist() == [first.shape[1]]
        # Both are without their parts when they are compared.
        assert packed == plain and packed.trimmed == plain.trimmed

    def trim(self, number: int) -> None:
        for attempt in self.both:
            attempt.trim(number)

    def put_back(self, low: int, high: int) -> None:
        for attempt in self.both:
            attempt.put_back(ROWS[:, low:high])


@pytest.fixture(params=["compiled", "in Python"])
def _decoding(request, monkeypatch):
    if request.param == "in Python":
        monkeypatch.setattr(compiled, "steps", None)
    elif compiled.steps is None:
        pytest.skip("no compiler was there")


@pytest.mark.usefixtures("_decoding")
@pytest.mark.parametrize("seed", cases(40))
def test_packed_rows_behave_as_columns(seed):
    rng, pair = random.Random(seed), Pair()
    for _ in range(25):
        top = pair.both[0].top_number
        what = rng.choice(["next", "next", "next", "any", "trim", "back"])
        if what == "next" and top < 60:
            pair.add(top, rng.randrange(top, min(60, top + 8)) + 1)
        elif what == "any":
            low = rng.randrange(60)
            pair.add(low, rng.randrange(low, min(60, low + 10)) + 1)
        elif what == "trim":
            pair.trim(rng.randrange(top + 1))
        elif what == "back" and pair.both[0].trimmed:
            low = rng.randrange(pair.both[0].trimmed)
            pair.put_back(low, pair.both[0].trimmed)
        pair.check(rng)


@pytest.mark.usefixtures("_decoding")
def test_rows_of_many_attempts_are_those_of_each():
    rng, pairs = random.Random(1), [Pair() for _ in range(30)]
    for pair in pairs:
        for _ in range(rng.randrange(5)):
            top = pair.both[0].top_number
            pair.add(top, top + 1 + rng.randrange(10))
        pair.trim(rng.randrange(8))
    pairs[3].add(50, 55)  # after a gap, as columns
    attempts = [(pair.both[at % 5 == 0], rng.randrange(10)) for at, pair in enumerate(pairs)]
    for some in (attempts, [one for at, one in enumerate(attempts) if at != 3 and at % 5]):
        found, counts, used = rows_after(some, len(PHASES))
        assert found.shape[1] == counts.sum() > 80 and not found[~used].any()
        for (attempt, number), rows in zip(
            some, np.split(found, np.cumsum(counts)[:-1], axis=1), strict=True
        ):
            assert np.array_equal(rows, attempt.after(number))
        first, counts, _ = rows_after(some, len(PHASES), 3)
        want = [attempt.after(number)[:, :3] for attempt, number in some]
        assert np.array_equal(first, np.concatenate(want, axis=1))
        assert counts.tolist() == [rows.shape[1] for rows in want]


def test_packed_rows_take_a_fraction_of_columns():
    pair = Pair()
    pair.add(0, 10)
    packed, plain = (attempt.parts[0] for attempt in pair.both)
    assert isinstance(packed, PackedRows) and len(packed.block) < plain.nbytes / 3
    assert pair.both[1].after(0)[NUMBER].tolist() == list(range(1, 11))


@pytest.mark.usefixtures("_decoding")
def test_as_many_phases_as_there_may_be():
    values = np.zeros((8 + 2 * 28, 3), np.int64)
    values[NUMBER], values[-2:] = range(1, 4), range(3)
    attempt = ColumnAttempt(0, 1, 0, phases=tuple(f"phase {at}" for at in range(28)))
    attempt.add_following(PackedRows(pack(encode(values)), 28, 1, 3), 1, 3, 0, 0)
    found, counts, used = rows_after([(attempt, 1)], 28)
    assert np.array_equal(found, values[:, 1:]) and counts.tolist() == [2]
    assert used[-2:].all() and not found[~used].any()


@pytest.mark.skipif(compiled.steps is None, reason="no compiler was there")
def test_hostile_packed_rows_are_refused():
    """Nothing is read beyond a block, and nothing written that was not asked for."""
    values = ROWS[:, :10]
    block, width = pack(encode(values)), len(PHASES)
    height = 8 + 2 * width
    for wrong in (b"", block[:-1], block + b"x", b"\xff" * 40):
        with pytest.raises(ValueError, match="packed"):
            compiled.steps.rows_after([([PackedRows(wrong, width, 1, 10)], 0)], height, 99)
    with pytest.raises(ValueError, match="packed"):
        compiled.steps.rows_after([([PackedRows(block, width, 1, 11)], 0)], height, 99)
    for first, last in ((0, 10), (5, 4), (1 << 70, 1 << 71), (1, (1 << 63) - 1)):
        assert compiled.steps.rows_after([([PackedRows(block, width, first, last)], 0)], height, 99) is None
    assert compiled.steps.rows_after([([values], 0)], height, 99) is None
    with pytest.raises(TypeError):
        compiled.steps.rows_after([[[], 0]], height, 99)
    found, counts, _ = compiled.steps.rows_after(
        [([PackedRows(block, width, 4, 10)], 6), ([], 0)], height, 99
    )
    assert np.array_equal(np.frombuffer(found, np.int64).reshape(height, -1)[: len(values)], values[:, 6:])
    assert np.frombuffer(counts, np.int64).tolist() == [4, 0]
