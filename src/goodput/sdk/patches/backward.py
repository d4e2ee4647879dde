"""The backward pass: `torch.autograd.backward`, which `Tensor.backward` calls, and `torch.autograd.grad`.

Gradients that DistributedDataParallel reduces are waited for at the very end, in C++, by a callback of the autograd
engine. A callback queued before that one, from a hook on the loss, runs when all of the backward pass is done and
nothing was waited for yet: what is left of the call from there on is exposed communication.
"""

from __future__ import annotations

import functools
from _thread import get_ident

from goodput.sdk.automatic import BACKWARD, FORWARD

MODULE = "torch"
RELIES_ON = """torch/_tensor.py: Tensor.backward calls torch.autograd.backward by that name.
torch/csrc/autograd/engine.cpp: final callbacks run in the order in which they were queued, after the last node and
on the caller's streams. torch/csrc/distributed/c10d/reducer.cpp: Reducer waits in such a callback, queued when the
last gradient is ready."""


def apply(torch, auto) -> None:
    is_compiling, phase, recorder = torch.compiler.is_compiling, auto.backward, auto.recorder
    waits = Waits(torch, auto)

    def timed(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            if is_compiling() or recorder.thread != get_ident() or auto.inside:
                return function(*args, **kwargs)
            if auto.evaluating or not recorder.step_start_ns:
                auto.trains()
            if auto.after == FORWARD:
                recorder.gap = auto.forward_word
            auto.trained = auto.inside = True
            auto.micro_batches += 1
            handle = waits.watch(args, kwargs) if auto.reducers else None
            try:
                with phase:
                    result = function(*args, **kwargs)
                    if handle is not None:
                        waits.end(handle)
                    return result
            finally:
                auto.inside = False
                auto.after = BACKWARD

        return call

    auto.patches.replace(torch.autograd, "backward", timed(torch.autograd.backward))
    auto.patches.replace(torch.autograd, "grad", timed(torch.autograd.grad))


class Waits:
    """The end of a backward pass, from its last computation to the last gradient reduced."""

    def __init__(self, torch, auto):
        self.auto, self.tensor, self.engine = auto, torch.Tensor, torch.autograd.Variable._execution_engine
        self.computed = self.entered = False

    def watch(self, args, kwargs):
        """Ask to be called at the end of the computation; returns what `end` wants, or None."""
        self.computed = self.entered = False
        tensors = args[0] if args else kwargs.get("tensors")
        loss = tensors[0] if isinstance(tensors, (tuple, list)) and tensors else tensors
        if not isinstance(loss, self.tensor) or not loss.requires_grad:
            return None
        try:
            return loss.register_hook(self._first_gradient)
        except Exception:
            return None

    def _first_gradient(self, _gradient) -> None:
        if not self.computed:
            self.computed = True
            try:
                self.engine.queue_callback(self._all_computed)
            except Exception:
                pass

    def _all_computed(self) -> None:
        auto = self.auto
        if auto.recorder.thread == get_ident():
            self.entered = True
            auto.communication.__enter__()
        elif auto.recorder.device is not None:
            # An autograd thread: the step thread waits for it, in the phase of the backward pass.
            self.entered = None
            auto.tell_device(auto.backward.total)

    def end(self, handle) -> None:
        """The call is about to return."""
        handle.remove()
        auto, entered = self.auto, self.entered
        self.entered = False
        if entered:
            auto.communication.__exit__(None, None, None)
        elif entered is None:
            auto.tell_device(auto.communication.total)
