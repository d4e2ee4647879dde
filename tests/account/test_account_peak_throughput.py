"""The fastest stretch of an attempt's steps, with rows of one step and of many."""

from __future__ import annotations

import random
from array import array
from fractions import Fraction

import pytest
from support.account.account_history import Process, assert_closes, ns, run_of

from goodput._core import CoreRun
from goodput.account import compute, document, figures
from goodput.account.text import render

SECOND = 10**9
STRETCH_STEPS = 32


def pace_of(*rows: tuple[int, int, float]) -> float | None:
    """The rate after a first step and rows of (steps, samples, seconds)."""
    return rate_of([(count, samples, ns(seconds)) for count, samples, seconds in rows])


def rate_of(rows: list[tuple[int, int, int]]) -> float | None:
    """The same of ns."""
    run, values = CoreRun(), array("q", [1, 0, SECOND, 0, 0, SECOND, 0])
    run.attempt(0, 0, run.group(), ["productive"])
    number, all_samples, end_ns = 1, 0, SECOND
    for count, samples, ns_spent in rows:
        number, all_samples, end_ns = number + count, all_samples + samples, end_ns + ns_spent
        values.extend([number, number - 1, end_ns, all_samples, 0, end_ns, 0])
    assert run.fold(0, values).wrong == 0
    return run.rates()[0] or None


def throughput_of(*processes: Process, picked=None):
    run = run_of(*processes)
    for one in processes:
        rows = one.rows if picked is None else [row for row in one.rows if row.number in picked]
        run.attempts[one.rank, one.number] = one.attempt(rows)
    account = compute(run, ns(1e6))
    assert_closes(account, elastic=True)
    return account, figures.throughput(account)


def by_steps(rows: list[tuple[int, int, int]]) -> Fraction | None:
    """The same from every step by itself: whole stretches, and at the end what they leave with the mean before."""
    steps = [(Fraction(samples, n), Fraction(length, n)) for n, samples, length in rows for _ in range(n)]
    whole = [steps[at : at + STRETCH_STEPS] for at in range(0, len(steps), STRETCH_STEPS)]
    sums = [(len(part), sum(s for s, _ in part), sum(t for _, t in part)) for part in whole]
    if len(sums) > 1 and sums[-1][0] < STRETCH_STEPS:
        lacks = Fraction(STRETCH_STEPS - sums[-1][0], STRETCH_STEPS)
        (n, samples, length), (_, more, longer) = sums[-1], sums[-2]
        sums[-1] = (n, samples + lacks * more, length + lacks * longer)
    return max((samples / length for _, samples, length in sums), default=None)


def test_row_of_several_steps_by_hand():
    # Ten of 2 s, and 22 of the 50 of 1 s: 320 samples in 42 s. Then 28 of 1 s and 4 of 0.5 s: 320 in 30 s.
    slow, many, fast = [(1, 10, 2)] * 10, (50, 500, 50), [(1, 10, 0.5)] * 4
    assert pace_of(*slow, many, *fast) == pytest.approx(320 / 30)
    # A row of 1000 has whole stretches of its own, of which each is as fast as it is.
    assert pace_of(*slow, (1000, 10_000, 100), *slow) == 100.0
    assert pace_of((100, 800, 10), *[(1, 8, 1)] * 20) == 80.0, "the example of the definitions"
    # Two rows of 16 are one stretch.
    assert pace_of((16, 160, 16), (16, 320, 16)) == 480 / 32


def test_last_steps_complete_a_stretch():
    # 32 of 2 s, then 8 of 0.1 s: the last 32 steps are these and 24 of 2 s.
    assert pace_of((32, 320, 64), *[(1, 10, 0.1)] * 8) == pytest.approx(320 / (48 + 0.8))
    assert pace_of(*[(1, 10, 0.5)] * 8) == 20.0, "fewer than a stretch say what they can"
    assert pace_of((32, 320, 16), (8, 80, 8)) == 20.0
    assert pace_of() is None and pace_of((40, 400, 0)) is None


def test_steps_without_length_join_the_next():
    assert pace_of((40, 400, 0), (1, 10, 4), *[(1, 10, 2)] * 32) == 410 / 4
    assert pace_of((10, 100, 10), (22, 220, 0), (32, 320, 32)) == pytest.approx(330 / 11)


