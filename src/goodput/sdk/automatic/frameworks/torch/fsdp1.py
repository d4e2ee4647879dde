"""FSDP1 (`FullyShardedDataParallel`): wraps the functions of NAMES, in which the compute stream waits for parameters
and gradients, as the phase `communication`.

Work that they issue on side streams is not on the compute stream, which the device clock follows. A CPU has no
streams: there it is waited for in place.
"""

from __future__ import annotations

import sys

from goodput.sdk.automatic.frameworks.torch.communication import timer

# Of the modules that have these functions by name, the last to be imported.
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
