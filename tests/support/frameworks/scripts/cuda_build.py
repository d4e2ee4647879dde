"""A loop without a GPU, on a torch that claims to be built for CUDA; writes what the recorder has to the file in argv."""

import json
import sys

import torch

torch.version.cuda = "13.0"
# A build for the CPU lacks these, and nothing calls them here.
for name in ("record", "elapsed_time", "query"):
    if not hasattr(torch._C._CudaEventBase, name):
        setattr(torch._C._CudaEventBase, name, None)
import goodput.auto  # noqa: E402

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
recorder = goodput._session.recorder
clocks = []
for _ in range(20):
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    clocks.append(recorder.device is not None)
with open(sys.argv[1], "w") as file:
    json.dump({"steps": recorder.steps, "clocks": clocks}, file)
