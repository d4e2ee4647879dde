"""Waits for loaders, steps and samples of loops of several kinds, with phases measured and with phases off."""

import pytest
from support.frameworks.training_runs import train
from support.installed import need
from support.plain_package import python_path
from support.sdk.checks import check, inside

from goodput.account import figures

pytestmark = pytest.mark.alone
RUNS: dict = {}


def trained(tmp_path_factory, **environ):
    """The loops in a process with these settings; one process for each of them."""
    need("torch")
    key = tuple(environ.items())
    if key not in RUNS:
        RUNS[key] = train("loaders/loader_waits.py", tmp_path_factory.mktemp("loops"), **environ)
    return RUNS[key]


@pytest.fixture(params=["compiled", "plain"])
def path(request):
    return python_path(plain=request.param == "plain")


@pytest.fixture
def measured(path, tmp_path_factory):
    return trained(tmp_path_factory, GOODPUT_BUDGET="1", PYTHONPATH=path)


@pytest.fixture
def off(path, tmp_path_factory):
    """The same loops with a budget that no phases fit into."""
    return trained(tmp_path_factory, GOODPUT_BUDGET="0.00001", PYTHONPATH=path)


@pytest.fixture(params=["measured", "off"])
def run(request, path):
    return request.getfixturevalue(request.param)


def test_loader_waits_are_found_whole(measured):
    (page,) = measured.snapshots("planted")
    spent = measured.seconds("planted")
    steps = measured.printed["steps"]
    assert page.sampling["unmeasured_steps"] == 0
    assert measured.printed["slept"] <= spent["loader"] <= 1.02 * measured.printed["waited"]
    assert page.steps_done == steps
    found = page.loader
    assert found["batches"] == found["inside"] == steps
    assert measured.printed["slept"] <= found["wait_ns"] / 1e9 <= spent["loader"] * 1.001
    reasons = sum(found[f"wait_{why}_ns"] for why in ("storage", "decode", "collate"))
    assert reasons <= found["wait_ns"]


def test_steps_without_phases_are_counted_and_timed(off):
    (page,) = off.snapshots("planted")
    assert page.steps_done == page.samples == off.printed["steps"]
    assert 0 < page.sampling["unmeasured_steps"] < page.steps_done
    check(page)
    for before, record in zip(page.steps, page.steps[1:], strict=False):
        spent = inside(record, before)
        assert sum(spent[1:]) == 0 and spent[0] == record.end_ns - record.start_ns


def test_waits_are_not_counted_while_phases_are_off(off):
    (page,) = off.snapshots("planted")
    measured_steps = page.steps_done - page.sampling["unmeasured_steps"]
    assert page.loader["batches"] <= measured_steps + 1
    assert page.loader["wait_ns"] <= page.totals[page.phases.index("loader")]


def test_evaluation_lies_outside_steps(run):
    (page,) = run.snapshots("evaluated")
    assert sum(page.steps[-1].outside) >= 0.2e9
    evaluation = page.totals[page.phases.index("evaluation")]
    assert (evaluation == 0) if page.sampling["unmeasured_steps"] else (evaluation >= 0.2e9)


def test_throughput_goodput_is_at_most_one(run):
    found = figures.throughput(run.account("planted"))
    assert found["goodput"] is None or found["goodput"] <= 1


def test_a_loader_inside_a_dataset_is_part_of_its_batch(run):
    (page,) = run.snapshots("nested")
    assert page.steps_done == page.loader["batches"] == 10
    assert page.steps[-1].samples == 30
    assert run.seconds("nested")["evaluation"] == 0


def test_alternating_loaders_both_count_samples(run):
    (page,) = run.snapshots("by turns")
    assert page.steps_done == 32
    # The first batch of the second loader may be one of an evaluation.
    assert page.steps[-1].samples in (62, 64)


def test_accumulated_batches_all_count(run):
    (page,) = run.snapshots("accumulated")
    # 12 steps of 4 batches of 4. In two of them another loader goes on: the first one's two batches count.
    assert page.steps_done == 12 and page.steps[-1].samples == 12 * 16 - 2 * 8


def test_a_worker_loader_inside_a_dataset_is_part_of_its_batch(measured):
    (page,) = measured.snapshots("streamed")
    assert page.loader["batches"] == page.loader["inside"] == 100
    assert page.loader["wait_ns"] <= page.totals[page.phases.index("loader")]
    assert not page.loader["starved"] and not page.loader["ready"]


def test_another_optimizer_comes_to_bound_steps(run):
    (page,) = run.snapshots("another")
    reported = run.printed["another"]
    assert reported["seen"]
    # All but those that show that the new one is to bound steps.
    assert 180 <= page.steps_done - reported["before"] <= 200
    assert page.samples == 0, "no loader gave them"


def test_steps_agree_with_a_trainers_count(run):
    reported = run.printed["trainer"]
    assert reported["counts"] is False
    assert reported["recorded"] == reported["steps"]


def test_resumed_loses_no_step(run):
    before, _ = run.snapshots("resumed")
    assert before.steps_done == run.printed["resumed"]


def test_an_iterables_wait_includes_the_loader_in_it(run):
    (page,) = run.snapshots("iterable")
    spent = run.seconds("iterable")
    if page.sampling["unmeasured_steps"]:
        assert spent["loader"] == 0
    else:
        assert run.printed["iterable"] <= spent["loader"] * 1.05
