"""The whole run: late and unreported ranks, devices, factors, status, document."""

import json

import pytest
from support.account.account_history import (
    Process,
    account_of,
    assert_closes,
    each_rank,
    ns,
    of_rank,
    run_of,
    seconds,
)

from goodput.account import Run, compute, document
from goodput.account.states import STATES
from goodput.causes import explain

# ---- Unobserved time


def test_unreported_rank_is_unobserved():
    one = Process(0, world_size=3).steps(4, forward=1).finished()
    account = account_of(one)
    assert account.world_size == 3
    assert [of_rank(account, r) for r in (0, 1, 2)] == [{"productive": 4.0}] + [{"unobserved": 4.0}] * 2
    assert [rank.observed for rank in each_rank(account)] == [True, False, False]
    assert account.ratio("goodput") == 4 / 12
    assert document(account)["coverage"] == {
        "ranks": 1 / 3,
        "time": 1 - 8 / 12,
        "device_clock": 0.0,
        "phases": 1.0,
        "compared": None,
    }


def test_late_rank_is_unobserved_until_it_begins():
    """Up to a stall threshold (60 s) after the first rank it is the launcher's skew, which is startup."""
    for late, state in ((60.0, "startup"), (60.5, "unobserved")):
        account = account_of(
            Process(0).steps(4, forward=1).finished(), Process(1, start=late).step(forward=2).finished()
        )
        assert of_rank(account, 1) == {state: late, "productive": 2.0}


def test_skew_of_a_restart_is_startup():
    first = [Process(r, 1).steps(2, forward=1).killed() for r in (0, 1)]
    again = [Process(r, 2, start=5 + 0.5 * r).resumed(1).steps(2, forward=1).finished() for r in (0, 1)]
    account = account_of(*first, *again)
    assert of_rank(account, 1) == {"startup": 0.5, "productive": 4.0, "down": 3.0}
    restart = document(account)["restarts"][0]
    assert (restart["down_seconds"], restart["startup_gpu_seconds"]) == (3.0, 0.5)


def test_rank_of_second_attempt_was_not_down():
    first = Process(0, world_size=2).steps(2, forward=1).killed()
    again = [Process(r, 2, start=5, world_size=2).resumed(1).steps(2, forward=1).finished() for r in (0, 1)]
    account = account_of(first, *again)
    assert of_rank(account, 0) == {"productive": 4.0, "down": 3.0}
    assert of_rank(account, 1) == {"productive": 2.0, "unobserved": 5.0}
    # Two GPUs started again, one of which had been down.
    restart = document(account)["restarts"][0]
    assert (restart["down_seconds"], restart["lost_gpu_seconds"]) == (1.5, 0.0)


def test_stale_rank_is_unobserved_after_its_report():
    fresh = Process(0).steps(40, forward=1)
    stale = Process(1).steps(16, forward=1).begun(loader=0.5).silent(after=0.25)
    account = account_of(fresh, stale, now=52, stale_seconds=30)
    assert account.status == "running"
    assert of_rank(account, 1) == {"productive": 16.0, "loader": 0.75, "unobserved": 35.25}
    trusted = account_of(fresh, stale, now=52)
    assert of_rank(trusted, 1) == {"productive": 16.0, "loader": 36.0}
    almost = of_rank(account_of(stale, now=46, stale_seconds=30), 1)
    assert almost == {"productive": 16.0, "loader": 30.0}, "a look of 29.25 s ago is not stale"


def test_run_of_stale_ranks_is_unobserved():
    account = account_of(Process().steps(16, forward=1), now=62, stale_seconds=30)
    assert account.status == "unobserved"
    assert of_rank(account) == {"productive": 16.0, "unobserved": 46.0}


def test_clock_ahead_adds_no_time_to_others():
    account = account_of(
        Process(0).steps(20, forward=1), Process(1).steps(16, forward=1).begun(forward=1), now=18
    )
    assert account.end_ns == ns(20)
    assert of_rank(account, 1) == {"productive": 18.0, "unobserved": 2.0}


