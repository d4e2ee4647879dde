"""What is wrong with a collective, by hand-worked cases: what each rank has entered, and the expected verdict."""

import pytest

from goodput.account.collective_verdict import shown_ranks, verdict
from goodput.account.collectives.calls import Call, GroupCalls, RankCalls

SECOND = 10**9


def call(sequence: int, operation="all_reduce", size=4_000_000, dtype="float32", peer=-1, left=False, at=10):
    return Call(sequence, operation, dtype, size, peer, at * SECOND, 11 * SECOND if left else 0)


def group(recent, name="0", ranks=((0, 1, 4),), backend="gloo", calls=None) -> GroupCalls:
    size = sum(count for _, _, count in ranks)
    entered = max((c.sequence for c in recent if c.operation not in ("send", "recv")), default=0)
    return GroupCalls(name, "", backend, size, ranks, entered if calls is None else calls, tuple(recent))


def rank(
    number: int, *groups: GroupCalls, phase="communication", gone="", stopped=False, whole=True
) -> RankCalls:
    return RankCalls(number, f"n{number}", phase, gone, 100 * SECOND, 5 * SECOND, groups, whole, stopped)


def test_rank_that_never_came_is_named_and_where_it_is():
    ranks = [rank(i, group([call(7, left=True), call(8)])) for i in (0, 1, 3)]
    found = verdict([*ranks, rank(2, group([call(7, left=True)]), phase="loader")])
    assert found is not None
    assert (found.kind, found.culprits, found.sequence, found.operation, found.entered) == (
        *("missing", (2,), 8),
        *("all_reduce", 3),
    )
    assert found.seconds == 95
    assert found.reason == (
        "rank 2 on n2 has not come to all_reduce (4 MB float32), number 8 of group 0 (ranks 0-3): it is in loader; "
        "ranks 0, 1, 3 wait in it for 95 s"
    )


def test_missing_rank_is_found_through_those_that_wait_for_it():
    """Ranks 0 and 1 wait for 2 and 3 in one group, these two wait for 5 in another: 5 is to blame."""
    tensor, data = ((0, 1, 4),), ((2, 1, 4),)
    ranks = [rank(i, group([call(3)], "tp", tensor)) for i in (0, 1)]
    ranks += [rank(i, group([], "tp", tensor), group([call(9)], "dp", data)) for i in (2, 3, 4)]
    found = verdict([*ranks, rank(5, group([call(8, left=True)], "dp", data), phase="forward")])
    assert found is not None
    assert (found.kind, found.culprits, found.group.name, found.sequence) == ("missing", (5,), "dp", 9)


@pytest.mark.parametrize("gone", ["dead", "silent", "finished"])
def test_rank_that_is_gone_comes_before_one_that_is_late(gone):
    ranks = [rank(0, group([call(8)])), rank(1, group([call(7, left=True)]), phase="forward")]
    found = verdict([*ranks, rank(2, group([call(7)]), gone=gone), rank(3, group([call(8)]))])
    assert found is not None and found.kind == "missing"
    assert found.culprits[0] == (1 if gone == "silent" else 2)


def test_rank_that_never_used_the_group_is_missing():
    found = verdict([*(rank(i, group([call(1)])) for i in range(3)), rank(3, phase="none")])
    assert found is not None and (found.kind, found.culprits) == ("missing", (3,))
    assert "it is in no phase" in found.reason


def test_rank_without_a_report_is_missing_only_where_ranks_are_known():
    found = verdict([rank(i, group([call(1)])) for i in range(3)])
    assert found is not None and found.culprits == (3,) and "it has never reported" in found.reason
    unknown = [GroupCalls("0", "", "gloo", 4, (), 1, (call(1),)) for _ in range(3)]
    found = verdict([rank(i, one) for i, one in enumerate(unknown)])
    assert found is not None and found.kind == "network"


def test_group_that_a_report_had_no_room_for_is_not_missed():
    found = verdict([*(rank(i, group([call(1)])) for i in range(3)), rank(3, whole=False)])
    assert found is not None and (found.kind, found.culprits) == ("missing", ())
    assert "of rank 3 no calls are known" in found.reason


