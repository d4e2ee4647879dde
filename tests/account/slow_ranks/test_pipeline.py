"""Pipelines against a simulator of them: the slowdown, the split of the waiting, and who is named."""

from __future__ import annotations

import random

import pytest
from support.account.account_history import Process, account_of, assert_closes, ns, run_of
from support.account.fed_orders import by_chance, fed_by, in_time
from support.account.pipeline_simulator import Training
from support.seeds import cases

from goodput.account import compute, document
from goodput.account.collectives.operation_sums import sums_of
from goodput.account.states import INDEX
from goodput.account.text import render
from goodput.causes import explain

STEPS = 30


def account_and_truth(training: Training, work, steps: int = STEPS, **declared):
    account = account_of(*training.processes(steps, work, **declared), now=1e6)
    return account, training.slowdown(steps, work)


def share(account, state: str) -> float:
    return account.gpu_ns()[INDEX[state]] / account.wall_gpu_ns()


def even(step, stage, replica, microbatch):
    return 1.0


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (4, 8), (4, 12), (8, 8)])
def test_even_pipeline_waits_in_bubble_alone(schedule, stages, microbatches):
    account, truth = account_and_truth(Training(stages, microbatches, 2, schedule), even)
    ideal = (stages - 1) / (microbatches + stages - 1)
    assert truth == pytest.approx(1)
    assert account.straggler.slowdown() == pytest.approx(1, abs=1e-6)
    assert share(account, "bubble") == pytest.approx(ideal, rel=0.02)
    assert share(account, "communication") < 0.01
    assert document(account)["basis"]["bubble"] == "estimated"


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("factor", [1.4, 1.5])
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_slow_last_stage_is_named(schedule, factor, replicas):
    def work(step, stage, replica, microbatch):
        return factor if stage == 3 else 1.0

    account, truth = account_and_truth(Training(4, 8, replicas, schedule), work)
    assert 1.17 < truth < 1.22
    assert account.straggler.slowdown() == pytest.approx(truth, rel=0.005)
    assert (account.straggler.culprit(), account.straggler.culprit_stage()) == (None, 3)
    assert share(account, "communication") < 0.02


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(
    ("factor", "named"), [(1.0, None), (1.02, None), (1.03, None), (1.04, None), (1.12, 3)]
)
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
def test_stage_with_a_little_more_work_is_healthy(schedule, factor, named, noise):
    """As the last one has by the loss, whatever the steps vary; a slow stage stands out of that."""

    def work(step, stage, replica, microbatch):
        varied = random.Random(f"{step} {stage} {replica} {microbatch}").uniform(1 - noise, 1 + noise)
        return varied * (factor if stage == 3 else 1.0)

    account, _ = account_and_truth(Training(4, 8, 2, schedule), work)
    assert (account.straggler.culprit(), account.straggler.culprit_stage()) == (None, named)
    assert ("slow stage:" in render(document(account), full=True)) == (named is not None)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_slow_rank_in_a_stage_is_named(schedule, stage):
    rng = random.Random(stage)
    noise = [rng.uniform(0.97, 1.03) for _ in range(997)]

    def work(step, s, replica, microbatch):
        usual = noise[(step * 389 + s * 31 + replica * 7 + microbatch) % 997]
        return usual * (1.4 if (s, replica) == (stage, 2) else 1.0)

    account, truth = account_and_truth(Training(4, 8, 4, schedule), work)
    assert account.straggler.slowdown() == pytest.approx(truth, rel=0.03)
    assert account.straggler.culprit() == (4 * stage + 2, "productive")
    assert account.straggler.culprit_stage() is None
    assert account.straggler.shares()[0][1] > 0.9


@pytest.mark.parametrize("law", ["uniform", "heavy"])
@pytest.mark.parametrize("seed", cases(3))
def test_work_that_wanders_names_nobody(law, seed):
    """Microbatches of different lengths, the same for all stages of a replica, and a random replica's are long."""
    training, steps = Training(4, 8, 4), 43

    def work(step, stage, replica, microbatch):
        rng = random.Random(f"{seed} {step} {replica} {microbatch}")
        length = rng.uniform(0.8, 1.2) if law == "uniform" else min(rng.lognormvariate(0, 0.5), 8)
        return length * (2 if random.Random(f"{seed} {step}").randrange(4) == replica else 1)

    account, truth = account_and_truth(training, work, steps)
    assert truth > 1.2
    assert (account.straggler.culprit(), account.straggler.culprit_stage()) == (None, None)
    causes = explain(account)
    text = render(document(account, causes), full=True)
    assert "slow rank:" not in text and "slow stage:" not in text
    advice = next(cause["advice"] for cause in causes if cause["state"] == "straggler")
    assert "the slowest rank changes from step to step" in advice


def test_slow_rank_and_slow_stage_are_both_named():
    def work(step, stage, replica, microbatch):
        return (1.3 if stage == 3 else 1.0) * (1.3 if (stage, replica) == (3, 1) else 1.0)

    account, truth = account_and_truth(Training(4, 8, 4), work)
    assert account.straggler.slowdown() == pytest.approx(truth, rel=0.03)
    assert account.straggler.culprit() == (13, "productive")
    assert account.straggler.culprit_stage() == 3


