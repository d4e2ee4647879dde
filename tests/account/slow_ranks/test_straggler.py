"""Stragglers, with hand-worked numbers."""

import pytest
from support.account.account_history import Process, account_of, assert_closes, in_step, ns, of_rank, run_of

from goodput.account import compute, document
from goodput.account.states import INDEX
from goodput.causes import explain


def test_excess_over_least_communication_is_straggler():
    account = account_of(*in_step(1.0, 2.0, 1.25))
    # All pay 0.5 s per step; ranks 0 and 2 wait 1 s and 0.75 s more for rank 1.
    assert of_rank(account, 0) == {"productive": 3.0, "communication": 1.5, "straggler": 3.0}
    assert of_rank(account, 1) == {"productive": 6.0, "communication": 1.5}
    assert of_rank(account, 2) == {"productive": 3.75, "communication": 1.5, "straggler": 2.25}


def test_slowdown_is_against_evenly_spread_work():
    account = account_of(*in_step(1.0, 2.0, 1.25, 1.75, steps=8))
    # A step takes 2.5 s; with a mean of 1.5 s of work it would take 2 s.
    assert account.straggler.slowdown() == 2.5 / 2.0
    assert account.straggler.shares() == [(1, 1.0)]
    assert account.straggler.culprit() == (1, "productive")


def test_culprit_has_its_longest_excess_state():
    ranks = [Process(r) for r in range(3)]
    for r, one in enumerate(ranks):
        wait = 0.5 if r == 2 else 0.0
        one.steps(8, loader=0.25 + wait, h2d=0.125, forward=1, communication=0.25 + 0.5 - wait).finished()
    account = account_of(*ranks)
    assert account.straggler.culprit() == (2, "loader")
    found = document(account)["straggler"]
    assert (found["culprit"], found["because"]) == (2, "loader")
    assert found["shares"] == [{"rank": 2, "host": "n2", "share": 1.0}]
    advice = next(c["advice"] for c in explain(account) if c["state"] == "straggler")
    assert "100 % of it is waiting for rank 2 on n2" in advice and "loader" in advice


def test_shares_of_steps_with_different_culprits():
    ranks = [Process(r) for r in range(3)]
    for step, slow in enumerate([0, 0, 0, 1] * 2):
        for r, one in enumerate(ranks):
            one.step(step, forward=2 if r == slow else 1, communication=0.5 if r == slow else 1.5)
    account = account_of(*(one.finished() for one in ranks))
    # Each step makes two ranks wait 1 s; six of the eight were for rank 0.
    assert account.straggler.shares() == [(0, 0.75), (1, 0.25)]
    assert account.straggler.slowdown() == (24 * 2.5) / (24 * 2.5 - 16)
    # Rank 0 did 14 s of work, the median is rank 1's 10 s.
    assert account.straggler.culprit() == (0, "productive")


def test_tie_is_shared_exactly():
    account = account_of(*in_step(2.0, 2.0, 1.0, steps=1))
    assert account.straggler.caused_ns == {0: ns(0.5), 1: ns(0.5)}
    odd = [Process(r).step(forward=1, communication=1 + (r == 2) * 1e-9).finished() for r in range(3)]
    assert account_of(*odd).straggler.caused_ns == {0: 1}, "the odd nanosecond is not lost"


def test_alternating_ranks_have_no_culprit():
    ranks = [Process(r) for r in range(4)]
    for step in range(8):
        for r, one in enumerate(ranks):
            slow = r == step % 4
            one.step(step, forward=2 if slow else 1, communication=0.5 if slow else 1.5)
    account = account_of(*(one.finished() for one in ranks))
    assert account.straggler.culprit() is None, "nobody's own time is above the median"
    assert [share for _, share in account.straggler.shares()] == [0.25] * 4
    assert account.straggler.slowdown() == 2.5 / (2.5 - 0.75)
    advice = next(c["advice"] for c in explain(account) if c["state"] == "straggler")
    assert "the slowest rank changes" in advice


def test_culprit_needs_two_percent_above_median():
    assert account_of(*in_step(1.0, 1.01, 1.0, steps=8)).straggler.culprit() is None
    assert account_of(*in_step(1.0, 1.03, 1.0, steps=8)).straggler.culprit() == (1, "productive")


