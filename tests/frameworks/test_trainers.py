"""Trainers of Lightning and transformers: planted times are found, resumed runs continue, results do not change."""

from typing import NamedTuple

import pytest
from support.frameworks.training_runs import committed, resumed, steps

pytestmark = pytest.mark.alone

CALLBACK, AUTO, DISABLED = "callback", "auto alone", "disabled"
FRAMEWORKS = ("lightning", "transformers")


class Limits(NamedTuple):
    """What is allowed beside the planted times, in seconds on a quiet machine, and samples after each step."""

    evaluation: str
    loader_slack: float
    evaluation_share: float
    evaluation_slack: float
    unattributed: float
    samples: list[int]


LIMITS = {
    # What is left unattributed is the trainer's own work between phases: here 1 to 2 ms a step, and at the end.
    "lightning": Limits("validation", 0.02, 0.05, 0.02, 0.004 * 22 + 0.02, [8 * n for n in range(1, 13)]),
    # An epoch of 60 is 7 steps of 8 and one of 4. Accelerate fetches a batch more than it hands out.
    "transformers": Limits(
        *("evaluation", 0.03, 0.02, 0.01, 0.01 * 22 + 0.1),
        [12, 20, 28, 36, 44, 52, 60, 60, 72, 80, 88, 96],
    ),
}
each = pytest.mark.parametrize("framework", FRAMEWORKS)
either = pytest.mark.parametrize("which", [CALLBACK, AUTO])


@each
@pytest.mark.parametrize("which", [CALLBACK, AUTO, DISABLED])
def test_weights_are_the_same(trained, framework, which):
    run = trained(framework, which)
    assert run.printed["bare"] == run.printed["measured"]
    assert run.messages() == []


@each
def test_nothing_is_measured_when_disabled(trained, framework):
    assert not trained(framework, DISABLED).directory.exists()


@each
@either
def test_optimizer_steps_resume_at_the_checkpoint(trained, framework, which):
    first, second, third = trained(framework, which).snapshots("planted")
    assert steps(first) == list(range(12)) and resumed(first) == []
    assert steps(second) == list(range(12, 16)) and resumed(second) == [11]
    assert steps(third) == list(range(12, 18)) and resumed(third) == [11]
    assert [row.samples for row in first.steps] == LIMITS[framework].samples
    assert [page.identity["total_steps"] for page in (first, second, third)] == [12, 16, 18]


@each
@either
def test_only_repeated_steps_are_lost(trained, framework, which):
    run = trained(framework, which)
    account = run.account("planted")
    assert run.kept_and_lost("planted") == (18, 4)
    (rank,) = account.ranks
    assert sum(rank.states) == account.end_ns - account.start_ns


@each
@either
def test_checkpoints_are_committed_at_their_steps(trained, framework, which):
    first = trained(framework, which).snapshots("planted")[0]
    assert committed(first) == [3, 7, 11]
    assert [e.step for e in first.events if e.kind == "checkpoint_begun"] == [3, 7, 11]


@each
@either
def test_slow_dataset_and_evaluation_are_found(trained, framework, which):
    run, limits = trained(framework, which), LIMITS[framework]
    first = run.snapshots("planted")[0]
    spent = dict(zip(first.phases, (ns / 1e9 for ns in first.totals), strict=True))
    planted, waited = run.printed["loader"], run.printed["core_wait"]
    assert planted <= spent["loader"] <= 1.05 * planted + limits.loader_slack + waited
    # Lightning's sanity check before the first step is evaluation here, and startup in the account.
    evaluation = run.printed[limits.evaluation]
    slack = limits.evaluation_share * evaluation + limits.evaluation_slack + waited
    assert abs(spent["evaluation"] - evaluation) <= slack
    assert run.states("planted")["evaluation"] > 0.5 * evaluation


@each
@either
def test_little_is_unattributed(trained, framework, which):
    run = trained(framework, which)
    assert run.states("planted")["unattributed"] < LIMITS[framework].unattributed + run.printed["core_wait"]


@each
def test_several_trainings_of_a_process_are_kept(trained, framework):
    run = trained(framework)
    (page,) = run.snapshots("several")
    assert steps(page) == list(range(9)) and resumed(page) == []
    assert run.kept_and_lost("several") == (9, 0)
    assert run.seconds("several")["evaluation"] == 0


@each
def test_failed_training_loses_repeated_steps(trained, framework):
    run = trained(framework)
    first, second = run.snapshots("broken")
    assert steps(first) == list(range(6)) and committed(first) == [1, 3, 5]
    assert steps(second) == list(range(4, 8)) and resumed(second) == [3]
    assert run.kept_and_lost("broken") == (8, 2)
