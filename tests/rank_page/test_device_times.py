"""Device times of NCCL's profiler plugin find the SDK's operations by bytes, and no operation where bytes do not agree."""

from collections.abc import Mapping

import pytest

from goodput.rank_page.collective_records import (
    HIDDEN_MAX,
    Collectives,
    Group,
    OfSteps,
    Sums,
    operation_rows,
)
from goodput.rank_page.device_times import ANY_GROUP, device_times
from goodput.wire.operation_row import PROFILED, UNKNOWN

MEGABYTE = 10**6


def page(*groups: tuple[str, int, int, Mapping[str, tuple[int, int]]], backend: str = "nccl") -> Collectives:
    """The SDK's: of each group its label, its size, the number of the rank in it, and (calls, bytes) of its operations."""
    found = [
        Group(str(at), label, backend, size, rank, (), 0, 0, 0)
        for at, (label, size, rank, _) in enumerate(groups)
    ]
    sums = [Sums(at, name, *one, 0) for at, group in enumerate(groups) for name, one in group[3].items()]
    return Collectives(0, 0, tuple(found), tuple(sums), ())


def plugin(*communicators: tuple[int, int, Mapping[str, tuple[int, int, OfSteps | None]]]) -> Collectives:
    """The plugin's: size, rank, and (calls, bytes, those of steps) by operation; all of it has taken some time."""
    found = [
        Group(f"{at:016x}", "", PROFILED, size, rank, (), 0, 0, 0)
        for at, (size, rank, _) in enumerate(communicators)
    ]
    sums, of_steps = [], {}
    for at, (_, _, operations) in enumerate(communicators):
        for name, (calls, size, steps) in operations.items():
            sums.append(Sums(at, name, calls, size, 0, device_ns=10**9))
            if steps is not None:
                of_steps[at, name] = steps
    return Collectives(0, 0, tuple(found), tuple(sums), (), of_steps=of_steps)


def test_rank_of_a_real_run():
    """DistributedDataParallel over NCCL 2.28.9: NCCL makes the barrier an all-reduce of 4 bytes, which is why they differ."""
    ours = page(
        ("default_pg", 2, 0, {
            "all_reduce": (157, 1_343_488_000), "broadcast": (4, 33_587_668), "all_gather": (1, 8), "barrier": (1, 0),
        })
    )  # fmt: skip
    of_steps, few = OfSteps(158, 1_343_488_004, 1_466_487_232), OfSteps(2, 84, 6048)
    theirs = plugin(
        (2, 0, {
            "all_reduce": (158, 1_343_488_004, of_steps), "broadcast": (4, 33_587_668, few), "all_gather": (1, 8, None),
        })
    )  # fmt: skip
    found = device_times(ours, theirs)
    assert found == {(0, "all_reduce"): of_steps, (0, "broadcast"): few, (0, "all_gather"): OfSteps(0, 0, 0)}
    rows = {
        row.operation: (row.queued, row.device_ns, row.device_bytes)
        for row in operation_rows(ours, device=found)
    }
    assert rows == {
        "all_reduce": (1, 1_466_487_232, 1_343_488_004),
        "broadcast": (1, 6048, 84),
        "all_gather": (1, 0, 0),  # All its calls were before the first step.
        "barrier": (1, UNKNOWN, 0),
    }


def test_groups_of_one_size_are_told_apart_by_their_bytes():
    small, large = OfSteps(100, 100 * MEGABYTE, 5), OfSteps(10, 1000 * MEGABYTE, 7)
    ours = page(
        ("tp", 2, 1, {"all_reduce": (100, 100 * MEGABYTE)}),
        ("dp", 2, 1, {"all_reduce": (10, 1000 * MEGABYTE)}),
    )
    theirs = plugin(
        (2, 1, {"all_reduce": (10, 1000 * MEGABYTE, large)}),
        (2, 1, {"all_reduce": (100, 100 * MEGABYTE, small)}),
    )
    assert device_times(ours, theirs) == {(0, "all_reduce"): small, (1, "all_reduce"): large}


def test_group_is_unknown_where_nothing_tells_it():
    """Two groups with the same calls: the sum is known, and whose is whose is not."""
    ours = page(*((name, 2, 0, {"all_reduce": (10, MEGABYTE)}) for name in ("tp", "dp")))
    theirs = plugin(*((2, 0, {"all_reduce": (10, MEGABYTE, OfSteps(9, MEGABYTE, ns))}) for ns in (3, 4)))
    found = device_times(ours, theirs)
    assert found == {(ANY_GROUP, "all_reduce"): OfSteps(18, 2 * MEGABYTE, 7)}
    rows = operation_rows(ours, device=found)
    assert [(row.group, row.operation, row.calls, row.device_ns) for row in rows] == [
        ("", "all_reduce", 0, 7),
        ("dp", "all_reduce", 10, UNKNOWN),
        ("tp", "all_reduce", 10, UNKNOWN),
    ]


