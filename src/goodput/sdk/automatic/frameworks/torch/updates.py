"""Loops that update their parameters themselves, without an optimizer: finds where their steps end, and their updates.

Module.zero_grad ends a step, since the gradients that it clears were used. Without it a backward pass does, if it finds
a gradient cleared or a parameter changed since the last one. In a loop that calls `torch.autograd.grad` instead, that
is the backward pass. The update is a block of `torch.no_grad()`, or a pass over
the parameters, after a backward pass.
"""

from __future__ import annotations

import weakref
from _thread import get_ident

from goodput.sdk.automatic.hooks import ZERO_GRAD, hook
from goodput.sdk.recorder.training_calls import dead_reference
from goodput.user_exceptions import drop_own_frames, reraise_from_handler

MODULE = "torch"
RELIES_ON = """torch/nn/modules/module.py: Module.zero_grad clears the gradients, and Module.parameters calls
self.named_parameters. torch/autograd/grad_mode.py: no_grad is a class with __enter__ and __exit__, also where it
decorates. torch/autograd/graph.py: nodes have next_functions, and those that accumulate a gradient have its variable.
An in-place change of a tensor increments its _version; one of its `data` does not."""
PASSES_MAX = 64  # without an optimizer or a used gradient, after which a process does not train
NODES_MAX = 1000  # of a graph that are searched for a parameter


def apply(torch, auto) -> None:
    _watch_zero_grad(torch, auto)
    _watch_passes(torch, auto)
    auto.begins_by_hand.append(lambda: _watch_blocks(torch, auto))


def _watch_zero_grad(torch, auto) -> None:
    """Time Module.zero_grad. It ends a step by hand; an evaluation, a checkpoint and the end of the training do so too."""
    zero, phase = torch.nn.Module.zero_grad, auto.optimizer
    recorder, training = auto.recorder, auto.training
    is_compiling = torch.compiler.is_dynamo_compiling

    def beside_optimizer(self, *args, **kwargs):
        if recorder.thread != get_ident() or training.evaluating or training.in_other_work:
            return zero(self, *args, **kwargs)
        auto.claim_before_zero_grad()
        return phase.run(zero, self, *args, **kwargs)

    timed = hook(ZERO_GRAD, training, phase, zero, beside_optimizer, gap=auto.optimizer_word)

    @auto.patches.wrap("zero_grad", torch.nn.Module)
    def zero_grad(self, *args, **kwargs):
        if is_compiling():
            return zero(self, *args, **kwargs)
        if auto.has_optimizer and not auto.by_hand:
            return timed(self, *args, **kwargs)
        auto.begin_by_hand()
        is_outside = not (training.evaluating or training.inside or recorder.depth)
        if recorder.thread != get_ident() or not auto.has_gradients() or not is_outside:
            return zero(self, *args, **kwargs)
        auto.claim_batch()
        result = phase.run(zero, self, *args, **kwargs)
        auto.used_passes = training.micro_batches
        auto.optimizer_stepped(self)
        return result


def _watch_passes(torch, auto) -> None:
    """Only the end of a pass over the parameters counts: one that is left early is no update, and nothing stays open."""
    named = torch.nn.Module.named_parameters

    def update(parameters):
        began_ns = auto.update_begins()
        yield from parameters
        if began_ns:
            auto.update_ended(began_ns)

    @auto.patches.wrap("named_parameters", torch.nn.Module)
    def named_parameters(self, *args, **kwargs):
        try:
            parameters = named(self, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        return update(parameters) if auto.by_hand else parameters

    auto.before_compiler.append(
        lambda: auto.patches.exchange(torch.nn.Module, "named_parameters", named_parameters, named)
    )


def _watch_blocks(torch, auto) -> None:
    """Blocks of `torch.no_grad()`, from when a loop is known to have no optimizer; not if a compiler was used."""
    owner, began_ns = torch.no_grad, 0
    if not auto.before_compiler:
        return
    enter, leave = owner.__enter__, owner.__exit__

    @auto.patches.wrap("__enter__", owner)
    def entered(self):
        nonlocal began_ns
        if auto.by_hand:
            began_ns = auto.update_begins()
        return enter(self)

    @auto.patches.wrap("__exit__", owner)
    def left(self, *raised):
        if began_ns and auto.by_hand and raised[:1] == (None,):
            auto.update_ended(began_ns)
        return leave(self, *raised)

    auto.before_compiler.append(lambda: auto.patches.exchange(owner, "__enter__", entered, enter))
    auto.before_compiler.append(lambda: auto.patches.exchange(owner, "__exit__", left, leave))


class GradientUse:
    """Whether gradients were used between two passes: judged by one parameter, held weakly.

    A pass is a call of `backward`, or of `torch.autograd.grad` in a loop that has made no other. The latter leaves no
    gradient in the parameter, so that only a change of the parameter shows its use.
    """

    def __init__(self, auto, kind):
        """`kind` is torch.nn.Parameter."""
        self.auto, self.passes, self._kind = auto, 0, kind
        self.accumulates = False  # whether a pass was a call of `backward`
        self._parameter, self._versions = dead_reference, (0, 0)

    @property
    def watches(self) -> bool:
        """Whether it is not known yet if this process trains without an optimizer."""
        return not self.auto.has_optimizer and self.auto.stepping and self.passes < PASSES_MAX

    def is_of_grad(self) -> bool:
        """Whether a call of `torch.autograd.grad` is a pass."""
        return not self.accumulates and (self.auto.by_hand or self.watches)

    def begin(self) -> None:
        """A pass begins, and it is not known yet if the process trains."""
        if self._was_used():
            self.auto.begin_by_hand()
            self.auto.training.set_unhooked_steps(True)

    def poll(self) -> None:
        """A pass begins: end the step if its gradients were used."""
        if self.auto.by_hand and self._was_used():
            self.auto.end_step_by_hand()

    def end(self, is_of_grad: bool, args, kwargs) -> None:
        """A pass from these tensors has ended."""
        try:
            self.passes += 1
            self.accumulates |= not is_of_grad
            parameter = self._parameter()
            if parameter is None:
                name = "outputs" if is_of_grad else "tensors"
                parameter = parameter_of(args[0] if args else kwargs.get(name))
                if is_of_grad and not isinstance(parameter, self._kind):
                    parameter = None  # An input, as of an adversarial attack.
                self._parameter = dead_reference if parameter is None else weakref.ref(parameter)
            if parameter is not None and (is_of_grad or parameter.grad is not None):
                self._versions = self._versions_of(parameter)
        except Exception as error:
            reraise_from_handler(error)
            self._parameter = dead_reference

    def _versions_of(self, parameter) -> tuple[int, int]:
        gradient = parameter.grad if self.accumulates else None
        return parameter._version, 0 if gradient is None else gradient._version

    def _was_used(self) -> bool:
        parameter = self._parameter()
        if parameter is None:
            return False
        try:
            is_cleared = self.accumulates and parameter.grad is None
            return is_cleared or self._versions_of(parameter) != self._versions
        except Exception as error:
            reraise_from_handler(error)
            return False


def parameter_of(tensors):
    """A tensor whose gradient a backward pass from these accumulates, or None if there is none near."""
    roots = tensors if isinstance(tensors, (tuple, list)) else [tensors]
    nodes, seen = [root.grad_fn for root in roots], 0
    while nodes and seen < NODES_MAX:
        node, seen = nodes.pop(), seen + 1
        found = getattr(node, "variable", None)
        if found is not None:
            return found
        nodes += [each for each, _ in getattr(node, "next_functions", ()) if each is not None]
    return None
