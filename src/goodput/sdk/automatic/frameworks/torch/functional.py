"""Functional collectives, as in DTensor: wraps `wait_tensor`, which AsyncCollectiveTensor calls when its values are
first used, as the phase `communication`.

Dynamo's table of collectives to rewrite gets the wrapped ones, too.
"""

from __future__ import annotations

import sys

from goodput.sdk.automatic.frameworks.torch.communication import timer

MODULE = "torch.distributed._functional_collectives"
RELIES_ON = """torch/distributed/_functional_collectives.py: AsyncCollectiveTensor.trigger_wait and wait call wait_tensor by
that name; traceable_collective_remaps has collectives of distributed_c10d, imported by name, as keys, by which
torch/_dynamo/variables/functions.py (CollectiveFunctionRewriteVariable) finds what to trace, comparing them with what
torch.distributed carries."""


def apply(module, auto) -> None:
    auto.patches.replace(module, "wait_tensor", timer(sys.modules["torch"], auto)(module.wait_tensor))
    remaps = module.traceable_collective_remaps
    for ours, theirs in auto.collectives.items():
        traced = remaps.get(theirs) or remaps.get(ours)
        if traced is not None:
            remaps[ours] = remaps[theirs] = traced
            auto.patches.undo(lambda ours=ours: remaps.pop(ours, None))
