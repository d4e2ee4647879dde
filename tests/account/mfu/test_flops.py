"""FLOPs by formula against sums over single products, and the errors for impossible utilisations."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput.account.mfu.flops import too_high, transformer

# A decoder small enough to add up by hand: 2 layers of width 8 with 2 heads of 4, vocabulary 10, 3 sequences of 5.
LAYERS, HEADS, HEAD_DIM, LENGTH, TOKENS = 2, 2, 4, 5, 15
WIDTH = HEADS * HEAD_DIM
LAYER_PARAMS, HEAD_PARAMS = 12 * WIDTH**2, 10 * WIDTH
SIZES = {"layers": LAYERS, "heads": HEADS, "head_dim": HEAD_DIM, "context": LENGTH}
WHOLE = {"params": LAYERS * LAYER_PARAMS + HEAD_PARAMS, "tokens": TOKENS, **SIZES}


def product(rows: int, inner: int, columns: int) -> int:
    return 2 * rows * inner * columns


def attention() -> int:
    """Forward, one layer: 3 sequences × 2 heads, scores and then values."""
    return 3 * HEADS * (product(LENGTH, HEAD_DIM, LENGTH) + product(LENGTH, LENGTH, HEAD_DIM))


def dense(params: int) -> int:
    return product(TOKENS, params, 1)


FORWARD = LAYERS * (dense(LAYER_PARAMS) + attention()) + dense(HEAD_PARAMS)


def test_backward_is_twice_the_forward_products():
    assert transformer(**WHOLE, training=False) == (FORWARD, FORWARD)
    assert transformer(**WHOLE) == (3 * FORWARD, 3 * FORWARD)


def test_training_is_6n_plus_12lhqt_per_token():
    per_token = 6 * WHOLE["params"] + 12 * LAYERS * HEADS * HEAD_DIM * LENGTH
    assert transformer(**WHOLE).model == TOKENS * per_token
    assert transformer(params=WHOLE["params"], tokens=TOKENS).model == TOKENS * 6 * WHOLE["params"]


def test_palm_540b_as_published():
    """Table 3 and appendix B of the paper: 238.3 K tokens/s on 6144 TPU v4 are 46.2 % MFU."""
    sizes = {"layers": 118, "heads": 48, "head_dim": 256, "context": 2048}
    per_token = transformer(params=540.35e9, tokens=1, **sizes).model
    assert 238.3e3 * per_token / (6144 * 275e12) == pytest.approx(0.462, abs=0.001)


def test_causal_counts_half_of_the_attention():
    assert transformer(**WHOLE, causal=True).model == 3 * (FORWARD - LAYERS * attention() // 2)


def test_full_recomputation_repeats_the_forward_pass():
    assert transformer(**WHOLE, recompute="full") == (3 * FORWARD, 4 * FORWARD)
    blocks = transformer(**WHOLE, recompute="full", recomputed_params=LAYERS * LAYER_PARAMS)
    assert blocks == (3 * FORWARD, 4 * FORWARD - dense(HEAD_PARAMS))
    one = transformer(**WHOLE, recompute="full", recomputed_params=LAYER_PARAMS, recomputed_layers=1)
    assert one == (3 * FORWARD, 3 * FORWARD + dense(LAYER_PARAMS) + attention())
    # 8 N where there is nothing else.
    assert transformer(params=10, tokens=1, recompute="full") == (60, 80)


def test_selective_recomputation_repeats_the_attention():
    assert transformer(**WHOLE, recompute="selective") == (3 * FORWARD, 3 * FORWARD + LAYERS * attention())
    part = transformer(**WHOLE, recompute="selective", recomputed_layers=1)
    assert part == (3 * FORWARD, 3 * FORWARD + attention())


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_inference_recomputes_nothing(recompute):
    assert transformer(**WHOLE, training=False, recompute=recompute) == (FORWARD, FORWARD)


def test_frozen_parameters_have_no_gradient_products():
    found = transformer(**WHOLE, frozen_params=LAYERS * LAYER_PARAMS)
    assert found.model == 3 * FORWARD - LAYERS * dense(LAYER_PARAMS)
    assert transformer(**WHOLE, frozen_params=LAYER_PARAMS, training=False).model == FORWARD


@given(st.integers(1, 64), st.integers(1, 16), st.sampled_from(["none", "selective", "full"]))
def test_microbatches_multiply_and_parallel_ranks_divide(microbatches, ranks, recompute):
    one = transformer(**WHOLE, recompute=recompute)
    found = transformer(**WHOLE, recompute=recompute, microbatches=microbatches, model_parallel_ranks=ranks)
    assert found == pytest.approx([flops * microbatches / ranks for flops in one])
    # The same tokens in one batch are the same work.
    assert transformer(**{**WHOLE, "tokens": TOKENS * microbatches}).model == 3 * FORWARD * microbatches


@pytest.mark.parametrize(
    "wrong",
    [
        *({"params": -1}, {"params": math.inf}, {"params": math.nan}, {"params": "7B"}, {"params": True}),
        *({"tokens": -1}, {"microbatches": 0}, {"model_parallel_ranks": 0}, {"recompute": "some"}),
        *({"heads": 0}, {"context": 0}, {"layers": 0}, {"frozen_params": 1e9}, {"recomputed_params": 1e9}),
        *({"recomputed_layers": 3}, {"frozen_params": -1}),
    ],
    ids=str,
)
def test_impossible_sizes_are_rejected(wrong):
    with pytest.raises(ValueError):
        transformer(**{**WHOLE, **wrong})


# ---- Above 100 %


@pytest.mark.parametrize("fine", [None, 0.0, 0.5, 1.0, math.nan])
def test_no_error_up_to_one(fine):
    assert too_high(fine, world_size=8) is None


@pytest.mark.parametrize(
    ("utilisation", "known", "reason"),
    [
        (0.4 * 8, {"world_size": 8}, "that of all 8 ranks"),
        (0.95 * 512, {"world_size": 512}, "that of all 512 ranks"),
        (0.5 * 16, {"microbatches": 16}, "all 16 microbatches"),
        (0.45 * 4, {"devices": 4}, "this rank drives 4"),
        (0.42 * 989.4 / 66.9, {"device": "NVIDIA H100 80GB HBM3", "dtype": "fp32"}, "ran in bf16"),
        (0.8, {}, None),
        (0.55 * 2, {}, "a little low"),
        (0.6 * 2, {}, "where forward alone runs"),
        (0.75 * 2, {}, "one of two dies or of a slower dtype"),
    ],
)
def test_ratio_gives_the_likely_mistake(utilisation, known, reason):
    text = too_high(utilisation, **known)
    assert (text is None) if reason is None else (reason in text and text.startswith("MFU of "))


def test_most_likely_mistake_comes_first():
    text = too_high(3.2, "HFU", world_size=8, microbatches=64)
    assert text == (
        "HFU of 320 % is above 100 %, so an input is wrong: most likely flops_per_step is that of all 8 ranks and "
        "must be one rank's (without that, 40 %); or flops_per_step covers all 64 microbatches, while each "
        "microbatch is measured as a step (without that, 5 %)."
    )


def test_recomputation_given_as_model_flops():
    assert "belongs into hardware_flops_per_step" in too_high(1.2)


def test_unexplained_ratio_has_no_reason():
    assert "no single usual mistake" in too_high(1e6, world_size=8)
    assert "no single usual mistake" in too_high(math.inf)


def test_host_clock_explains_high_compute_efficiency():
    text = too_high(2.0, "compute efficiency", world_size=4, device_clock=0.25)
    assert "75 % of the phases' time is the host's" in text
    assert "all 4 ranks" in too_high(2.0, "compute efficiency", world_size=4, device_clock=1.0)
    assert "all 4 ranks" in too_high(2.0, "MFU", world_size=4, device_clock=0.0)


def test_impossible_ratio_is_printed_short():
    found = too_high(3.0442966507177e13, "MFU")
    assert found is not None and found.startswith("MFU of over 1,000,000 % is above 100 %")
