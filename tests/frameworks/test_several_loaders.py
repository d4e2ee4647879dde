"""A loader that comes later, or beside another, is one for training too; the first batch may be taken for evaluation."""

import pytest
from support.frameworks.training_runs import steps, train

pytestmark = pytest.mark.alone

BATCH_SECONDS = 8 * 0.002


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    pytest.importorskip("torch")
    return train("several_loaders.py", tmp_path_factory.mktemp("loaders"))


def test_second_loader_after_the_first(run):
    spent, slack = run.seconds("one after the other"), 2 * BATCH_SECONDS + run.printed["core_wait"]
    assert abs(spent["loader"] - run.printed["after"]) <= 0.05 * run.printed["after"] + slack
    assert abs(spent["evaluation"] - run.printed["valid"]) <= 0.05 * run.printed["valid"] + slack
    (page,) = run.snapshots("one after the other")
    assert steps(page) == list(range(16)) and page.steps[-1].samples >= 15 * 8


def test_two_loaders_side_by_side(run):
    spent = run.seconds("side by side")
    waited = run.printed["core_wait"]
    assert spent["evaluation"] <= 0.005 + waited
    assert run.printed["beside"] <= spent["loader"] <= 1.05 * run.printed["beside"] + 0.02 + waited
    (page,) = run.snapshots("side by side")
    assert steps(page) == list(range(12)) and page.steps[-1].samples == pytest.approx(96, abs=8)
