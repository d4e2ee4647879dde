"""Trainers and generators of one run: processes of several roles, each in a group of its own."""

from support.account.account_history import Process, account_of, assert_closes

from goodput.account.states import INDEX


def test_roles_close_and_are_not_compared():
    """The slow generator makes no step; the trainers wait in collectives for each other alone."""
    trainers = [Process(rank, group="trainer", world_size=3).between(none=1, rollout=0) for rank in (0, 1)]
    for _ in range(5):
        trainers[0].step(forward=2, communication=0)
        trainers[1].step(forward=1, communication=1)
    generator = Process(2, group="generator", world_size=3).between(none=3, rollout=8)
    account = account_of(*(one.finished() for one in (*trainers, generator)))
    assert_closes(account)
    (first, second, third) = account.ranks
    assert third.states[INDEX["rollout"]] == 8 * 10**9 and third.states[INDEX["startup"]] == 3 * 10**9
    assert first.states[INDEX["productive"]] == 10 * 10**9
    assert second.states[INDEX["straggler"]] == 5 * 10**9
    assert sum(account.gpu_ns()) == 3 * 11 * 10**9
