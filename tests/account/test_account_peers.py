"""Ranks that wait for the others of their process group to start, with hand-worked numbers."""

from __future__ import annotations

from support.account.account_history import Process, account_of, of_rank

from goodput.causes import explain
from goodput.defaults import PEERS

WAITS = {PEERS: "startup"}


def rank(number: int, imports: float, waits: float, **given) -> Process:
    one = Process(number, user=WAITS, world_size=3, **given)
    return one.between(none=imports, **{PEERS: waits})


def advice(account) -> str:
    return next(cause["advice"] for cause in explain(account) if cause["state"] == "startup")


def test_the_last_rank_is_named():
    """All are ready after 40 s; the third started 30 s later than the others."""
    ranks = [rank(0, 8, 32), rank(1, 9, 31), rank(2, 9.5, 0.5, start=30)]
    account = account_of(*(one.steps(10, forward=1).finished() for one in ranks))
    assert of_rank(account, 0) == {"startup": 40, "productive": 10}
    assert (account.peers.rank, account.peers.last, account.peers.is_waiting) == (0, 2, False)
    said = advice(account)
    assert said.startswith(
        "Rank 0 waited 32 s in init_process_group for its peers to start; rank 2 came last."
    )


def test_missing_ranks_are_named_while_it_waits():
    one = rank(1, 5, 10)
    one.begun(**{PEERS: 640})
    account = account_of(one, now=655)
    assert account.peers.is_waiting and account.peers.missing == (0, 2)
    assert "ranks 0, 2 have not reported. Start the ranks at the same time" in advice(account)


def test_short_waits_leave_the_general_advice():
    account = account_of(*(rank(number, 20, 5).steps(5, forward=1).finished() for number in range(3)))
    assert advice(account).startswith("Reach the first step sooner")


def test_without_the_phase_nothing_is_known():
    assert account_of(Process().between(none=5).steps(3, forward=1).finished()).peers is None
