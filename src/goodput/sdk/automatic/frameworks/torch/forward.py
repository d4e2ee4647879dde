"""torch.nn.Module: times calls of root modules, those that the training loop itself calls, as the phase `forward`.

A descriptor in the place of the class attribute `_compiled_call_impl`, which each call of a module looks up, returns
the timed call for a root and the usual value for all other modules. So instances are unchanged when they are copied,
pickled or scripted, and inner modules cost no more than the lookup. Roots are searched until one step has trained,
and again after a backward pass without a forward pass. Under a compiler's tracing the original call runs.

`Module.train` is wrapped too: an evaluation lasts from `eval()` of a root, or of the model that it wraps, until the next
call that trains: where one rank evaluates alone it must not call DistributedDataParallel, but its `module`. Calls
without gradients whose tokens grow by one from call to call generate; they are a rollout if the next training call is
on these tokens (generation.py). Calls in training mode are a rollout too, if there were such before the first step.
"""

from __future__ import annotations

import weakref
from _thread import get_ident
from collections.abc import Callable
from itertools import islice
from typing import Any

from goodput.sdk.automatic import hooks
from goodput.sdk.automatic.hooks import hook
from goodput.sdk.recorder.hot_path import Slot as _Slot
from goodput.sdk.recorder.hot_path import extension
from goodput.sdk.recorder.training_calls import FORWARD
from goodput.user_exceptions import drop_own_frames, reraise_from_handler

MODULE = "torch"
RELIES_ON = """torch/nn/modules/module.py: Module.__call__ is _wrapped_call_impl, which calls self._compiled_call_impl instead of
_call_impl if that is not None; the class attribute is None, Module.compile sets it on an instance, and __getstate__
leaves it out. Module.eval calls self.train(False)."""
ROOTS_MAX = 64
VALUES_MAX = 8  # of a module's output, that may be the loss
SLOT = "_compiled_call_impl"
WRAPPED = ("module", "_orig_mod")  # what wrappers call their model


def apply(torch, auto) -> None:
    if getattr(torch.nn.Module, SLOT) is not None or SLOT not in vars(torch.nn.Module):
        raise AttributeError(f"torch.nn.Module.{SLOT} is already set")
    roots = auto.roots = RootModules(auto, torch)
    auto.patches.replace(torch.nn.Module, SLOT, roots.slot)
    auto.patches.undo(roots.stop_search)
    auto.after_step.append(roots.step_ended)
    roots.start_search()
    set_mode, recorder, training = torch.nn.Module.train, auto.recorder, auto.training

    @auto.patches.wrap("train", torch.nn.Module)
    def train(self, mode=True):
        # Called for children, too, which are not roots.
        is_root = roots.slot.is_root(self)
        is_model = is_root or ((not training.evaluating or mode) and roots.is_wrapped(self))
        if is_model and recorder.thread == get_ident() and not (training.inside or training.in_other_work):
            if not mode and self.training and recorder.steps:
                auto.start_rollout() if auto.generations.is_rollout() else auto.start_evaluation()
            elif mode and training.evaluating:
                auto.generations.left()
        try:
            return set_mode(self, mode)
        except BaseException as error:
            drop_own_frames(error)
            raise


class Slot(_Slot):
    """The roots: `roots` has a weak reference to each and its timed call.

    `find(module)`, if set, returns the timed call of a module that is no root yet.
    """

    def __init__(self):
        super().__init__()
        self.find: Callable | None = None

    def __set__(self, module, value) -> None:
        module.__dict__[SLOT] = value

    def __delete__(self, module) -> None:
        try:
            del module.__dict__[SLOT]
        except KeyError:
            raise AttributeError(SLOT) from None

    def add(self, module, call) -> bool:
        """Make a module a root with this call; False if there are already ROOTS_MAX."""
        roots = [root for root in self.roots if root[0]() is not None]
        if len(roots) >= ROOTS_MAX:
            return False
        self.roots[:] = [*roots, (weakref.ref(module), call)]
        return True

    def is_root(self, module) -> bool:
        return any(reference() is module for reference, _ in self.roots)

    def exchange(self, old, new) -> None:
        """Replace the call of a root."""
        self.roots[:] = [(reference, new if call is old else call) for reference, call in self.roots]


