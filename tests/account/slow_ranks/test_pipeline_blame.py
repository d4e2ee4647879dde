"""Whom a pipeline's ranks wait for: the same from the account of a log, from an aggregator and from `goodput whatif`."""

from __future__ import annotations

import random

import pytest
from support.account.account_history import Process
from support.account.entries import straggler_document, whatif_answers
from support.account.pipeline_simulator import Training

STEPS = 30


def test_slow_stage_covers_waiting_in_faster_one(tmp_path, capsys):
    """By hand: 4 microbatches; ranks of stage 0 work 8 and 10 s in turn, those of stage 1 12 s, in steps of 16 s.

    Of the 2 s that the faster rank of stage 0 waits for the other, 3/4 would be waiting for stage 1 without it, as are 3/4 of
    the 2 s that both work less than stage 1: 0.5 s are for a rank, 1.5 + 2 x 1.5 s for the stage.
    """
    ranks = [Process(rank, stage=rank // 2, group=f"s{rank // 2}", microbatches=4) for rank in range(4)]
    for step in range(8):
        for one in ranks:
            own = 12 if one.rank > 1 else 8 + 2 * (step % 2 == one.rank)
            one.step(forward=own, communication=16 - own)
    found = straggler_document([one.finished() for one in ranks], tmp_path, capsys)
    assert [(one["stage"], one["share"]) for one in found["stages"]] == [(1, 0.9), (0, 0.1)]
    assert {one["rank"]: one["share"] for one in found["shares"]} == {0: 0.05, 1: 0.05}
    assert (found["culprit"], found["culprit_stage"]) == (None, 1)


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("microbatches", [8, None])
def test_slow_stage_is_named_beside_wandering_ranks(replicas, microbatches, tmp_path, capsys):
    """The ranks of both stages are slow in turn; the second stage has 1.5 times the work."""

    def work(step, stage, replica, microbatch):
        turn = (step + stage) % replicas == replica
        return (1.5 if stage == 1 else 1.0) * (1.4 if turn else 1.0)

    ranks = Training(2, 8, replicas).processes(STEPS, work, microbatches=microbatches)
    found = straggler_document(ranks, tmp_path, capsys)
    assert (found["culprit"], found["culprit_stage"]) == (None, 1)
    assert found["stages"][0]["stage"] == 1 and found["stages"][0]["share"] > 0.95
    kinds = [
        one["change"] for one in whatif_answers(ranks, tmp_path, capsys) if one["kind"] in ("rank", "stage")
    ]
    assert kinds == ["stage 1 as fast as the median"]


def test_rank_that_a_slower_stage_covers_is_not_named(tmp_path, capsys):
    """Rank 0 works a third longer than its stage, and half as long again would still be less than the last stage does."""

    def work(step, stage, replica, microbatch):
        return 2.0 if stage == 1 else 4 / 3 if replica == 0 else 1.0

    ranks = Training(2, 16, 4).processes(STEPS, work)
    found = straggler_document(ranks, tmp_path, capsys)
    assert (found["culprit"], found["culprit_stage"]) == (None, 1)
    kinds = [
        one["change"] for one in whatif_answers(ranks, tmp_path, capsys) if one["kind"] in ("rank", "stage")
    ]
    assert kinds == ["stage 1 as fast as the median"]


def test_equal_stages_with_wandering_ranks_name_nobody(tmp_path, capsys):
    def work(step, stage, replica, microbatch):
        return 1.4 if (step + stage) % 4 == replica else 1.0

    found = straggler_document(Training(2, 8, 4).processes(STEPS, work), tmp_path, capsys)
    assert (found["culprit"], found["culprit_stage"]) == (None, None)


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("replicas", [2, 4])
def test_slow_rank_is_named_where_group_is_a_pipeline(stage, replicas, tmp_path, capsys):
    """Each pipeline is a group, so the slow rank is the only one of its stage there."""

    def work(step, s, replica, microbatch):
        noise = random.Random(f"{step} {s} {replica} {microbatch}").uniform(0.97, 1.03)
        return noise * (1.4 if (s, replica) == (stage, 1) else 1.0)

    ranks = Training(4, 8, replicas).processes(STEPS, work)
    for one in ranks:
        one.identity["group"] = f"pipeline{one.rank % replicas}"
    found = straggler_document(ranks, tmp_path, capsys)
    assert (found["culprit"], found["because"], found["culprit_stage"]) == (
        stage * replicas + 1,
        "productive",
        None,
    )
    assert found["shares"][0]["share"] > 0.95


def test_two_slow_ranks_of_one_group_are_waited_for_by_others(tmp_path, capsys):
    """By hand: ranks 0 and 1 are a group and both late by 1 s, so only the other six wait, 1 s a step."""
    ranks = [Process(rank, stage=rank // 4, group=f"g{rank // 2}", microbatches=8) for rank in range(8)]
    for one in ranks:
        own = 5 if one.rank < 2 else 4
        one.steps(STEPS, forward=own, communication=6 - own)
    found = straggler_document([one.finished() for one in ranks], tmp_path, capsys)
    assert found["culprit"] == 0
    assert [(one["rank"], one["share"]) for one in found["shares"]] == [(0, 0.5), (1, 0.5)]


@pytest.mark.parametrize("law", ["uniform", "heavy"])
def test_wandering_work_names_nobody_where_group_is_a_pipeline(law, tmp_path, capsys):
    def work(step, stage, replica, microbatch):
        rng = random.Random(f"{step} {replica} {microbatch}")
        length = rng.uniform(0.8, 1.2) if law == "uniform" else min(rng.lognormvariate(0, 0.5), 8)
        return length * (2 if random.Random(f"{step}").randrange(4) == replica else 1)

    ranks = Training(4, 8, 4).processes(STEPS, work)
    for one in ranks:
        one.identity["group"] = f"pipeline{one.rank % 4}"
    found = straggler_document(ranks, tmp_path, capsys)
    assert (found["culprit"], found["culprit_stage"]) == (None, None)


def test_rank_of_faster_stage_alone_in_its_group_is_not_named(tmp_path, capsys):
    """It works a fifth longer than its stage, and less than the last stage."""

    def work(step, stage, replica, microbatch):
        return 1.5 if stage == 3 else 1.2 if (stage, replica) == (0, 2) else 1.0

    ranks = Training(4, 8, 4).processes(STEPS, work)
    for one in ranks:
        one.identity["group"] = f"pipeline{one.rank % 4}"
    found = straggler_document(ranks, tmp_path, capsys)
    assert (found["culprit"], found["culprit_stage"]) == (None, 3)
