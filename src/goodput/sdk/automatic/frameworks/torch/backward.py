"""Wraps `torch.autograd.backward`, which `Tensor.backward` calls, and `torch.autograd.grad` as the phase `backward`.

DistributedDataParallel waits for reduced gradients at the very end of a backward pass, in C++, in a callback of the
autograd engine. A callback queued before that one, from a hook on the loss, runs when all gradients are computed and
nothing has been waited for: the rest of the call is exposed communication.
"""

from __future__ import annotations

import functools
from _thread import get_ident

from goodput.sdk.automatic import hooks as kinds
from goodput.sdk.automatic.frameworks.torch.communication import backward_runs_here
from goodput.sdk.automatic.frameworks.torch.updates import GradientUse
from goodput.sdk.automatic.hooks import install_hook
from goodput.sdk.recorder.training_calls import FORWARD, NOTHING
from goodput.user_exceptions import drop_own_frames, reraise_from_handler

MODULE = "torch"
RELIES_ON = """torch/_tensor.py: Tensor.backward calls torch.autograd.backward by that name.
torch/csrc/autograd/engine.cpp: final callbacks run in the order they were queued, after the last node, on the
caller's streams. torch/csrc/distributed/c10d/reducer.cpp: Reducer waits in such a callback, queued when the
last gradient is ready, in the pass that computes it; with static_graph its first all-reduce is made there too."""
TENSORS_MAX = 8  # roots of one backward pass that get a hook


def apply(torch, auto) -> None:
    is_compiling, phase = torch.compiler.is_dynamo_compiling, auto.backward
    recorder, training = auto.recorder, auto.training
    waits, gradients = Waits(torch, auto), GradientUse(auto, torch.nn.Parameter)
    auto.gradients = gradients
    function, compute_gradients = torch.autograd.backward, torch.autograd.grad

    def unmeasured(function, args, kwargs):
        try:
            if training.reducers and training.inside:
                return waits.run_inner(function, args, kwargs)
            result = function(*args, **kwargs)
            if gradients.watches and not (training.inside or training.in_other_work):
                gradients.end(function is compute_gradients, args, kwargs)
            return result
        except BaseException as error:
            drop_own_frames(error)
            raise

    def measured(function, /, *args, **kwargs):
        if recorder.thread == get_ident() and training.in_other_work:
            return unmeasured(function, args, kwargs)
        if gradients.watches and not training.inside:
            gradients.begin()
        if training.inside or not auto.may_train():
            return unmeasured(function, args, kwargs)
        if training.unhooked_steps:
            auto.poll_steps()
        if training.evaluating or not recorder.step_start_ns:
            auto.training_call()
        # A model that computes its own loss leaves nothing to do here but to fetch the next batch.
        if training.after == FORWARD and not auto.claim_batch():
            training.gaps.claim(auto.forward_word)
        elif training.after == NOTHING:
            auto.search_roots_again()
        try:  # Around both calls, since an interrupt may arrive in each.
            training.backward_began()
            if training.reducers:
                return phase.run(waits.run, function, args, kwargs)
            return phase.run(function, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            training.backward_ended()
            if training.unhooked_steps:
                gradients.end(function is compute_gradients, args, kwargs)

    kind, word, slow = kinds.BACKWARD, auto.forward_word, functools.partial(measured, function)
    install_hook(auto, torch, torch.autograd, "backward", kind, phase, slow, word)

    @auto.patches.wrap("grad", torch.autograd)
    def grad(*args, **kwargs):
        """Gradients inside a loss are compute, but not the backward pass of a step, unless a loop has no other."""
        if is_compiling():
            return compute_gradients(*args, **kwargs)
        try:
            if gradients.is_of_grad():
                return measured(compute_gradients, *args, **kwargs)
            is_elsewhere = recorder.thread != get_ident() or training.in_other_work
            if is_elsewhere or training.inside or training.evaluating:
                return compute_gradients(*args, **kwargs)
            return phase.run(compute_gradients, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise


class Waits:
    """Measures the end of backward passes, from the last computation to the last reduced gradient."""

    def __init__(self, torch, auto):
        self.auto, self.tensor, self.engine = auto, torch.Tensor, torch.autograd.Variable._execution_engine
        self.in_backward = backward_runs_here(torch)

    def run(self, function, args, kwargs):
        """Run a backward pass and measure its end, by hooks on its roots."""
        wait, tensors = Wait(self), args[0] if args else kwargs.get("tensors")
        tensors = tensors if isinstance(tensors, (tuple, list)) else (tensors,)
        try:
            for tensor in tensors[:TENSORS_MAX]:
                self._measure_end_of(tensor, wait)
            return function(*args, **kwargs)
        finally:
            wait.end()

    def _measure_end_of(self, tensor, wait: Wait) -> None:
        try:
            if isinstance(tensor, self.tensor) and tensor.requires_grad:
                wait.handles.append(tensor.register_hook(wait.first_gradient))
        except Exception as error:
            reraise_from_handler(error)

    def run_inner(self, function, args, kwargs):
        """Run a backward pass inside another, as re-entrant activation checkpointing does.

        A reducer waits at its end if its last gradient is computed in it.
        """
        if self.auto.recorder.thread == get_ident() or self.in_backward():
            return self.run(function, args, kwargs)
        return function(*args, **kwargs)


class Wait:
    """One backward pass. `entered` is 0 until its computation has ended, then the id of the thread that reported it."""

    __slots__ = ("auto", "engine", "entered", "handles", "queued")

    def __init__(self, waits: Waits):
        self.auto, self.engine = waits.auto, waits.engine
        self.entered, self.queued, self.handles = 0, False, []

    def first_gradient(self, _gradient) -> None:
        if not self.queued:
            self.queued = True
            try:
                self.engine.queue_callback(self.all_computed)
            except Exception as error:
                reraise_from_handler(error)

    def all_computed(self) -> None:
        """The engine calls this after the last computation, before the callbacks queued since."""
        auto, self.entered = self.auto, get_ident()
        if auto.recorder.thread == self.entered:
            auto.communication.__enter__()
        elif auto.recorder.device is not None:
            # A thread of autograd, for which the step thread waits in the phase `backward`.
            auto.notify_device(auto.backward.total)

    def end(self) -> None:
        """The call is about to return, or has raised."""
        for handle in self.handles:
            handle.remove()
        auto = self.auto
        if self.entered and auto.recorder.thread == self.entered:
            auto.communication.__exit__(None, None, None)
        elif self.entered:
            auto.notify_device(auto.communication.total)
        if auto.records is not None:
            auto.records.leave_reduced()
