"""FSDP2 (`fully_shard`): the waits for gathered parameters and for reduced gradients, on the compute stream."""

from __future__ import annotations

import sys

from goodput.sdk.patches.communication import timer

MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
RELIES_ON = """torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py: FSDPParamGroup.wait_for_unshard makes the compute
stream wait for the all-gather, finalize_backward for the reduce-scatters, and unshard issues an all-gather. Where the
collective itself is called on the step thread (CPU), patches/communication.py sees it."""
NAMES = ("wait_for_unshard", "finalize_backward")


def apply(module, auto) -> None:
    torch = sys.modules["torch"]
    timed, kind = timer(torch, auto), module.FSDPParamGroup
    for name in NAMES:
        auto.patches.replace(kind, name, timed(getattr(kind, name)))