class RootModules:
    """The root modules of one process; `trained` says whether one was called with gradients on."""

    def __init__(self, auto, torch):
        self.auto, self.slot = auto, Slot()
        self.is_compiling = torch.compiler.is_dynamo_compiling
        self.grad_is_on, self.tensor = torch.is_grad_enabled, torch.Tensor
        self.trained = False
        # Until a compiler is used, roots have the compiled calls of these TimedForward objects.
        self._traceable, self._fast = extension is None, []
        auto.before_compiler.append(self._use_traceable_calls)
        self._wrapped: list[weakref.ref] = []  # the models inside roots that wrap one
        # Called with (module, args, kwargs) at the first training call of a root.
        self.first_call: list = []
        # Called with a root at each of its training calls in the first step; then it is empty.
        self.first_step_call: list = []
        # Called with each module that such a call calls, until the search ends.
        self.inner_call: Callable | None = None

    def _use_traceable_calls(self) -> None:
        self._traceable = True
        for timed in [timed for timed in (reference() for reference in self._fast) if timed is not None]:
            self.slot.exchange(timed.fast, timed)
        self._fast.clear()

    @property
    def searching(self) -> bool:
        return self.slot.find is not None

    def start_search(self) -> None:
        """Make every module that is called outermost a root, until `stop_search`."""
        self.slot.find = self._find

    def stop_search(self) -> None:
        self.slot.find = None

    def restart_search(self) -> None:
        self.trained = False
        self.start_search()
        self.auto.call_after_step()

    def step_ended(self) -> None:
        """Stop the search after the first step in which a root was called to train."""
        if self.trained:
            self.stop_search()
        elif self.searching:
            self.auto.needs_after_step = True

    def is_wrapped(self, module) -> bool:
        """Whether a root wraps it, such as DistributedDataParallel or a compiled module."""
        return any(reference() is module for reference in self._wrapped)

    def _find(self, module):
        """The timed call of a module, which becomes a root; None for one that does not."""
        recorder, training = self.auto.recorder, self.auto.training
        if self.is_compiling():
            return None
        if training.inside:
            if self.inner_call is not None and recorder.thread == get_ident() and self.grad_is_on():
                self.auto.attempt(self.inner_call, module)
            return None
        if recorder.thread != get_ident():
            if not self.auto.may_start():
                return None
        elif training.in_other_work:
            return None  # Such as a transform of the dataset, while a batch is fetched.
        try:
            timed = TimedForward(self, module)
            call = timed if self._traceable else timed.fast
            if self.slot.add(module, call):
                children = module.__dict__.get("_modules")
                if isinstance(children, dict):  # not in a scripted module
                    inside = map(children.get, WRAPPED)
                    self._wrapped += [weakref.ref(inner) for inner in inside if inner is not None]
                if call is not timed:
                    self._fast.append(weakref.ref(timed))
                return call
        except Exception as error:
            reraise_from_handler(error)
            self.auto.session.warn(f"automatic: {type(module).__name__}: {type(error).__name__}")
        self.stop_search()
        return None


