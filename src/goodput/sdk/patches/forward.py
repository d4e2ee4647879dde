"""The forward pass: the calls of root modules, see goodput.sdk.roots.

DataParallel copies a module's attributes into replicas, `_compiled_call_impl` too, and a replica must not call the
module it was copied from.
"""

from __future__ import annotations

from goodput.sdk.roots import Roots, detach

MODULE = "torch"
RELIES_ON = """torch/nn/modules/module.py: Module.__call__ is _wrapped_call_impl, which prefers the instance's
_compiled_call_impl to _call_impl; __getstate__ leaves that out; _replicate_for_data_parallel copies __dict__."""


def apply(torch, auto) -> None:
    roots = auto.roots = Roots(auto, torch)
    if torch.nn.Module._compiled_call_impl is not None:
        raise AttributeError("torch.nn.Module._compiled_call_impl is not None")
    auto.after_step.append(roots.step_ended)
    auto.unknown_roots.append(roots.look_again)

    def _replicate_for_data_parallel(module):
        replica = replicate(module)
        detach(replica.__dict__)
        return replica

    replicate = auto.patches.replace(
        torch.nn.Module, "_replicate_for_data_parallel", _replicate_for_data_parallel
    )
    roots.look()