def test_equal_or_single_ranks_have_no_straggler():
    even = account_of(*in_step(1.0, 1.0))
    assert even.gpu_ns()[INDEX["straggler"]] == 0
    assert (even.straggler.slowdown(), even.straggler.shares(), even.straggler.culprit()) == (1.0, [], None)
    alone = account_of(Process().steps(3, forward=1, communication=1).finished())
    assert of_rank(alone) == {"productive": 3.0, "communication": 3.0}
    assert alone.straggler.slowdown() is None


def test_groups_are_compared_separately():
    slow = in_step(3.0, 2.0, group="a")
    fast = [
        Process(r, group="b").steps(3, forward=0.5 * r, communication=0.5 + 0.5 * (3 - r)).finished()
        for r in (2, 3)
    ]
    account = account_of(*slow, *fast)
    # Rank 1 waits 3 × 1 s for rank 0, rank 2 3 × 0.5 s for rank 3; no rank waits for another group.
    assert account.straggler.caused_ns == {0: ns(3), 3: ns(1.5)}
    assert [of_rank(account, r).get("straggler", 0) for r in range(4)] == [0, 3.0, 1.5, 0]


def test_culprit_is_slow_within_its_group():
    stages = (
        in_step(1.0, 1.5, steps=8, group="a"),
        [Process(r, group="b").steps(8, forward=9).finished() for r in (2, 3)],
    )
    assert account_of(*stages[0], *stages[1]).straggler.culprit() == (1, "productive")


def test_steps_are_matched_by_index_and_attempt():
    # Rank 1 has no step 0 and one more at the end: steps 1 and 2 are compared, the others stand alone.
    one, two = Process(0), Process(1)
    for step in range(3):
        one.step(step, forward=1, communication=1)
    for step in range(1, 4):
        two.step(step, forward=1.5, communication=0.5)
    account = account_of(one.finished(), two.finished())
    assert of_rank(account, 0)["straggler"] == 1.0
    # Another attempt's step 0 is another step.
    later = Process(1, 2, start=10).resumed(-1).step(0, forward=1.5, communication=0.25).finished()
    account = account_of(Process(0).step(0, forward=1, communication=1).finished(), later, now=50)
    assert account.gpu_ns()[INDEX["straggler"]] == 0


def test_lost_steps_make_no_stragglers():
    first = [Process(r).steps(2, forward=1 + r, communication=2 - r).killed() for r in (0, 1)]
    again = [
        Process(r, 2, start=6).resumed(0).step(forward=1 + r, communication=2 - r).finished() for r in (0, 1)
    ]
    account = account_of(*first, *again)
    assert of_rank(account, 0) == {"productive": 2.0, "communication": 2.0, "straggler": 2.0, "lost": 3.0}
    assert account.straggler.length_ns == 4 * ns(3), "steps 0 and 1 of two ranks, each once"


@pytest.mark.parametrize("every", [2, 3])
def test_equally_thinned_rows_are_compared(every):
    whole = in_step(1.0, 2.0, steps=12)
    account = account_of(*whole)
    run = run_of(*whole)
    for r, one in enumerate(whole):
        run.attempts[r, 1] = one.attempt(rows=one.rows[every - 1 :: every])
    thinned = compute(run, ns(100))
    assert_closes(thinned)
    assert [of_rank(thinned, r) for r in (0, 1)] == [of_rank(account, r) for r in (0, 1)]
    assert thinned.straggler.slowdown() == account.straggler.slowdown()
    # The other's rows of one step are compared as sums, up to each step that ends a row of both.
    run.attempts[1, 1] = whole[1].attempt()
    mixed = compute(run, ns(100))
    assert_closes(mixed)
    assert of_rank(mixed, 0) == {"productive": 12.0, "communication": 6.0, "straggler": 12.0}
    assert mixed.straggler.slowdown() == account.straggler.slowdown()


def test_user_phase_cannot_be_straggler_time():
    ranks = [
        Process(r, user={"x": "straggler"}).step(forward=1, x=1, communication=1 + r).finished()
        for r in (0, 1)
    ]
    account = account_of(*ranks)
    assert of_rank(account, 1) == {
        "productive": 1.0,
        "unattributed": 1.0,
        "communication": 1.0,
        "straggler": 1.0,
    }
    assert account.straggler.shares() == [(0, 1.0)]


