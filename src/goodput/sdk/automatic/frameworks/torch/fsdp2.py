"""FSDP2 (`fully_shard`): wraps the methods of WAITS, in which the compute stream waits for parameters and gradients,
as the phase `communication`.

All-gathers are issued elsewhere, on a side stream. A CPU has no streams: there communication.py measures them.
"""

from __future__ import annotations

import sys

from goodput.sdk.automatic.frameworks.torch.communication import timer

MODULE = "torch.distributed.fsdp._fully_shard._fsdp_state"
RELIES_ON = """torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py: FSDPParamGroup.wait_for_unshard makes the compute
stream wait for the all-gather and copies its result out; post_backward makes it wait for an earlier group's
reduce-scatter, copies gradients in and issues their own; finalize_backward makes it wait for the last.
torch/distributed/fsdp/_fully_shard/_fsdp_state.py: FSDPState._root_post_backward_final_callback finalizes all groups,
as a callback of the autograd engine. All are looked up on the class when called or queued."""
WAITS = (
    ("FSDPParamGroup", "wait_for_unshard"),
    ("FSDPParamGroup", "post_backward"),
    ("FSDPState", "_root_post_backward_final_callback"),
)


def apply(module, auto) -> None:
    timed = timer(sys.modules["torch"], auto)
    for owner, name in WAITS:
        kind = getattr(module, owner)
        auto.patches.replace(kind, name, timed(getattr(kind, name)))
