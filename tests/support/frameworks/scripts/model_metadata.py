"""A plain loop over a tiny model, for test_model_metadata.py: `gpt2`, or `mlp`; prints what the rank's page then says."""

import json
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


model, loss_of = {"gpt2": gpt2, "mlp": mlp}[sys.argv[1]]()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in sys.argv):
            loss = loss_of()
        loss.backward()
    optimizer.step()
identity = goodput._session.identity
told = {name: identity.get(name) for name in ("dtype", "flops_per_step", "hardware_flops_per_step", "device")}
print(json.dumps({**told, "steps": goodput._session.recorder.steps}))
print(sum(p.double().sum().item() for p in model.parameters()))
