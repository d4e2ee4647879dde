"""FSDP1 (`FullyShardedDataParallel`): the waits for gathered parameters and for reduced gradients."""

from __future__ import annotations

import sys

from goodput.sdk.patches.communication import timer

MODULE = "torch.distributed.fsdp._runtime_utils"
RELIES_ON = """torch/distributed/fsdp/_runtime_utils.py: _pre_forward_unshard and
_pre_backward_hook issue an all-gather and make the compute stream wait for it; _post_backward_final_callback makes it wait for the
gradients. They call each other by name in the module."""
NAMES = ("_pre_forward_unshard", "_pre_backward_hook", "_post_backward_final_callback")


def apply(module, auto) -> None:
    torch = sys.modules["torch"]
    timed = timer(torch, auto)
    for name in NAMES:
        auto.patches.replace(module, name, timed(getattr(module, name)))
