"""Counts the FLOPs of one training step on a copy of the model that has shapes and no data.

The live model is only read: no parameter value is used, no device memory is allocated, nothing runs on the device,
and gradients, buffers and random states stay as they are, also after an error. A model of 32 layers takes about 2 s,
most of it PyTorch's own imports.

    counted = count(model, tokens, targets, autocast="bf16", microbatches=8)
    goodput.start(flops_per_step=counted.model_flops, hardware_flops_per_step=counted.hardware_flops,
                  dtype=counted.dtype)
"""

from goodput.flops.count_step import Counted, count
from goodput.flops.errors import FlopCountError

__all__ = ["Counted", "FlopCountError", "count"]
