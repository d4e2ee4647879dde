"""A loader that comes later, or beside another, is one for training too; the first batch may be taken for evaluation."""

import pytest
from support.frameworks.training_runs import steps, train
from support.installed import need


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    need("torch")
    return train("loaders/several_loaders.py", tmp_path_factory.mktemp("loaders"))


def test_second_loader_after_the_first(run):
    """The batches of both count, but for the first of the second; each phase has what its own datasets took."""
    spent = run.seconds("one after the other")
    assert spent["loader"] >= run.printed["after"] and spent["evaluation"] >= run.printed["valid"]
    (page,) = run.snapshots("one after the other")
    assert page.loader["batches"] == 4 * 4 - 1
    assert steps(page) == list(range(16)) and page.steps[-1].samples >= 15 * 8


def test_two_loaders_side_by_side(run):
    spent = run.seconds("side by side")
    assert spent["loader"] >= run.printed["beside"] and spent["evaluation"] == 0
    (page,) = run.snapshots("side by side")
    assert page.loader["batches"] == 2 * 3 * 4
    assert steps(page) == list(range(12)) and page.steps[-1].samples == pytest.approx(96, abs=8)
