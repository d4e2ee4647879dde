"""Planned phases excuse a stall up to 10 x their own longest so far, at least 30 minutes; hand-worked in minutes."""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as with_fields
from support.account.account_history import Process, account_of, ns, of_rank, run_of
from support.aggregator.live_accounts import STALE, TwoStores
from support.aggregator.reports import rank_report

from goodput.account import compute
from goodput.account.states import INDEX
from goodput.aggregator.accounts import live
from goodput.aggregator.accounts.past import Past
from goodput.aggregator.accounts.past import account_of as past_account
from goodput.causes import explain

MINUTE = 60


def minutes(account, rank: int = 0) -> dict[str, float]:
    return {state: seconds / MINUTE for state, seconds in of_rank(account, rank).items()}


def evaluated(first: float, **given) -> Process:
    """10 steps of a minute, an evaluation of `first` minutes, and 10 steps."""
    one = Process(**given).steps(10, forward=MINUTE).between(evaluation=first * MINUTE)
    return one.steps(10, forward=MINUTE)


def test_evaluation_that_never_ends_is_a_stall():
    one = Process().steps(16, forward=1).begun(evaluation=5 * 3600)
    account = account_of(one, now=16 + 5 * 3600)
    assert of_rank(account) == {"productive": 16, "evaluation": 1800, "stall": 5 * 3600 - 1800}
    assert explain(account)[0]["state"] == "stall"


def test_limit_is_ten_times_the_longest():
    for first, then, excused in (
        (2, 29, 29),
        (2, 31, 30),
        (5, 49, 49),
        (5, 60, 50),
        (30, 250, 250),
        (30, 301, 300),
    ):
        one = evaluated(first).begun(evaluation=then * MINUTE)
        found = minutes(account_of(one, now=one.now_ns / 1e9))
        want = {"productive": 20, "evaluation": first + excused, "stall": then - excused}
        assert found == {state: spent for state, spent in want.items() if spent}


def test_stall_remains_when_the_phase_ends():
    """An evaluation that hung for 5 hours and went on. It does not raise the limit to 50 hours, but to 5."""
    one = (
        evaluated(2)
        .between(evaluation=300 * MINUTE)
        .step(forward=MINUTE)
        .between(evaluation=301 * MINUTE)
        .step(forward=MINUTE)
    )
    found = minutes(account_of(one, now=one.now_ns / 1e9))
    assert found == {"productive": 22, "evaluation": 2 + 30 + 300, "stall": 270 + 1}


def test_each_planned_phase_has_its_own_limit():
    one = Process().steps(10, forward=1).between(checkpoint=20 * MINUTE).steps(2, forward=1)
    one.begun(checkpoint=100 * MINUTE, evaluation=100 * MINUTE)
    found = minutes(account_of(one, now=one.now_ns / 1e9))
    assert (found["checkpoint"], found["evaluation"], found["stall"]) == (120, 30, 70)


def test_restore_and_evaluation_before_the_first_step():
    """What was not a stall before the first step is startup, but for the restore; the step may be all compiling."""
    one = Process().between(restore=60 * MINUTE, evaluation=45 * MINUTE, none=2 * MINUTE).step(forward=MINUTE)
    found = minutes(account_of(one, now=one.now_ns / 1e9))
    assert found == {"restore": 30, "startup": 32, "stall": 45, "compile": 1}


def test_later_attempt_keeps_the_ranks_limit():
    """Another rank's long evaluations and its own later ones count for nothing."""
    before = Process().steps(3, forward=MINUTE).between(evaluation=5 * MINUTE).step(forward=MINUTE).killed()
    start = before.now_ns / 1e9
    again = Process(0, 2, start).resumed(3).step(forward=MINUTE).between(evaluation=45 * MINUTE)
    again.step(forward=MINUTE).begun(evaluation=60 * MINUTE)
    other = Process(1, 2, start).step(forward=MINUTE).begun(evaluation=45 * MINUTE)
    found = account_of(before, again, other, now=again.now_ns / 1e9, run={})
    assert minutes(found)["evaluation"] == 5 + 45 + 60 and "stall" not in minutes(found)
    assert minutes(found, 1)["stall"] == again.now_ns / 1e9 / MINUTE - start / MINUTE - 1 - 30


def test_live_window_history_and_replay_agree(monkeypatch, tmp_path):
    monkeypatch.setattr(live, "ROWS_MAX", 5)
    both = TwoStores()
    ranks = [evaluated(5, rank=rank, world_size=2) for rank in range(2)]
    for one, phase in zip(ranks, ("evaluation", "communication"), strict=True):
        one.between(evaluation=60 * MINUTE).step(forward=MINUTE).begun(**{phase: 40 * MINUTE})
    last_ns = ranks[0].now_ns
    for count in (3, 11, 21):
        for one in ranks:
            now_ns = one.rows[min(count, len(one.rows)) - 1].end_ns
            both.push(replace_live(rank_report(one, rows=one.rows[:count]), now_ns), now_ns)
        assert both.compare(now_ns)
    for one in ranks:
        both.push(rank_report(one), last_ns)
    assert both.compare(last_ns) and both.compare(last_ns + ns(5))
    expected = both.full(last_ns)
    assert minutes(expected) == {"productive": 21, "evaluation": 5 + 50 + 40, "stall": 10}
    assert minutes(expected, 1) == {"productive": 21, "evaluation": 5 + 50, "stall": 10 + 40}
    run = both.whole.runs["r1"]
    past = Past(both.some.runs["r1"], last_ns, expected.threshold_ns, STALE)
    # From the second stretch of steps on: the first evaluation, which set the limit, lies outside.
    window = (ranks[0].rows[12].end_ns, None)
    want = compute(run, last_ns, stale_seconds=STALE, known_only=True, window=window)
    assert want.ranks[0].states[INDEX["stall"]] == ns(10 * MINUTE)
    found = past_account(both.rows, past, window)
    assert [rank.states for rank in found.ranks] == [rank.states for rank in want.ranks]
    both.compare_log_and_history(last_ns, tmp_path / "run.jsonl")


def replace_live(report, now_ns: int):
    """The report as of `now_ns`, in no phase."""
    last = report.steps[-1]
    live_part = with_fields(report.live, now_ns=now_ns, last_ns=now_ns, totals=last.totals, phase="none")
    return with_fields(report, live=live_part, sequence=now_ns)


def test_order_of_attempts_does_not_matter():
    before = Process().steps(3, forward=MINUTE).between(evaluation=5 * MINUTE).step(forward=MINUTE).killed()
    again = Process(0, 2, before.now_ns / 1e9).resumed(3).step(forward=MINUTE)
    again.between(evaluation=45 * MINUTE).step(forward=MINUTE)
    run = run_of(before, again)
    turned = replace(run, attempts=dict(reversed(run.attempts.items())))
    assert compute(run, again.now_ns).ranks == compute(turned, again.now_ns).ranks
    assert "stall" not in minutes(compute(turned, again.now_ns))
