"""The answer of a document: how much was lost, the largest avoidable loss with its culprit, what to do. Worked by hand."""

from dataclasses import replace

import pytest
from support.account.account_history import Process, ns, run_of

from goodput.account import compute, document
from goodput.account.text import render
from goodput.account.text.answer import answer, with_hang
from goodput.causes import explain


def document_of(*processes, now=100.0, **run):
    account = compute(replace(run_of(*processes), **run), ns(now))
    return document(account, explain(account))


def test_answer_names_loss_money_culprit_and_advice():
    """Ranks 0 to 3: rank 2 loads 0.5 s of each of 20 steps, the others wait for it, 0.4 s of 1.5 s."""
    ranks = [
        Process(r, world_size=4, gpu_hour_cost=36.0, host=f"n{r}")
        .steps(20, loader=0.1 + 0.4 * (r == 2), forward=1, communication=0.4 * (r != 2))
        .finished()
        for r in range(4)
    ]
    found = document_of(*ranks)
    got = found["answer"]
    # 4 x 30 GPU-seconds, 80 of them productive; 3 ranks waited 8 s each.
    assert (got["lost_gpu_seconds"], got["lost_cost"]) == (40.0, pytest.approx(0.4))
    assert (got["state"], got["is_avoidable"]) == ("straggler", True)
    assert (got["share"], got["gpu_seconds"], got["cost"]) == (0.2, 24.0, pytest.approx(0.24))
    assert (got["rank"], got["host"], got["stage"], got["since_start"]) == (2, "n2", None, True)
    lost, why, after = got["lines"]
    assert lost == "goodput 66.7 %: lost 40.0 of 120.0 GPU-seconds, $0.4000 of $1.20"
    assert why == "why: straggler, 20.0 % of all GPU time: waiting for rank 2 on n2 (loader) from the start"
    assert after.startswith("next: ") and "its loader is slow: check that node's disk" in after
    lines = render(found).splitlines()
    assert lines[2] == f"  {lost}" and lines[3].startswith("  why: straggler")


def test_what_is_paid_once_does_not_lead():
    """20 s of startup, then 20 steps with 0.1 s of loader: 2 s of 42, a tenth of each step to come."""
    got = document_of(Process(total_steps=1000).between(none=20).steps(20, forward=1, loader=0.1), now=42)
    lost, why, _ = got["answer"]["lines"]
    assert why == "why: loader, 4.8 % of all GPU time"
    # 20 s once, and 1000 x 1.1 s of which 1000 s are productive: 1000 / 1120.
    assert lost.endswith(
        "; 47.6 % of the time is paid once: over 1,000 steps goodput would be 89.3 % (an estimate)"
    )


def test_nothing_avoidable_is_said():
    got = document_of(Process(total_steps=5).between(none=20).steps(5, forward=1), now=25)["answer"]
    assert (got["state"], got["is_avoidable"]) == ("startup", False)
    assert (
        got["lines"][1]
        == "why: nothing that can be avoided is worth 1 %; most is startup, 80.0 % of all GPU time"
    )


def test_bubble_does_not_lead():
    """Two stages that wait for each other half of each step by their schedule, and a loader of 2 %."""
    ranks = [
        Process(r, world_size=2, stage=r, microbatches=1).steps(
            40, loader=0.02, forward=0.5, communication=0.48
        )
        for r in (0, 1)
    ]
    found = document_of(*ranks, now=40)
    assert found["states"]["bubble"] > found["states"]["loader"] > 0
    assert found["answer"]["state"] == "loader" and found["advice_order"][-1] == "bubble"


def test_all_ranks_of_a_host_are_one_culprit():
    """Ranks 2 and 3, of host n1, spend 3 s in evaluation; nobody else does."""
    ranks = [
        Process(r, world_size=4, host=f"n{r // 2}").steps(10, forward=1).between(evaluation=3.0 * (r > 1), none=3.0 * (r < 2))
        .steps(10, forward=1)
        for r in range(4)
    ]  # fmt: skip
    got = document_of(*ranks, now=23)["answer"]
    hosts = {"evaluation": "n1", "unattributed": "n0"}
    assert (got["host"], got["rank"]) == (hosts[got["state"] or ""], None)
    assert f"nearly all on host {got['host']}" in got["lines"][1]


