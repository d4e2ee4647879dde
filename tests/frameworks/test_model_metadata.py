"""Metadata read from a model: dtype, FLOPs if a formula applies, otherwise unknown."""

import json

import pytest
from support.frameworks.script_process import run_script

from goodput.account.flops import transformer

pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")


def run(directory, *arguments: str, **environ) -> tuple[dict, str]:
    """The identity in the rank page, and the sum of the weights."""
    environ.update(GOODPUT_DIR=str(directory), HF_HUB_OFFLINE="1")
    done = run_script("model_metadata.py", *arguments, **environ)
    assert "goodput" not in done.stderr, done.stderr
    said, weights = done.stdout.strip().splitlines()[-2:]
    return json.loads(said), weights


def test_transformers_model_in_a_plain_loop(tmp_path):
    pytest.importorskip("transformers")
    said, _ = run(tmp_path, "gpt2", "autocast")
    # By hand: 2 layers of 12 * 32^2 in matrix products, and the output layer, which shares its weights: 100 * 32.
    one = transformer(
        params=2 * 12 * 32 * 32 + 100 * 32, tokens=4 * 16, layers=2, heads=2, head_dim=16, context=16
    )
    # Two backward passes make a step.
    assert said["flops_per_step"] == pytest.approx(2 * one.model, rel=1e-9)
    assert said["hardware_flops_per_step"] == pytest.approx(2 * one.hardware, rel=1e-9)
    assert (said["dtype"], said["device"], said["steps"]) == ("bf16", "", 3)


def test_other_model_is_counted_on_request_only(tmp_path):
    unknown, weights = run(tmp_path / "a", "mlp")
    assert (unknown["dtype"], unknown["flops_per_step"], unknown["steps"]) == ("fp32", None, 3)
    counted, same = run(tmp_path / "b", "mlp", GOODPUT_COUNT_FLOPS="1")
    # Two layers: forward, and backward for the weights of both and the inputs of the second; twice a step.
    first, second = 2 * 4 * 16 * 32, 2 * 4 * 32 * 8
    assert counted["flops_per_step"] == 2 * (2 * first + 3 * second)
    assert same == weights
