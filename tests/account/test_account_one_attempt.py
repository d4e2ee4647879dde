"""One attempt's time by state, with hand-worked seconds."""

import itertools

import pytest
from support.account.account_history import Process, account_of, assert_closes, ns, of_rank, run_of

from goodput.account import compute
from goodput.account.states import PHASE_STATES, STATES, USER_STATES

BUSY = {
    "loader": 0.25,
    "h2d": 0.125,
    "forward": 0.5,
    "backward": 1.0,
    "optimizer": 0.125,
    "communication": 0.5,
}


# ---- Around steps


def test_startup_excludes_restore_and_compile():
    one = Process().between(none=2, loader=0.5, restore=3, forward=0.25, compile=1.5, checkpoint=0.5)
    account = account_of(one.step(forward=1).finished())
    # none 2 + loader 0.5 + forward 0.25 + checkpoint 0.5 before any step are the start's.
    assert of_rank(account) == {"startup": 3.25, "restore": 3.0, "compile": 1.5, "productive": 1.0}


def test_rollout_before_first_step_is_no_startup():
    one = Process().between(none=2, rollout=5, loader=1)
    assert of_rank(account_of(one.step(forward=1).finished())) == {
        "startup": 3.0,
        "rollout": 5.0,
        "productive": 1.0,
    }
    generator = Process().between(none=2, rollout=500)
    assert of_rank(account_of(generator.finished())) == {"startup": 2.0, "rollout": 500.0}


def test_attempt_without_steps_is_startup():
    alive = Process().between(none=2, restore=3).begun(loader=1)
    assert of_rank(account_of(alive, now=10)) == {"startup": 7.0, "restore": 3.0}
    dead = Process().between(none=2, restore=3).killed(after=1)
    assert of_rank(account_of(dead, now=10)) == {"startup": 3.0, "restore": 3.0}
    waiting = Process().between(none=500)
    assert of_rank(account_of(waiting, now=500)) == {"startup": 500.0}


def test_each_phase_of_a_step_has_its_state():
    one = Process().step(**BUSY, checkpoint=0.25, evaluation=0.75, restore=0.5, compile=0.5, none=0.375)
    assert of_rank(account_of(one.finished())) == {
        "loader": 0.25,
        "h2d": 0.125,
        "productive": 1.625,
        "communication": 0.5,
        "checkpoint": 0.25,
        "evaluation": 0.75,
        "restore": 0.5,
        "compile": 0.5,
        "unattributed": 0.375,
    }


def test_compute_between_steps_is_unattributed():
    one = Process().step(forward=1).between(loader=0.5, evaluation=2, forward=0.75, none=0.25).step(forward=1)
    assert of_rank(account_of(one.finished())) == {
        "productive": 2.0,
        "loader": 0.5,
        "evaluation": 2.0,
        "unattributed": 1.0,
    }


def test_user_phases_map_to_their_states():
    user = {"augment": "loader", "ema": "productive", "hello": "startup", "odd": "down", "new": "warp"}
    one = Process(user=user).step(augment=0.5, ema=1, hello=0.25, odd=0.125, new=2)
    # A page may contain anything: a phase cannot map to `down`, and an unknown state is unattributed.
    assert of_rank(account_of(one.finished())) == {
        "loader": 0.5,
        "productive": 1.0,
        "startup": 0.25,
        "unattributed": 2.125,
    }


def test_user_states_match_the_rank_page():
    from goodput.rank_page import page

    assert set(USER_STATES) == set(page.USER_STATES)
    assert set(page.PHASES) == set(PHASE_STATES) and set(PHASE_STATES.values()) <= set(STATES)


# ---- The first step


def test_first_step_excess_over_median_is_compile():
    one = Process().step(loader=0.5, forward=9).step(forward=1).step(forward=2).step(forward=3)
    # First 9.5 s, the others 1, 2, 3: median 2, excess 7.5; of compute, 9 - 2 = 7 can explain it.
    assert of_rank(account_of(one.finished())) == {"loader": 0.5, "compile": 7.0, "productive": 8.0}


def test_excess_takes_compute_before_unnamed_time():
    one = Process().step(none=5, forward=2).step(none=0.5, forward=2).step(none=0.5, forward=3)
    # 7 against the median of 2.5 and 3.5, 3: excess 4. Compute has 2 of it, unnamed time the rest.
    assert of_rank(account_of(one.finished())) == {"compile": 4.0, "productive": 5.0, "unattributed": 4.0}


