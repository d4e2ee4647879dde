"""Advice on communication: messages that are too small, links that are slow, links that are well used, nothing known."""

import pytest
from support.account.account_history import Process, account_of, ns

from goodput.account.collectives.operation_sums import sums_of
from goodput.causes import communication
from goodput.wire.operation_row import OperationRow

GIGABYTE = 10**9


def account(calls: int, size: int, *, seconds: float = 2.0, ranks: int = 2, reached: float | None = None):
    """Two ranks with 2 s in all-reduces each, of which the other operation has a tenth; bus factor 1."""
    sums = sums_of(
        [
            OperationRow("dp", "all_reduce", calls, size, ns(0.9 * seconds), 0, size=ranks),
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


def test_no_advice_on_links_without_ceiling_or_size():
    for given in ({"ranks": 2}, {"ranks": 0, "reached": 40e9}):
        text = communication.advise(account(90, 18 * GIGABYTE, **given))
        assert text.endswith(communication.ADVICE) and "200 MB a call" in text
    assert communication.advise(account(0, 0)) == communication.ADVICE
    plain = account_of(Process(0).steps(20, forward=1, communication=0.1).finished())
    assert communication.advise(plain) == communication.ADVICE
