"""FSDP1 (`FullyShardedDataParallel`): the compute stream's waits for gathered parameters and reduced gradients.

In: the functions of NAMES. Out: the phase `communication` around each. What they call on side streams is not on the
compute stream, where the device clock has its boundaries; on a CPU, which has no streams, it is waited for in place.
"""

from __future__ import annotations

import sys

from goodput.sdk.automatic.frameworks.torch.communication import timer

# The last module to be imported of those that have these functions by name.
MODULE = "torch.distributed.fsdp.fully_sharded_data_parallel"
RELIES_ON = """torch/distributed/fsdp/_runtime_utils.py: _pre_forward_unshard and _pre_backward_hook issue an all-gather
and make the compute stream wait for it; _post_backward_hook issues the reduction of gradients on a stream of its own;
_post_backward_final_callback makes the compute stream wait for that. They are looked up by name when hooks are
registered; fully_sharded_data_parallel.py imports _pre_forward_unshard by name."""
NAMES = ("_pre_forward_unshard", "_pre_backward_hook", "_post_backward_final_callback")


def apply(module, auto) -> None:
    timed = timer(sys.modules["torch"], auto)
    runtime = sys.modules["torch.distributed.fsdp._runtime_utils"]
    for name in NAMES:
        original = getattr(runtime, name)
        call = timed(original)
        auto.patches.replace(runtime, name, call)
        if getattr(module, name, None) is original:
            auto.patches.replace(module, name, call)
