"""FSDP: wraps what makes the compute stream wait for parameters and gradients as the phase `communication`.

FSDP1 is `FullyShardedDataParallel`, FSDP2 `fully_shard`. Work that they issue on side streams is not on the compute
stream, which the device clock follows. A CPU has no streams: there communication is waited for where it is issued.
"""

from __future__ import annotations

import sys

from goodput.sdk.automatic.frameworks.torch.communication import timer

MODULE = "torch.distributed.fsdp"
RELIES_ON = """torch/distributed/fsdp/_runtime_utils.py: _pre_forward_unshard and _pre_backward_hook issue an all-gather
and make the compute stream wait for it; _post_backward_hook issues the reduction of gradients on a stream of its own;
_post_backward_final_callback makes the compute stream wait for that. They are looked up by name when hooks are
registered; fully_sharded_data_parallel.py imports _pre_forward_unshard by name.
torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py: FSDPParamGroup.wait_for_unshard makes the compute
stream wait for the all-gather and copies its result out; post_backward makes it wait for an earlier group's
reduce-scatter, copies gradients in and issues their own; finalize_backward makes it wait for the last.
torch/distributed/fsdp/_fully_shard/_fsdp_state.py: FSDPState._root_post_backward_final_callback finalizes all groups,
as a callback of the autograd engine. All are looked up on the class when called or queued.
The package torch.distributed.fsdp imports all of these modules."""
FSDP1 = ("_pre_forward_unshard", "_pre_backward_hook", "_post_backward_final_callback")
FSDP2 = (
    ("FSDPParamGroup", "wait_for_unshard"),
    ("FSDPParamGroup", "post_backward"),
    ("FSDPState", "_root_post_backward_final_callback"),
)


def apply(module, auto) -> None:
    timed = timer(sys.modules["torch"], auto)
    runtime, wrapper = module._runtime_utils, module.fully_sharded_data_parallel
    for name in FSDP1:
        original = getattr(runtime, name)
        call = timed(original)
        auto.patches.replace(runtime, name, call)
        if getattr(wrapper, name, None) is original:
            auto.patches.replace(wrapper, name, call)
    for owner, name in FSDP2:
        kind = getattr(module._fully_shard._fsdp_state, owner)
        auto.patches.replace(kind, name, timed(getattr(kind, name)))
