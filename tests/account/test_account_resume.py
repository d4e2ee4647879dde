"""Kept and lost steps over several attempts, with hand-worked numbers."""

import json
import random

import pytest
from support.account.account_history import Process, account_of, ns, of_rank

from goodput.account import Attempt, Run
from goodput.account.facts import gather, restarts_after
from goodput.account.resume import KEEP_ALL, kept_until
from goodput.account.states import STATES
from goodput.runlog import replay


def steps_of(account):
    return [(rank.kept_steps, rank.lost_steps) for rank in account.ranks]


def restarts_of(account):
    """(attempt, resume step, down GPU-seconds, lost steps, lost GPU-seconds) of each restart."""
    return [
        (r.attempt, r.resume_step, r.down_gpu_ns / 1e9, r.lost_steps, r.lost_gpu_ns / 1e9)
        for r in account.restarts
    ]


def test_one_attempt_loses_nothing():
    account = account_of(Process().steps(10, forward=1).finished())
    assert (steps_of(account), restarts_of(account)) == ([(10, 0)], [])
    assert of_rank(account) == {"productive": 10.0}


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "inferred"])
def test_second_attempt_loses_repeated_steps(declared):
    first = Process().steps(6, loader=0.5, forward=1).saved(3).steps(2, loader=0.5, forward=1)
    first.begun(loader=0.25).killed(after=0.25)  # Dead at 12.5 s after steps 0..7.
    again = Process(attempt=2, start=15).between(none=1, restore=2)
    again = again.resumed(3) if declared else again
    again.step(4, loader=0.5, forward=1).steps(5, loader=0.5, forward=1).finished()
    account = account_of(first, again)
    # Steps 4..7 of the first attempt are lost, 4 × 1.5 s, and 0.5 s of the step in which it died.
    assert steps_of(account) == [(4 + 6, 4)]
    assert restarts_of(account) == [(2, 3, 2.5, 4, 6.5)]
    assert account.restarts[0].time_ns == ns(15)
    assert of_rank(account) == {
        "productive": 10.0,
        "loader": 5.0,
        "lost": 6.5,
        "down": 2.5,
        "startup": 1.0,
        "restore": 2.0,
    }
    assert account.ratio("availability") == 15 / 27
    assert account.ratio("step_efficiency") == 10 / 15


def test_declared_resume_step_precedes_first_step():
    first = Process().steps(8, forward=1).killed()
    again = Process(attempt=2, start=8).resumed(2)
    again.step(5, forward=1).finished()  # Some steps were skipped, but the work of 3 and 4 was not restored.
    assert steps_of(account_of(first, again)) == [(3 + 1, 5)]


def test_lowest_declared_resume_step_holds():
    first = [Process(r).steps(8, forward=1).killed() for r in (0, 1)]
    again = [
        Process(0, 2, start=8).resumed(5).steps(2, forward=1).finished(),
        Process(1, 2, start=8).resumed(3).steps(2, forward=1).finished(),
    ]
    account = account_of(*first, *again)
    assert account.restarts[0].resume_step == 3
    assert steps_of(account) == [(4 + 2, 4), (4 + 2, 4)]


def test_rank_without_resume_step_follows_the_others():
    first = [Process(r).steps(8, forward=1).killed() for r in (0, 1)]
    again = [
        Process(0, 2, start=8).resumed(5).step(forward=1).finished(),
        Process(1, 2, start=8).step(6, forward=1).finished(),
    ]
    assert steps_of(account_of(*first, *again)) == [(7, 2), (7, 2)]


def test_loss_is_charged_to_its_restart():
    one = Process().steps(10, forward=1).begun(forward=0.5).killed()  # 0..9 and half of 10
    two = Process(attempt=2, start=12).resumed(6).steps(5, forward=1).killed(after=0.5)  # 7..11
    three = Process(attempt=3, start=20).resumed(4).steps(10, forward=1).finished()  # 5..14
    account = account_of(one, two, three)
    # 7, 8, 9 were lost to the second start; 5, 6 and the second's 7..11 to the third, which went back further.
    assert steps_of(account) == [(5 + 0 + 10, 3 + 2 + 5)]
    assert restarts_of(account) == [(2, 6, 1.5, 3, 3.5), (3, 4, 2.5, 7, 7.5)]
    assert of_rank(account) == {"productive": 15.0, "lost": 11.0, "down": 4.0}


