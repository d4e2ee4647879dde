"""Real Lightning, under both of its names: what was planted is found, steps go on over checkpoints, nothing changes."""

import pytest
from support.frameworks.training_runs import committed, resumed, steps, train

pytestmark = pytest.mark.alone

CALLBACK, AUTO, DISABLED = "callback", "auto alone", "disabled"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    pytest.importorskip("torch")
    pytest.importorskip("lightning")
    made = {}

    def get(which):
        if which not in made:
            directory = tmp_path_factory.mktemp("lightning")
            if which == CALLBACK:
                made[which] = train("lightning_trainings.py", directory, "lightning.pytorch")
            elif which == AUTO:
                made[which] = train("lightning_trainings.py", directory, "pytorch_lightning", "auto")
            else:
                made[which] = train(
                    "lightning_trainings.py", directory, "pytorch_lightning", GOODPUT_DISABLE="1"
                )
        return made[which]

    return get


either = pytest.mark.parametrize("which", [CALLBACK, AUTO])


@pytest.mark.parametrize("which", [CALLBACK, AUTO, DISABLED])
def test_weights_are_the_same(trained, which):
    run = trained(which)
    assert run.printed["bare"] == run.printed["measured"]
    assert run.messages() == []


def test_nothing_is_measured_when_disabled(trained):
    assert not trained(DISABLED).directory.exists()


@either
def test_optimizer_steps_resume_at_the_checkpoint(trained, which):
    first, second, third = trained(which).snapshots("planted")
    assert steps(first) == list(range(12)) and resumed(first) == []
    assert steps(second) == list(range(12, 16)) and resumed(second) == [11]
    assert steps(third) == list(range(12, 18)) and resumed(third) == [11]
    assert [row.samples for row in first.steps] == [8 * n for n in range(1, 13)]


@either
def test_only_repeated_steps_are_lost(trained, which):
    run = trained(which)
    account = run.account("planted")
    assert run.kept_and_lost("planted") == (18, 4)
    (rank,) = account.ranks
    assert sum(rank.states) == account.end_ns - account.start_ns


@either
def test_checkpoints_are_committed_at_their_steps(trained, which):
    first = trained(which).snapshots("planted")[0]
    assert committed(first) == [3, 7, 11]


@either
def test_slow_dataset_and_validation_are_found(trained, which):
    run = trained(which)
    first = run.snapshots("planted")[0]
    spent = dict(zip(first.phases, (ns / 1e9 for ns in first.totals), strict=True))
    planted, waited = run.printed["loader"], run.printed["core_wait"]
    assert planted <= spent["loader"] <= 1.05 * planted + 0.02 + waited
    # The sanity check is evaluation too, and before the first step it is part of the startup.
    validation = run.printed["validation"]
    assert abs(spent["evaluation"] - validation) <= 0.05 * validation + 0.02 + waited
    assert run.states("planted")["evaluation"] > 0.5 * validation


@either
def test_little_is_left_unattributed(trained, which):
    """What is left is Lightning's own work between two phases, about 1 ms a step here."""
    run = trained(which)
    left = run.states("planted")["unattributed"]
    assert left < 0.004 * 22 + 0.02 + run.printed["core_wait"]


@either
def test_validation_without_training(trained, which):
    run = trained(which)
    (page,) = run.snapshots("alone")
    spent = run.seconds("alone")
    assert page.steps == [] and spent["loader"] + spent["forward"] < 0.01 + run.printed["core_wait"]
    assert spent["evaluation"] >= run.printed["alone"]


def test_callback_works_under_both_import_names(trained):
    run = trained(AUTO)
    (page,) = run.snapshots("then")
    assert run.printed["is_callback"] and steps(page) == [0, 1, 2]
    assert page.identity["microbatches"] == 2


def test_several_fits_of_a_process_are_kept(trained):
    run = trained(CALLBACK)
    (page,) = run.snapshots("several")
    assert steps(page) == list(range(9)) and resumed(page) == []
    assert run.kept_and_lost("several") == (9, 0)
    planted, waited = run.printed["several"], run.printed["several_core_wait"]
    assert planted <= run.seconds("several")["loader"] <= 1.05 * planted + 0.02 + waited


def test_failed_fit_loses_repeated_steps(trained):
    run = trained(CALLBACK)
    first, second = run.snapshots("broken")
    assert steps(first) == list(range(6)) and committed(first) == [1, 3, 5]
    assert steps(second) == list(range(4, 8)) and resumed(second) == [3]
    assert [e.text for e in first.events if e.kind == "mark"] == ["training broken off: ValueError"]
    assert run.kept_and_lost("broken") == (8, 2)


def test_two_optimizers_make_one_step(trained):
    (page,) = trained(CALLBACK).snapshots("two")
    assert steps(page) == list(range(5))
    assert page.steps[-1].samples == 20


def test_partial_optimizer_steps_follow_the_trainers_count(trained):
    """The first of the 9 steps is recorded as its parts; from then on the trainer's count holds."""
    (page,) = trained(CALLBACK).snapshots("halves")
    assert 9 < len(page.steps) <= 11
    assert {row.samples for row in page.steps[-8:]} >= {36, 32, 28}


def test_async_checkpoint_is_committed_once_written(trained):
    (page,) = trained(CALLBACK).snapshots("asynchronous")
    assert committed(page) == [5, 11]
