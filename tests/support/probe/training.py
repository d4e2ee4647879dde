"""A training with a planted loader: the plant's fields as JSON, workers, batches, and perhaps seconds that a step takes.

Each step copies the batch, which takes what the plant says, and trains a small model.
"""

import json
import sys
import time

import torch
from support.probe import planted

import goodput.auto  # noqa: F401

plant = planted.Plant(**json.loads(sys.argv[1]))
step_seconds = float(sys.argv[4]) if sys.argv[4:] else 0.0
loader = planted.loader(plant, num_workers=int(sys.argv[2]))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for number, batch in enumerate(loader):
    values = batch.to("cpu").values.float()
    model(values).sum().backward()
    time.sleep(step_seconds)
    optimizer.step()
    optimizer.zero_grad()
    if number + 1 == int(sys.argv[3]):
        break
del loader
