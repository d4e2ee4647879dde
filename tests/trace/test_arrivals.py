"""Arrivals on aligned clocks: hand-worked calls on clocks hours apart, groups that share ranks, and ends that differ."""

from goodput.trace.arrivals import align, skew_of

HOUR = 3600 * 10**9
UNIX = 1_795_446_062_000_000_000
AHEAD = {0: 0, 1: 5 * HOUR, 2: -7 * HOUR, 3: 123_456_789}


def calls(late: dict[int, int], count: int = 5, left=lambda rank, at: 0) -> list[dict[int, tuple[int, int]]]:
    """A call every ms, which all leave 500 us after it began, but for `left` later."""
    return [
        {
            rank: (
                UNIX + AHEAD[rank] + at * 10**6 + by,
                UNIX + AHEAD[rank] + at * 10**6 + 500_000 + left(rank, at),
            )
            for rank, by in late.items()
        }
        for at in range(count)
    ]


def ends(found):
    return [{rank: left for rank, (_, left) in call.items()} for call in found]


def test_late_rank_on_clocks_hours_apart():
    found = calls({0: 0, 1: 300, 2: 40_000})
    clocks = align({"dp": ends(found)})
    skew = skew_of(found, clocks)
    assert skew.skews == [40_000] * 5 and skew.most_often_last() == (2, 1.0)
    assert clocks.left_ns == {"dp": 0}


def test_groups_that_share_a_rank_share_one_time():
    first, second = calls({0: 0, 1: 10}), calls({1: 7, 2: 0})
    across = calls({0: 100, 2: 350}, count=1)
    clocks = align({"a": ends(first), "b": ends(second), "few": ends(across)})
    assert skew_of(across, clocks).skews == [250]
    apart = align({"a": ends(first), "few": ends(across), "c": ends(calls({2: 0, 3: 0}))})
    assert skew_of(across, apart).skews == []
    assert skew_of(across, align({"few": ends(across)})).skews == []


def test_what_ends_still_differ_is_the_uncertainty():
    found = calls({0: 0, 1: 0}, left=lambda rank, at: rank * (0, 80, 100, 130, 900)[at])
    clocks = align({"dp": ends(found)})
    assert clocks.left_ns == {"dp": 30}  # of |0, 80, 100, 130, 900 - 100|, the median
    assert skew_of(found, clocks).skews == [100] * 5
