"""Counting leaves the live model as it is, takes wrappers off, and explains what it cannot count."""

import contextlib
import copy
import random
import socket

import pytest

from goodput.flops import FlopCountError, count
from goodput.flops.meta_copy import unwrap

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
nn = torch.nn
from support.flops.small_gpt import GPT, Block, formula, tokens  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402


class OnMetaOnly(TorchDispatchMode):
    """Fails at the first operator that reads or makes a tensor with data."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, made)):
            assert not isinstance(tensor, torch.Tensor) or tensor.device.type == "meta", f"{func} has data"
        return made


class Untidy(nn.Module):
    """A forward pass that uses tensors and devices outside of the module in many ways."""

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


def test_live_model_and_random_states_do_not_change():
    model, x = Untidy(), torch.randn(4, 8)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    before = copy.deepcopy(model.state_dict())
    dictionary = {name: id(value) for name, value in vars(model).items()}
    random.seed(1)
    states = random.getstate(), torch.get_rng_state()
    with OnMetaOnly():
        found = count(model, x, loss=lambda out: ((out - x) ** 2).mean())
    # Linear and hidden layer: the first needs no gradient for x; the loose weight and the hidden one do.
    assert found.model_flops == 2 * 4 * 64 * (2 + 3 + 3)
    assert random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])
    assert {name: id(value) for name, value in vars(model).items()} == dictionary
    assert model.seen == [] and model.hidden[0].weight.grad is None and model.table[1].grad is None
    for name, value in model.state_dict().items():
        assert value.device.type == "cpu" and torch.equal(value, before[name])
    assert all(torch.equal(p.grad, torch.full_like(p, 2.0)) for p in model.parameters())


def test_numpy_and_pytorch_random_states_are_restored():
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


def test_switches_are_restored_after_success_and_failure():
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


def test_meta_model_under_no_grad():
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


class ActorCritic(nn.Module):
    """Returns a distribution, as many actors do; its second head takes a twentieth of the products."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic = nn.Linear(8, 20), nn.Linear(8, 1)

    def forward(self, x):
        return torch.distributions.Categorical(logits=self.actor(x)), self.critic(x)


def test_products_behind_a_distribution_are_counted(monkeypatch):
    """Forward, and backward to the weights alone, of 4 samples."""
    # torch.compile, where another test used it, has switched the validation off for the whole process.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    assert count(ActorCritic(), torch.ones(4, 8)).model_flops == 2 * 2 * 4 * 8 * 21
    with pytest.raises(ValueError):
        torch.distributions.Categorical(logits=torch.tensor([float("nan")]))


def test_compiled_models_are_counted_uncompiled():
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


def test_compiled_function_is_not_compiled_for_the_copy():
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


def test_data_parallel_wrappers_are_removed():
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


def test_copy_uses_the_modules_getstate():
    class Attached(nn.Linear):
        """Refers to its trainer, as modules of training frameworks do, and leaves it out of its state."""

        def __init__(self):
            super().__init__(4, 4)
            self.trainer = (_ for _ in ())

        def __getstate__(self):
            return {**self.__dict__, "trainer": None}

    model = Attached()
    assert count(model, torch.empty(2, 4)).model_flops == 2 * 2 * 2 * 16
    assert model.trainer is not None


def test_child_named_module_is_not_a_wrapper():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.module, self.after = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.after(self.module(x))

    assert count(Two(), torch.empty(2, 4)).model_flops == 2 * 2 * 16 * (2 + 3)


# ---- Models that cannot be counted


class Deciding(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


class Locked(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.lock = socket.socket()


@pytest.mark.parametrize(
    ("model", "options", "message"),
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
def test_uncountable_model_raises_with_the_reason(model, options, message):
    with pytest.raises(FlopCountError, match=message):
        count(model, torch.empty(2, 4), **options)
    if isinstance(model, Locked):
        model.lock.close()
