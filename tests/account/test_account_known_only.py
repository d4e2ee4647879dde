"""The account of a running run with `known_only`: it ends with the oldest report of a rank."""

import pytest
from support.account.account_history import Process

from goodput.account import Attempt, Run, compute
from goodput.account.states import INDEX

SECOND = 1_000_000_000


def running(rank: int, steps: int, seen: float) -> Attempt:
    """A live rank with steps of one second, a quarter of it loader, last reported in its loader at `seen` seconds."""
    one = Process(rank, world_size=2).steps(steps, loader=0.25, forward=0.75).silent(seen - steps)
    return received(one, phase="loader")


def received(one: Process, phase: str) -> Attempt:
    attempt = one.attempt()
    attempt.phase, attempt.received_ns = phase, attempt.seen_ns
    return attempt


def account(*attempts: Attempt, now: float, **options):
    run = Run("r", {(a.rank, a.attempt): a for a in attempts})
    return compute(run, round(now * SECOND), known_only=True, **options)


def seconds(rank, state: str) -> float:
    return rank.states[INDEX[state]] / SECOND


def test_time_since_the_last_report_is_left_out():
    found = account(running(0, 8, seen=8), running(1, 8, seen=8), now=13)
    assert (found.status, found.end_ns) == ("running", 8 * SECOND)
    assert [seconds(rank, "loader") for rank in found.ranks] == [2, 2]
    # Provisionally the compute of the first step is `compile`, until the next 15 are known.
    assert found.ratio("goodput") == 7 * 0.75 / 8


def test_account_ends_at_the_oldest_report():
    """Rank 0 is known up to 10 s, rank 1 up to 6.5 s: of rank 0's seventh step the first half counts.

    Of both the 0.75 s of compute of the first step are `compile` until the next 15 are known.
    """
    found = account(running(0, 10, seen=10), running(1, 6, seen=6.5), now=11)
    assert found.end_ns == 6.5 * SECOND
    ahead, behind = found.ranks
    assert sum(ahead.states) == sum(behind.states) == found.end_ns
    assert ahead.kept_steps == behind.kept_steps == 6
    assert (seconds(ahead, "loader"), seconds(ahead, "productive")) == (1.625, 4.875 - 0.75)
    assert (seconds(behind, "loader"), seconds(behind, "productive")) == (2.0, 4.5 - 0.75)


def test_stale_rank_does_not_hold_the_end_back():
    found = account(running(0, 40, seen=40), running(1, 6, seen=6), now=40, stale_seconds=30)
    assert found.end_ns == 40 * SECOND
    assert seconds(found.ranks[1], "unobserved") == 34


def test_steady_run_has_steady_ratios():
    ratios = {
        account(running(0, 12, seen=12), running(1, 12, seen=12), now=now).ratio("goodput")
        for now in range(12, 40)
    }
    assert ratios == {11 * 0.75 / 12}  # the first step's compute is `compile` until 15 more are known


@pytest.mark.parametrize("seen", [0.25, 3.0, 7.75, 8.0, 12.0])
def test_states_close_at_any_end(seen):
    steps = int(seen)
    found = account(running(0, 12, seen=12), running(1, steps, seen=seen), now=15)
    assert found.end_ns == round(seen * SECOND)
    for rank in found.ranks:
        assert min(rank.states) >= 0 and sum(rank.states) == found.end_ns


def test_later_ends_and_starts_are_left_out():
    dead = running(1, 9, seen=9)
    dead.alive, dead.end_ns = False, round(9.5 * SECOND)
    again = received(Process(1, 2, 11, world_size=2).between(none=1), phase="none")
    found = account(running(0, 8, seen=8), dead, again, now=12)
    assert found.end_ns == 8 * SECOND
    assert seconds(found.ranks[1], "down") == 0 and seconds(found.ranks[1], "productive") == 6
    assert all(sum(rank.states) == found.end_ns for rank in found.ranks)