def test_at_most_sixteen_shares_largest_first():
    ranks = [Process(r) for r in range(20)]
    for step in range(20):
        for r, one in enumerate(ranks):
            wait = 0 if r == step else 0.5 + step / 32
            one.step(step, forward=1, communication=0.5 + wait)
    shares = account_of(*(one.finished() for one in ranks)).straggler.shares()
    assert [rank for rank, _ in shares] == list(range(19, 3, -1))
    assert sum(share for _, share in shares) < 1


@pytest.mark.parametrize("staged", [False, True])
def test_ranks_of_other_attempts_are_no_measure(staged):
    """A pipeline of eight ranks goes on with four, of which two change their stage; then the loader is slower for all."""
    processes = []
    for number, ranks, steps, loader in ((1, 8, 40, 0.0), (2, 4, 30, 0.5)):
        for rank in range(ranks):
            place = {"stage": 2 * rank // ranks, "microbatches": 4} if staged else {"group": "ab"[rank > 1]}
            one = Process(rank, number, start=1000.0 * number, **place)
            late = 0.03 * (rank == 3 and number == 2)
            if number == 2:
                one.resumed(39)
            one.between(none=1).steps(
                steps, forward=1.0, loader=loader + late, communication=0.2 + 0.03 * (number == 2) - late
            )
            processes.append(one.saved().killed() if number == 1 else one.finished())
    straggler = account_of(*processes).straggler
    assert straggler.caused_ns[3] == max(straggler.caused_ns.values()) > 0
    assert straggler.culprit() is None and straggler.culprit_stage() is None
    # 1.53 against 1.5 s in 29 of 68 steps; the first one of each attempt is no measure.
    assert straggler.slowness(3) == pytest.approx((39 + 29 * 1.53) / (39 + 29 * 1.515))


def test_first_step_is_no_measure_before_another_one_is_known():
    """What the ranks compiled in it is not known before 15 more steps are, or the attempts have ended; until then no
    step is compared. It never counts for a rank's own time."""
    ranks = [Process(rank) for rank in range(4)]
    for number, one in enumerate(ranks):
        late = 0.01 * (number == 3)
        one.steps(1, forward=13.0 + late, communication=0.51 - late)
    early = account_of(*ranks).straggler
    assert early.caused_ns == {} and early.culprit() is None
    for one in ranks[:2]:
        one.steps(1, forward=1.0, communication=0.5)
    some = account_of(*ranks).straggler
    assert some.caused_ns == {} and some.culprit() is None
    assert some.steps == {(0, 1): 1, (1, 1): 1, (2, 1): 0, (3, 1): 0}
    for one in ranks[2:]:
        one.steps(1, forward=1.0, communication=0.5)
    later = account_of(*ranks).straggler
    assert (later.steps[3, 1], later.culprit()) == (1, None)
    since = later.since_sums(some.compact())
    assert since is not None and since.slowness(3) == pytest.approx(1.0, abs=0.01)
    # Three ranks have waited 0.01 s for rank 3, which compiled so much longer.
    over = account_of(*(one.finished() for one in ranks)).straggler
    assert over.caused_ns == {3: ns(0.03)} and over.culprit() is None and over.slowness(3) == 1.0


def test_step_that_crosses_a_border_is_no_measure():
    """Of a step of 12.5 s two thirds lie before the end, but only rank 3's row of it is known."""
    ranks = [Process(rank) for rank in range(4)]
    for one in ranks:
        late = 0.01 * (one.rank == 3)
        one.steps(20, forward=1.5 + late, communication=0.5 - late)
        if late:
            one.step(forward=12.0, communication=0.5)
        else:
            one.begun(forward=8.0)
    run, end_ns = run_of(*ranks), ranks[0].now_ns
    found = compute(run, ranks[3].now_ns, window=(None, end_ns))
    # The first step is no measure either.
    assert found.straggler.steps == {(rank, 1): 19 for rank in range(4)}
    assert found.straggler.caused_ns == {3: ns(0.6)} and found.straggler.culprit() is None
    assert found.straggler.slowness(3) == pytest.approx(1.51 / 1.5)
    assert found.ranks[3].kept_steps == 20 and found.ranks[3].states[INDEX["productive"]] == ns(30.2) + ns(
        7.68
    )
