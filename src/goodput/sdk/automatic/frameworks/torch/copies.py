"""Wraps `Tensor.to` and `Tensor.cuda` of tensors in host memory as the phase `h2d`.

Only in builds of PyTorch with a device. Tensors of other classes, which may compare the function that is called with
torch's own, get torch's own and are not timed.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from goodput.user_exceptions import drop_own_frames

MODULE = "torch"
RELIES_ON = """torch/_tensor.py: torch.Tensor is a Python class that inherits `to` and `cuda` from torch._C.TensorBase.
torch/csrc/utils/python_arg_parser.cpp: for a class with its own __torch_function__ the function is looked up by name on
torch.Tensor. torch/nn/parameter.py: UninitializedTensorMixin._allowed_methods lists the methods its tensors allow."""


def apply(torch, auto) -> None:
    if not has_devices(torch):
        return
    mixin = sys.modules["torch.nn.parameter"].UninitializedTensorMixin
    plain_types = (torch.Tensor, torch.nn.Parameter)

    def any_target(args, kwargs) -> bool:
        return True

    def leaves_host(args, kwargs) -> bool:
        """Whether the target of `to` is a device other than host memory."""
        target = args[0] if args else kwargs.get("device", kwargs.get("other"))
        if isinstance(target, torch.device):
            return target.type != "cpu"
        if isinstance(target, str):
            return not target.startswith("cpu")
        if type(target) in plain_types:
            return not target.is_cpu
        return isinstance(target, int) and not isinstance(target, bool)

    timed = [
        _wrap(torch, auto, plain_types, "to", leaves_host),
        _wrap(torch, auto, plain_types, "cuda", any_target),
    ]
    auto.patches.replace(mixin, "_allowed_methods", [*mixin._allowed_methods, *timed])


def has_devices(torch) -> bool:
    """Whether this build supports a device other than the CPU. Looking for a present one could initialise its driver."""
    built = (getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu"))
    return any(built) or torch.backends.mps.is_built()


def _wrap(torch, auto, plain_types: tuple, name: str, is_copy):
    """Replace one method of torch.Tensor; `is_copy(args, kwargs)` is whether its target is a device."""
    kind, original = torch.Tensor, getattr(torch.Tensor, name)
    recorder, phase, is_compiling = auto.recorder, auto.h2d, torch.compiler.is_dynamo_compiling
    mode_is_on = torch._C._is_torch_function_mode_enabled

    @auto.patches.wrap(name, kind)
    def timed(self, *args, **kwargs):
        if is_compiling():
            return original(self, *args, **kwargs)
        try:
            if type(self) not in plain_types:
                return call_plainly(self, args, kwargs)
            if recorder.thread != get_ident() or auto.training.evaluating or not is_copy(args, kwargs):
                return original(self, *args, **kwargs)
            # A TorchFunctionMode would see the access to is_cpu.
            if not mode_is_on() and not self.is_cpu:
                return original(self, *args, **kwargs)
            auto.claim_batch()
            return phase.run(original, self, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise

    def call_plainly(tensor, args, kwargs):
        """Call with torch's own method in place, for a class that may compare the function with it."""
        ours = vars(kind).get(name)
        if ours is None:
            return original(tensor, *args, **kwargs)
        delattr(kind, name)
        try:
            return original(tensor, *args, **kwargs)
        finally:
            if name not in vars(kind) and not auto.removed:
                setattr(kind, name, ours)

    return timed