class TimedForward:
    """The timed call of a module. It holds the module weakly, so that deleting a model frees it at once."""

    __slots__ = (
        "__weakref__",
        "auto",
        "fast",
        "first",
        "generating",
        "is_compiling",
        "module",
        "recorder",
        "roots",
        "step_without",
        "tokens",
        "training",
    )

    def __init__(self, roots: RootModules, module):
        self.roots, self.auto = roots, roots.auto
        self.recorder, self.training = roots.auto.recorder, roots.auto.training
        # Never dead when called: only the module itself looks this call up.
        self.module: Callable[[], Any] = weakref.ref(module)
        self.first, self.is_compiling, self.tokens = True, roots.is_compiling, (0, 0)
        self.generating = False  # whether the last call has generated a token
        self.step_without = -2  # in which it was last called without gradients before the step had trained
        slow = None if extension is None else self.any_call
        word = roots.auto.forward_word
        self.fast: Any = hook(
            hooks.FORWARD, self.training, roots.auto.forward, self.module, slow, roots.grad_is_on, word
        )

    def __call__(self, *args, **kwargs):
        if self.is_compiling():
            module = self.module()
            return (module.__dict__.get(SLOT) or module._call_impl)(*args, **kwargs)
        try:
            return (self.fast or self.any_call)(*args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise

    def any_call(self, *args, **kwargs):
        try:
            module, recorder, training = self.module(), self.recorder, self.training
            inner = module.__dict__.get(SLOT) or module._call_impl
            if training.inside or recorder.thread != get_ident() or training.in_other_work:
                return inner(*args, **kwargs)
            auto, grad = self.auto, self.roots.grad_is_on()
            if training.evaluating:
                if not grad or not module.training:
                    auto.generations.left_ns = 0
                    if not grad:
                        self._generates(args, kwargs)
                    elif auto.generations.current is not None:
                        auto.generations.current.match(*tokens_shape(args, kwargs))
                    auto.evaluated += 1
                    return self._evaluate(inner, args, kwargs)
                auto.generations.trains_on(*tokens_shape(args, kwargs))
                auto.stop_evaluation()
            elif not grad and recorder.depth:
                # In a phase of the user, such as evaluation or rollout.
                return self._evaluate(inner, args, kwargs)
            elif not grad and not training.trained and self._leaves_training(module, args, kwargs):
                auto.evaluated = 1
                return self._evaluate(inner, args, kwargs)
            if not recorder.step_start_ns:
                auto.open_step()
            if not auto.claim_batch() and training.after == FORWARD:
                training.gaps.claim(auto.forward_word)
            if grad:
                if auto.generations.current is not None:
                    auto.generations.trains_on(*tokens_shape(args, kwargs))
                training.train()
                self.roots.trained = True
                if self.first:
                    self.first = False
                    auto.set_up(self.roots.first_call, module, args, kwargs)
                for function in self.roots.first_step_call:
                    auto.attempt(function, module)
            result, follows = None, training.after == FORWARD
            try:  # Around both calls, since an interrupt may arrive in each.
                training.enter_call()
                result = auto.forward.run(inner, *args, **kwargs)
                return result
            finally:
                training.leave_call()
                training.forward_ended(follows, grad and self._returns_loss(result))
        except BaseException as error:
            drop_own_frames(error)
            raise

    def _returns_loss(self, output) -> bool:
        """Whether the output contains a number to begin a backward pass at: what follows is not the loss."""
        tensor, found = self.roots.tensor, False
        try:
            values: Any = output.values() if isinstance(output, dict) else output
            values = islice(values, VALUES_MAX) if isinstance(output, (dict, tuple, list)) else (values,)
            found = any(type(value) is tensor and not value.ndim and value.requires_grad for value in values)
        except Exception as error:  # Of a container of the user's.
            reraise_from_handler(error)
        if self.fast is not None:
            self.fast.returns_loss = found
        return found

    def _leaves_training(self, module, args, kwargs) -> bool:
        """Whether a call without gradients before the step has trained begins a rollout or an evaluation."""
        auto = self.auto
        if self._generates(args, kwargs):
            return self.training.evaluating
        if self.tokens[0] and auto.generations.is_rollout():
            auto.start_rollout()
        elif self._is_teacher(module) or self.training.fetches.fetched:
            return False  # Part of the step.
        elif module.training and self.recorder.steps == auto.steps_before:
            auto.observes = True
            auto.start_rollout()
        elif module.training and auto.observes:
            auto.start_rollout()
        else:
            auto.start_evaluation()
        return self.training.evaluating

    def _is_teacher(self, module) -> bool:
        """Whether each step calls this module, which no optimizer trains, before it calls one with gradients."""
        steps, before = self.recorder.steps, self.step_without
        self.step_without = steps
        if not self.first or steps != before + 1:
            return False
        groups = getattr(self.training.anchor(), "param_groups", None)
        parameter = next(iter(module.parameters()), None)
        trained = (each for group in groups or () for each in group["params"])
        return groups is not None and (parameter is None or all(each is not parameter for each in trained))

    def _generates(self, args, kwargs) -> bool:
        """Whether the tokens are one more than at the last call, or a single one, as where a model generates."""
        auto, (rows, length) = self.auto, tokens_shape(args, kwargs)
        before, self.tokens = self.tokens, (rows, length)
        continues, self.generating = self.generating, False
        if not rows or rows != before[0]:
            return False
        if length != before[1] + 1 and length != 1:
            if auto.generations.current is not None and length == before[1]:
                auto.generations.current.repeats += 1
            return False
        if auto.observes and auto.open_phase is auto.rollout and self.training.evaluating:
            if length == before[1] or auto.evaluated != 1:
                return False  # Numbered states of an environment.
            auto.observes = False  # It was the prompt.
        self.generating = True
        auto.generations.token(before, continues)
        return True

    def _evaluate(self, inner, args, kwargs):
        """A call in an evaluation, untimed; modules called inside it are no roots either."""
        try:
            self.training.enter_call()
            return inner(*args, **kwargs)
        finally:
            self.training.leave_call()


def tokens_shape(args, kwargs) -> tuple[int, int]:
    """(rows, length) of a batch of token ids; (0, 0) for any other input."""
    try:
        tokens = kwargs.get("input_ids", args[0] if args else None)
        if tokens is None or tokens.ndim != 2 or tokens.is_floating_point():
            return 0, 0
        return int(tokens.shape[0]), int(tokens.shape[1])
    except Exception as error:
        reraise_from_handler(error)
        return 0, 0
