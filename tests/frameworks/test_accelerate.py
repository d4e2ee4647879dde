"""A loop with Accelerate under goodput.auto: accumulated gradients, checkpoints, copies inside the loader."""

import pytest
from support.frameworks.training_runs import committed, resumed, steps, train
from support.installed import need

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    need("torch", "accelerate")
    return train("accelerate_trainings.py", tmp_path_factory.mktemp("accelerate"))


def test_weights_are_the_same(run):
    assert run.printed["bare"] == run.printed["measured"]
    assert run.messages() == []


def test_step_is_an_optimizer_step(run):
    first = run.snapshots("planted")[0]
    assert steps(first) == list(range(12))
    assert [row.samples for row in first.steps] == [8 * n + 4 for n in range(1, 13)]


def test_saved_state_is_one_checkpoint(run):
    first = run.snapshots("planted")[0]
    assert committed(first) == [3, 7, 11]
    assert [e.step for e in first.events if e.kind == "checkpoint_begun"] == [3, 7, 11]
    assert run.printed["checkpoint"] <= (
        1.05 * run.seconds("planted")["checkpoint"] + 0.01 + run.printed["core_wait"]
    )


def test_loaded_state_resumes_at_its_step(run):
    """Not at the count of batches that Accelerate stores beside it."""
    _, second, third = run.snapshots("planted")
    assert steps(second) == list(range(12, 16)) and resumed(second) == [11]
    assert steps(third) == list(range(12, 18)) and resumed(third) == [11]
    assert run.kept_and_lost("planted") == (18, 4)
    assert run.seconds("planted")["restore"] > 0


def test_planted_times_are_found_and_account_closes(run):
    first = run.snapshots("planted")[0]
    evaluation, waited = run.printed["evaluation"], run.printed["core_wait"]
    spent = dict(zip(first.phases, (ns / 1e9 for ns in first.totals), strict=True))
    # One batch more is fetched than the loop uses, and is waited for.
    assert run.printed["loader"] <= spent["loader"] <= 1.05 * run.printed["loader"] + 0.02 + waited
    assert abs(spent["evaluation"] - evaluation) <= max(0.05 * evaluation, 0.01) + waited
    account = run.account("planted")
    (rank,) = account.ranks
    assert sum(rank.states) == account.end_ns - account.start_ns
    assert run.states("planted")["unattributed"] < 0.05 + waited


def test_copy_inside_loader_iteration_is_h2d(run):
    assert run.seconds("copies")["h2d"] > 0
