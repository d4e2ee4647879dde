"""Counting a model's FLOPs: hand-worked numbers, the formula of the papers, and a live model that nobody touches."""

import contextlib
import copy
import random
import socket

import pytest

from goodput.account import peaks
from goodput.account.flops import transformer
from goodput.flops import FlopCountError, count
from goodput.flops.meta_copy import unwrap

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
nn, F = torch.nn, torch.nn.functional
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 100, 32, 4, 2, 16, 3


class Block(nn.Module):
    def __init__(self, kv_heads=HEADS):
        super().__init__()
        self.kv_heads, kv_width = kv_heads, WIDTH // HEADS * kv_heads
        self.q, self.k, self.v = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, kv_width),
            nn.Linear(WIDTH, kv_width),
        )
        self.out, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm(x)

        def split(z, heads):
            return z.view(*z.shape[:2], heads, -1).transpose(1, 2)

        q, k, v = split(self.q(y), HEADS), split(self.k(y), self.kv_heads), split(self.v(y), self.kv_heads)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads != HEADS)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


class GPT(nn.Module):
    """Token embedding shared with the output layer; returns the loss when it gets targets."""

    def __init__(self, reentrant=None, kv_heads=HEADS):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(kv_heads) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.reentrant = reentrant

    def forward(self, tokens, targets=None):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        logits = self.head(x)
        return logits if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def tokens():
    return torch.zeros(BATCH, LENGTH, dtype=torch.long)


