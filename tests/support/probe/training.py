"""A training with a planted loader: the plant's fields as JSON, workers, batches.

Each step copies the batch, which takes what the plant says, and trains a small model.
"""

import json
import sys

import torch
from support.probe import planted

import goodput.auto  # noqa: F401

plant = planted.Plant(**json.loads(sys.argv[1]))
loader = planted.loader(plant, num_workers=int(sys.argv[2]))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for number, batch in enumerate(loader):
    values = batch.to("cpu").values.float()
    model(values).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if number + 1 == int(sys.argv[3]):
        break
del loader
