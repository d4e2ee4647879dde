"""DistributedDataParallel: its reducer's wait (patches/backward.py) and the broadcast of buffers before forward."""

from __future__ import annotations

import functools
import sys

from goodput.sdk.patches.communication import timer

MODULE = "torch.nn.parallel.distributed"
RELIES_ON = """torch/nn/parallel/distributed.py: DistributedDataParallel.__init__ makes the reducer, and _sync_buffers waits
for rank 0's buffers."""


def apply(module, auto) -> None:
    torch = sys.modules["torch"]
    kind = module.DistributedDataParallel
    made = kind.__init__

    @functools.wraps(made)
    def __init__(self, *args, **kwargs):
        made(self, *args, **kwargs)
        auto.reducers += 1
        auto.is_rank()

    auto.patches.replace(kind, "__init__", __init__)
    auto.patches.replace(kind, "_sync_buffers", timer(torch, auto)(kind._sync_buffers))