def test_staleness_uses_the_receive_time():
    run = run_of(Process().steps(16, forward=1).begun(forward=1))
    run.attempts[0, 1].received_ns = ns(45)  # Its host's clock may be far from ours.
    account = compute(run, ns(50), stale_seconds=30)
    assert (account.status, of_rank(account)) == ("running", {"productive": 50.0})


# ---- Start, end and status


def test_finished_run_ends_with_its_last_rank():
    account = account_of(Process(0).steps(4, forward=1).finished(), Process(1).steps(3, forward=1).finished())
    assert (account.status, account.start_ns, account.end_ns) == ("finished", 0, ns(4))


def test_vanished_earlier_attempt_does_not_unfinish_run():
    lost = Process().steps(4, forward=1).silent()
    end = Process(attempt=2, start=10).resumed(3).steps(4, forward=1).finished()
    for now in (15, 1000):
        account = account_of(lost, end, now=now, stale_seconds=30)
        assert (account.status, account.end_ns) == ("finished", ns(14))
    # Rank 1 is not in the world of the second attempt and has no end: the run ends without it.
    gone = Process(1, world_size=1).steps(5, forward=1).silent()
    lost.identity["world_size"] = end.identity["world_size"] = 1
    for now in (20, 1000):
        account = account_of(lost, gone, end, now=now, stale_seconds=30, elastic=True)
        assert (account.status, account.end_ns) == ("finished", ns(14))


def test_given_start_and_end_bound_the_run():
    one = Process(start=5).steps(4, forward=1).finished()
    account = account_of(one, run={"start_ns": ns(2), "end_ns": ns(12)})
    assert (account.status, account.start_ns, account.end_ns) == ("finished", ns(2), ns(12))
    assert of_rank(account) == {"unobserved": 3.0, "productive": 4.0, "down": 3.0}


def test_rank_begun_earlier_counts_from_given_start():
    one = Process(start=5).between(none=1).steps(4, forward=1).finished()
    account = account_of(one, run={"start_ns": ns(7.5), "end_ns": ns(12)})
    assert of_rank(account) == {"productive": 2.5, "down": 2.0}
    assert account.clamped == 1


def test_overlapping_attempts_count_time_once():
    one = Process().steps(6, forward=1).finished()
    two = Process(attempt=2, start=4).between(none=1).steps(4, forward=1).finished()
    account = account_of(one, two)
    # The second's first 2 s, its startup of 1 s and 1 s of a step, passed while the first still ran.
    assert sum(of_rank(account).values()) == 9.0
    assert account.clamped == 1


def test_empty_run():
    account = compute(Run("r1"), ns(5))
    assert_closes(account)
    assert (account.end_ns - account.start_ns, account.ratio("goodput"), account.ratio("mfu")) == (
        0,
        None,
        None,
    )
    assert document(account, explain(account))["coverage"]["time"] is None


def test_only_given_ranks_are_expected():
    one = Process(5, world_size=8).steps(4, forward=1).finished()
    account = account_of(one, run={"only_ranks": (5,)})
    assert [rank.rank for rank in account.ranks] == [5]
    assert account.ratio("goodput") == 1.0


def test_newest_attempt_gives_the_world_size():
    first = [Process(r, world_size=3).steps(2, forward=1).killed() for r in range(3)]
    fewer = [Process(r, 2, start=2, world_size=2).resumed(1).step(forward=1).finished() for r in range(2)]
    account = account_of(*first, *fewer, elastic=True)
    assert account.world_size == 2, "the world that it ended with"
    # Rank 2 was expected while the world had three ranks: until the second attempt began.
    assert [rank.wall_ns for rank in account.ranks] == [ns(3), ns(3), ns(2)]
    assert account.wall_gpu_ns() == ns(8)
    more = [Process(r, 2, start=2, world_size=5).resumed(1).step(forward=1).finished() for r in range(3)]
    assert account_of(*first, *more, elastic=True).world_size == 5


