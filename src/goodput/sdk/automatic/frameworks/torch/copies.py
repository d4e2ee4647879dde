"""Wraps `Tensor.to` and `Tensor.cuda` of tensors in host memory as the phase `h2d`.

Only in builds of PyTorch with a device. Tensors of other classes, which may compare the function that is called with
torch's own, get torch's own and are not timed.
"""

from __future__ import annotations

import functools
import sys
from _thread import get_ident

MODULE = "torch"
RELIES_ON = """torch/_tensor.py: torch.Tensor is a Python class that inherits `to` and `cuda` from torch._C.TensorBase.
torch/csrc/utils/python_arg_parser.cpp: for a class with its own __torch_function__ the function is looked up by name on
torch.Tensor. torch/nn/parameter.py: UninitializedTensorMixin._allowed_methods lists the methods its tensors allow."""


def apply(torch, auto) -> None:
    if not has_devices(torch):
        return
    mixin = sys.modules["torch.nn.parameter"].UninitializedTensorMixin
    allowed = list(mixin._allowed_methods)
    for name in ("to", "cuda"):
        wrapper = Copy(torch, auto, name).wrap()
        auto.patches.replace(torch.Tensor, name, wrapper)
        allowed.append(wrapper)
    auto.patches.replace(mixin, "_allowed_methods", allowed)


def has_devices(torch) -> bool:
    """Whether this build supports a device other than the CPU. Looking for a present one could initialise its driver."""
    built = (getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu"))
    return any(built) or torch.backends.mps.is_built()


class Copy:
    """The wrapper of one method of torch.Tensor."""

    def __init__(self, torch, auto, name: str):
        self.torch, self.auto, self.name = torch, auto, name
        self.original = getattr(torch.Tensor, name)
        self.plain_types = (torch.Tensor, torch.nn.Parameter)

    def wrap(self):
        copy, auto, original = self, self.auto, self.original
        recorder, phase, plain_types = auto.recorder, auto.h2d, self.plain_types
        is_compiling, mode_is_on = self.torch.compiler.is_dynamo_compiling, _mode_check(self.torch)
        any_target = self.name == "cuda"

        @functools.wraps(original)
        def wrapper(self, *args, **kwargs):
            if is_compiling():
                return original(self, *args, **kwargs)
            if type(self) not in plain_types:
                return copy.call_plainly(self, args, kwargs)
            if recorder.thread != get_ident() or recorder.evaluating:
                return original(self, *args, **kwargs)
            if not any_target and not copy.leaves_host(args, kwargs):
                return original(self, *args, **kwargs)
            # A TorchFunctionMode would see the access to is_cpu.
            if not mode_is_on() and not self.is_cpu:
                return original(self, *args, **kwargs)
            return phase.run(original, self, *args, **kwargs)

        return wrapper

    def leaves_host(self, args, kwargs) -> bool:
        """Whether the target of `to` is a device other than host memory."""
        target = args[0] if args else kwargs.get("device", kwargs.get("other"))
        if isinstance(target, self.torch.device):
            return target.type != "cpu"
        if isinstance(target, str):
            return not target.startswith("cpu")
        if type(target) in self.plain_types:
            return not target.is_cpu
        return isinstance(target, int) and not isinstance(target, bool)

    def call_plainly(self, tensor, args, kwargs):
        """Call with torch's own method in place, for a class that may compare the function with it."""
        kind = self.torch.Tensor
        ours = vars(kind).get(self.name)
        if ours is None:
            return self.original(tensor, *args, **kwargs)
        delattr(kind, self.name)
        try:
            return self.original(tensor, *args, **kwargs)
        finally:
            if self.name not in vars(kind) and not self.auto.removed:
                setattr(kind, self.name, ours)


def _mode_check(torch):
    return getattr(torch._C, "_is_torch_function_mode_enabled", lambda: False)
