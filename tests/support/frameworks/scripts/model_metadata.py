"""A plain loop over a tiny model, for test_model_metadata.py: `gpt2`, `mlp` or `ddp`; prints the steps and the sum of its weights."""

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


model, loss_of = {"gpt2": gpt2, "mlp": mlp, "ddp": ddp}[sys.argv[1]]()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in sys.argv):
            loss = loss_of()
        loss.backward()
    optimizer.step()
print(goodput._session.recorder.steps, sum(p.double().sum().item() for p in model.parameters()))