def test_resume_from_older_checkpoint_loses_more():
    one = Process().steps(4, forward=1).saved(3).steps(4, forward=1).saved(7).steps(2, forward=1).killed()
    two = Process(attempt=2, start=10).resumed(3).steps(6, forward=1).finished()
    account = account_of(one, two)
    assert (steps_of(account), account.restarts[0].resume_step) == ([(4 + 6, 6)], 3)


def test_start_from_scratch_loses_everything():
    one = Process().steps(5, forward=1).killed()
    two = Process(attempt=2, start=6).resumed(-1).steps(5, forward=1).finished()
    account = account_of(one, two)
    assert (steps_of(account), restarts_of(account)) == ([(5, 5)], [(2, -1, 1.0, 5, 5.0)])


def test_resume_at_the_end_loses_nothing():
    one = Process().steps(5, forward=1).saved().finished()
    two = Process(attempt=2, start=6).resumed(4).steps(5, forward=1).finished()
    account = account_of(one, two)
    assert (steps_of(account), restarts_of(account)) == ([(10, 0)], [(2, 4, 1.0, 0, 0.0)])


def test_attempt_without_steps_resumes_from_checkpoint():
    one = Process().steps(8, forward=1).saved(5).killed()
    two = Process(attempt=2, start=10).between(restore=1)
    account = account_of(one, two, now=14)
    assert (steps_of(account), restarts_of(account)) == ([(6, 2)], [(2, 5, 2.0, 2, 2.0)])
    assert of_rank(account) == {"productive": 6.0, "lost": 2.0, "down": 2.0, "startup": 3.0, "restore": 1.0}


def test_resume_within_a_process_is_an_attempt():
    one = Process().steps(6, forward=1).begun(forward=0.5)
    one._over("resumed")
    two = Process(attempt=2, start=6.5).resumed(2).steps(4, forward=1).finished()
    account = account_of(one, two)
    assert (steps_of(account), restarts_of(account)) == ([(3 + 4, 3)], [(2, 2, 0.0, 3, 3.5)])


# ---- A run that has failed


def test_failed_run_provisionally_loses_uncommitted_steps():
    one = Process().steps(4, forward=1).saved(3).steps(3, forward=1).saved(committed=False).killed()
    account = account_of(one, now=20)
    assert (account.status, steps_of(account), restarts_of(account)) == ("failed", [(4, 3)], [])
    assert of_rank(account) == {"productive": 4.0, "lost": 3.0}


def test_uncommitted_checkpoint_saves_nothing():
    one = Process().steps(4, forward=1).saved(committed=False).steps(3, forward=1).killed()
    assert steps_of(account_of(one, now=20)) == [(0, 7)]


def test_without_checkpoints_nothing_is_lost():
    assert steps_of(account_of(Process().steps(7, forward=1).killed(), now=20)) == [(7, 0)]


def test_next_resume_step_replaces_provisional_loss():
    def first():
        return Process().steps(4, forward=1).saved(3).steps(3, forward=1).killed()

    assert steps_of(account_of(first(), now=20)) == [(4, 3)]
    again = Process(attempt=2, start=10).resumed(5).steps(2, forward=1)
    assert steps_of(account_of(first(), again, now=12)) == [(6 + 2, 1)], "a checkpoint that nobody reported"


def test_running_or_finished_run_loses_nothing():
    alive = Process().steps(4, forward=1).saved(1)
    assert steps_of(account_of(alive, now=5)) == [(4, 0)]
    assert steps_of(account_of(alive.finished())) == [(4, 0)]


def test_run_with_a_live_rank_has_not_failed():
    dead = Process(0).steps(4, forward=1).saved(1).killed()
    alive = Process(1).steps(4, forward=1)
    account = account_of(dead, alive, now=5)
    assert (account.status, steps_of(account)) == ("running", [(4, 0), (4, 0)])


