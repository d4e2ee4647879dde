"""DistributedDataParallel: wraps its waits in forward as the phase `communication`.

These are the broadcast of buffers and the agreement on buckets. The wait for gradients is measured in backward.py.
"""

from __future__ import annotations

import sys

from goodput.sdk.automatic.frameworks.torch.communication import timer

MODULE = "torch.nn.parallel.distributed"
RELIES_ON = """torch/nn/parallel/distributed.py: DistributedDataParallel.__init__ creates the reducer; _pre_forward calls
_sync_buffers, which waits for rank 0's buffers, and in the second pass Reducer._rebuild_buckets waits for rank 0's
order of buckets (torch/csrc/distributed/c10d/reducer.cpp, sync_bucket_indices)."""


def apply(module, auto) -> None:
    timed = timer(sys.modules["torch"], auto)
    kind, reducer = module.DistributedDataParallel, module.dist.Reducer
    made = kind.__init__

    @auto.patches.wrap("__init__", kind)
    def __init__(self, *args, **kwargs):
        made(self, *args, **kwargs)
        if not auto.removed:
            auto.recorder.reducers += 1
            auto.allow_start()

    auto.patches.replace(kind, "_sync_buffers", timed(kind._sync_buffers))
    auto.patches.replace(reducer, "_rebuild_buckets", timed(reducer._rebuild_buckets))