@pytest.mark.parametrize(
    ("other", "kind", "text"),
    [
        (call(8, "broadcast", peer=0), "operation", "rank 2 calls broadcast (4 MB float32, root 0)"),
        (call(8, size=2_000_000), "size", "rank 2 calls all_reduce (2 MB float32)"),
        (call(8, dtype="float16"), "dtype", "rank 2 calls all_reduce (4 MB float16)"),
    ],
)
def test_rank_with_another_call_is_named(other, kind, text):
    ranks = [rank(i, group([call(8)])) for i in (0, 1, 3)]
    found = verdict([*ranks, rank(2, group([other]))])
    assert found is not None
    assert (found.kind, found.culprits, found.sequence) == (kind, (2,), 8)
    assert text in found.reason and "ranks 0, 1, 3 call all_reduce (4 MB float32)" in found.reason


def test_two_ranks_with_different_calls_are_both_shown_and_none_named():
    pair = ((0, 1, 2),)
    found = verdict([rank(0, group([call(8)], ranks=pair)), rank(1, group([call(8, size=8)], ranks=pair))])
    assert found is not None and (found.kind, found.culprits) == ("size", ())
    assert [rank for rank, _ in found.calls] == [0, 1]


def test_same_calls_in_another_order():
    here, there = [call(5), call(6, size=8)], [call(5, size=8), call(6)]
    ranks = [rank(i, group(here)) for i in (0, 2, 3)]
    found = verdict([*ranks, rank(1, group(there))])
    assert found is not None
    assert (found.kind, found.culprits, found.sequence) == ("order", (1,), 5)


ONE, OTHER = {"size": 4_000_000}, {"size": 12_000_000}


@pytest.mark.parametrize(
    ("culprit", "others"),
    [
        ([OTHER], [[ONE, OTHER], [ONE, OTHER]]),  # It was aborted before its second call,
        ([OTHER], [[ONE, OTHER], [ONE]]),  # and so was another one,
        ([OTHER, ONE], [[ONE], [ONE, OTHER]]),  # or another one alone,
        ([OTHER, ONE], [[ONE], [ONE]]),  # or all others.
        ([OTHER, ONE, ONE], [[ONE, OTHER], [ONE, OTHER, ONE]]),
    ],
)
def test_order_is_seen_although_ranks_ended_before_their_next_call(culprit, others):
    ranks = [[call(5 + at, **one) for at, one in enumerate(made)] for made in (culprit, *others)]
    found = verdict([rank(i, group(made, ranks=((0, 1, 3),)), gone="dead") for i, made in enumerate(ranks)])
    assert found is not None and (found.kind, found.culprits, found.sequence) == ("order", (0,), 5)


@pytest.mark.parametrize(
    ("culprit", "others"),
    [
        ([OTHER], [[ONE], [ONE]]),
        ([OTHER], [[ONE, ONE], [ONE, ONE]]),
        ([OTHER, OTHER], [[ONE, ONE], [ONE]]),
        ([OTHER, ONE], [[ONE, ONE], [ONE]]),
    ],
)
def test_another_size_is_no_order(culprit, others):
    ranks = [[call(5 + at, **one) for at, one in enumerate(made)] for made in (culprit, *others)]
    found = verdict([rank(i, group(made, ranks=((0, 1, 3),)), gone="dead") for i, made in enumerate(ranks)])
    assert found is not None and (found.kind, found.culprits, found.sequence) == ("size", (0,), 5)


def test_difference_comes_before_who_is_late():
    """The broadcast's root goes on alone: the others' number 8 is its number 8 all the same."""
    ranks = [rank(i, group([call(8)])) for i in (1, 2, 3)]
    found = verdict([*ranks, rank(0, group([call(8, "broadcast", peer=0, left=True), call(9)]))])
    assert found is not None and (found.kind, found.culprits, found.sequence) == ("operation", (0,), 8)


@pytest.mark.parametrize("operation", ["all_to_all", "barrier"])
def test_sizes_that_may_differ_are_no_difference(operation):
    found = verdict([rank(i, group([call(8, operation, size=i)])) for i in range(4)])
    assert found is not None and found.kind == "network"


def test_ranks_without_a_tensor_in_a_gather_are_no_difference():
    ranks = [
        rank(i, group([call(8, "scatter", size=4 * (i > 0), dtype="int8" if i else "", peer=0)]))
        for i in range(4)
    ]
    found = verdict(ranks)
    assert found is not None and found.kind == "network"


