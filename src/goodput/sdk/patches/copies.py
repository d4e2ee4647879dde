"""Copies to the device: `Tensor.to` and `Tensor.cuda` of a tensor in host memory."""

from __future__ import annotations

import functools
from _thread import get_ident

MODULE = "torch"
RELIES_ON = """torch/_tensor.py: torch.Tensor is a Python class that inherits `to` and `cuda` from torch._C.TensorBase."""


def apply(torch, auto) -> None:
    recorder, phase, is_compiling = auto.recorder, auto.h2d, torch.compiler.is_dynamo_compiling
    copy_to, copy_cuda = torch.Tensor.to, torch.Tensor.cuda
    device_type, tensor_type = torch.device, torch.Tensor

    def leaves_host(target) -> bool:
        """Whether the first argument of `to` is a device other than the host's memory."""
        if isinstance(target, device_type):
            return target.type != "cpu"
        if isinstance(target, str):
            return not target.startswith("cpu")
        if isinstance(target, tensor_type):
            return not target.is_cpu
        return isinstance(target, int) and not isinstance(target, bool)

    @functools.wraps(copy_to)
    def to(self, *args, **kwargs):
        if is_compiling() or not self.is_cpu or recorder.evaluating or recorder.thread != get_ident():
            return copy_to(self, *args, **kwargs)
        if not leaves_host(args[0] if args else kwargs.get("device", kwargs.get("other"))):
            return copy_to(self, *args, **kwargs)
        with phase:
            return copy_to(self, *args, **kwargs)

    @functools.wraps(copy_cuda)
    def cuda(self, *args, **kwargs):
        if is_compiling() or not self.is_cpu or recorder.evaluating or recorder.thread != get_ident():
            return copy_cuda(self, *args, **kwargs)
        with phase:
            return copy_cuda(self, *args, **kwargs)

    auto.patches.replace(torch.Tensor, "to", to)
    auto.patches.replace(torch.Tensor, "cuda", cuda)