def test_loader_wait_of_first_step_stays_loader():
    one = Process().step(loader=8, forward=1).step(loader=0.5, forward=1).step(loader=0.5, forward=1)
    assert of_rank(account_of(one.finished())) == {"loader": 9.0, "productive": 3.0}


def test_single_or_short_first_step_has_no_excess():
    assert of_rank(account_of(Process().step(forward=9).finished())) == {"productive": 9.0}
    short = Process().step(forward=1).step(forward=2).step(forward=2)
    assert of_rank(account_of(short.finished())) == {"productive": 5.0}


def test_every_attempt_has_its_own_first_step():
    first = Process().step(0, forward=3).steps(2, forward=1).finished()
    again = Process(attempt=2, start=5).resumed(2).step(forward=5).steps(2, forward=1).finished()
    assert of_rank(account_of(first, again)) == {"productive": 6.0, "compile": 6.0}


def test_long_first_step_is_compile_not_stall():
    one = Process().step(none=90).steps(200, none=1)
    account = account_of(one.finished(), now=400)
    assert account.threshold_ns == ns(60), "one long step in 201 does not move the 99th percentile"
    assert of_rank(account) == {"compile": 89.0, "unattributed": 201.0}


# ---- Stalls


def test_stall_threshold_is_ten_times_p99():
    def threshold_ns(lengths, least_seconds=60.0):
        one = Process().step(forward=9)  # counts for no threshold
        for seconds in lengths:
            one.step(forward=seconds)
        return account_of(one.finished(), now=5000, stall_seconds=least_seconds).threshold_ns

    assert threshold_ns([]) == ns(60)
    assert threshold_ns([1] * 1000) == ns(60)
    assert threshold_ns([1] * 99 + [7]) == ns(60), "the lower 99th percentile of 100 is the second largest"
    assert threshold_ns([1] * 98 + [7] * 2) == ns(70)
    assert threshold_ns([1] * 7 + [50]) == ns(60) and threshold_ns([1] * 6 + [50]) == ns(500), (
        "of fewer than eight the longest counts"
    )
    assert threshold_ns([7, 50]) == ns(500)
    # Of the last 1,024 the 12 longest are beyond the 99th percentile, or it is the last of them.
    assert threshold_ns([50] * 12 + [1] * 1012) == ns(500) and threshold_ns([50] * 12 + [1] * 1013) == ns(60)
    assert threshold_ns([1] * 100, least_seconds=0.5) == ns(10)
    assert threshold_ns([0.01] * 100, least_seconds=0.5) == ns(0.5)


def test_long_step_is_stall_except_planned_phases():
    one = Process().steps(150, forward=1)
    one.step(loader=70, communication=20, forward=2, checkpoint=5, none=1).steps(49, forward=1)
    # 200 steps: the 99th percentile is 1 s, the threshold 60 s. All but the checkpoint is stall: 70 + 20 + 2 + 1.
    account = account_of(one.finished(), now=400)
    assert of_rank(account) == {"productive": 199.0, "checkpoint": 5.0, "stall": 93.0}
    # A stall is no time in a kept step: 297 s less 93 s.
    assert account.ratio("availability") == (199 + 5) / 297
    assert account.ratio("step_efficiency") == 199 / 204


def test_long_gap_is_stall():
    one = Process().steps(150, forward=1).between(none=50, loader=20, evaluation=5).steps(50, forward=1)
    assert of_rank(account_of(one.finished(), now=400)) == {
        "productive": 200.0,
        "evaluation": 5.0,
        "stall": 70.0,
    }


def test_wait_at_the_threshold_is_no_stall():
    one = Process().steps(150, forward=1).between(none=60).step(loader=59, forward=1).steps(49, forward=1)
    states = of_rank(account_of(one.finished(), now=400))
    assert states == {"productive": 200.0, "unattributed": 60.0, "loader": 59.0}


def test_frozen_rank_and_its_waiters_stall():
    frozen = Process(0).steps(150, forward=1).step(forward=100).steps(49, forward=1)
    waiting = Process(1).steps(150, forward=1).step(forward=1, communication=99).steps(49, forward=1)
    account = account_of(frozen.finished(), waiting.finished(), now=400)
    assert of_rank(account, 0) == of_rank(account, 1) == {"productive": 199.0, "stall": 100.0}


