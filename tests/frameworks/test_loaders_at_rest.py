"""Steps may rest, waits for batches do not: they are in the account whole, and so is what makes up a batch."""

import pytest
from support.frameworks.framework_runs import train

from goodput.account import figures

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module", params=["compiled", "pure"])
def run(request, tmp_path_factory):
    pytest.importorskip("torch")
    environ = {"GOODPUT_BUDGET": "0.00001", "GOODPUT_PURE": "1" if request.param == "pure" else ""}
    return train("loaders_at_rest.py", tmp_path_factory.mktemp(request.param), **environ)


def test_waits_are_found_whatever_the_steps_before_were_like(run):
    (page,) = run.snapshots("resting")
    spent = run.seconds("resting")
    steps = run.told["steps"]
    assert page.sampling["unmeasured_steps"] > steps / 2
    assert run.told["slept"] <= spent["loader"] <= 1.02 * run.told["waited"]
    last = page.steps[-1]
    assert last.totals[0] - last.outside[0] < 0.2e9 * run.told["slept"], "inside steps, in no phase"
    assert page.steps_done == steps
    assert last.number == page.steps[-2].number + 1 and page.sampling["phases_every"] == 1, (
        "a rest that takes long is over, and steps are measured again"
    )
    found = page.loader
    assert found["batches"] == found["inside"] == steps
    assert run.told["slept"] <= found["wait_ns"] / 1e9 <= spent["loader"] * 1.001
    reasons = sum(found[f"wait_{why}_ns"] for why in ("storage", "decode", "collate"))
    assert reasons <= found["wait_ns"]


def test_the_throughput_is_at_most_what_was_shown(run):
    found = figures.throughput(run.account("resting"))
    assert found["goodput"] is None or found["goodput"] <= 1


def test_a_loader_inside_a_dataset_is_part_of_its_batch(run):
    (page,) = run.snapshots("nested")
    spent = run.seconds("nested")
    assert page.steps_done == page.loader["batches"] == 10
    assert page.steps[-1].samples == 30
    assert spent["evaluation"] == 0


def test_the_samples_of_all_loaders_count_that_have_steps_of_their_own(run):
    (page,) = run.snapshots("by turns")
    assert page.steps_done == 32
    # The first batch of the second loader may be one of an evaluation.
    assert page.steps[-1].samples in (62, 64)


def test_all_batches_count_of_a_loader_that_began_within_a_step(run):
    (page,) = run.snapshots("accumulated")
    # 12 steps of 4 batches of 4. In two of them another loader goes on: the first one's two batches count.
    assert page.steps_done == 12 and page.steps[-1].samples == 12 * 16 - 2 * 8


def test_a_loader_with_workers_inside_a_dataset_is_part_of_its_batch(run):
    (page,) = run.snapshots("streamed")
    assert page.loader["batches"] == page.loader["inside"] == 100
    assert page.loader["wait_ns"] <= page.totals[page.phases.index("loader")]
    assert not page.loader["starved"] and not page.loader["ready"]


def test_a_rest_is_over_where_another_optimizer_steps(run):
    (page,) = run.snapshots("another")
    told = run.told["another"]
    assert told["seen"]
    # All but those that show that the new one is to bound steps.
    assert 180 <= page.steps_done - told["before"] <= 200
    assert page.samples == 0, "no loader gave them"


def test_steps_at_rest_are_in_what_a_trainer_counts_and_begins(run):
    told = run.told["trainer"]
    assert told["counts"] is False
    assert told["entered"] == told["steps"]


def test_what_is_resumed_at_rest_loses_no_step(run):
    before, _ = run.snapshots("resumed")
    assert before.steps_done == run.told["resumed"]


def test_an_iterable_is_waited_for_at_rest_with_the_loader_in_it(run):
    (page,) = run.snapshots("iterable")
    assert page.sampling["unmeasured_steps"] > page.steps_done / 2
    spent = run.seconds("iterable")
    assert run.told["iterable"] <= spent["loader"] * 1.05
