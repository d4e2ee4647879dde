"""Kernels of a device, for which the host waits without using a core: steps as long as real ones, at no CPU time.

Both clocks see them. What goodput and a fork cost a process once is then as small a share of its wall time as in a
short training. KERNELS=0 in the environment leaves them out, for runs that are not timed.
"""

import os
import time

import torch
from torch import nn


class Kernels(nn.Module):
    """A layer that passes its input on; in training it takes `seconds`."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds if os.environ.get("KERNELS", "1") != "0" else 0.0

    def forward(self, x):
        if self.training and self.seconds and torch.is_grad_enabled():
            time.sleep(self.seconds)
        return x