def test_hang_does_not_raise_its_own_threshold():
    ranks = [Process(r).steps(12, forward=4).step(forward=304).steps(12, forward=4) for r in range(2)]
    account = account_of(*[one.finished() for one in ranks], now=500)
    # Before it each rank has 11 steps after the first, of 4 s; 23 and the hang after it, of which the 99th percentile
    # (the lower one, the second longest) is 4 s too. So ten times 4 s, at least 60 s.
    assert account.threshold_ns == ns(60)
    assert of_rank(account)["stall"] == 304.0
    hours = Process().steps(5, forward=3700)
    # Before the first step's length is known the threshold is 30 min, and a first step counts for no threshold: so two
    # steps are stalls. From the third on it is ten times 3,700 s.
    assert of_rank(account_of(hours.finished(), now=20_000)) == {"productive": 11_100.0, "stall": 7_400.0}


@pytest.mark.parametrize("where", ["gap", "step", "tail"])
def test_long_evaluation_is_no_stall(where):
    one = Process().steps(200, forward=1)
    part = {"loader": 2, "evaluation": 300}
    if where == "gap":
        one.between(**part).step(forward=1).finished()
    elif where == "step":
        one.step(**part, forward=1).finished()
    else:
        one.between(**part)
    states = of_rank(account_of(one, now=502))
    assert (states["evaluation"], states["loader"]) == (300.0, 2.0)
    assert "stall" not in states


def test_hang_is_stall_while_running_and_killed():
    def hung():
        return Process().steps(20, forward=1).begun(loader=0.5, communication=0)

    short = of_rank(account_of(hung(), now=70))
    assert short == {"productive": 20.0, "loader": 0.5, "communication": 49.5}
    long = account_of(hung(), now=90)  # The threshold is 10 s by the steps, a minute at least.
    assert of_rank(long) == {"productive": 20.0, "stall": 70.0}
    assert long.ratio("availability") == 20 / 90
    killed = account_of(hung().killed(after=70), now=110)
    assert of_rank(killed) == {"productive": 20.0, "stall": 70.5}
    quick = account_of(hung(), now=30, stall_seconds=5)
    assert quick.threshold_ns == ns(10) and of_rank(quick)["communication"] == 9.5


# ---- The tail


def test_unfinished_step_of_running_attempt_counts():
    one = Process().steps(2, **BUSY).begun(loader=0.25, forward=0.5, backward=0)
    account = account_of(one, now=6.75)  # Last reported at 5.75 s; it counts as still in backward.
    assert account.status == "running"
    # Of the first step's 2.5 s those of compute are `compile` until the next 15 are known.
    assert of_rank(account) == {
        "productive": 1.625 + 0.5 + 1.0,
        "compile": 1.625,
        "loader": 0.75,
        "h2d": 0.25,
        "communication": 1.0,
    }
    assert account.ratio("availability") == (6.75 - 1.625) / 6.75


def test_killed_attempt_loses_its_unfinished_step():
    one = Process().steps(3, forward=1).begun(loader=0.25, forward=0.5).killed(after=2)
    account = account_of(one, now=10)
    assert (account.status, account.end_ns) == ("failed", ns(5.75))
    assert of_rank(account) == {"productive": 3.0, "lost": 2.75}
    assert (account.ranks[0].kept_steps, account.ranks[0].lost_steps) == (3, 0)


def test_failure_loses_unfinished_step_finish_does_not():
    failed = Process().steps(3, forward=1).begun(forward=0.5, evaluation=0.5).failed()
    assert of_rank(account_of(failed, now=10)) == {"productive": 3.0, "lost": 1.0}
    finished = Process().steps(3, forward=1).between(forward=0.5, evaluation=0.5).finished()
    account = account_of(finished, now=10)
    assert (account.status, account.end_ns) == ("finished", ns(4))
    assert of_rank(account) == {"productive": 3.0, "unattributed": 0.5, "evaluation": 0.5}


def test_rank_that_finished_early_is_down():
    """A stall threshold (60 s) or less before the last rank is over it counts as unattributed, beyond it as down."""
    for steps, after in ((60, "unattributed"), (61, "down")):
        early, late = (
            Process(0).steps(3, forward=1).finished(),
            Process(1).steps(3 + steps, forward=1).finished(),
        )
        account = account_of(early, late)
        assert of_rank(account, 0) == {"productive": 3.0, after: float(steps)}
        assert of_rank(account, 1) == {"productive": 3.0 + steps}


