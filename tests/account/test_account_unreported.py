"""Unreported ranks: each has the account it would have alone, and ranges of them cost no more than one."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.account.account_history import Process, each_rank, ns, run_of
from support.account.random_histories import number_ns, runs

from goodput.account import compute, document, facts
from goodput.account.document import UNSEEN_LISTED_MAX
from goodput.account.facts import ExpectedRanks, RankRange, expected_ranks
from goodput.account.states import INDEX
from goodput.causes import explain

WORLD_MAX = 1 << 18


def histories() -> dict[str, list]:
    """A world of 5 that shrinks and grows, of which ranks 0 and 3 report; and one with one attempt."""
    declared = {"gpu_hour_cost": 2.0, "peak_flops_per_second": 1e12, "flops_per_step": 1e9, "devices": 2}
    one = [Process(rank, 1, 1000.0, world_size=6, **declared).steps(4, forward=1) for rank in (0, 3)]
    more = [
        Process(0, 2, 1100.0, world_size=2, **declared).steps(4, forward=1),
        Process(0, 3, 1200.0, world_size=6, **declared).steps(4, forward=1),
    ]
    return {"one": one, "more": [*one, *more]}


def spans_by_rank(run, start_ns: int, end_ns: int) -> dict[int, list[tuple[int, int]]]:
    """`expected_ranks` rank by rank, as its docstring says."""
    starts, worlds = run.starts(), {}
    for (rank, number), attempt in run.attempts.items():
        worlds[number] = max(attempt.world_size, rank + 1, worlds.get(number, 1))
    if not worlds:
        return {0: [(start_ns, end_ns)]}
    spans, begin, numbers = {}, start_ns, sorted(worlds)
    for number, later in zip(numbers, [*numbers[1:], None], strict=True):
        over = end_ns if later is None else min(max(begin, starts[later]), end_ns)
        for rank in range(worlds[number]):
            own = spans.setdefault(rank, [])
            if own and own[-1][1] == begin:
                own[-1] = (own[-1][0], over)
            else:
                own.append((begin, over))
        begin = over
    return spans


def one_by_one(expected: ExpectedRanks) -> ExpectedRanks:
    """The same with a range for each rank."""
    return ExpectedRanks(
        RankRange(first + at, 1, list(spans))
        for first, count, spans in expected.ranges
        for at in range(count)
    )


@pytest.mark.parametrize("name", ["one", "more"])
def test_ranges_hold_each_rank_once(name):
    run = run_of(*histories()[name])
    found, want = expected_ranks(run, ns(1000), ns(1300), {}), spans_by_rank(run, ns(1000), ns(1300))
    assert {rank: found.spans_of(rank) for rank in range(-1, 8) if found.spans_of(rank)} == want
    assert len(found) == len(want) == 6
    apart = [(one.first, one.count) for one in found.apart([3, 0, 77])]
    assert apart == (
        [(0, 1), (1, 2), (3, 1), (4, 2)] if name == "one" else [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2)]
    )


@settings(max_examples=40)
@given(runs(), number_ns, st.none() | st.tuples(number_ns, number_ns), st.integers(1, 12))
def test_ranges_equal_ranks_one_by_one(run, now_ns, window, world):
    """Any run and window: the same sums, document and factors as with an account for each rank."""
    for attempt in run.attempts.values():
        attempt.world_size = max(attempt.world_size, world)
    found = compute(run, now_ns, window=window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facts, "expected_ranks", lambda *given: one_by_one(expected_ranks(*given)))
        want = compute(run, now_ns, window=window)
    assert each_rank(found) == want.ranks and all(rank.count == 1 for rank in want.ranks)
    assert (found.gpu_ns(), found.wall_gpu_ns()) == (want.gpu_ns(), want.wall_gpu_ns())
    assert (found.world_size, found.once, found.restarts) == (want.world_size, want.once, want.restarts)
    assert_alike(document(found, explain(found)), document(want, explain(want)))
    spans = spans_by_rank(run, ns(0), now_ns)
    if run.only_ranks is None:
        assert {rank: expected_ranks(run, ns(0), now_ns, {}).spans_of(rank) for rank in spans} == spans


def assert_alike(found, want) -> None:
    """Equal, floats but for rounding: a sum of many equal addends is one product now."""
    if isinstance(want, dict):
        assert found.keys() == want.keys()
        for key in want:
            assert_alike(found[key], want[key])
    elif isinstance(want, list):
        assert len(found) == len(want)
        for one, other in zip(found, want, strict=True):
            assert_alike(one, other)
    else:
        assert found == (pytest.approx(want, rel=1e-12) if isinstance(want, float) else want)


def test_ranks_expected_at_other_times_are_apart():
    """Rank 1 is of all three worlds, ranks 2, 4 and 5 miss the second."""
    found = compute(run_of(*histories()["more"]), ns(1300), stale_seconds=30).ranks
    assert [(rank.rank, rank.count, rank.observed) for rank in found] == [
        (0, 1, True), (1, 1, False), (2, 1, False), (3, 1, True), (4, 2, False),
    ]  # fmt: skip
    assert found[1].wall_ns > found[2].wall_ns == found[4].wall_ns
    unobserved = INDEX["unobserved"]
    assert all(
        one.states[unobserved] == sum(one.states) == one.wall_ns > 0 for one in found if not one.observed
    )


def test_largest_world_costs_no_more_than_reported():
    """Four ranks of 262 144: the states sum to the wall time of all, in the memory of four."""
    declared = {"gpu_hour_cost": 2.0, "world_size": WORLD_MAX, "devices": 2}
    run = run_of(
        *[Process(rank, 1, 1000.0, **declared).steps(4, forward=1) for rank in (0, 7, 8, WORLD_MAX - 1)]
    )
    tracemalloc.start()
    account = compute(run, ns(1300), stale_seconds=30)
    found = document(account, explain(account))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(account.ranks) == 6 and account.rank_count() == account.world_size == WORLD_MAX
    assert most < 2 << 20
    assert sum(account.gpu_ns()) == account.wall_gpu_ns() == 2 * WORLD_MAX * ns(300)
    assert found["cost"]["total"] == pytest.approx(2 * WORLD_MAX * 300 / 3600 * 2)
    assert found["coverage"]["ranks"] == 4 / WORLD_MAX
    assert len(found["ranks"]) == UNSEEN_LISTED_MAX + 4
    (more,) = found["unseen_ranks"]
    assert (more["first"], more["last"]) == (UNSEEN_LISTED_MAX + 3, WORLD_MAX - 2)
    assert len(found["ranks"]) + more["ranks"] == WORLD_MAX
    for state, seconds in found["states"].items():
        listed = sum(rank["states"][state] for rank in found["ranks"])
        assert listed + more["states"][state] == pytest.approx(seconds)
