"""What transformers has beside test_trainers.py: FLOPs and precision from the model's configuration."""

import pytest

from goodput.account.flops import transformer

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("which", ["callback", "auto alone"])
def test_evaluation_without_training(trained, which):
    run = trained("transformers", which)
    (page,) = run.snapshots("alone")
    spent = run.seconds("alone")
    assert page.steps == [] and spent["loader"] == spent["forward"] == 0
    assert spent["evaluation"] == pytest.approx(
        run.printed["alone"], abs=max(0.05 * run.printed["alone"], 0.01) + run.printed["core_wait"]
    )


def test_precision_and_accumulation_are_recorded(trained):
    run = trained("transformers")
    (first, *_), (last,) = run.snapshots("planted"), run.snapshots("several")
    assert (first.identity["dtype"], first.identity["microbatches"]) == ("fp32", 2)
    assert (last.identity["dtype"], last.identity["microbatches"]) == ("bf16", 1)


def test_flops_follow_from_the_models_sizes(trained):
    """By hand: a layer has 32 x 96 + 32 x 32 + 2 x 32 x 128 weights, the output layer 50 x 32; tokens are 8 x 24."""
    params = 2 * (3072 + 1024 + 8192) + 1600
    want = transformer(params=params, tokens=192, layers=2, heads=2, head_dim=16, context=24)
    first, _ = trained("transformers").snapshots("broken")
    assert first.identity["flops_per_step"] == want.model == 6 * params * 192 + 12 * 2 * 32 * 24 * 192
    assert first.identity["hardware_flops_per_step"] == want.hardware


def test_sizes_are_unknown_without_text_input():
    """Encoders and decoders see different numbers of tokens, and an image's tokens are not in the batch."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from goodput.transformers import sizes_of

    tiny = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 20}
    assert sizes_of(transformers.T5ForConditionalGeneration(transformers.T5Config(**tiny))) is None
    assert sizes_of(object()) is None


def test_experts_windows_and_frozen_weights_are_counted():
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from goodput.transformers import sizes_of

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = transformers.MixtralConfig(
        **sizes,
        num_hidden_layers=3,
        vocab_size=20,
        num_local_experts=4,
        num_experts_per_tok=1,
        sliding_window=8,
    )
    model = transformers.MixtralForCausalLM(config)
    model.lm_head.weight.requires_grad = False
    found = sizes_of(model)
    # Of a layer: four attention matrices, the router, and one of four experts of three matrices.
    layer = 4 * 16 * 16 + 4 * 16 + 3 * 16 * 32
    assert found.params == 3 * layer + 20 * 16 and found.frozen == 20 * 16
    assert found.windows == [8, 8, 8]
    trained = 6 * found.params - 2 * found.frozen + 12 * 3 * 16 * 8
    assert found.flops(64, 32, False).model == 64 * trained
    assert found.flops(64, 32, True).hardware == 64 * (trained + 2 * 3 * layer + 4 * 3 * 16 * 8)