def test_skew_of_finished_ranks_is_not_down():
    """Nobody is alive between the last rank's end and the end of the log, which is down for all."""
    ranks = [Process(r).steps(3, forward=1).between(none=0.02 * r).finished() for r in (0, 1)]
    run = run_of(*ranks)
    run.end_ns = ns(4)
    account = compute(run, ns(4))
    assert of_rank(account, 0) == {"productive": 3.0, "unattributed": 0.02, "down": 0.98}
    assert of_rank(account, 1) == {"productive": 3.0, "unattributed": 0.02, "down": 0.98}


def test_killed_rank_is_down_at_once():
    ranks = [Process(0).steps(3, forward=1).killed(), Process(1).steps(4, forward=1).finished()]
    assert of_rank(account_of(*ranks, now=4), 0) == {"productive": 3.0, "down": 1.0}


def test_windows_of_skew_sum_to_the_whole():
    ranks = [Process(r, start=0.5 * r).steps(3 - r, forward=1).finished() for r in (0, 1)]
    again = [Process(r, 2, start=10 + 0.5 * r).resumed(2).steps(2, forward=1).finished() for r in (0, 1)]
    run = run_of(*ranks, *again)
    whole = compute(run, ns(20))
    assert of_rank(whole, 1) == {"startup": 1.0, "productive": 4.0, "down": 7.5}
    assert of_rank(whole, 0) == {"productive": 5.0, "down": 7.0, "unattributed": 0.5}
    edges = [0, 0.25, 2.5, 9, 10.25, 12.25, 12.5]
    parts = [compute(run, ns(20), window=(ns(a), ns(b))) for a, b in itertools.pairwise(edges)]
    for rank in (0, 1):
        sums = [sum(values) for values in zip(*(part.ranks[rank].states for part in parts), strict=True)]
        assert sums == whole.ranks[rank].states


# ---- Missing rows


@pytest.mark.parametrize("every", [2, 3, 5, 12])
def test_every_kth_row_gives_the_same_states(every):
    user = {"augment": "loader"}
    one = Process(user=user).between(none=3, restore=1)
    for i in range(24):
        one.step(**{**BUSY, "augment": 0.125 * (i % 3), "none": 0.0625 * (i % 5)}, samples=8)
        if i % 6 == 5:
            one.between(evaluation=1.5, none=0.25)
    one.finished()
    run, thinned = run_of(one), run_of(one)
    thinned.attempts[0, 1] = one.attempt(rows=[*one.rows[every - 1 :: every], one.rows[-1]])
    whole, part = compute(run, ns(200)), compute(thinned, ns(200))
    assert_closes(part)
    states = of_rank(whole)
    # Without the first step's row its excess over the others is not known.
    states["productive"] += states.pop("compile", 0.0)
    # Between the steps that the first row of many stands for, unattributed time cannot be separated from startup.
    before = 0.25 * ((every - 1) // 6)
    states["startup"] += before
    states["unattributed"] -= before
    assert of_rank(part) == states
    assert (part.ranks[0].kept_steps, part.samples) == (whole.ranks[0].kept_steps, whole.samples) == (24, 192)


def test_row_from_before_a_phase_has_fewer_columns():
    one = Process(user={"augment": "loader"})
    one.steps(2, forward=1)
    short = [row._replace(totals=row.totals[:11], outside=row.outside[:11]) for row in one.rows]
    one.steps(2, forward=1, augment=0.5).finished()
    run = run_of(one)
    run.attempts[0, 1] = one.attempt(rows=[*short, *one.rows[2:]])
    account = compute(run, ns(10))
    assert (of_rank(account), account.clamped) == ({"productive": 4.0, "loader": 1.0}, 0)


def test_contradictory_rows_are_cut_and_counted():
    one = Process().steps(3, forward=1).finished()
    too_much = list(one.rows[1].totals)
    too_much[3] += ns(50)
    one.rows[1] = one.rows[1]._replace(totals=tuple(too_much))
    account = account_of(one)
    assert account.clamped == 2, "a row with 50 s too many, and the next with 50 s too few"
    assert account.end_ns == ns(3)
    backwards = Process().steps(3, forward=1).finished()
    backwards.rows[2] = backwards.rows[2]._replace(end_ns=ns(1.5))
    assert account_of(backwards).clamped == 1
