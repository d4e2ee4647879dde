"""Whose own calls of collectives are slow, by numbers worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.account.account_history import Process, account_of, ns, run_of

from goodput.account import compute, document
from goodput.account.collectives.operation_sums import OTHER, Exposed, sums_of
from goodput.account.slow_ranks.slow_issue import SlowIssue, slow_issue
from goodput.account.text import render
from goodput.causes import explain

MS = 10**6


def rank(number: int, steps: int = 10, step_ms: float = 100, device_ns: int = 0, **issue_ms: float):
    """A rank with these times per step until calls return, by operation of group dp."""
    rows = [("dp", name, steps, 8, 0, 0, round(ms * MS)) for name, ms in issue_ms.items()]
    exposed = [Exposed(sums_of([("dp", "all_reduce", 1, 8, 0, 0, 90 * MS)]), 0), Exposed(sums_of(rows), 0)]
    return SimpleNamespace(
        rank=number,
        exposed=exposed,
        kept_ns=round(steps * step_ms * MS),
        kept_steps=steps,
        device_ns=device_ns,
    )


def found(*ranks, peers=lambda _: "") -> SlowIssue | None:
    return slow_issue(ranks, peers)


def test_slow_rank_of_three_is_named_with_its_operation():
    ranks = [
        rank(0, all_reduce=0.2),
        rank(1, all_reduce=9, broadcast=4),
        rank(2, all_reduce=0.4, broadcast=0.1),
    ]
    assert found(*ranks) == SlowIssue(1, "dp", "all_reduce", 9 * MS, round(0.4 * MS), 100 * MS)


@pytest.mark.parametrize(("ms", "is_slow"), [(2.5, True), (2.0, False)])
def test_border_is_two_percent_of_a_step(ms, is_slow):
    """With 0.1 ms usual: 2.4 ms more of 100 ms are enough, 1.9 ms are not."""
    assert (found(rank(0, all_reduce=0.1), rank(1, all_reduce=ms)) is not None) is is_slow


def test_slow_calls_must_be_several_times_as_long_as_usual():
    assert found(rank(0, all_reduce=5), rank(1, all_reduce=14.9)) is None
    assert found(rank(0, all_reduce=5), rank(1, all_reduce=15)).rank == 1


def test_ranks_are_compared_within_their_group():
    """The ranks of stage 1 all take 9 ms, so none of them is slow."""
    ranks = [rank(i, all_reduce=9 if i > 1 else 0.1) for i in range(4)]
    assert found(*ranks, peers=lambda number: number // 2) is None
    assert found(*ranks).rank == 2


def test_nobody_is_named_without_peers_calls_or_on_a_device():
    assert found() is None and found(rank(0, all_reduce=50)) is None
    assert found(rank(0, all_reduce=0), rank(1, steps=0, all_reduce=50)) is None
    assert found(rank(0, all_reduce=0.1), rank(1, all_reduce=50, device_ns=1)) is None
    sums = sums_of([(*OTHER, 1, 8, 0, 0, 50 * MS)])
    others = [rank(0), rank(1)]
    for one, two in ((others[0], NO), (others[1], sums)):
        one.exposed = [Exposed(two, 0)]
    assert found(*others) is None


NO = sums_of([(*OTHER, 1, 8, 0, 0, 0)])


def test_document_text_and_advice_name_the_rank():
    """Both wait 0.2 s a step in all-reduces; rank 1's calls take 0.15 s of it to return."""
    ranks = []
    for number, issue in ((0, 0.001), (1, 0.15)):
        sums = sums_of([("mesh_dp", "all_reduce", 4, 100, ns(0.8), 0, ns(issue))])
        ranks.append(
            Process(number, host=f"n{number}", sums=sums).steps(4, forward=1, communication=0.2).finished()
        )
    account = account_of(*ranks)
    shown = document(account, explain(account))
    assert shown["straggler"]["culprit"] is None
    assert shown["straggler"]["slow_issue"] == {
        "rank": 1,
        "host": "n1",
        "group": "mesh_dp",
        "operation": "all_reduce",
        "seconds": 0.15,
        "usual_seconds": 0.001,
    }
    account.is_part, account.is_to_end = True, False
    del account.slow_issue  # The newest calls' times are no figure of an hour ago.
    assert account.slow_issue is None
    line = "rank 1 on n1 takes 0.15 s a step to start all_reduce in mesh_dp, others 1 ms"
    assert f"slow collective: {line} " in " ".join(render(shown, full=True).split())
    advice = {cause["state"]: cause["advice"] for cause in shown["causes"]}["communication"]
    assert advice.startswith(f"All ranks wait while {line}: check")


@pytest.mark.parametrize(("calls", "explain_it"), [(0.4, True), (0.2, False)])
def test_advice_on_a_slow_rank_names_its_calls(calls, explain_it):
    """Its backward pass takes 0.5 s longer; calls with half of that, in which a communication hook sleeps, explain it."""
    ranks = []
    for number, (backward, issue) in enumerate(((1, 0.001), (1, 0.001), (1.5, calls))):
        sums = sums_of([("dp", "all_reduce", 10, 100, ns(2), 0, ns(issue))])
        waits = 0.2 + 1.5 - backward
        ranks.append(Process(number, sums=sums).steps(10, backward=backward, communication=waits).finished())
    account = account_of(*ranks)
    assert account.straggler.culprit() == (2, "productive")
    assert account.straggler.excess_ns(2) == pytest.approx(ns(0.5)) and account.straggler.excess_ns(0) < 0
    advice = {cause["state"]: cause["advice"] for cause in explain(account)}["straggler"]
    named = "rank 2 on n2: its calls of all_reduce in dp take 0.40 s a step to return, others' 1 ms"
    assert (named in advice, "its compute is slow" in advice) == (explain_it, not explain_it), advice
    assert account.calls_that_slow(0) is None


def test_windows_up_to_the_end_name_the_rank():
    """The time of the newest calls holds for the last minutes, not for the first."""
    ranks = []
    for number, issue in ((0, 0.001), (1, 0.15)):
        sums = sums_of([("mesh_dp", "all_reduce", 8, 100, ns(1.6), 0, ns(issue))])
        ranks.append(Process(number, sums=sums).steps(8, forward=1, communication=0.2).finished())
    run = run_of(*ranks)
    last = compute(run, ns(100), window=(ns(4.8), None)).slow_issue
    assert last is not None and (last.rank, last.issue_ns, last.step_ns) == (1, ns(0.15), ns(1.2))
    assert compute(run, ns(100), window=(None, ns(4.8))).slow_issue is None