def test_text_and_document_name_the_slow_stage():
    def work(step, stage, replica, microbatch):
        return 1.5 if stage == 3 else 1.0

    account, truth = account_and_truth(Training(4, 8, 2), work)
    found = document(account, explain(account))
    assert (found["straggler"]["culprit"], found["straggler"]["culprit_stage"]) == (None, 3)
    assert found["straggler"]["stages"] == [{"stage": 3, "share": 1.0}]
    text = " ".join(render(found, full=True).split())
    phase = found["straggler"]["stage_because_phase"]
    assert phase in ("forward", "backward")
    explained = f"slow stage: 3 ({phase}), which explains 100.0 % of the waiting"
    assert f"{explained}; steps take {truth:.2f}x as long" in text
    advice = {cause["state"]: cause["advice"] for cause in found["causes"]}
    assert (
        "100 % of it is waiting for stage 3" in advice["straggler"] and "move layers" in advice["straggler"]
    )
    assert "more microbatches" in advice["bubble"]


def test_waits_in_sends_and_receives_by_stage():
    """Stage 1 has two ranks: 2.4 s and 1.2 s in 4 steps each; what is no send or receive, or in no stage, does not count."""
    group, rows = "pp", {0: {"send": 0.8}, 1: {"recv": 2.4, "all_reduce": 0.4}, 2: {"recv": 1.2, "send": 0.4}}
    processes = []
    for rank, spent in rows.items():
        sums = sums_of((group, name, 12, 0, ns(seconds), 0) for name, seconds in spent.items())
        one = Process(rank, 1, 0.0, stage=min(rank, 1), microbatches=3, sums=sums)
        processes.append(one.steps(4, forward=1, communication=0.8).finished())
    found = document(account_of(*processes))
    assert found["pipeline"]["waits"] == [
        {
            "stage": 0,
            "operation": "send",
            "step_seconds": pytest.approx(0.2),
            "microbatch_seconds": pytest.approx(0.2 / 3),
        },
        {
            "stage": 1,
            "operation": "recv",
            "step_seconds": pytest.approx(0.45),
            "microbatch_seconds": pytest.approx(0.15),
        },
        {
            "stage": 1,
            "operation": "send",
            "step_seconds": pytest.approx(0.05),
            "microbatch_seconds": pytest.approx(0.05 / 3),
        },
    ]
    assert "stage 1 waits 0.45 s a step in recv, 0.15 s a microbatch" in render(found, full=True)


def test_slower_rank_in_fast_stage_explains_too_little():
    """A rank 4 % over its stage's median, where the last stage costs 20 %: not worth a name."""

    def work(step, stage, replica, microbatch):
        return (2.0 if stage == 3 else 1.0) * (1.02 if (stage, replica) == (0, 1) else 1.0)

    account, _ = account_and_truth(Training(4, 8, 2), work)
    assert (account.straggler.culprit(), account.straggler.culprit_stage()) == (None, 3)


def test_unknown_microbatches_have_no_bubble():
    def work(step, stage, replica, microbatch):
        return 1.5 if stage == 3 else 1.0

    account, truth = account_and_truth(Training(4, 8, 2), work, microbatches=None)
    assert share(account, "bubble") == 0 and document(account)["basis"]["bubble"] == "unknown"
    # At most what a slow stage costs with many microbatches.
    assert truth < account.straggler.slowdown() < 1.05 * truth
    assert account.straggler.culprit_stage() == 3
    advice = {cause["state"]: cause["advice"] for cause in explain(account)}
    assert "microbatches=" in advice["communication"]


def test_stage_of_some_ranks_only_is_no_pipeline():
    def work(step, stage, replica, microbatch):
        return 1.5 if stage == 3 else 1.0

    ranks = Training(4, 8, 2).processes(10, work)
    ranks[0].identity["stage"] = None
    account = account_of(*ranks, now=1e6)
    assert account.gpu_ns()[INDEX["bubble"]] == 0
    assert account.straggler.culprit_stage() is None


@pytest.mark.parametrize("order", [in_time, by_chance(1), by_chance(2)])
def test_pipeline_does_not_depend_on_order(order):
    """Fed rank by rank, in order of time and by chance."""

    def work(step, stage, replica, microbatch):
        noise = random.Random(f"{step} {stage} {replica} {microbatch}").uniform(0.8, 1.3)
        return noise * (1.4 if stage == 3 else 1)

    processes = Training(4, 6, 3).processes(20, work)
    run, now_ns = run_of(*processes), max(one.now_ns for one in processes)
    whole = compute(run, now_ns)
    assert_closes(whole)
    assert fed_by(order, run, now_ns) == whole
    for window in ((0, now_ns // 3), (now_ns // 3, now_ns // 2 + 12345), (now_ns // 2, now_ns)):
        part = compute(run, now_ns, window=window)
        assert all(sum(rank.states) == rank.wall_ns and min(rank.states) >= 0 for rank in part.ranks)
