"""The core against an account by brute force, however rows arrive."""

from __future__ import annotations

from array import array
from random import Random

import pytest
from support.core.core_lives import columns_of, found_of, open_run, random_lives, rows_as_they_may_arrive
from support.core.core_oracle import Found, Life, charge

from goodput._core import ROW_STATES, CoreRun

SEEDS = [*range(150), *(pytest.param(seed, marks=pytest.mark.more_seeds) for seed in range(150, 1500))]
LEAST_NS = (60 * 10**9, 60 * 10**9, 0, 50)


@pytest.fixture(params=SEEDS)
def history(request) -> tuple[Random, list[Life], int]:
    """Random lives, and the least length of a stall."""
    random = Random(request.param)
    return random, random_lives(random), random.choice(LEAST_NS)


def expected(lives: list[Life], least_ns: int) -> list[Found]:
    found = charge(lives, least_ns)
    for one in found:
        one.inside, one.outside = +one.inside, +one.outside
    return found


def ended(run: CoreRun, lives: list[Life]) -> list[Found]:
    for at in range(len(lives)):
        run.end(at)
    return found_of(run, lives)


def test_whole_attempts(history):
    _, lives, least_ns = history
    run = open_run(lives, least_ns)
    for at, life in enumerate(lives):
        rows = array("q", [value for row in columns_of(life) for value in row])
        assert run.fold(at, rows) == (len(life.rows), 0, 0)
    assert ended(run, lives) == expected(lives, least_ns)


def test_rows_of_ranks_in_any_order(history):
    random, lives, least_ns = history
    run = open_run(lives, least_ns)
    for at, row in rows_as_they_may_arrive(random, lives):
        assert run.fold(at, row) == (1, 0, 0)
        if not random.randrange(7):
            assert run.fold(at, row) == (0, 1, 0)
    assert ended(run, lives) == expected(lives, least_ns)


def test_a_snapshot_at_every_row(history):
    random, lives, least_ns = history
    run = open_run(lives, least_ns)
    for at, row in rows_as_they_may_arrive(random, lives):
        saved = run.save()
        run = CoreRun.restore(saved)
        assert run.save() == saved
        run.fold(at, row)
    assert ended(run, lives) == expected(lives, least_ns)


def test_every_account_on_the_way_closes(history):
    """After any row the states sum to the time since the start in the bound; what is outside steps never shrinks."""
    random, lives, least_ns = history
    run = open_run(lives, least_ns)
    for at, row in rows_as_they_may_arrive(random, lives):
        before = run.read(at)
        run.fold(at, row)
        after = run.read(at)
        states = [
            *ROW_STATES,
            *(f"outside_{state}" for state in ROW_STATES),
            "straggler_ns",
            "bubble_ns",
            "lost_ns",
        ]
        life = lives[at]
        passed = min(after["end_ns"], life.to_ns) - max(life.start_ns, life.from_ns)
        assert sum(after[state] for state in states) == max(passed, 0)
        assert all(after[name] >= before[name] for name in before if name.startswith("outside_"))
