"""Advice on communication: messages that are too small, links that are slow, links that are well used, nothing known."""

import pytest
from support.account.account_history import Process, account_of, ns

from goodput.account.collectives.operation_sums import sums_of
from goodput.causes import communication
from goodput.wire.operation_row import OperationRow

GIGABYTE = 10**9


def account(
    calls: int,
    size: int,
    *,
    seconds: float = 2.0,
    ranks: int = 2,
    reached: float | None = None,
    hidden=(-1, -1),
):
    """Two ranks with 2 s in all-reduces each, of which the other operation has a tenth; bus factor 1."""
    sums = sums_of(
        [
            OperationRow("dp", "all_reduce", calls, size, ns(0.9 * seconds), 0, 0, ranks, *hidden),
            OperationRow("tp", "broadcast", 7, 7, ns(0.1 * seconds), 0, size=ranks),
        ]
    )
    processes = [
        Process(rank, sums=sums).steps(20, forward=1, communication=0.1).finished() for rank in range(2)
    ]
    found = account_of(*processes)
    for rank in found.ranks:
        rank.reached_bus_bytes_per_second = reached
    return found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"calls": 9000, "size": 9000 * 4000}, "too small for the links"),
        ({"calls": 90, "size": 18 * GIGABYTE, "reached": 40e9}, "slow link or NIC"),
        (
            {"calls": 90, "size": 18 * GIGABYTE, "reached": 12e9},
            "The links are well used (at most 10 GB/s of the 12 GB/s",
        ),
        ({"calls": 90, "size": 18 * GIGABYTE, "reached": 9e9}, "A part of it is hidden already"),
    ],
)
def test_reason_by_what_links_carry(given, words):
    text = communication.advise(account(**given))
    assert text.startswith("90.0 % of the waiting is in all_reduce of group dp, ") and words in text


@pytest.mark.parametrize(
    ("hidden", "words", "advice"),
    [
        ((0.02, 0.1), "Nothing overlaps it (1.1 % to 5.3 % of it is hidden", communication.ADVICE),
        ((0.6, 0.9), "25.0 % to 33.3 % of it is hidden behind other work.", communication.ADVICE),
        (
            (5.4, 7.2),
            "75.0 % to 80.0 % of it is hidden behind other work already.",
            "more overlap brings little.",
        ),
    ],
)
def test_advice_by_what_is_hidden(hidden, words, advice):
    """Of 1.8 s a rank in all-reduces, and as much GPU time again that each rank has hidden, at least and at most."""
    found = account(90, 18 * GIGABYTE, hidden=tuple(map(ns, hidden)))
    text = communication.advise(found)
    assert words in text and text.endswith(advice)
    for rank in found.ranks:
        rank.reached_bus_bytes_per_second = 12e9
    assert (
        f"well used (at most 10 GB/s of the 12 GB/s that goodput probe reached). {words}"
        in communication.advise(found)
    )


def test_late_ranks_come_before_the_size_of_messages():
    """Rank 0 waits 2 s in small calls and rank 1, which is late, 0.2 s: 1.8 of 2.2 s are waiting for it."""
    processes = []
    for rank, spent in ((0, 2.0), (1, 0.2)):
        sums = sums_of([OperationRow("dp", "all_reduce", 90, 360_000, ns(spent), 0, size=2)])
        one = Process(rank, sums=sums)
        processes.append(one.steps(20, forward=1.1 - spent / 20, communication=spent / 20).finished())
    text = communication.advise(account_of(*processes))
    assert text.startswith(
        "At least 81.8 % of all waiting is for late ranks, so begin with the cause straggler. 100.0 %"
    )
    assert "too small for the links" in text


def test_no_advice_on_links_without_ceiling_or_size():
    for given in ({"ranks": 2}, {"ranks": 0, "reached": 40e9}):
        text = communication.advise(account(90, 18 * GIGABYTE, **given))
        assert text.endswith(communication.ADVICE) and "200 MB a call" in text
    assert communication.advise(account(0, 0)) == communication.ADVICE
    plain = account_of(Process(0).steps(20, forward=1, communication=0.1).finished())
    assert communication.advise(plain) == communication.ADVICE


@pytest.mark.parametrize("operation, is_named", [("all_reduce", True), ("recv", False)])
def test_pipeline_names_small_collectives_but_not_its_own_sends(operation, is_named):
    """Two stages that wait 0.9 s in small calls: of a collective these could be larger, of microbatches not."""
    sums = sums_of([OperationRow("g", operation, 900, 900 * 4000, ns(0.9), 0, size=2)])
    processes = [
        Process(rank, stage=rank, microbatches=2, sums=sums)
        .steps(20, forward=0.1, communication=0.1)
        .finished()
        for rank in range(2)
    ]
    text = communication.advise(account_of(*processes))
    assert ("too small for the links" in text) == is_named
    assert text.startswith("Overlap the sends and receives") != is_named
    assert text.endswith("microbatches of uneven work wait here too.")
