"""The live account of irregular runs equals the account over all rows at every push.

Ranks join late and leave, worlds change, attempts overlap, steps are skipped, repeated or take no time; reports
arrive in any order with rows missing. History and the replayed export agree at the end. The other tests here are
minimal forms of what the random cases found.
"""

from __future__ import annotations

import random

import pytest
from support.account.account_history import Process, ns
from support.aggregator.live_accounts import TwoStores
from support.aggregator.random_reports import RandomReports
from support.aggregator.reports import rank_report
from support.seeds import cases

from goodput.account import attempts as attempts_module
from goodput.aggregator.accounts import live
from goodput.aggregator.ledger.ledger import LedgerError


def play(seed: int, monkeypatch, path, workers: bool = False) -> None:
    rng = random.Random(seed)
    draws, both = RandomReports(rng, workers), TwoStores()
    monkeypatch.setattr(live, "ROWS_MAX", rng.choice([0, 5, 20, 100, 200_000]))
    monkeypatch.setattr(live, "TOGETHER_ROWS_MAX", rng.choice([1 << 18, 2, 30]))
    # Steps that are done again and have been compared meanwhile are compared with others than in a fold of all.
    often, now_ns = rng.choice([1, 0.3]), 0
    for now_ns, report in draws.story():
        both.push(report, now_ns)
        if rng.random() < often:
            both.compare(now_ns)
    if now_ns:
        both.compare(now_ns)
        both.compare(now_ns + ns(rng.choice([0.5, 20, 1000])))
        if not draws.again:
            # In a log a repeated step implies that the work from there on is lost.
            both.compare_log_and_history(now_ns, path)


SEEDS = 56


@pytest.mark.parametrize("part", cases(4))
def test_incremental_account_equals_full_in_any_order(part, monkeypatch, tmp_path):
    for seed in range(part, SEEDS, 4):
        try:
            play(seed, monkeypatch, tmp_path / "run.jsonl")
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def test_accounts_of_workers_agree(monkeypatch, tmp_path):
    """Processes without ranks, which live and restart by themselves."""
    for seed in range(1000, 1020):
        try:
            play(seed, monkeypatch, tmp_path / "run.jsonl", workers=True)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def trimming(monkeypatch) -> TwoStores:
    monkeypatch.setattr(live, "ROWS_MAX", 10)
    return TwoStores()


def pair(count: int) -> list[Process]:
    """Two ranks, of which the second waits for the first."""
    return [
        Process(rank, world_size=2).steps(count, forward=0.5, communication=0.25 * (1 + rank))
        for rank in range(2)
    ]


def test_late_rows_after_trimming_are_folded(monkeypatch):
    """Their numbers are new; lost steps and stragglers are computed from them."""
    both, ranks = trimming(monkeypatch), pair(50)
    for one in ranks:
        one.killed(after=1)
        now_ns = one.now_ns
        for rows in (one.rows[:10], one.rows[30:]):
            assert both.push(rank_report(one, rows=rows), now_ns) == len(rows)
            assert both.compare(now_ns)
    again = [Process(rank, 2, 60, world_size=2).resumed(17).steps(3, forward=1) for rank in range(2)]
    for one in again:
        both.push(rank_report(one), now_ns)
        both.compare(now_ns)
    for one in ranks:
        attempt = both.some.runs["r1"].attempts[one.rank, 1]
        assert attempt.holes == [(11, 30)] and attempt.kept_rows() == 0
        assert both.push(rank_report(one, rows=one.rows[12:20]), now_ns) == 8
        assert both.compare(now_ns)
        assert attempt.holes == [(11, 12), (21, 30)]
        assert both.push(rank_report(one), now_ns) == 12
        assert both.compare(now_ns)
        assert attempt.holes == [] and both.push(rank_report(one), now_ns) == 0
        assert both.compare(now_ns)
    account = both.full(now_ns)
    assert account.restarts[0].lost_steps == 2 * 32 and account.straggler.waited_ns == 18 * ns(0.25)


