"""A plain loop over a tiny model, for test_model_metadata.py; prints the steps and the sum of its weights.

argv is the model, a function below, and perhaps `autocast`, around its calls, or `compiled`.
"""

import sys

import torch
from torch import nn

import goodput
import goodput.auto

torch.set_num_threads(1)
torch.manual_seed(0)


def gpt2():
    import transformers

    config = transformers.GPT2Config(
        n_layer=2,
        n_head=2,
        n_embd=32,
        n_positions=64,
        vocab_size=100,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(0, 100, (4, 16))
    return model, lambda: model(input_ids=ids, labels=ids).loss


def mlp():
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    batch = torch.randn(4, 16)
    return model, lambda: model(batch).square().mean()


def ddp():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    model, _ = mlp()
    parallel, batch = nn.parallel.DistributedDataParallel(model), torch.randn(4, 16)
    return model, lambda: parallel(batch).square().mean()


class AutocastInside(nn.Sequential):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


def inside():
    """Autocast within the model, which the caller does not see."""
    model = AutocastInside(*mlp()[0])
    batch = torch.randn(4, 16)
    return model, lambda: model(batch).square().mean()


def accelerate():
    """Accelerate replaces `forward` by one with autocast."""
    from accelerate import Accelerator

    model, batch = Accelerator(cpu=True, mixed_precision="bf16").prepare(mlp()[0]), torch.randn(4, 16)
    called = torch.compile(model, backend="eager") if "compiled" in sys.argv else model
    return model, lambda: called(batch).square().mean()


def fsdp2():
    """Parameters are float32, and gathered as bfloat16; each layer by itself, or as parts of the whole."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    policy, (model, _) = MixedPrecisionPolicy(param_dtype=torch.bfloat16), mlp()
    for part in [model[0], model] if "layers" in sys.argv else [model]:
        fully_shard(part, mp_policy=policy)
    batch = torch.randn(4, 16)
    return model, lambda: model(batch).float().square().mean()


model, loss_of = globals()[sys.argv[1]]()


def whole(parameter):
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in sys.argv):
            loss = loss_of()
        loss.backward()
    optimizer.step()
print(goodput._session.recorder.steps, sum(whole(p).double().sum().item() for p in model.parameters()))
