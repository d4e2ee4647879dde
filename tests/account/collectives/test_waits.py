"""Who waits for whom, against a list of all pairs, and for so many ranks that there is no such list."""

import tracemalloc
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from goodput.account.collective_verdict import verdict
from goodput.account.collectives.calls import Call, GroupCalls, RankCalls
from goodput.account.collectives.waits import Group, Wait, Waits

SECOND = 10**9
RANKS = 5


def call(sequence: int, operation: str = "all_reduce", peer: int = -1, left: bool = False) -> Call:
    return Call(sequence, operation, "float32", 4, peer, 10 * SECOND, 11 * SECOND if left else 0)


CALLS = st.builds(call, st.integers(1, 5), st.just("all_reduce"), left=st.booleans()) | st.builds(
    call, st.integers(1, 5), st.sampled_from(["send", "recv"]), st.integers(-1, RANKS), st.booleans()
)


@st.composite
def groups(draw) -> Group:
    """Of some ranks, of which some have reported calls and some are absent."""
    ranks = draw(st.lists(st.integers(0, RANKS - 1), min_size=1, unique=True).map(sorted))
    runs = tuple((rank, 1, 1) for rank in ranks)
    members = {}
    for rank in draw(st.lists(st.sampled_from(ranks), min_size=1, unique=True)):
        recent = sorted(draw(st.lists(CALLS, max_size=4)))
        entered = max(
            [0, *(one.sequence for one in recent if one.peer < 0 and one.operation == "all_reduce")]
        )
        members[rank] = GroupCalls("0", "", "gloo", len(ranks), runs, entered, tuple(recent))
    about = next(iter(members.values()))
    absent = tuple(rank for rank in ranks if rank not in members and draw(st.booleans()))
    return Group(about, members, absent)


def all_pairs(found: list[Group]) -> dict[tuple, Wait]:
    """By kind of call, group, rank and the rank that it waits for, the first call in which it does."""
    waits: dict[tuple, Wait] = {}
    for at, group in enumerate(found):
        ranks = [first for first, _, _ in group.about.ranks]
        for rank, member in group.members.items():
            for one in member.recent:
                others = [
                    other for other in (*group.members, *group.absent) if group.entered(other) < one.sequence
                ]
                if one.operation != "all_reduce":
                    others = [ranks[one.peer]] if 0 <= one.peer < len(ranks) else []
                    theirs = group.members[others[0]].recent if others and others[0] in group.members else ()
                    opposite = {"send": "recv", "recv": "send"}[one.operation]
                    if any(
                        (that.operation, that.peer, that.exit_ns) == (opposite, ranks.index(rank), 0)
                        for that in theirs
                    ):
                        others = []
                for other in others if not one.exit_ns else ():
                    waits.setdefault((one.peer < 0, at, rank, other), Wait(group, one))
    return waits


@given(st.lists(groups(), min_size=1, max_size=3))
def test_waits_are_those_of_all_pairs(found):
    waits, pairs = Waits(found), all_pairs(found)
    assert waits.ranks == {rank for *_, rank, _ in pairs}
    assert waits.awaited().keys() == {other for *_, other in pairs}
    for rank in range(RANKS):
        others = {other for *_, one, other in pairs if one == rank}
        assert waits.first_for(rank) == min(others, default=None)
        assert waits.for_rank(rank).keys() == {one for *_, one, other in pairs if other == rank}
        for other in others:
            allowed = [wait for (*_, one, that), wait in pairs.items() if (one, that) == (rank, other)]
            assert waits.between(rank, other) in allowed


@given(
    groups().filter(
        lambda group: all(one.operation == "all_reduce" for m in group.members.values() for one in m.recent)
    )
)
def test_ranks_that_wait_are_counted(group):
    assert Waits([group]).awaited() == Counter(other for *_, other in all_pairs([group]))


def ranks_of(groups_of, count: int) -> list[RankCalls]:
    return [RankCalls(rank, "n", "forward", "", 100 * SECOND, 0, groups_of(rank)) for rank in range(count)]


def test_half_of_many_ranks_wait_for_the_others():
    """25 million pairs at 10 000 ranks: listed, they take gigabytes."""

    def of(rank: int) -> tuple[GroupCalls, ...]:
        recent = (call(8),) if rank % 2 else (call(7, left=True),)
        return (GroupCalls("0", "", "gloo", 10_000, ((0, 1, 10_000),), recent[0].sequence, recent),)

    ranks = ranks_of(of, 10_000)
    tracemalloc.start()
    try:
        found = verdict(ranks)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found is not None and found.entered == 5000 and len(found.culprits) == 5000
    assert peak_bytes < 100 << 20


def test_false_groups_keep_no_verdict_up():
    """One rank says that it is in 15 groups of 262 144 ranks of which nobody else knows. Compared in pairs, they take an hour."""

    def of(rank: int) -> tuple[GroupCalls, ...]:
        if rank:
            return (GroupCalls("0", "", "gloo", 3, ((0, 1, 3),), 4, (call(4, left=rank == 1),)),)
        real = GroupCalls("0", "", "gloo", 3, ((0, 1, 3),), 3, (call(3, left=True),))
        size = 1 << 18
        return real, *(
            GroupCalls(f"g{n}", "", "gloo", size, ((0, 1, size),), 5, (call(5),)) for n in range(15)
        )

    found = verdict(ranks_of(of, 3))
    assert found is not None and found.kind == "missing"
