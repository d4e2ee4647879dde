"""End marks on random runs: live and full account, history and replay agree."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace
from support.account.account_history import Process, ns, of_rank
from support.aggregator.live_accounts import TwoStores
from support.aggregator.random_reports import RandomReports
from support.aggregator.reports import rank_report

from goodput.account import FINAL_STATUSES, EndMark
from goodput.aggregator.accounts import live
from goodput.wire import schema

SEEDS = 32


def mark_ended(both: TwoStores, reason: str, at_ns: int, slack_ns: int) -> None:
    """Mark every rank's newest unfinished process as ended, as RunEnder does."""
    for one in list(both.some.newest["r1"].values()):
        attempt = one.attempt
        if attempt.ended != "finished":
            known_ns = max(attempt.seen_ns, attempt.last_ns, attempt.rows_end_ns, attempt.end_ns)
            mark = EndMark(reason, at_ns, known_ns + slack_ns)
            both.rows.end_marks[schema.stack_request(one.identity)] = mark
            for store in (both.some, both.whole):
                store.end(one.identity, mark)


def play(seed: int, monkeypatch, path) -> set[str]:
    """Compare the accounts of one random run at every push; returns the statuses that occurred."""
    rng = random.Random(1000 + seed)
    draws, both, seen = RandomReports(rng), TwoStores(), set()
    monkeypatch.setattr(live, "ROWS_MAX", rng.choice([0, 5, 20, 200_000]))
    monkeypatch.setattr(live, "TOGETHER_ROWS_MAX", rng.choice([1 << 18, 2, 30]))
    often, now_ns = rng.choice([0.02, 0.1, 0.3]), 0
    for now_ns, report in draws.story():
        both.push(report, now_ns)
        both.compare(now_ns)
        if rng.random() < often:
            at_ns = rng.choice([0, 0, now_ns, now_ns - ns(50)])
            mark_ended(both, rng.choice(FINAL_STATUSES), at_ns, ns(rng.choice([0, 0.1, 5, 60])))
            both.compare(now_ns)
        seen.add(both.folding.last.status)
    if now_ns:
        mark_ended(both, rng.choice(FINAL_STATUSES), 0, ns(60))
        both.compare(now_ns)
        both.compare(now_ns + ns(1000))
        seen.add(both.folding.last.status)
        if not draws.again:
            both.compare_log_and_history(now_ns + ns(1000), path)
    return seen


@pytest.mark.parametrize("part", range(2))
def test_end_marks_agree_in_all_accounts(part, monkeypatch, tmp_path):
    seen = set()
    for seed in range(part, SEEDS, 2):
        try:
            seen |= play(seed, monkeypatch, tmp_path / "run.jsonl")
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert seen >= {"running", *FINAL_STATUSES}


def test_cancelled_run_with_trimmed_rows_continues(monkeypatch):
    """Steps after the checkpoint are lost and then kept again; both times the fold needs the ledger."""
    monkeypatch.setattr(live, "ROWS_MAX", 10)
    both, one = TwoStores(), Process().steps(30, forward=1).saved().steps(20, forward=1)
    both.push(rank_report(one), one.now_ns)
    assert both.compare(one.now_ns) and of_rank(both.folding.last) == {"productive": 50}
    mark_ended(both, "cancelled", 0, ns(60))
    assert both.compare(ns(200)) and both.folding.last.status == "cancelled"
    assert of_rank(both.folding.last) == {"productive": 30, "lost": 20}
    one.steps(70, forward=1)
    both.push(rank_report(one), one.now_ns)
    assert both.compare(one.now_ns) and both.folding.last.status == "running"
    assert of_rank(both.folding.last) == {"productive": 120}


def test_late_steps_undo_the_mark_in_the_log(tmp_path):
    """Their report is delayed and outdated by a newer one that arrives first."""
    both, one = TwoStores(), Process().steps(10, forward=1)
    before = rank_report(one)
    both.push(replace(before, sequence=1 << 60), one.now_ns)
    mark_ended(both, "cancelled", 0, ns(60))
    assert both.compare(ns(100)) and both.folding.last.status == "cancelled"
    one.steps(70, forward=1)
    both.push(rank_report(one), one.now_ns)
    assert both.full(ns(1000)).status == "unobserved"
    both.compare(ns(1000))
    both.compare_log_and_history(ns(1000), tmp_path / "run.jsonl")
