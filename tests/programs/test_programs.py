"""Training programs of many shapes, unchanged under `goodput run`: their accounts match their authors' stopwatches."""

from __future__ import annotations

import pytest
from support.programs.comparison import differences
from support.programs.running import Bare, run_measured

pytest.importorskip("torch")
# The leading cause that the author of each program would name, and words of the advice.
LEADING = {
    "loops/dcgan": ("loader", "collate_fn", "use workers"),
    "loops/imagenet": ("loader", "workers blocked on storage or network", "more workers (num_workers=2"),
    "loops/mingpt": ("checkpoint", "Save asynchronously"),
    "loops/mnist": ("loader", "decoding and transforms on the CPU of the training process itself (num_workers=0"),
    "loops/time_sequence_prediction": ("evaluation", "Evaluate less often"),
    "loops/vae": ("evaluation", "Evaluate less often or on fewer batches"),
}  # fmt: skip


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    made = Bare(tmp_path_factory.mktemp("bare"))
    yield made
    made.close()


@pytest.fixture(scope="module", params=LEADING)
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def trained(name, tmp_path_factory):
    return run_measured(name, tmp_path_factory.mktemp("measured"))


def test_states_match_stopwatch(trained):
    assert len(trained.measured) == len(trained.account.ranks)
    for rank, measured in enumerate(trained.measured):
        assert differences(trained.states(rank), measured) == {}
        assert trained.document["ranks"][rank]["steps"] == {"kept": len(measured.steps), "lost": 0}


def test_account_closes(trained):
    account = trained.account
    assert all(sum(rank.states) == account.end_ns - account.start_ns for rank in account.ranks)


def test_leading_cause_and_advice(trained, name):
    state, *words = LEADING[name]
    leading = trained.leading()
    assert leading["state"] == state, trained.document["states"]
    for text in words:
        assert text in leading["advice"]


def test_weights_and_outputs_are_the_same(trained, name, bare, tmp_path):
    alone = bare.run(name, tmp_path)
    assert len(alone.measured) == len(trained.measured)
    for with_goodput, without in zip(trained.measured, alone.measured, strict=True):
        assert with_goodput.weights == without.weights
        assert with_goodput.outputs == without.outputs
