"""What Lightning has beside test_trainers.py: import names, several optimizers, asynchronous checkpoints."""

import pytest
from support.frameworks.training_runs import committed, steps

pytestmark = pytest.mark.alone


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
