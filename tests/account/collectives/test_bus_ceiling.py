"""The ceiling of the bus bandwidth, worked by hand: of links between nodes, of a probe, and unknown."""

import pytest
from support.account.account_history import Process, account_of, ns

from goodput.account import document
from goodput.account.collectives.operation_sums import sums_of
from goodput.account.text import render
from goodput.causes import communication
from goodput.wire.operation_row import OperationRow

GIGABYTE = 10**9
LINK = 6_250_000_000  # two ports of 25 Gb/s: 2 x 25 / 8 = 6.25 GB/s


def account(
    *, probed: float | None = None, links: tuple[int, int] = (LINK, LINK), local: int = 2, world: int = 4
):
    """Ranks 0 and 1 on n0, 2 and 3 on n1. Rank 1 comes last and waits 0.5 s for 1 GB in `dp`, of all ranks; 0.1 s in `tp`.

    In `dp` its links carry at most 2 x 3 / 4 x 1 GB / 0.5 s = 3 GB/s; in `tp`, of two ranks, 2 x 1 / 2 x 1 GB / 0.1 s.
    """
    processes = []
    for rank in range(world):
        seconds = 0.5 if rank == 1 else 2.0
        rows = [
            OperationRow(
                "dp", "all_reduce", 10, GIGABYTE, ns(seconds), 0, 0, world, -1, -1, local, links[rank // 2]
            ),
            OperationRow("tp", "all_reduce", 10, GIGABYTE, ns(0.1), 0, 0, 2, -1, -1, 2, 0),
        ]
        one = Process(rank, 1, 0.0, host=f"n{rank // 2}", sums=sums_of(rows))
        processes.append(one.steps(10, forward=1, communication=seconds / 10 + 0.01).finished())
    found = account_of(*processes)
    for rank in found.ranks:
        rank.reached_bus_bytes_per_second = probed
    return found


def ceilings(found) -> dict[str, tuple]:
    names = (
        "algorithm_bytes_per_second_max",
        "bus_bytes_per_second_max",
        "bus_ceiling_bytes_per_second",
        "bus_ceiling_source",
    )
    return {
        row["group"]: tuple(row[name] for name in names)
        for row in document(found)["collectives"]
        if row["group"]
    }


def words_of(found) -> str:
    """The report without its line breaks."""
    return " ".join(render(document(found), full=True).split())


def test_links_are_the_ceiling_of_groups_between_nodes():
    """3 of 6.25 GB/s are 48 %; nothing says what ranks of one node reach."""
    found = account()
    assert ceilings(found) == {
        "dp": (pytest.approx(2e9), pytest.approx(3e9), LINK, "link"),
        "tp": (pytest.approx(10e9), pytest.approx(10e9), None, None),
    }
    assert "algorithm ≤ 2 GB/s, bus ≤ 3 GB/s, 48.0 % of the 6.25 GB/s that its links can;" in words_of(found)


def test_probe_is_the_ceiling_where_there_is_one():
    """It crossed the links between nodes, so it says nothing of ranks of one node."""
    found = account(probed=4e9)
    assert ceilings(found)["dp"][2:] == (4e9, "probe")
    assert ceilings(found)["tp"][2:] == (None, None)
    assert "bus ≤ 3 GB/s, 75.0 % of the 4 GB/s that goodput probe reached;" in words_of(found)


def test_probe_of_a_node_is_its_ceiling():
    """Of a run of that node alone."""
    found = account(probed=4e9, world=2, links=(0, 0))
    assert [ceilings(found)[group][2:] for group in ("dp", "tp")] == [(4e9, "probe")] * 2


def test_node_with_slower_links_does_not_lower_the_ceiling():
    """A port that came up with a quarter of its rate is then seen as what it is: a slow link."""
    assert ceilings(account(links=(LINK, LINK // 4)))["dp"][2:] == (LINK, "link")
    assert ceilings(account(links=(0, LINK)))["dp"][2:] == (LINK, "link")


def test_no_text_where_nothing_is_known():
    assert ceilings(account(links=(0, 0)))["dp"][2:] == (None, None)
    found = account()
    found.is_part = True
    assert ceilings(found)["dp"] == (None, None, None, None)


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ((LINK, LINK), "The links carry at most 3 GB/s of the 6.25 GB/s of the nodes' interfaces: "),
        (
            (4 * GIGABYTE, 4 * GIGABYTE),
            "The links are well used (at most 3 GB/s of the 4 GB/s of the nodes' interfaces)",
        ),
        ((2 * GIGABYTE, 2 * GIGABYTE), "A part of it is hidden already"),
    ],
)
def test_advice_compares_with_links(links, words):
    text = communication.advise(account(links=links))
    assert words in text and "in all_reduce of group dp" in text