def test_fold_refuses_a_ledger_without_trimmed_rows(monkeypatch):
    """They are merged and not written yet: folded without them they would be missing for good."""
    both, one = trimming(monkeypatch), Process(world_size=1).steps(50, forward=0.5)
    both.push(rank_report(one, rows=one.rows[:20]), one.now_ns)
    assert both.compare(one.now_ns)
    written = both.rows.kept[0, 1]
    both.push(rank_report(one), one.now_ns)
    assert both.compare(one.now_ns) and both.some.runs["r1"].attempts[0, 1].trimmed == 50
    again = Process(0, 2, 60).resumed(9).steps(3, forward=1)
    both.push(rank_report(again), again.now_ns)
    both.rows.kept[0, 1] = {number: row for number, row in written.items() if number <= 20}
    with pytest.raises(LedgerError, match="rank 0 attempt 1 up to row 20, not up to 50 yet"):
        both.compare(again.now_ns)
    both.rows.kept[0, 1] = written
    assert both.compare(again.now_ns)


def test_remembered_holes_are_bounded(monkeypatch):
    """Thinned rows leave a hole each, which stays."""
    both, one = trimming(monkeypatch), Process().steps(400, forward=0.5)
    thinned = one.rows[::2]
    for at in range(0, 200, 20):
        both.push(rank_report(one, rows=thinned[at : at + 20]), one.now_ns)
        assert both.compare(one.now_ns)
    (attempt,) = both.some.runs["r1"].attempts.values()
    assert len(attempt.holes) == attempts_module.HOLES_MAX
    top = attempt.top_number
    assert attempt.holes[-1] == (top - 1, top - 1)
    assert not attempt.lacks(2) and attempt.lacks(top - 1) and not attempt.lacks(top)


def test_returned_rank_is_compared_at_once(monkeypatch):
    """Its group did not wait for it while it was silent; its steps are recognised as late when they are folded."""
    both, (one, two) = trimming(monkeypatch), pair(400)
    early = pair(5)[1]
    both.push(rank_report(early), early.now_ns)
    for count in (100, 300, 400):
        now_ns = ns(200) + one.rows[count - 1].end_ns
        both.push(rank_report(one, rows=one.rows[:count]), now_ns)
        assert both.compare(now_ns)
    engine = both.folding._engine
    assert engine.core.settled(engine.groups[1, ""]) > 20
    both.push(rank_report(two, rows=two.rows), now_ns)
    assert both.compare(now_ns)
    assert both.full(now_ns).straggler.waited_ns >= 300 * ns(0.25)


def test_first_step_outside_does_not_block_others(monkeypatch, tmp_path):
    """It lies in the time of the attempt before; the history does not even read it."""
    both = trimming(monkeypatch)
    before = Process(0, 1, 0, world_size=3).steps(8, forward=1).killed()
    ranks = [Process(rank, 2, 5.5, world_size=3) for rank in range(3)]
    for i in range(6):
        for one in ranks:
            if i > 2 or one.rank:
                # The second rank's part of the first one's first step shows that it is slow.
                one.step(i, forward=1 if (i, one.rank) == (3, 1) else 0.5, communication=0.25)
            else:
                one.between(none=0.25)
    for one in (before, *ranks):
        both.push(rank_report(one), ranks[0].now_ns)
        both.compare(ranks[0].now_ns)
    both.compare_log_and_history(ranks[0].now_ns, tmp_path / "run.jsonl")


def test_silent_earlier_attempt_is_in_the_log(monkeypatch, tmp_path):
    """The run finished without the rank; in the log too it is stale, and not at work for ever."""
    both = trimming(monkeypatch)
    lost = Process(1, 1, 0, world_size=2).steps(5, forward=1).silent(after=0.5)
    first = Process(0, 1, 0, world_size=2).steps(5, forward=1).killed()
    again = Process(0, 2, 10, world_size=2).resumed(4).steps(5, forward=1).finished()
    for one in (lost, first, again):
        both.push(rank_report(one), ns(100))
    assert both.compare(ns(200)) and both.full(ns(200)).status == "finished"
    both.compare_log_and_history(ns(200), tmp_path / "run.jsonl")