def test_nothing_lost_has_one_line():
    assert document_of(Process().steps(16, forward=1), now=16)["answer"]["lines"] == [
        "goodput 100.0 %: lost 0.0 of 16.0 GPU-seconds"
    ]


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("dead", "read the log of rank 1 on n1, whose process is gone"),
        ("silent before", "look at rank 1 on n1, which reports nothing"),
        ("", "look at the ranks that stopped first"),
    ],
)
def test_hang_comes_first(kind, advice):
    found = document_of(Process(0, world_size=2).steps(3, forward=1, loader=1), now=90)
    hang = {"seconds": 84.0, "reason": "rank 1 is gone", "culprit": 1 if kind else None, "host": "n1"}
    hang["suspects"] = [{"rank": 1, "kind": kind}] if kind else []
    _, why, after = with_hang(found, hang)["answer"]["lines"]
    assert why == "why: hangs, no step for 84 s: rank 1 is gone" and after.startswith(f"next: {advice}")


def test_long_runs_are_in_hours():
    ranks = [Process(r, world_size=2).steps(40, forward=80, loader=20) for r in range(2)]
    line = document_of(*ranks, now=4000)["answer"]["lines"][0]
    assert line.startswith("goodput 80.0 %: lost 0.4 of 2.2 GPU-hours")


def test_answer_can_be_made_of_a_stored_document():
    found = document_of(Process(0).steps(3, forward=1, loader=1).finished())
    stored = {name: value for name, value in found.items() if name != "answer"}
    assert answer(stored) == found["answer"]


def test_crash_is_told_with_its_step_and_checkpoint():
    """Two ranks save step 9 and make steps 10 to 14; rank 1 fails 1 s before rank 0, in step 15."""
    ranks = [
        Process(r, world_size=2, total_steps=1000).steps(10, forward=1).saved().steps(5, forward=1)
        for r in (0, 1)
    ]
    found = document_of(
        ranks[0].between(none=1).failed("ConnectionError: reset"), ranks[1].failed("RuntimeError: bad batch")
    )
    assert found["failure"] == {
        "rank": 1, "host": "n1", "step": 15, "text": "RuntimeError: bad batch", "committed_step": 9, "steps_since_checkpoint": 5
    }  # fmt: skip
    _, why, after = found["answer"]["lines"]
    assert why == (
        "why: failed in step 15 on rank 1 on n1: RuntimeError: bad batch; 5 steps since the last committed checkpoint"
    )
    assert after == "next: fix what ended it, then start it again from the checkpoint after step 9"


def test_crash_without_checkpoint_or_steps():
    one = document_of(Process().steps(3, forward=1).failed(""))
    assert one["answer"]["lines"][1:] == [
        "why: failed in step 3; no checkpoint was committed", "next: fix what ended it, then start it again"
    ]  # fmt: skip
    assert document_of(Process().steps(3, forward=1).finished())["failure"] is None


def test_run_that_was_started_again_has_not_failed():
    one = Process().steps(3, forward=1).failed("ValueError: first")
    two = Process(attempt=2, start=9).resumed(-1).steps(3, forward=1)
    assert document_of(one, two, now=12)["failure"] is None


def test_failed_run_is_not_projected():
    """Its worker has no launcher that would start it again."""
    run = run_of(
        Process(worker="w1", total_steps=1000).between(none=5).steps(3, forward=1, loader=1).failed("E")
    )
    account = compute(run, ns(100))
    found = document(account, explain(account))
    assert (found["status"], found["end"], found["whole_run"]) == ("failed", 11.0, None)
    assert "over 1,000 steps" not in found["answer"]["lines"][0]
