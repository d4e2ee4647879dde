"""Sizes of transformers' models, from which their FLOPs follow."""

import pytest
from support.installed import need


def test_sizes_are_unknown_without_text_input():
    """Encoders and decoders see different numbers of tokens, and an image's tokens are not in the batch."""
    need("torch")
    transformers = pytest.importorskip("transformers")
    from goodput.transformers import sizes_of

    tiny = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 20}
    assert sizes_of(transformers.T5ForConditionalGeneration(transformers.T5Config(**tiny))) is None
    assert sizes_of(object()) is None


def test_experts_windows_and_frozen_weights_are_counted():
    need("torch")
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
