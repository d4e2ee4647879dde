"""FLOPs of a step against hand-worked numbers and the papers' formula, and the dtypes they ran in."""

import contextlib

import pytest

from goodput.account.mfu import peaks
from goodput.flops import count

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
nn, F = torch.nn, torch.nn.functional
from support.flops.small_gpt import BATCH, GPT, LAYERS, LENGTH, WIDTH, formula, tokens  # noqa: E402


def test_linear_layer():
    x = torch.empty(5, 8)
    # Forward 2 · 5 · 8 · 16; backward the weight's gradient alone, since x needs none.
    assert count(nn.Linear(8, 16), x)[:3] == (2 * 1280, 2 * 1280, "fp32")
    assert count(nn.Linear(8, 16), x.requires_grad_()).model_flops == 3 * 1280
    assert count(nn.Linear(8, 16), x, backward=False).model_flops == 1280


def test_microbatches_multiply_the_step():
    x = torch.empty(5, 8)
    assert count(nn.Linear(8, 16), x, microbatches=4)[:2] == (8 * 1280, 8 * 1280)


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_grouped_convolution(groups):
    x = torch.empty(2, 8, 10, 10, requires_grad=True)
    # 2 FLOPs × (2 · 10 · 10 outputs) × 16 channels × 8 / groups channels × 3 · 3, three times.
    forward = 2 * 200 * 16 * (8 // groups) * 9
    assert count(nn.Conv2d(8, 16, 3, padding=1, groups=groups), x).model_flops == 3 * forward


@pytest.mark.parametrize("groups", [1, 4])
def test_transposed_convolution(groups):
    x = torch.empty(2, 8, 10, 10, requires_grad=True)
    # Each of the 2 · 10 · 10 inputs meets a kernel of 4 · 4 per pair of channels.
    forward = 2 * 200 * 8 * (16 // groups) * 16
    assert count(nn.ConvTranspose2d(8, 16, 4, stride=2, groups=groups), x).model_flops == 3 * forward


class Attention(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape == k.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_has_two_products_forward_four_backward(dtype):
    q = torch.empty(2, 4, 16, 8, dtype=dtype, requires_grad=True)
    k = torch.empty(2, 4, 32, 8, dtype=dtype, requires_grad=True)
    product = 2 * (2 * 4) * 16 * 32 * 8
    found = count(Attention(), q, k, k)
    assert found[:2] == (6 * product, 6 * product)
    assert found.dtype == ("fp32" if dtype == torch.float32 else "bf16")
    assert count(Attention(), q, k, k, backward=False).model_flops == 2 * product


def test_lstm():
    # Per step and sequence 2 · 4 · 16 · (8 + 16); the input and the first state need no gradient.
    forward, inputs, first = 5 * 2 * 2 * 64 * 24, 5 * 2 * 2 * 64 * 8, 2 * 2 * 64 * 16
    found = count(nn.LSTM(8, 16), torch.empty(5, 2, 8), autocast="bf16")
    assert found[:3] == (3 * forward - inputs - first, 3 * forward - inputs - first, "bf16")


def test_products_without_formula_in_pytorch():
    class Products(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.empty(4, 8))
            self.experts = nn.Parameter(torch.empty(3, 8, 16, dtype=torch.bfloat16))

        def forward(self, x, rows, ends):
            return torch.mv(self.w, x), torch._grouped_mm(rows, self.experts, ends)

    rows = torch.empty(24, 8, dtype=torch.bfloat16, requires_grad=True)
    found = count(Products(), torch.empty(8), rows, torch.tensor([8, 16, 24], dtype=torch.int32))
    # The gradient of w is an outer product without additions.
    assert found.model_flops == 2 * 4 * 8 + 3 * 2 * 24 * 8 * 16 and found.uncounted == ()


def test_gradient_inside_the_loss():
    class Penalty(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            y = self.inner(x.requires_grad_()).pow(2).sum()
            (slope,) = torch.autograd.grad(y, x, create_graph=True)
            return y + slope.pow(2).sum()

    # Forward 1, slope 1, then both gradients of each of these two products: 4.
    assert count(Penalty(), torch.empty(2, 4)).model_flops == 6 * 2 * 2 * 16


def test_parametrized_and_deprecated_weight_norms():
    for wrap in (nn.utils.weight_norm, nn.utils.parametrizations.weight_norm):
        with pytest.warns(FutureWarning) if wrap is nn.utils.weight_norm else contextlib.nullcontext():
            model = wrap(nn.Linear(4, 4))
        model(torch.ones(2, 4)).sum().backward()
        assert count(model, torch.empty(2, 4)).model_flops == 2 * 2 * 2 * 16


# ---- Against the formula


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_small_gpt_equals_the_papers_formula(kv_heads):
    model = GPT(kv_heads=kv_heads)
    expected = formula(model)
    assert count(model, tokens(), tokens())[:2] == (expected.model, expected.hardware)
    assert count(model, tokens()).model_flops == expected.model
    assert count(model, tokens(), backward=False).model_flops == formula(model, training=False).model


def test_activation_checkpointing_adds_hardware_flops_only():
    expected = formula(GPT(), recompute="full", recomputed_params=LAYERS * 12 * WIDTH**2)
    assert count(GPT(reentrant=True), tokens(), tokens())[:2] == (expected.model, expected.hardware)
    # The non-reentrant kind stops when it has what backward needs, before the last product of a block.
    spared = LAYERS * 2 * BATCH * LENGTH * 4 * WIDTH**2
    assert count(GPT(reentrant=False), tokens(), tokens())[:2] == (expected.model, expected.hardware - spared)


# ---- Dtypes


def test_autocast_inside_around_or_by_argument():
    class Casting(GPT):
        def forward(self, *given):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(*given)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        around = count(GPT(), tokens(), tokens())
    by_argument = count(GPT(), tokens(), tokens(), autocast=torch.bfloat16)
    assert (
        around
        == by_argument
        == count(Casting(), tokens(), tokens())
        == count(GPT(), tokens(), tokens(), autocast="bf16")
    )
    assert by_argument.dtype == "bf16" and by_argument.model_flops == formula(GPT()).model
    assert count(GPT().bfloat16(), tokens(), tokens()).dtype == "bf16"
    assert count(GPT(), tokens(), tokens(), autocast="fp16").dtype == "fp16"
    assert count(GPT().double(), tokens(), tokens(), autocast="bf16").dtype == "fp64"


class Mixed(nn.Module):
    """A tenth of the products outside of autocast."""

    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Linear(9, 10), nn.Linear(10, 1)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.low(x)
        with torch.autocast("cpu", enabled=False):
            return self.high(x.float())


def test_dtype_shares_are_accepted_by_peaks():
    found = count(Mixed(), torch.empty(4, 9, requires_grad=True))
    assert found.dtype == "bf16=0.9,fp32=0.1"
    assert peaks.peak("NVIDIA A100-SXM4-80GB", found.dtype) == pytest.approx(
        1 / (0.9 / 312e12 + 0.1 / 19.5e12)
    )


def test_dtype_shares_sum_to_one():
    class Three(nn.Module):
        def forward(self, x):
            products = [x.to(dtype) @ x.to(dtype) for dtype in (torch.bfloat16, torch.float16, torch.float32)]
            return sum(product.float() for product in products)

    dtype = count(Three(), torch.empty(4, 4, requires_grad=True)).dtype
    assert peaks.shares(dtype) == pytest.approx({"bf16": 1 / 3, "fp16": 1 / 3, "fp32": 1 / 3}, abs=1e-6)


@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_encoder_layer_under_autocast(norm_first):
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first)
    x = torch.empty(2, 8, 32, requires_grad=True)
    forward = 2 * 16 * (4 * 32 * 32 + 2 * 32 * 64) + 4 * 16 * 8 * 32
    assert count(layer, x, autocast="bf16")[:3] == (3 * forward, 3 * forward, "bf16")
    assert count(layer.eval(), x, backward=False).model_flops == forward


def test_operator_without_formula_is_listed():
    @torch.library.custom_op("goodput_test::product", mutates_args=())
    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    product.register_fake(lambda x: torch.empty_like(x))

    class Foreign(nn.Linear):
        def forward(self, x):
            return super().forward(x) + product(x.detach())

    assert count(Foreign(4, 4), torch.empty(4, 4)).uncounted == ("goodput_test.product",)
    assert count(nn.Linear(4, 4), torch.empty(4, 4)).uncounted == ()


def test_backward_starts_from_the_loss_of_the_output():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return {"loss": self.one(x).mean(), "other": self.two(x)}

    x = torch.empty(2, 4)
    assert count(Heads(), x=x).model_flops == 2 * 2 * 16 * (2 + 1)