def formula(model, **options):
    """By the papers: weights of products, so without biases, norms and the table of places."""
    params = sum(p.numel() for p in model.parameters() if p.dim() == 2) - LENGTH * WIDTH
    sizes = {"layers": LAYERS, "heads": HEADS, "head_dim": WIDTH // HEADS, "context": LENGTH}
    return transformer(params=params, tokens=BATCH * LENGTH, **sizes, **options)


# ---- Hand-worked numbers


def test_a_linear_layer():
    x = torch.empty(5, 8)
    # Forward 2 · 5 · 8 · 16; backward the weight's gradient alone, since x wants none.
    assert count(nn.Linear(8, 16), x)[:3] == (2 * 1280, 2 * 1280, "fp32")
    assert count(nn.Linear(8, 16), x.requires_grad_()).model_flops == 3 * 1280
    assert count(nn.Linear(8, 16), x, backward=False).model_flops == 1280


def test_microbatches_are_added_up():
    x = torch.empty(5, 8)
    assert count(nn.Linear(8, 16), x, microbatches=4)[:2] == (8 * 1280, 8 * 1280)


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_a_convolution_in_groups(groups):
    x = torch.empty(2, 8, 10, 10, requires_grad=True)
    # 2 FLOPs × (2 · 10 · 10 outputs) × 16 channels × 8 / groups channels × 3 · 3, three times.
    forward = 2 * 200 * 16 * (8 // groups) * 9
    assert count(nn.Conv2d(8, 16, 3, padding=1, groups=groups), x).model_flops == 3 * forward


@pytest.mark.parametrize("groups", [1, 4])
def test_a_transposed_convolution(groups):
    x = torch.empty(2, 8, 10, 10, requires_grad=True)
    # Each of the 2 · 10 · 10 inputs meets a kernel of 4 · 4 per pair of channels.
    forward = 2 * 200 * 8 * (16 // groups) * 16
    assert count(nn.ConvTranspose2d(8, 16, 4, stride=2, groups=groups), x).model_flops == 3 * forward


class Attention(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape == k.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_is_two_products_forward_and_four_backward(dtype):
    q = torch.empty(2, 4, 16, 8, dtype=dtype, requires_grad=True)
    k = torch.empty(2, 4, 32, 8, dtype=dtype, requires_grad=True)
    product = 2 * (2 * 4) * 16 * 32 * 8
    found = count(Attention(), q, k, k)
    assert found[:2] == (6 * product, 6 * product)
    assert found.dtype == ("fp32" if dtype == torch.float32 else "bf16")
    assert count(Attention(), q, k, k, backward=False).model_flops == 2 * product


def test_an_lstm():
    # Per step and sequence 2 · 4 · 16 · (8 + 16); the input and the first state want no gradient.
    forward, inputs, first = 5 * 2 * 2 * 64 * 24, 5 * 2 * 2 * 64 * 8, 2 * 2 * 64 * 16
    found = count(nn.LSTM(8, 16), torch.empty(5, 2, 8), autocast="bf16")
    assert found[:3] == (3 * forward - inputs - first, 3 * forward - inputs - first, "bf16")


def test_products_that_pytorchs_counter_has_no_formula_for():
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


def test_a_gradient_inside_the_loss():
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


def test_parametrised_and_old_weight_norms():
    for wrap in (nn.utils.weight_norm, nn.utils.parametrizations.weight_norm):
        with pytest.warns(FutureWarning) if wrap is nn.utils.weight_norm else contextlib.nullcontext():
            model = wrap(nn.Linear(4, 4))
        model(torch.ones(2, 4)).sum().backward()
        assert count(model, torch.empty(2, 4)).model_flops == 2 * 2 * 2 * 16


# ---- Against the formula


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_a_small_gpt_is_the_papers_formula_exactly(kv_heads):
    model = GPT(kv_heads=kv_heads)
    expected = formula(model)
    assert count(model, tokens(), tokens())[:2] == (expected.model, expected.hardware)
    assert count(model, tokens()).model_flops == expected.model
    assert count(model, tokens(), backward=False).model_flops == formula(model, training=False).model


def test_checkpointing_is_hardware_flops_only():
    expected = formula(GPT(), recompute="full", recomputed_params=LAYERS * 12 * WIDTH**2)
    assert count(GPT(reentrant=True), tokens(), tokens())[:2] == (expected.model, expected.hardware)
    # The other kind stops when it has what backward needs: not the last product of a block.
    spared = LAYERS * 2 * BATCH * LENGTH * 4 * WIDTH**2
    assert count(GPT(reentrant=False), tokens(), tokens())[:2] == (expected.model, expected.hardware - spared)


# ---- Dtypes


def test_autocast_inside_around_or_asked_for():
    class Casting(GPT):
        def forward(self, *given):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(*given)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        around = count(GPT(), tokens(), tokens())
    asked = count(GPT(), tokens(), tokens(), autocast=torch.bfloat16)
    assert (
        around
        == asked
        == count(Casting(), tokens(), tokens())
        == count(GPT(), tokens(), tokens(), autocast="bf16")
    )
    assert asked.dtype == "bf16" and asked.model_flops == formula(GPT()).model
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


def test_shares_of_dtypes_are_what_start_takes():
    found = count(Mixed(), torch.empty(4, 9, requires_grad=True))
    assert found.dtype == "bf16=0.9,fp32=0.1"
    assert peaks.peak("NVIDIA A100-SXM4-80GB", found.dtype) == pytest.approx(
        1 / (0.9 / 312e12 + 0.1 / 19.5e12)
    )


def test_shares_always_sum_to_one_as_written():
    class Three(nn.Module):
        def forward(self, x):
            products = [x.to(dtype) @ x.to(dtype) for dtype in (torch.bfloat16, torch.float16, torch.float32)]
            return sum(product.float() for product in products)

    dtype = count(Three(), torch.empty(4, 4, requires_grad=True)).dtype
    assert peaks.shares(dtype) == pytest.approx({"bf16": 1 / 3, "fp16": 1 / 3, "fp32": 1 / 3}, abs=1e-6)


@pytest.mark.parametrize("norm_first", [False, True])
def test_pytorchs_own_transformer_layer_under_autocast(norm_first):
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first)
    x = torch.empty(2, 8, 32, requires_grad=True)
    forward = 2 * 16 * (4 * 32 * 32 + 2 * 32 * 64) + 4 * 16 * 8 * 32
    assert count(layer, x, autocast="bf16")[:3] == (3 * forward, 3 * forward, "bf16")
    assert count(layer.eval(), x, backward=False).model_flops == forward


# ---- Nothing is touched


class OnMetaOnly(TorchDispatchMode):
    """Fails at the first operator that reads or makes a tensor with data."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, made)):
            assert not isinstance(tensor, torch.Tensor) or tensor.device.type == "meta", f"{func} has data"
        return made


class Rude(nn.Module):
    """Reaches around itself in every way a forward pass may."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.loose = torch.ones(8)
        self.seen, self.table = [], [torch.ones(8, requires_grad=True), nn.Parameter(torch.ones(8, 8))]
        self.register_buffer("calls", torch.zeros(1))
        hidden = nn.Linear(8, 8)
        self.around = lambda x: hidden(x)
        self.hidden = [hidden]

    def forward(self, x):
        assert self.linear.weight.is_meta and x.is_meta
        self.calls += 1
        self.seen.append(x)
        x = self.drop(self.norm(self.linear(x.to("cpu")))) * self.loose + self.table[0]
        x = x @ self.table[1] + torch.rand(8, device="cpu") + torch.ones(8) + random.random()
        return self.around(x.cpu() + torch.zeros(8, device=torch.device("cpu")))


def test_the_live_model_keeps_its_data_gradients_buffers_and_random_states():
    model, x = Rude(), torch.randn(4, 8)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    before = copy.deepcopy(model.state_dict())
    dictionary = {name: id(value) for name, value in vars(model).items()}
    random.seed(1)
    states = random.getstate(), torch.get_rng_state()
    with OnMetaOnly():
        found = count(model, x, loss=lambda out: ((out - x) ** 2).mean())
    # Linear and hidden layer: the first wants no gradient for x; the loose weight and the hidden one do.
    assert found.model_flops == 2 * 4 * 64 * (2 + 3 + 3)
    assert random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])
    assert {name: id(value) for name, value in vars(model).items()} == dictionary
    assert model.seen == [] and model.hidden[0].weight.grad is None and model.table[1].grad is None
    for name, value in model.state_dict().items():
        assert value.device.type == "cpu" and torch.equal(value, before[name])
    assert all(torch.equal(p.grad, torch.full_like(p, 2.0)) for p in model.parameters())


def test_numpy_and_pytorch_keep_their_random_states():
    numpy = pytest.importorskip("numpy")

    class Rolling(nn.Linear):
        def forward(self, x):
            torch.manual_seed(1)
            return super().forward(x) * float(numpy.random.rand())

    model = Rolling(4, 4)
    torch.manual_seed(2)
    state, torchs = numpy.random.get_state()[1].copy(), torch.get_rng_state()
    count(model, torch.empty(2, 4))
    assert torch.equal(torch.get_rng_state(), torchs)
    assert (numpy.random.get_state()[1] == state).all()


def test_hooks_of_the_live_model_do_not_run():
    model, called = GPT(), []
    model.register_forward_hook(lambda *_: called.append("forward"))
    model.blocks[0].register_forward_pre_hook(lambda *_: called.append("before"))
    model.blocks[0].register_full_backward_hook(lambda *_: called.append("backward"))
    model.head.weight.register_hook(lambda *_: called.append("gradient"))
    assert count(model, tokens(), tokens()).model_flops == formula(GPT()).model
    assert called == [] and len(model._forward_hooks) == 1


def test_switches_are_as_before_after_success_and_failure():
    switch, ask = (
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp,
        "fp16_bf16_reduction_math_sdp_allowed",
    )
    before = getattr(torch.backends.cuda, ask)()
    try:
        for on in (False, True):
            switch(on)
            count(nn.Linear(4, 4), torch.empty(2, 4))
            with pytest.raises(FlopCountError), torch.no_grad():
                count(nn.Linear(4, 4), torch.empty(2, 5))
            assert getattr(torch.backends.cuda, ask)() == on and torch.is_grad_enabled()
    finally:
        switch(before)


def test_a_model_and_inputs_on_the_meta_device_under_no_grad():
    with torch.device("meta"):
        model = GPT()
    for without in (torch.inference_mode, torch.no_grad):
        with without():
            assert count(model, tokens().to("meta"), tokens()).model_flops == formula(GPT()).model


# ---- Wrappers


@contextlib.contextmanager
def one_process():
    import torch.distributed as dist

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    dist.init_process_group("gloo", init_method=address, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Summing(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        torch.distributed.all_reduce(y.detach())
        return y


def test_compiled_models_and_parts_are_counted_uncompiled():
    expected = formula(GPT()).model
    whole, part, in_place = torch.compile(GPT()), GPT(), GPT()
    part.blocks[0] = torch.compile(part.blocks[0])
    in_place.compile()
    called = []
    in_place.register_forward_pre_hook(lambda *_: called.append(1))
    for model in (whole, part, in_place):
        assert count(model, tokens(), tokens()).model_flops == expected
    assert called == [] and in_place._compiled_call_impl is not None
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    normed.register_forward_pre_hook(lambda *_: called.append(1))
    normed.compile()
    assert count(normed, torch.empty(2, 4)).model_flops == 2 * 2 * 2 * 16 and called == []
    assert isinstance(part.blocks[0]._orig_mod, Block) and unwrap(whole) is whole._orig_mod


def test_a_compiled_function_in_the_model_is_not_compiled_for_the_copy():
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    double = torch.compile(lambda x: x @ x.t() * 2, backend=backend)

    class Calling(nn.Linear):
        def forward(self, x):
            return double(super().forward(x))

    model, x = Calling(4, 4), torch.ones(2, 4)
    assert count(model, x).model_flops == 2 * 2 * 2 * 16 + 3 * 2 * 2 * 2 * 4
    assert compiled == []
    assert model(x).shape == (2, 2) and len(compiled) == 1


def test_data_parallel_wrappers_are_taken_off():
    from torch.distributed.fsdp import fully_shard

    expected = formula(GPT()).model
    assert count(nn.DataParallel(GPT()), tokens(), tokens()).model_flops == expected
    with one_process():
        model = nn.parallel.DistributedDataParallel(torch.compile(GPT()))
        assert count(model, tokens(), tokens()).model_flops == expected
        sharded = GPT()
        fully_shard(sharded.blocks[0])
        fully_shard(sharded)
        kind = type(sharded)
        assert count(sharded, tokens(), tokens()).model_flops == expected
        assert type(sharded) is kind and kind.__name__ == "FSDPGPT"
        assert count(Summing(4, 4), torch.empty(2, 4)).uncounted == ()
        convolution = nn.SyncBatchNorm.convert_sync_batchnorm(
            nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
        )
        assert count(convolution, torch.empty(2, 3, 5, 5)).model_flops == 2 * 2 * 50 * 12


def test_a_module_that_says_what_of_it_is_copied_is_asked():
    class Attached(nn.Linear):
        """As modules of training frameworks do, which know their trainer and everything behind it."""

        def __init__(self):
            super().__init__(4, 4)
            self.trainer = (_ for _ in ())

        def __getstate__(self):
            return {**self.__dict__, "trainer": None}

    model = Attached()
    assert count(model, torch.empty(2, 4)).model_flops == 2 * 2 * 2 * 16
    assert model.trainer is not None


def test_a_child_called_module_is_no_wrapper():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.module, self.after = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.after(self.module(x))

    assert count(Two(), torch.empty(2, 4)).model_flops == 2 * 2 * 16 * (2 + 3)


# ---- What cannot be counted says so


class Deciding(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


class Locked(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.lock = socket.socket()


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (Deciding(4, 4), {}, "meta tensors"),
        (Locked(), {}, "cannot copy Locked.lock"),
        (nn.LazyLinear(4), {}, "lazy"),
        (nn.Linear(5, 4), {}, "RuntimeError"),
        (nn.ReLU(), {}, "backward=False"),
        (nn.Linear(4, 4), {"microbatches": 0}, "microbatches"),
        (nn.Linear(4, 4), {"autocast": "int8"}, "autocast"),
        (len, {}, "Module"),
        (torch.jit.script(nn.Linear(4, 4)), {}, "unscripted"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_what_cannot_be_counted(model, options, said):
    with pytest.raises(FlopCountError, match=said):
        count(model, torch.empty(2, 4), **options)
    if isinstance(model, Locked):
        model.lock.close()


def test_a_product_without_a_formula_is_named():
    @torch.library.custom_op("goodput_test::product", mutates_args=())
    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    product.register_fake(lambda x: torch.empty_like(x))

    class Foreign(nn.Linear):
        def forward(self, x):
            return super().forward(x) + product(x.detach())

    assert count(Foreign(4, 4), torch.empty(4, 4)).uncounted == ("goodput_test.product",)
    assert count(nn.Linear(4, 4), torch.empty(4, 4)).uncounted == ()


def test_outputs_with_a_loss_start_from_it_alone():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return {"loss": self.one(x).mean(), "other": self.two(x)}

    x = torch.empty(2, 4)
    assert count(Heads(), x=x).model_flops == 2 * 2 * 16 * (2 + 1)
    assert count(Heads(), x, loss=lambda out: out["loss"] + out["other"].sum()).model_flops == 2 * 2 * 16 * 4
