"""Functional collectives, as in DTensor: wraps `wait_tensor`, which AsyncCollectiveTensor calls when its values are
first used, as the phase `communication`.

Dynamo's table of collectives to rewrite gets the wrapped ones, too. The operators are called by Python, also by code that
Inductor has generated, and their calls are recorded (collectives.py).
"""

from __future__ import annotations

import sys

from goodput.rank_page.collective_records import FLAG
from goodput.sdk.automatic.frameworks.torch.communication import timer

MODULE = "torch.distributed._functional_collectives"
RELIES_ON = """torch/distributed/_functional_collectives.py: AsyncCollectiveTensor.trigger_wait and wait call wait_tensor by
that name; traceable_collective_remaps has collectives of distributed_c10d, imported by name, as keys, by which
torch/_dynamo/variables/functions.py (CollectiveFunctionRewriteVariable) finds what to trace, comparing them with what
torch.distributed carries. torch/_ops.py: OpOverloadPacket.__call__ and OpOverload.__call__ call their attribute `_op`."""
# Operation, and the positions of the group and of the root or peer, by operator.
OPERATORS = {
    **dict.fromkeys(("all_reduce", "all_reduce_", "all_reduce_coalesced"), ("all_reduce", 2, -1)),
    "all_reduce_coalesced_": ("all_reduce", 2, -1),
    **dict.fromkeys(("all_gather_into_tensor", "all_gather_into_tensor_out"), ("all_gather", 2, -1)),
    "all_gather_into_tensor_coalesced": ("all_gather", 2, -1),
    **dict.fromkeys(("reduce_scatter_tensor", "reduce_scatter_tensor_out"), ("reduce_scatter", 3, -1)),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 3, -1),
    "all_to_all_single": ("all_to_all", 3, -1),
    **dict.fromkeys(("broadcast", "broadcast_"), ("broadcast", 2, 1)),
    "isend": ("send", 3, 1),
    "irecv": ("recv", 3, 1),
    "wait_tensor": ("", -1, -1),
}
SPACES = ("_c10d_functional", "_c10d_functional_autograd")


def apply(module, auto) -> None:
    if auto.records is not None:
        _record(sys.modules["torch"], auto)
    auto.patches.replace(module, "wait_tensor", timer(sys.modules["torch"], auto)(module.wait_tensor))
    remaps = module.traceable_collective_remaps
    for ours, theirs in auto.collectives.items():
        traced = remaps.get(theirs) or remaps.get(ours)
        if traced is not None:
            remaps[ours] = remaps[theirs] = traced
            auto.patches.undo(lambda ours=ours: remaps.pop(ours, None))


def _record(torch, auto) -> None:
    """Wrap the operators; under tracing their arguments are of other types, and nothing is recorded."""
    exact = (torch.Tensor, torch.nn.Parameter)
    for space in SPACES:
        for name, (operation, group, peer) in OPERATORS.items():
            packet = getattr(getattr(torch.ops, space), name, None)
            for owner in (packet, getattr(packet, "default", None)):
                if owner is not None:
                    positions = {"tensors": 0, "group": group, "peer": peer} if operation else {}
                    flags = FLAG["functional"] | (FLAG["coalesced"] if name.endswith("_coalesced") else 0)
                    call = auto.records.wrap(owner._op, operation, flags=flags, exact=exact, **positions)
                    auto.patches.replace(owner, "_op", call)