def test_cycle_of_groups_is_shown():
    """0 waits in a for 1, 1 waits in b for 2, 2 waits in c for 0."""
    pairs = {"a": ((0, 1, 2),), "b": ((1, 1, 2),), "c": ((0, 2, 2),)}
    one = lambda name, *recent: group(recent, name, pairs[name])  # noqa: E731
    found = verdict(
        [
            rank(0, one("a", call(3)), one("c")),
            rank(1, one("a"), one("b", call(5))),
            rank(2, one("b"), one("c", call(1))),
        ]
    )
    assert found is not None and found.kind == "deadlock" and found.culprits == ()
    assert [(link.rank, link.group, link.sequence, link.waits_for) for link in found.cycle] == [
        *((0, "a", 3, 1), (1, "b", 5, 2)),
        (2, "c", 1, 0),
    ]


def test_two_ranks_that_both_receive_are_a_cycle():
    pair = ((0, 1, 2),)
    ranks = [rank(i, group([call(1, "recv", peer=1 - i)], ranks=pair)) for i in range(2)]
    found = verdict(ranks)
    assert found is not None and found.kind == "deadlock" and len(found.cycle) == 2


def test_receiver_waits_for_a_sender_that_is_elsewhere():
    pair = ((0, 1, 2),)
    found = verdict([rank(0, group([call(1, "recv", peer=1)], ranks=pair)), rank(1, phase="optimizer")])
    assert found is not None and (found.kind, found.culprits, found.operation) == ("missing", (1,), "recv")


def test_sends_and_receives_are_calls_of_their_ranks_alone():
    """Their numbers are counted by each rank: call 8 of another rank is another call, a collective's number 8 too."""
    ranks = [
        rank(0, group([call(8, "recv", peer=2)])),
        rank(1, group([call(8, "send", peer=2)])),
        rank(2, group([call(7, left=True)]), phase="forward"),
        rank(3, group([call(7, left=True), call(8)])),
    ]
    found = verdict(ranks)
    assert found is not None and (found.kind, found.culprits, found.entered) == ("missing", (2,), 1)
    assert found.reason == (
        "rank 2 on n2 has not sent the data for recv (4 MB float32), number 8 of group 0 (ranks 0-3): it is in forward; "
        "rank 0 waits in it for 95 s"
    )
    found = verdict(ranks[1:])
    assert found is not None and [one for one, _ in found.calls] == [1]
    assert "has not received the data of send" in found.reason


def test_all_inside_and_none_leaves_is_the_network():
    found = verdict([rank(i, group([call(8)])) for i in range(4)])
    assert found is not None and (found.kind, found.culprits, found.entered) == ("network", (), 4)
    assert "none has left it" in found.reason


def test_stopped_process_in_the_collective_is_named():
    ranks = [rank(i, group([call(8)]), stopped=i == 2) for i in range(4)]
    found = verdict(ranks)
    assert found is not None and (found.kind, found.culprits) == ("stopped", (2,))


def test_nccl_call_that_the_host_left_counts_as_open():
    ranks = [rank(i, group([call(8, left=True)], backend="nccl")) for i in (0, 1, 3)]
    late = rank(2, group([call(7, left=True)], backend="nccl"), phase="forward")
    found = verdict([*ranks, late])
    assert found is not None and (found.kind, found.culprits) == ("missing", (2,))


def test_nothing_open_is_no_verdict():
    assert verdict([rank(i, group([call(8, left=True)]), phase="loader") for i in range(4)]) is None
    assert verdict([rank(0, phase="loader")]) is None


def test_ranks_are_shown_as_runs():
    assert shown_ranks(group([], ranks=((0, 1, 8), (16, 4, 3), (40, 1, 1)))) == "0-7,16-24/4,40"


def test_document_is_bounded():
    many = ((0, 1, 300),)
    found = verdict([rank(i, group([call(8)], ranks=many)) for i in range(100)])
    assert found is not None
    document = found.document()
    assert len(document["culprits"]) == len(document["calls"]) == 16


@pytest.mark.parametrize(
    ("gone", "stopped", "text"),
    [
        ("dead", False, "it is dead;"),
        ("", True, "its process is stopped;"),
        ("", False, "it is in no call that is open;"),
    ],
)
def test_rank_whose_phase_is_unknown(gone, stopped, text):
    """No half of a sentence is left where a phase would be."""
    call = Call(1, "all_reduce", "float32", 64, -1, 10, 0)
    group = GroupCalls("0", "default_pg", "", 2, ((0, 1, 2),), 1, (call,))
    waits = RankCalls(0, "", "", "", 100, 0, (group,))
    found = verdict([waits, RankCalls(1, "", "", gone, 100, 0, (), True, stopped)])
    assert found is not None and found.culprits == (1,)
    assert text in found.reason
