"""A culprit, rank or stage, is named only where there are enough steps."""

import pytest
from support.account.account_history import Process, account_of, in_step, ns, run_of

from goodput.account import compute


@pytest.mark.parametrize("every", [1, 2])
def test_culprit_needs_eight_steps(every):
    """In a few steps one long batch makes a rank slower than its peers; rows of two steps count as two."""
    for steps, named in (
        (1, None),
        (2, None),
        (6, None),
        (7, None),
        (8, (1, "productive")),
        (10, (1, "productive")),
    ):
        ranks = in_step(1.0, 2.0, 1.0, steps=steps)
        for one in ranks:
            one.rows = [row for row in one.rows if row.number % every == 0 or row is one.rows[-1]]
        account = account_of(*ranks)
        assert account.straggler.shares() == [(1, 1.0)]
        assert account.straggler.culprit() == named, steps


def test_window_of_few_steps_names_nobody():
    """Rank 1 is slow in all 30 steps of 2.5 s."""
    run = run_of(*in_step(1.0, 2.0, 1.0, steps=30))
    for steps, named in ((1, None), (2, None), (7, None), (8, (1, "productive"))):
        found = compute(run, ns(100), window=(ns(2.5 * 10), ns(2.5 * (10 + steps)))).straggler
        assert found.shares() == [(1, 1.0)] and found.culprit() == named, steps


@pytest.mark.parametrize(("steps", "named"), [(7, None), (8, 1)])
def test_stage_needs_eight_steps(steps, named):
    ranks = [Process(rank, stage=rank // 2, microbatches=8, group=f"s{rank // 2}") for rank in range(4)]
    for one in ranks:
        own = 8 if one.rank > 1 else 4
        one.steps(steps, forward=own, communication=10 - own).finished()
    straggler = account_of(*ranks).straggler
    assert straggler.stage_shares() == [(1, 1.0)] and straggler.culprit_stage() == named


def test_many_steps_of_one_rank_wait_for_the_others():
    """More than a rank may have waiting for others of its group: rows at hand are taken some of each rank at a time."""
    ranks = [Process(rank, world_size=2) for rank in range(2)]
    for rank, one in enumerate(ranks):
        one.steps(5000, forward=1 + rank / 4, communication=0.5 - rank / 4)
    account = compute(run_of(*ranks), ranks[0].now_ns)
    assert account.straggler.waited_ns == 5000 * ns(0.25) and account.straggler.slow_rank() == 1
