"""Trainers of Lightning and transformers: planted times are found, resumed runs continue, results do not change."""

from typing import NamedTuple

import pytest
from support.frameworks.training_runs import committed, resumed, steps, train
from support.installed import need

from goodput.account.mfu.flops import transformer

pytestmark = pytest.mark.alone

CALLBACK, AUTO, DISABLED = "callback", "auto alone", "disabled"
FRAMEWORKS = ("lightning", "transformers")
# The module that each framework is imported by, its script and its arguments.
LIGHTNING, OTHER_NAME = (
    ("lightning.pytorch", "lightning_trainings.py"),
    ("pytorch_lightning", "lightning_trainings.py"),
)
TRANSFORMERS = ("transformers.trainer", "transformers_trainings.py")
TRAININGS = {
    ("lightning", CALLBACK): LIGHTNING,
    ("lightning", AUTO): (*OTHER_NAME, "auto"),
    ("lightning", DISABLED): OTHER_NAME,
    ("transformers", CALLBACK): TRANSFORMERS,
    ("transformers", AUTO): (*TRANSFORMERS, "auto"),
    ("transformers", DISABLED): TRANSFORMERS,
}


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


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The result of a framework's script, which runs once for all tests."""
    made = {}

    def get(framework: str, which: str = CALLBACK):
        for name in ("torch", "accelerate", framework):
            need(name)
        key = framework, which
        if key not in made:
            module, script, *arguments = TRAININGS[key]
            environ = {"GOODPUT_DISABLE": "1"} if which == DISABLED else {}
            place = tmp_path_factory.mktemp(framework)
            made[key] = train(script, place, module, *arguments, forked=module, **environ)
        return made[key]

    return get


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
    assert run.states("planted")["evaluation"] > 0.4 * evaluation


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


# ---- What Lightning has beside: import names, several optimizers, asynchronous checkpoints


@pytest.mark.parametrize("which", ["callback", "auto alone"])
def test_validation_without_training(trained, which):
    run = trained("lightning", which)
    (page,) = run.snapshots("alone")
    spent = run.seconds("alone")
    assert page.steps == [] and spent["loader"] + spent["forward"] < 0.01 + run.printed["core_wait"]
    assert spent["evaluation"] >= run.printed["alone"]


def test_callback_works_under_both_import_names(trained):
    run = trained("lightning", "auto alone")
    (page,) = run.snapshots("then")
    assert run.printed["is_callback"] and steps(page) == [0, 1, 2]
    assert page.identity["microbatches"] == 2


def test_loader_time_of_several_fits(trained):
    run = trained("lightning")
    planted, waited = run.printed["several"], run.printed["several_core_wait"]
    assert planted <= run.seconds("several")["loader"] <= 1.05 * planted + 0.02 + waited


def test_failed_fit_leaves_a_mark(trained):
    first, _ = trained("lightning").snapshots("broken")
    assert [e.text for e in first.events if e.kind == "mark"] == ["training broken off: ValueError"]


def test_two_optimizers_make_one_step(trained):
    (page,) = trained("lightning").snapshots("two")
    assert steps(page) == list(range(5))
    assert page.steps[-1].samples == 20
    assert page.identity["total_steps"] == 5, "of max_steps=10, which counts each optimizer's"


def test_partial_optimizer_steps_follow_the_trainers_count(trained):
    """The first of the 9 steps is recorded as its parts; from then on the trainer's count holds."""
    (page,) = trained("lightning").snapshots("halves")
    assert 9 < len(page.steps) <= 11
    assert {row.samples for row in page.steps[-8:]} >= {36, 32, 28}


def test_async_checkpoint_is_committed_once_written(trained):
    (page,) = trained("lightning").snapshots("asynchronous")
    assert committed(page) == [5, 11]


# ---- What transformers has beside: FLOPs and precision from the model's configuration


@pytest.mark.parametrize("which", ["callback", "auto alone"])
def test_evaluation_without_training(trained, which):
    run = trained("transformers", which)
    (page,) = run.snapshots("alone")
    spent = run.seconds("alone")
    assert page.steps == [] and spent["loader"] == spent["forward"] == 0
    assert spent["evaluation"] == pytest.approx(
        run.printed["alone"], abs=max(0.05 * run.printed["alone"], 0.01) + run.printed["core_wait"]
    )


def test_precision_and_accumulation_are_recorded(trained):
    run = trained("transformers")
    (first, *_), (last,) = run.snapshots("planted"), run.snapshots("several")
    assert (first.identity["dtype"], first.identity["microbatches"]) == ("fp32", 2)
    assert (last.identity["dtype"], last.identity["microbatches"]) == ("bf16", 1)


def test_flops_follow_from_the_models_sizes(trained):
    """By hand: a layer has 32 x 96 + 32 x 32 + 2 x 32 x 128 weights, the output layer 50 x 32; tokens are 8 x 24."""
    params = 2 * (3072 + 1024 + 8192) + 1600
    want = transformer(params=params, tokens=192, layers=2, heads=2, head_dim=16, context=24)
    first, _ = trained("transformers").snapshots("broken")
    assert first.identity["flops_per_step"] == want.model == 6 * params * 192 + 12 * 2 * 32 * 24 * 192
    assert first.identity["hardware_flops_per_step"] == want.hardware
