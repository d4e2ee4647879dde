"""Training programs of many shapes, unchanged under `goodput run`: their accounts match their authors' stopwatches."""

from __future__ import annotations

import pytest
from support.installed import need
from support.programs.comparison import differences
from support.programs.running import run_bare, run_measured

need("torch")
# The leading cause that the author of each program would name, and words of the advice.
# On a busy machine part of the work for a batch is a wait for a core.
IN_PROCESS = r"(decoding and transforms|without a free core|reading in).*num_workers=0.*: use workers"
LEADING = {
    "loops/dcgan": ("loader", r"collate_fn.*; and use workers"),
    "loops/imagenet": ("loader", r"workers (blocked on storage|that had no free core).*num_workers=2"),
    "loops/mingpt": ("checkpoint", r"Save asynchronously"),
    "loops/mnist": ("loader", IN_PROCESS),
    "loops/nanochat": ("unattributed", r"making batches without a DataLoader"),
    "loops/nanogpt": ("unattributed", r"making batches without a DataLoader"),
    "loops/time_sequence_prediction": ("evaluation", r"Evaluate less often or on fewer batches"),
    "loops/vae": ("evaluation", r"Evaluate less often or on fewer batches"),
    "loops/word_language_model": ("unattributed", r"making batches without a DataLoader"),
    "rollouts/grpo": ("rollout", r"an inference engine for generation"),
    "rollouts/ppo": ("rollout", r"environments in processes of their own"),
    "trainers/accelerate_loop": ("loader", IN_PROCESS),
    "trainers/hf_trainer": ("loader", r"collate_fn.*; and use workers"),
    "trainers/lightning_trainer": ("evaluation", r"Evaluate less often or on fewer batches"),
    "trainers/litgpt_fabric": ("loader", IN_PROCESS),
}
# Functions of these programs make the batches, which goodput cannot tell from other work between two steps.
UNNAMED = {name for name, (state, _) in LEADING.items() if state == "unattributed"}
# The process that trains gets no core to take a batch.
WHEN_BUSY = {"loops/imagenet": r"bringing finished batches to the training process"}
# The module of each framework.
FRAMEWORKS = {
    "trainers/accelerate_loop": "accelerate",
    "trainers/hf_trainer": "transformers",
    "trainers/lightning_trainer": "lightning",
    "trainers/litgpt_fabric": "lightning",
}
# The steps after which each program saves a checkpoint.
CHECKPOINTS = {
    "loops/imagenet": [7, 15],
    "loops/mingpt": [9, 19, 29, 39, 49],
    "loops/nanogpt": [9, 19, 29],
    "trainers/accelerate_loop": [7, 15],
    "trainers/hf_trainer": [14, 29],
    "trainers/lightning_trainer": [31, 63],
    "trainers/litgpt_fabric": [9, 19, 29],
}


@pytest.fixture(scope="module", params=LEADING)
def name(request) -> str:
    if request.param in FRAMEWORKS:
        need(FRAMEWORKS[request.param])
    return request.param


@pytest.fixture(scope="module")
def trained(name, tmp_path_factory):
    return run_measured(name, tmp_path_factory.mktemp("measured"))


def test_states_match_stopwatch(trained, name):
    assert len(trained.measured) == len(trained.account.ranks)
    for rank, measured in enumerate(trained.measured):
        expected = measured.states()
        if name in UNNAMED:
            expected["unattributed"] += expected.pop("loader")
        assert differences(trained.states(rank), expected, core_wait=measured.core_wait) == {}
        assert trained.document["ranks"][rank]["steps"] == {"kept": len(measured.steps), "lost": 0}


def test_account_closes(trained):
    account = trained.account
    assert all(sum(rank.states) == account.end_ns - account.start_ns for rank in account.ranks)


def test_leading_cause_and_advice(trained, name):
    trained.assert_leads(*LEADING[name], when_busy=WHEN_BUSY.get(name, ""))


def test_checkpoints_are_committed(trained, name):
    (attempt,) = trained.run.attempts.values()
    assert sorted(attempt.saved) == CHECKPOINTS.get(name, [])


def test_weights_and_outputs_are_the_same(trained, name, tmp_path):
    alone = run_bare(name, tmp_path)
    assert len(alone.measured) == len(trained.measured)
    for with_goodput, without in zip(trained.measured, alone.measured, strict=True):
        assert with_goodput.weights == without.weights
        assert with_goodput.outputs == without.outputs