# ---- Devices, factors and FLOPs


def test_ranks_are_weighted_by_devices():
    eight = Process(0, devices=8).steps(3, loader=1, forward=3).killed()
    two = Process(1, devices=2).steps(4, loader=0, forward=3).killed()
    again = [
        Process(0, 2, start=14, devices=8).resumed(1).step(forward=4).finished(),
        Process(1, 2, start=14, devices=2).resumed(1).step(forward=4).finished(),
    ]
    found = document(account_of(eight, two, *again))
    assert found["gpu_seconds"] == 18 * 10
    assert found["states"]["productive"] == 8 * (6 + 4) + 2 * (6 + 4)
    assert found["states"]["loader"] == 8 * 2
    assert found["states"]["lost"] == 8 * 4 + 2 * 6
    assert found["states"]["down"] == 8 * 2 + 2 * 2
    assert found["restarts"][0] == {
        "attempt": 2,
        "time": 14.0,
        "down_seconds": 2.0,
        "lost_steps": 1 + 2,
        "lost_gpu_seconds": 8 * 4.0 + 2 * 6.0,
        "resume_step": 1,
        "startup_gpu_seconds": 0.0,
        "gpu_seconds": 8 * 2.0 + 2 * 2.0 + 8 * 4.0 + 2 * 6.0,
        "cost": None,
    }
    assert found["ranks"][0]["states"]["productive"] == 80.0 and found["ranks"][0]["devices"] == 8


def test_unreported_rank_has_the_others_devices():
    found = document(account_of(Process(0, devices=4, world_size=2).steps(2, forward=1).finished()))
    assert (found["gpu_seconds"], found["states"]["unobserved"]) == (16.0, 8.0)


def test_factors_by_hand():
    rates = {"flops_per_step": 3e12, "peak_flops_per_second": 4e12}
    one = Process(**rates).between(none=2).steps(3, loader=0.5, forward=1, communication=0.5)
    one.between(evaluation=4).step(loader=0.5, forward=1, communication=0.5).killed()  # 14 s
    two = Process(attempt=2, start=18, **rates).resumed(1).between(restore=2)
    two.steps(4, loader=0.5, forward=1, communication=0.5).finished()  # 28 s
    account = account_of(one, two)
    # Kept: steps 0, 1 and 2..5 again, 6 × 2 s of 28 s, in them 6 s of compute.
    assert account.ratio("availability") == 12 / 28
    assert account.ratio("step_efficiency") == 6 / 12
    assert account.ratio("goodput") == 6 / 28
    # 6 × 3 TFLOP against 4 TFLOP/s in 6 s of compute and in 28 s of all.
    assert account.ratio("compute_efficiency") == 18 / 24
    assert account.ratio("mfu") == 18 / 112
    assert account.ratio("mfu") == pytest.approx(
        account.ratio("goodput") * account.ratio("compute_efficiency")
    )
    assert document(account)["factors"]["hfu"] is None


def test_unobserved_rank_adds_its_peak_only():
    rates = {"flops_per_step": 3e12, "peak_flops_per_second": 8e12, "devices": 2, "world_size": 2}
    account = account_of(Process(0, **rates).steps(4, forward=1).finished())
    # 4 × 3 TFLOP of 2 ranks × 8 TFLOP/s × 4 s; the compute of rank 0 took 4 s.
    assert account.ratio("mfu") == 12 / 64
    assert account.ratio("compute_efficiency") == 12 / 32


