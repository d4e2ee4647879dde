"""A rank or stage that others wait for in fewer than a tenth of the steps is no culprit."""

from __future__ import annotations

import pytest
from support.account.account_history import Process
from support.account.entries import straggler_document


def lock_step(steps: list[list[float]], **identity) -> list[Process]:
    """Ranks that work so many seconds in each step and then wait for the slowest."""
    ranks = [Process(rank, **identity) for rank in range(len(steps[0]))]
    for own in steps:
        for one, seconds in zip(ranks, own, strict=True):
            one.step(forward=seconds, communication=0.5 + max(own) - seconds)
    return [one.finished() for one in ranks]


@pytest.mark.parametrize(("last", "named"), [(4, None), (5, 3)])
def test_rank_is_named_from_a_tenth_of_the_steps(last, named, tmp_path, capsys):
    """Rank 3 is last in 4 or 5 of 43 steps and explains all of the waiting for it; else ranks 0 to 2 are last in turn."""
    steps = []
    for step in range(43):
        own = [1.0 + 0.1 * (step % 3 == rank) for rank in range(3)] + [1.0]
        steps.append([1.0, 1.0, 1.0, 3.0] if step % 10 == 1 and step < 10 * last else own)
    found = straggler_document(lock_step(steps), tmp_path, capsys)
    assert found["shares"][0]["rank"] == 3 and found["shares"][0]["share"] > 0.6
    assert found["culprit"] == named


@pytest.mark.parametrize(("last", "named"), [(3, None), (4, 1)])
def test_stage_is_named_from_a_tenth_of_the_steps(last, named, tmp_path, capsys):
    """Stage 1 works three times as long in 3 or 4 of 40 steps, both of its ranks alike."""
    ranks = [Process(rank, stage=rank // 2, group=f"s{rank // 2}", microbatches=8) for rank in range(4)]
    for step in range(40):
        slow = step % 10 == 1 and step < 10 * last
        for one in ranks:
            own = 12 if slow and one.rank > 1 else 4
            one.step(forward=own, communication=(14 if slow else 6) - own)
    found = straggler_document([one.finished() for one in ranks], tmp_path, capsys)
    assert (found["culprit"], found["culprit_stage"]) == (None, named)
    assert found["stages"] == [{"stage": 1, "share": 1.0}]


def test_slow_rank_of_a_pipeline_must_be_last_often(tmp_path, capsys):
    """Rank 1 of stage 0 is slow in 3 of 40 steps."""
    ranks = [Process(rank, stage=rank // 4, group=f"s{rank // 4}", microbatches=8) for rank in range(8)]
    for step in range(40):
        slow = step in (5, 15, 25)
        for one in ranks:
            own = 12 if slow and one.rank == 1 else 4
            one.step(forward=own, communication=(14 if slow else 6) - own)
    found = straggler_document([one.finished() for one in ranks], tmp_path, capsys)
    assert found["shares"][0] == {"rank": 1, "host": "n1", "share": 1.0}
    assert (found["culprit"], found["culprit_stage"]) == (None, None)


@pytest.mark.parametrize(
    ("single", "slow", "named"),
    [
        (60, range(60, 100), None),
        (60, range(50, 100), 2),
        (40, range(40, 100), 2),
        (40, range(4, 100), 2),
        (0, range(40, 100), 2),
    ],
)
def test_rows_of_several_steps_do_not_count_for_how_often(single, slow, named, tmp_path, capsys):
    """In how many of the steps of a row of 20 a rank was last is not known; where these are most of the steps, it is not
    asked."""
    ranks = [Process(rank) for rank in range(4)]
    for step in range(100):
        for one in ranks:
            busy = 1.5 if one.rank == 2 and step in slow else 1.0
            one.step(forward=busy, communication=1.75 - busy)
    for one in ranks:
        one.rows = [row for row in one.finished().rows if row.number <= single or row.number % 20 == 0]
    assert len(ranks[0].rows) == single + 5 - single // 20
    assert straggler_document(ranks, tmp_path, capsys)["culprit"] == named
