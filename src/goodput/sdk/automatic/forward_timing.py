"""The root modules: those that the training loop itself calls. Only they are timed, so that a model of a thousand
layers costs no more than one of three.

In: calls of torch modules. Out: the phase `forward` around the outermost ones. A module's call looks for its
`_compiled_call_impl` first (torch/nn/modules/module.py, `_wrapped_call_impl`). A descriptor of that name on the class
answers with the timed call for a root, by identity, and with what would be there for all others; so a module holds
nothing of ours, however it is copied, pickled or scripted. Roots are found there, too, until a step was seen whole,
and again after a backward pass without a forward pass.

Under a compiler's tracing the call is the plain one. It does not know what a step is.
"""

from __future__ import annotations

import weakref
from _thread import get_ident

from goodput.sdk.automatic import hooks
from goodput.sdk.automatic.hooks import hook
from goodput.sdk.automatic.step_detection import FORWARD
from goodput.sdk.recorder.messages import short_repr
from goodput.sdk.recorder.recorder import compiled
from goodput.sdk.recorder.user_signals import pass_on

ROOTS_MAX = 64  # also in _hooks.c
SLOT = "_compiled_call_impl"


class PythonSlot:
    """The descriptor on torch.nn.Module. `look` is called with a module that is no root; it gives its call or None."""

    def __init__(self):
        self.look, self._roots = None, []

    def __get__(self, module, owner=None):
        if module is None:
            return None
        for reference, call in self._roots:
            if reference() is module:
                return call
        if self.look is not None:
            call = self.look(module)
            if call is not None:
                return call
        return module.__dict__.get(SLOT)

    def __set__(self, module, value) -> None:
        module.__dict__[SLOT] = value

    def __delete__(self, module) -> None:
        try:
            del module.__dict__[SLOT]
        except KeyError:
            raise AttributeError(SLOT) from None

    def add(self, module, call) -> bool:
        """Make a module a root with this call; False where there is no room."""
        self._roots = [root for root in self._roots if root[0]() is not None]
        if len(self._roots) >= ROOTS_MAX:
            return False
        self._roots.append((weakref.ref(module), call))
        return True

    def is_root(self, module) -> bool:
        return any(reference() is module for reference, _ in self._roots)

    def exchange(self, old, new) -> None:
        """Put another call in the place of a root's."""
        self._roots = [(reference, new if call is old else call) for reference, call in self._roots]


if compiled:
    from goodput.sdk.recorder._fast import Slot
else:
    Slot = PythonSlot


class Roots:
    """The roots of one process; `seen` says whether one was called to train."""

    def __init__(self, auto, torch):
        self.auto, self.torch, self.slot = auto, torch, Slot()
        self.is_compiling = torch.compiler.is_dynamo_compiling
        self.grad_is_on = torch.is_grad_enabled
        self.seen = False
        # Whether a compiler was met; until then roots have compiled calls, these ones'.
        self._traceable, self._fast = not compiled, []
        auto.before_compiler.append(self._meet_compiler)
        # Called with (module, args, kwargs) at the first call of a root that trains.
        self.first_call: list = []

    def _meet_compiler(self) -> None:
        self._traceable = True
        for timed in [timed for timed in (reference() for reference in self._fast) if timed is not None]:
            self.slot.exchange(timed.fast, timed)
        self._fast.clear()

    # -- finding them

    @property
    def looking(self) -> bool:
        return self.slot.look is not None

    def look(self) -> None:
        """Take whichever module is called outermost for a root, until `settle`."""
        self.slot.look = self._look

    def settle(self) -> None:
        self.slot.look = None

    def _look(self, module):
        recorder = self.auto.recorder
        if recorder.inside or self.is_compiling():
            return None
        if recorder.thread != get_ident() and not (
            self.grad_is_on() and module.training and self.auto.opens_page()
        ):
            return None
        try:
            timed = Timed(self, module)
            call = timed if self._traceable else timed.fast
            if self.slot.add(module, call):
                if call is not timed:
                    self._fast.append(weakref.ref(timed))
                return call
        except Exception as error:
            pass_on(error)
            self.auto.session.warn(f"automatic: {type(module).__name__}: {type(error).__name__}")
        self.settle()
        return None

    def step_ended(self) -> None:
        """A step in which a root was called to train shows that they are found."""
        if self.seen:
            self.settle()
        elif self.looking:
            self.auto.unsettled = True

    def look_again(self) -> None:
        self.seen = False
        self.look()
        self.auto.unsettled, self.auto.recorder.plain = True, False

    def note(self, module, args, kwargs) -> None:
        for function in self.first_call:
            try:
                function(module, args, kwargs)
            except Exception as error:
                pass_on(error)
                self.auto.session.warn(f"automatic: {type(error).__name__}: {short_repr(error)}")


class Timed:
    """The timed call of a module. It holds the module weakly: deleting a model must free it at once."""

    __slots__ = ("__weakref__", "auto", "fast", "first", "is_compiling", "me", "recorder", "roots")

    def __init__(self, roots: Roots, module):
        self.roots, self.auto, self.recorder = roots, roots.auto, roots.auto.recorder
        self.me, self.first, self.is_compiling = weakref.ref(module), True, roots.is_compiling
        slow = self.any_call if compiled else None
        word = roots.auto.forward_word
        self.fast = hook(hooks.FORWARD, roots.auto.forward, self.me, slow, roots.grad_is_on, word)

    def __call__(self, *args, **kwargs):
        if self.is_compiling():
            module = self.me()
            return (module.__dict__.get(SLOT) or module._call_impl)(*args, **kwargs)
        return (self.fast or self.any_call)(*args, **kwargs)

    def any_call(self, *args, **kwargs):
        module, recorder = self.me(), self.recorder
        inner = module.__dict__.get(SLOT) or module._call_impl
        if recorder.inside or recorder.thread != get_ident():
            return inner(*args, **kwargs)
        auto, grad = self.auto, self.roots.grad_is_on()
        if recorder.evaluating:
            if not grad or not module.training:
                return self._apart(inner, args, kwargs)
            auto.stop_evaluation()
        elif not grad and not recorder.fetched and not recorder.trained:
            auto.start_evaluation()
            if recorder.evaluating:
                return self._apart(inner, args, kwargs)
        if grad:
            recorder.trained = self.roots.seen = True
            if self.first:
                self.first = False
                self.roots.note(module, args, kwargs)
        if not recorder.step_start_ns:
            auto.open_step()
        if recorder.after == FORWARD:
            recorder.gap = auto.forward_word
        recorder.inside = True
        try:
            return auto.forward.run(inner, *args, **kwargs)
        finally:
            recorder.inside = False
            recorder.after = FORWARD

    def _apart(self, inner, args, kwargs):
        """A call in an evaluation: what it calls is no root either."""
        recorder = self.recorder
        recorder.inside = True
        try:
            return inner(*args, **kwargs)
        finally:
            recorder.inside = False