@pytest.mark.parametrize("unknown", ["flops_per_step", "peak_flops_per_second"])
def test_flops_unknown_to_one_rank_are_unknown(unknown):
    rates = {"flops_per_step": 3e12, "peak_flops_per_second": 8e12}
    known = Process(0, **rates).steps(4, forward=1).finished()
    other = Process(1, **{**rates, unknown: None}).steps(4, forward=1).finished()
    factors = document(account_of(known, other))["factors"]
    assert (factors["mfu"], factors["compute_efficiency"], factors["hfu"]) == (None, None, None)
    assert factors["goodput"] == 1.0
    missing = Process(0, world_size=2, **{**rates, unknown: None}).steps(4, forward=1).finished()
    assert document(account_of(missing))["factors"]["mfu"] is None


def test_different_peaks_leave_unreported_peak_unknown():
    ranks = [
        Process(r, flops_per_step=1e12, peak_flops_per_second=(1 + r) * 1e12).steps(2, forward=1).finished()
        for r in (0, 1)
    ]
    assert account_of(*ranks).ratio("mfu") == 4 / (3 * 2)
    for one in ranks:
        one.identity["world_size"] = 3
    assert account_of(*ranks).ratio("mfu") is None


def test_zero_is_measured_zero():
    idle = Process(flops_per_step=1e12, peak_flops_per_second=1e12).between(none=5)
    factors = document(account_of(idle, now=5))["factors"]
    assert (factors["goodput"], factors["availability"], factors["mfu"]) == (0.0, 0.0, 0.0)
    assert (factors["step_efficiency"], factors["compute_efficiency"]) == (None, None)


def test_device_is_of_the_first_rank_with_one():
    ranks = [
        Process(r, device=device).steps(2, forward=1).finished() for r, device in enumerate(["", "a", "b"])
    ]
    assert account_of(*ranks).device == account_of(*reversed(ranks)).device == "a"


# ---- Over time


def test_last_progress_and_samples():
    one = Process(0).steps(3, forward=1, samples=32).begun(forward=5)
    two = Process(1).steps(4, forward=1, samples=16).begun(forward=5)
    account = account_of(one, two, now=9)
    assert (account.last_progress_ns, account.samples) == (ns(4), 3 * 32 + 4 * 16)
    assert account_of(Process(start=1).between(none=1), now=9).last_progress_ns == ns(1)


# ---- The document


def test_document_is_plain_json_of_the_account():
    one = Process(0, gpu_hour_cost=2.0, world_size=2).between(none=1).steps(3, loader=1, forward=1).killed()
    account = account_of(one, now=12)
    found = json.loads(json.dumps(document(account, explain(account)), allow_nan=False))
    assert list(found["states"]) == list(STATES)
    assert sum(found["states"].values()) == found["gpu_seconds"] == 14.0
    assert {k: v for k, v in found["states"].items() if v} == seconds(account.gpu_ns())
    assert (found["status"], found["world_size"], found["steps"]) == ("failed", 2, {"kept": 3, "lost": 0})
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert found["hang"] is None and found["restarts"] == []
    causes = found["causes"]
    assert [cause["state"] for cause in causes] == ["unobserved", "loader", "startup"]
    first = causes[0]
    assert (first["gpu_seconds"], first["share"], first["gain"]) == (7.0, 0.5, 2.0)
    assert first["cost"] == pytest.approx(7 / 3600 * 2)


def test_cause_without_gain_or_cost():
    account = account_of(Process().between(none=4), now=4)
    (cause,) = explain(account)
    assert (cause["state"], cause["share"], cause["gain"], cause["cost"]) == ("startup", 1.0, None, None)


def test_silent_rank_outside_world_ends_with_run():
    ranks = [Process(r, world_size=2).steps(5, forward=1).saved(3).silent() for r in range(2)]
    second = Process(0, 2, start=20, world_size=1).resumed(3).step(forward=1).steps(3, forward=1).failed()
    account = account_of(*ranks, second, now=30, elastic=True)
    assert (account.status, account.end_ns) == ("failed", ns(24))
    # Rank 0 did steps 0 to 4, then 4 to 7 again from the checkpoint of step 3; nothing beyond it is safe.
    assert [(r.kept_steps, r.lost_steps) for r in account.ranks] == [(4, 5), (4, 1)]
