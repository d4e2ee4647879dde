"""How much of the waiting in each operation was for the last rank to arrive, by numbers worked out by hand."""

from __future__ import annotations

import random

from support.account.account_history import Process, account_of, ns

from goodput.account import document
from goodput.account.collectives.arrival_skew import LeastWaits, split
from goodput.account.collectives.operation_sums import NOT_RECORDED, of_rank, sums_of
from goodput.account.document import rank_collectives
from goodput.account.states import INDEX
from goodput.wire.operation_row import OperationRow

GATHER, REDUCE = ("dp", "all_gather"), ("dp", "all_reduce")


def sums(gather: float, reduce: float, calls: int = 4):
    """Sums of a process that has waited so many seconds in each."""
    rows = ((GATHER, gather), (REDUCE, reduce))
    return sums_of(OperationRow(*key, calls, 100, ns(seconds), 0) for key, seconds in rows)


def parts(rank, account) -> dict:
    """By operation (skew, transfer, not known), in seconds."""
    return {
        key: tuple(
            ns / 1e9 for ns in (row.skew_ns, row.transfer_ns, row.gpu_ns - row.skew_ns - row.transfer_ns)
        )
        for key, row in of_rank(rank.exposed, account.least_waits).items()
    }


def test_late_rank_by_hand():
    """Rank 1 works 0.3 s a step longer: rank 0 waits for it, 0.1 s in all-gathers and 0.2 s in all-reduces."""
    first = Process(0, sums=sums(0.8, 1.2)).steps(4, forward=1, communication=0.5).finished()
    late = Process(1, sums=sums(0.4, 0.4)).steps(4, forward=1.3, communication=0.2).finished()
    account = account_of(first, late)
    assert account.ranks[0].states[INDEX["straggler"]] == ns(1.2)
    assert parts(account.ranks[0], account) == {GATHER: (0.4, 0.4, 0), REDUCE: (0.8, 0.4, 0)}
    assert parts(account.ranks[1], account) == {GATHER: (0, 0.4, 0), REDUCE: (0, 0.4, 0)}
    rows = {row["operation"]: row for row in document(account)["collectives"]}
    gather, reduce = rows["all_gather"], rows["all_reduce"]
    assert (gather["gpu_seconds"], gather["skew_gpu_seconds"], gather["transfer_gpu_seconds"]) == (
        1.2,
        0.4,
        0.8,
    )
    assert (reduce["gpu_seconds"], reduce["skew_gpu_seconds"], reduce["transfer_gpu_seconds"]) == (
        1.6,
        0.8,
        0.8,
    )
    assert document(account)["basis"]["collective_skew"] == "estimated"
    one = rank_collectives(account, 1, 0)["ranks"][0]
    assert sum(row["skew_ns"] for row in one["operations"]) == one["straggler_ns"] == ns(1.2)
    assert {row["operation"]: row["transfer_ns"] for row in one["operations"]} == {
        "all_gather": ns(0.4),
        "all_reduce": ns(0.4),
    }


def test_ranks_that_take_turns_leave_only_bounds():
    """Each waits 0.4 s for the other in two of four steps, in all 0.8 s; both have waited as long in each operation."""
    own = [
        Process(rank, sums=sums(0.2, 1.4)).steps(2, forward=1 + 0.4 * rank, communication=0.6 - 0.4 * rank)
        for rank in (0, 1)
    ]
    own = [
        one.steps(2, forward=1.4 - 0.4 * rank, communication=0.2 + 0.4 * rank) for rank, one in enumerate(own)
    ]
    account = account_of(*(one.finished() for one in own))
    for rank in account.ranks:
        assert rank.states[INDEX["straggler"]] == ns(0.8)
        # Of 1.6 s, 0.8 s were waiting for the other: 0.2 s of all-gathers can have been either, as can as much of the rest.
        assert parts(rank, account) == {GATHER: (0, 0, 0.2), REDUCE: (0.6, 0.6, 0.2)}


def test_one_operation_has_all():
    one = Process(0, sums=sums(0, 2)).steps(4, forward=1, communication=0.5).finished()
    late = Process(1, sums=sums(0, 0.8)).steps(4, forward=1.3, communication=0.2).finished()
    account = account_of(one, late)
    assert parts(account.ranks[0], account)[REDUCE] == (1.2, 0.8, 0)


def test_rank_alone_pays_transfers():
    account = account_of(Process(0, sums=sums(0.4, 1)).steps(4, forward=1, communication=0.5).finished())
    assert parts(account.ranks[0], account) == {
        GATHER: (0, 0.4, 0),
        REDUCE: (0, 1, 0),
        NOT_RECORDED: (0, 0.6, 0),
    }


def test_waits_are_compared_by_call():
    """The rank that waited least a call: 10 ns in 4 calls, of which one with 6 calls would have waited 15."""
    least = LeastWaits()
    least.add("1", [REDUCE], [4], [10])
    least.add("1", [REDUCE], [6], [30])
    least.add("2", [REDUCE], [1], [1])
    assert least.beyond("1", [REDUCE], [6], [30]) == [15]
    assert least.beyond("1", [REDUCE, GATHER, ("", "other")], [4, 1, 1], [10, 5, 5]) == [0, 0, 0]


def test_split_is_exact_and_bounded():
    """Whole ns: no part is negative or above the operation's, and what is divided sums to the whole."""
    chosen = random.Random(3)
    for _ in range(2000):
        waits = [chosen.choice((0, 1, chosen.randrange(1 << 40))) for _ in range(chosen.randint(1, 6))]
        straggler = chosen.choice((0, sum(waits), chosen.randint(0, sum(waits))))
        beyond = [chosen.choice((0, 0, 1, chosen.randrange(1 << 41))) for _ in waits]
        skew, transfer = split(waits, straggler, beyond)
        assert min(skew) >= 0 and min(transfer) >= 0
        assert all(one + other <= ns for one, other, ns in zip(skew, transfer, waits, strict=True))
        if sum(beyond) * 2 >= straggler and any(beyond):
            assert sum(skew) == straggler and sum(skew) + sum(transfer) == sum(waits)
        else:
            assert sum(skew) <= straggler and sum(transfer) <= sum(waits) - straggler