def test_checkpoint_beyond_a_resume_point_is_ignored():
    one = Process().steps(10, forward=1).saved(9).killed()
    two = Process(attempt=2, start=10).resumed(4).steps(3, forward=1).killed()
    # The next attempt cannot resume from step 9 of work that was abandoned at step 4.
    account = account_of(one, two, now=20)
    assert (account.status, steps_of(account)) == ("failed", [(5, 5 + 3)])
    two.saved(6)
    assert steps_of(account_of(one, two, now=20)) == [(5 + 2, 5 + 1)]
    three = Process(attempt=3, start=20)
    account = account_of(one, two, three, now=21)
    assert account.restarts[1].resume_step == 6


# ---- Ranks without a part in an attempt


def test_rank_left_out_loses_later_steps():
    first = [Process(r).steps(6, forward=1).killed() for r in (0, 1)]
    again = Process(0, 2, start=8).resumed(2).steps(3, forward=1).finished()
    account = account_of(*first, again)
    assert steps_of(account) == [(3 + 3, 3), (3, 3)]


def test_rank_left_out_without_end_loses_steps():
    gone = Process(1).steps(6, forward=1).silent(after=0.5)  # Its node went down with it.
    first = Process(0).steps(6, forward=1).killed()
    again = Process(0, 2, start=8).resumed(2).steps(3, forward=1)
    account = account_of(first, gone, again, now=50, stale_seconds=30)
    assert steps_of(account) == [(3 + 3, 3), (3, 3)]
    # Whether it has ended is not known, so the first of the three kept steps is `compile` provisionally.
    assert of_rank(account, 1) == {
        "productive": 2.0,
        "compile": 1.0,
        "unattributed": 0.5,
        "lost": 3.0,
        "unobserved": 43.5,
    }


def test_continuing_rank_keeps_its_steps():
    on = Process(1).steps(20, forward=1)
    first = Process(0).steps(6, forward=1).killed()
    again = Process(0, 2, start=8).resumed(2).steps(3, forward=1)
    account = account_of(first, on, again, now=20, stale_seconds=30)
    assert steps_of(account) == [(3 + 3, 3), (20, 0)]


def test_attempt_without_end_ends_at_last_beat():
    one = Process().steps(4, forward=1).begun(forward=0.25).silent(after=1)
    two = Process(attempt=2, start=10).resumed(3).steps(2, forward=1).finished()
    account = account_of(one, two)
    assert (account.status, account.end_ns) == ("finished", ns(12))
    assert restarts_of(account) == [(2, 3, 4.75, 0, 1.25)]
    assert of_rank(account) == {"productive": 6.0, "lost": 1.25, "down": 4.75}


def test_run_fails_with_its_last_attempt():
    one = Process().steps(4, forward=1).silent()
    two = Process(attempt=2, start=10).resumed(3).steps(2, forward=1).killed()
    account = account_of(one, two, now=20)
    assert (account.status, account.end_ns) == ("failed", ns(12))
    assert of_rank(account) == {"productive": 6.0, "down": 6.0}


# ---- Missing rows


def test_thinned_rows_divide_lost_steps():
    one = Process().steps(12, loader=0.5, forward=1).killed()
    one.rows = one.rows[3::4]  # Rows of steps 3, 7, 11.
    two = Process(attempt=2, start=20).resumed(5).steps(8, loader=0.5, forward=1).finished()
    account = account_of(one, two)
    # Of steps 4..7, 6 s as one, 6 and 7 are lost: half. Of 8..11 all.
    assert steps_of(account) == [(6 + 8, 6)]
    assert of_rank(account) == {"productive": 14.0, "loader": 7.0, "lost": 9.0, "down": 2.0}
    assert restarts_of(account) == [(2, 5, 2.0, 6, 9.0)]


def test_share_of_odd_nanoseconds_is_exact():
    one = Process().steps(2, loader=1e-9, forward=2e-9).step(loader=1e-9, forward=3e-9).killed()
    one.rows = one.rows[2:]  # One row of three steps, 10 ns.
    two = Process(attempt=2, start=10e-9).resumed(1).step(forward=1e-9).finished()
    # Two thirds are kept, 6 ns, and the other 4 ns lost; of the 6 ns 6/10 of 3 and of 7, and the nanosecond left over
    # goes to the larger.
    states = account_of(one, two).ranks[0].states
    found = dict(zip(STATES, states, strict=True))
    assert (found["lost"], found["loader"], found["productive"]) == (4, 1, 5 + 1)


