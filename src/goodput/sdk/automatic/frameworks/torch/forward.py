"""The forward pass: the calls of root modules, see goodput.sdk.automatic.forward_timing."""

from __future__ import annotations

from goodput.sdk.automatic.forward_timing import SLOT, Roots

MODULE = "torch"
RELIES_ON = """torch/nn/modules/module.py: Module.__call__ is _wrapped_call_impl, which prefers self._compiled_call_impl to
_call_impl if that is not None, as the class has it; Module.compile sets it among an instance's attributes, where
__getstate__ leaves it out."""


def apply(torch, auto) -> None:
    if getattr(torch.nn.Module, SLOT) is not None or SLOT not in vars(torch.nn.Module):
        raise AttributeError(f"torch.nn.Module.{SLOT} is not what it was")
    roots = auto.roots = Roots(auto, torch)
    auto.patches.replace(torch.nn.Module, SLOT, roots.slot)
    auto.patches.undo(roots.settle)
    auto.after_step.append(roots.step_ended)
    auto.unknown_roots.append(roots.look_again)
    roots.look()