@pytest.mark.parametrize("part", range(2))
def test_rows_of_any_size_equal_single_steps(part):
    for seed in range(part, 120, 2):
        dice = random.Random(seed)
        rows = [
            (
                dice.choice([1, 1, 1, 5, 31, 32, 33, 64, 1000]),
                dice.randrange(1, 99),
                dice.randrange(1, 9 * SECOND),
            )
            for _ in range(dice.randrange(1, 80))
        ]
        want = by_steps(rows)
        assert rate_of(rows) == pytest.approx(float(want * SECOND), rel=1e-12), seed
        assert want >= Fraction(sum(s for _, s, _ in rows), sum(t for *_, t in rows))


def quick_then_slow() -> Process:
    """A first step of 1 s, 999 of 0.01 s that are declared in one row, 40 of 1 s one by one; 10 samples each."""
    one = Process().step(forward=1, samples=10)
    return one.steps(999, forward=0.01, samples=10).steps(40, forward=1, samples=10).finished()


def test_unmeasured_steps_count_for_throughput():
    picked = {1, *range(1000, 1041)}
    account, found = throughput_of(quick_then_slow(), picked=picked)
    wall = 1 + 9.99 + 40
    assert found == {
        "samples": 10_400.0,
        "samples_per_second": pytest.approx(10_400 / wall),
        "ideal_samples_per_second": pytest.approx(1000.0),
        "ideal_basis": "best shown",
        "goodput": pytest.approx(10_400 / (wall * 1000)),
        "samples_basis": "each rank",
        "samples_ranks": 1,
    }
    assert "throughput goodput 20.4 %: 204 samples per second of 1,000 (the best" in render(
        document(account), full=True
    )
    # Where the first row is one of many, as of a page whose ring has gone round, it counts too.
    assert throughput_of(quick_then_slow(), picked=picked - {1})[1][
        "ideal_samples_per_second"
    ] == pytest.approx(10_000 / 10.99)


def test_best_shown_is_at_least_the_mean():
    # The first step sets no pace, but it was done: 20 samples in 3 s, where the second step alone is 5 a second.
    found = throughput_of(Process().step(forward=1, samples=10).step(forward=2, samples=10).finished())[1]
    assert (found["ideal_samples_per_second"], found["goodput"]) == (pytest.approx(20 / 3), 1.0)
    # A slow first step does not hold the ideal down: 10 samples a second are shown.
    found = throughput_of(Process().step(forward=9, samples=10).steps(8, forward=1, samples=10).finished())[1]
    assert (found["ideal_samples_per_second"], found["goodput"]) == (10.0, 90 / 170)
    for seed in range(60):
        dice = random.Random(seed)
        ranks = [Process(rank, start=dice.random()) for rank in range(dice.randrange(1, 4))]
        for one in ranks:
            for _ in range(dice.randrange(1, 5)):
                length, samples = dice.choice([0, 0.001, 0.5, 3]), dice.choice([0, 1, 32])
                one.steps(dice.randrange(1, 50), forward=length, samples=samples)
            one.finished()
        kept = {number for number in range(1, 300) if dice.random() < 0.3} | {len(one.rows) for one in ranks}
        found = throughput_of(*ranks, picked=kept)[1]
        assert found["ideal_basis"] is None or found["samples"] == 0 or 0 < found["goodput"] <= 1, seed


def test_beaten_ideal_is_an_input_error():
    one = Process(ideal_samples_per_second=5.0).steps(8, forward=1, samples=10).finished()
    account, found = throughput_of(one)
    assert (found["goodput"], found["ideal_basis"], found["ideal_samples_per_second"]) == (None, "given", 5.0)
    (error,) = document(account)["errors"]
    assert error.startswith("10 samples per second are more than the ideal, 5, so an input is wrong")
    text = render(document(account), full=True)
    assert "wrong input: 10 samples per second" in text and "throughput goodput" not in text
    one.identity["ideal_samples_per_second"] = 10.0
    account, found = throughput_of(one)
    assert (found["goodput"], figures.input_errors(account)) == (1.0, [])
