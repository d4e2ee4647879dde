"""Loops without a DataLoader: time before a forward pass has a phase of its own, where nothing contradicts it."""

from __future__ import annotations

import pytest
from support.frameworks import script_process
from support.installed import need

from goodput.defaults import BEFORE_FORWARD, ESTIMATED_OPTIMIZER

need("torch")
SCRIPT = "loaders/plain_batches.py"
CASES = script_process.cases_of(SCRIPT)
# What is charged besides the stopwatch's: the loop's own statements.
SLACK_SECONDS = 0.02


@pytest.fixture(scope="module", params=script_process.IMPLEMENTATIONS)
def outcome(request, tmp_path_factory) -> dict:
    place = tmp_path_factory.mktemp("batches")
    return script_process.run_implementation(SCRIPT, place, request.param, forked="torch")[0]


@pytest.mark.parametrize("name", CASES)
def test_time_before_a_forward_pass_is_not_loader(outcome, name):
    found = outcome[name]
    charged = found["seconds"].get(BEFORE_FORWARD, 0.0)
    assert found["steps"] == 6 and found["off"] == 0 and found["drops"] == 0
    assert found["batches"] <= charged <= found["batches"] + SLACK_SECONDS + found["core_wait"]
    assert found["loader"] == "measured" and (not charged or found["state_of_it"] == "unattributed")


def test_a_teachers_calls_are_forward(outcome):
    """Without gradients and a loader, as in distillation; its first call may still begin an evaluation."""
    found = outcome["teacher"]["seconds"]
    assert found["forward"] >= 4 * 0.03 and found["evaluation"] < 2 * 0.03 + outcome["teacher"]["core_wait"]


def test_a_slow_loss_stays_unattributed(outcome):
    found = outcome["slow_loss"]["seconds"]
    assert found["loader"] == 0 and found["none"] >= 5 * 0.03


def test_loss_before_zero_grad_is_forward(outcome):
    """In most steps: not before the first backward pass, nor where a busy machine prolongs the loss."""
    found = outcome["loss_before_zero_grad"]["seconds"]
    assert found["forward"] >= 3 * 0.03


def test_clearing_gradients_is_part_of_the_optimizer(outcome):
    assert outcome["cleared_with_the_module"]["seconds"]["optimizer"] >= 6 * 0.03


def test_setting_up_is_first_step_work(outcome):
    """What goodput does once: at a model's first call, which reads a parameter, and before the first step ends."""
    assert outcome["cleared_with_the_module"]["seconds"]["compile"] >= 0.03
    assert outcome["cleared_by_hand"]["seconds"]["compile"] >= 0.03


def test_time_with_an_unseen_update_stays_unattributed(outcome):
    found = outcome["cleared_by_hand"]["seconds"]
    assert found["none"] >= 6 * 0.03 and found["loader"] == 0


BY_HAND = (
    "updated_in_a_block",
    "updated_by_hand",
    "updated_by_hand_with_loader",
    "gradients_without_backward",
)


@pytest.mark.parametrize("name", BY_HAND)
def test_updates_by_hand_are_productive(outcome, name):
    """A pass over two parameters takes twice 30 ms. In the one case the first step is over before its update."""
    found = outcome[name]
    expected = 12 * 0.03
    assert expected <= found["seconds"][ESTIMATED_OPTIMIZER] <= expected + SLACK_SECONDS + found["core_wait"]
    assert found["productive"] == "estimated"


def test_an_optimizer_is_measured(outcome):
    assert outcome["clipped_gradients"]["productive"] == "measured"


@pytest.mark.parametrize("name", ["clipped_gradients", "updated_by_hand"])
def test_clipping_is_part_of_the_optimizer(outcome, name):
    assert outcome[name]["seconds"]["optimizer"] >= 5 * 0.03