def test_groups_of_one_label_are_one_row():
    ours = page(*(("dp", 2, 0, {"all_reduce": (10, MEGABYTE)}) for _ in range(2)))
    theirs = plugin(*((2, 0, {"all_reduce": (10, MEGABYTE, OfSteps(9, MEGABYTE, ns))}) for ns in (3, 4)))
    (row,) = operation_rows(ours, device=device_times(ours, theirs))
    assert (row.group, row.calls, row.device_ns, row.device_bytes) == ("dp", 20, 7, 2 * MEGABYTE)


@pytest.mark.parametrize(
    ("calls", "size", "is_known"),
    [
        (100, 100 * MEGABYTE, True),
        (101, 101 * MEGABYTE, True),  # one since the page was read
        (100, 110 * MEGABYTE, False),  # calls that the SDK does not see, or an earlier page of the process
        (50, 50 * MEGABYTE, False),
    ],
)
def test_other_bytes_are_other_calls(calls, size, is_known):
    ours = page(("dp", 8, 3, {"all_gather": (100, 100 * MEGABYTE)}))
    theirs = plugin((8, 3, {"all_gather": (calls, size, OfSteps(calls, size, 5))}))
    assert bool(device_times(ours, theirs)) is is_known


def test_barrier_alone_is_an_all_reduce_of_no_bytes():
    times = OfSteps(40, 160, 9)
    ours, theirs = page(("pg", 4, 0, {"barrier": (40, 0)})), plugin((4, 0, {"all_reduce": (40, 160, times)}))
    assert device_times(ours, theirs) == {(0, "barrier"): times}
    assert device_times(ours, plugin((4, 0, {"all_reduce": (90, 160, times)}))) == {}


def test_all_to_all_is_sends_and_receives():
    """Of 8 MB a call a rank of four sends 6 to the others; the pipeline's sends have communicators of two ranks."""
    sent, received = OfSteps(300, 600 * MEGABYTE, 8), OfSteps(300, 600 * MEGABYTE, 2)
    of_stage = OfSteps(50, 50 * MEGABYTE, 3)
    ours = page(
        ("ep", 4, 2, {"all_to_all": (100, 800 * MEGABYTE)}), ("pp", 8, 1, {"send": (50, 50 * MEGABYTE)})
    )
    theirs = plugin(
        (4, 2, {"send": (300, 600 * MEGABYTE, sent), "recv": (300, 600 * MEGABYTE, received)}),
        (2, 0, {"send": (50, 50 * MEGABYTE, of_stage)}),
    )
    assert device_times(ours, theirs) == {
        (0, "all_to_all"): OfSteps(300, 600 * MEGABYTE, 10),
        (1, "send"): of_stage,
    }


def test_without_the_plugin_or_steps_nothing_is_known():
    operations = {"all_reduce": (10, MEGABYTE)}
    ours, theirs = page(("dp", 2, 0, operations)), plugin((2, 0, {"all_reduce": (10, MEGABYTE, None)}))
    assert device_times(ours, None) == device_times(None, theirs) == device_times(ours, theirs) == {}
    (row,) = operation_rows(ours)
    assert (row.queued, row.device_ns) == (1, UNKNOWN)
    (row,) = operation_rows(page(("dp", 2, 0, operations), backend="gloo"))
    assert (row.queued, row.device_ns) == (0, UNKNOWN)


def test_operation_beyond_the_table_is_unknown():
    """The table of the plugin is full, so that an operation without an entry may have been in steps too."""
    times = OfSteps(1, MEGABYTE, 5)
    full = {(at, "reduce"): times for at in range(1, HIDDEN_MAX + 1)}
    ours = page(("dp", 2, 0, {"broadcast": (1, MEGABYTE)}))
    theirs = plugin((2, 0, {"broadcast": (1, MEGABYTE, None)}))
    assert device_times(ours, theirs._replace(of_steps=full)) == {}
    one = theirs._replace(of_steps={(1, "reduce"): times})
    assert device_times(ours, one) == {(0, "broadcast"): OfSteps(0, 0, 0)}
