"""Stragglers do not depend on when steps are compared, nor on the order in which ranks are fed.

Steps are compared as soon as no rank can add to them; when that is depends on what came when.
"""

from __future__ import annotations

import random

import pytest
from support.account.account_history import Process, assert_closes, ns, run_of
from support.account.fed_orders import by_chance, fed_by, in_time
from support.seeds import cases

from goodput.account import compute
from goodput.account.states import INDEX


def accounts(processes: list[Process], picked=lambda one: one.rows) -> list:
    """The account fed rank by rank, in order of time, and in parts of a few rows of ranks that are drawn by chance."""
    run = run_of(*processes)
    for one in processes:
        run.attempts[one.rank, one.number] = one.attempt(picked(one))
    now_ns = max(attempt.beat_ns() for attempt in run.attempts.values())
    return [
        compute(run, now_ns),
        *(fed_by(order, run, now_ns) for order in (in_time, *map(by_chance, range(3)))),
    ]


def assert_same(found: list) -> None:
    for one in found:
        assert_closes(one, elastic=True)
        assert one == found[0]


def test_last_steps_without_length_are_awaited():
    """The rank's last rows end at the same time: by time alone the rank would be finished too early."""
    one = Process(0).steps(20, forward=0.5, communication=0.25)
    two = Process(1).steps(17, forward=0.25, communication=0.5).step().step().step()
    found = accounts([one, two])
    assert_same(found)
    # The last three of the first rank are waited out in full: the second had nothing to do in them.
    assert found[0].ranks[0].states[INDEX["straggler"]] == ns(0.25) * 3


def test_first_row_of_several_steps_is_awaited():
    """It is held back under its own index, not that of the first step it stands for."""
    one, two = Process(0), Process(1)
    one.step_next, two.step_next = 4, 3
    for process in (one, two):
        process.steps(20, forward=0.5, communication=0.5 - process.rank / 4)
    picked = {0: one.rows[2:], 1: [two.rows[0], *two.rows[3:]]}
    assert [(rows[i].step, rows[i].number) for rows, i in zip(picked.values(), (0, 1), strict=True)] == [
        (6, 3),
        (6, 4),
    ]
    found = accounts([one, two], lambda one: picked[one.rank])
    assert_same(found)
    # Three steps in one row, then 16 that both did.
    assert found[0].straggler.waited_ns == ns(0.25) * (3 + 16)


def test_rank_does_not_wait_for_itself():
    """It repeated its steps while alone in its group; a rank that joined later did none of them."""
    one = Process(0).steps(10, forward=0.5, communication=0.25)
    one.step_next = 3
    one.steps(5, forward=0.5, communication=0.125)
    two = Process(1, start=30)
    two.step_next = 40
    two.steps(10, forward=0.5, communication=0.25)
    found = accounts([one, two])
    assert_same(found)
    assert (found[0].straggler.waited_ns, found[0].straggler.length_ns) == (0, 0)


def history(rng: random.Random) -> list[Process]:
    """Attempts that may overlap, of ranks that begin late, skip steps and do some in no time."""
    found, start = [], 100.0
    for number in range(1, rng.randrange(2, 5)):
        for rank in range(rng.randrange(1, 6)):
            group = rng.choice(["", "", "g"])
            one = Process(rank, number, start + rng.random() * 3, group=group, world_size=5)
            one.step_next = rng.choice([0, 0, 2, 9])
            for _ in range(rng.randrange(30)):
                one.step_next += rng.random() < 0.1
                parts = {} if rng.random() < 0.1 else {"forward": rng.random(), "loader": rng.random()}
                one.step(**parts, communication=rng.choice([0, rng.random()]))
            found.append(one.killed(after=rng.random()))
        start = max(one.now_ns for one in found) / 1e9 + rng.choice([2, -2])
    return found


@pytest.mark.parametrize("part", cases(3))
def test_order_of_ranks_gives_one_account(part):
    for seed in range(part, 90, 3):
        rng = random.Random(seed)
        processes, thin = history(rng), rng.choice([0, 0, 0.5])
        kept = {
            id(one): [row for row in one.rows[:-1] if rng.random() >= thin] + one.rows[-1:]
            for one in processes
        }
        if processes:
            assert_same(accounts(processes, lambda one, kept=kept: kept[id(one)]))
