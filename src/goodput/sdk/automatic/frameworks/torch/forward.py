"""Sets the call slot of `torch.nn.Module` to time the forward passes of root modules (see forward_timing.py)."""

from __future__ import annotations

from goodput.sdk.automatic.forward_timing import SLOT, RootModules

MODULE = "torch"
RELIES_ON = """torch/nn/modules/module.py: Module.__call__ is _wrapped_call_impl, which calls self._compiled_call_impl instead of
_call_impl if that is not None; the class attribute is None, Module.compile sets it on an instance, and __getstate__
leaves it out."""


def apply(torch, auto) -> None:
    if getattr(torch.nn.Module, SLOT) is not None or SLOT not in vars(torch.nn.Module):
        raise AttributeError(f"torch.nn.Module.{SLOT} is already set")
    roots = auto.roots = RootModules(auto, torch)
    auto.patches.replace(torch.nn.Module, SLOT, roots.slot)
    auto.patches.undo(roots.stop_search)
    auto.after_step.append(roots.step_ended)
    roots.start_search()
