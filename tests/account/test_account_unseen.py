"""Unreported ranks: each has the account it would have alone, and their sums are stored once."""

import pytest
from support.account.account_history import Process, ns, run_of

from goodput.account import account as account_module
from goodput.account import compute
from goodput.account.states import INDEX


def histories() -> dict[str, list]:
    """A world of 5 that shrinks and grows, of which ranks 0 and 3 report; and one with one attempt."""
    declared = {"gpu_hour_cost": 2.0, "peak_flops_per_second": 1e12, "flops_per_step": 1e9, "devices": 2}
    one = [Process(rank, 1, 1000.0, world_size=6, **declared).steps(4, forward=1) for rank in (0, 3)]
    more = [
        Process(0, 2, 1100.0, world_size=2, **declared).steps(4, forward=1),
        Process(0, 3, 1200.0, world_size=6, **declared).steps(4, forward=1),
    ]
    return {"one": one, "more": [*one, *more]}


@pytest.mark.parametrize("name", ["one", "more"])
def test_unreported_rank_equals_one_computed_alone(name, monkeypatch):
    run = run_of(*histories()[name])
    together = compute(run, ns(1300), stale_seconds=30)
    own = account_module._rank_account
    alone = {}

    def each(engine, rank, spans, restarts, typical, once):
        alone[rank] = own(engine, rank, spans, restarts, typical, once)
        return alone[rank]

    monkeypatch.setattr(account_module, "_rank_account", each)
    # Makes every rank's times differ, so that none is shared.
    monkeypatch.setattr(account_module, "tuple", lambda spans: object(), raising=False)
    compute(run, ns(1300), stale_seconds=30)
    assert together.ranks == [alone[rank] for rank in range(6)]
    assert [rank.observed for rank in together.ranks] == [True, False, False, True, False, False]
    unobserved = INDEX["unobserved"]
    assert all(
        r.states[unobserved] == sum(r.states) == r.wall_ns > 0 for r in together.ranks if not r.observed
    )


def test_unreported_ranks_share_their_sums():
    found = compute(run_of(*histories()["one"]), ns(1300), stale_seconds=30).ranks
    assert found[1].states is found[5].states and found[1].states is not found[0].states


def test_ranks_expected_at_other_times_do_not():
    """Rank 1 is of all three worlds, the others miss the second."""
    found = compute(run_of(*histories()["more"]), ns(1300), stale_seconds=30).ranks
    assert found[1].wall_ns > found[2].wall_ns and found[2].states is found[5].states is not found[1].states