def test_first_step_is_inferred_without_its_row():
    one = Process().steps(6, forward=1).killed()
    two = Process(attempt=2, start=6).step(3, forward=1).steps(5, forward=1).finished()
    two.rows = two.rows[3:]  # The first row is step 6, the fourth of its attempt.
    account = account_of(one, two)
    assert (account.restarts[0].resume_step, steps_of(account)) == (2, [(3 + 6, 3)])


def test_limits_equal_their_definition():
    """Each attempt is compared with each later one."""
    chance = random.Random(7)
    for _ in range(300):
        numbers = range(1, chance.randint(2, 8))
        keys = [(rank, number) for rank in range(3) for number in numbers if chance.random() < 0.7]
        begin = {key: chance.randint(0, 6) * 60 for key in keys}
        run = Run(
            "r", {key: Attempt(*key, ns(begin[key]), alive=False, last_ns=ns(begin[key])) for key in keys}
        )
        points = {number: chance.choice([None, -1, *range(4)]) for number in sorted({n for _, n in keys})}
        starts = {number: min(begin[key] for key in keys if key[1] == number) for number in points}
        assert kept_until(run, points, has_failed=False) == {
            (rank, number): min(
                (
                    point
                    for later, point in points.items()
                    if later > number and point is not None
                    if (rank, later) in keys or begin[rank, number] - 60 <= starts[later]
                ),
                default=KEEP_ALL,
            )
            for rank, number in keys
        }
        found = restarts_after(points, restarts := sorted(points)[1:])
        for number in points:
            after = [(points[later], later) for later in restarts if later > number]
            assert found[number][:1] == after[:1]
            for step in range(5):
                first = [
                    next((n for p, n in pairs if p is not None and p < step), 0)
                    for pairs in (after, found[number])
                ]
                assert first[0] == first[1], "the restart by which a step is lost"


def test_facts_of_many_restarts_stay_small():
    """A run that is restarted again and again must not take memory for each pair of its attempts."""
    attempts = {
        (0, number): Attempt(0, number, ns(number), first_step=3 * number) for number in range(1, 1001)
    }
    facts = gather(Run("r", attempts), ns(2000), ns(60))
    assert sum(map(len, facts.after.values())) == 999


def test_unknown_step_of_a_checkpoint_loses_nothing():
    """Where one rank knows the step, that holds for all."""
    first = [Process(rank, world_size=2).steps(5, forward=1).killed() for rank in (0, 1)]
    second = [Process(rank, 2, start=7, world_size=2) for rank in (0, 1)]
    for one in second:
        one.event("restored", -1)
    second[1].steps(3, forward=1)
    account = account_of(*first, *second[:1], second[1], now=10)
    assert steps_of(account) == [(5, 0), (8, 0)]
    assert account.restarts[0].resume_step is None
    second[0].resumed(2).steps(3, forward=1)
    account = account_of(*first, *second, now=10)
    assert account.restarts[0].resume_step == 2 and account.ranks[0].lost_steps == 2


def test_log_says_that_the_step_is_unknown(tmp_path):
    lines = [
        {"kind": "attempt", "time": 0, "attempt": 1},
        *({"kind": "step", "time": i + 1, "step": i, "seconds": 1, "attempt": 1} for i in range(5)),
        {"kind": "end", "time": 5, "attempt": 1, "reason": "killed"},
        {"kind": "attempt", "time": 6, "attempt": 2, "restored": True},
        *({"kind": "step", "time": i + 7, "step": i, "seconds": 1, "attempt": 2} for i in range(3)),
        {"kind": "end", "time": 9, "attempt": 2},
    ]
    log = tmp_path / "log"
    log.write_text("\n".join(map(json.dumps, lines)))
    (one,) = replay(str(log))
    assert steps_of(one.account) == [(8, 0)] and one.account.restarts[0].resume_step is None
