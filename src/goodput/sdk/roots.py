"""The root modules: those that the training loop itself calls. Only they are timed, so that a model of a thousand
layers costs no more than one of three.

In: calls of torch modules. Out: the phase `forward` around the outermost ones. They are found by looking at every
module's call until a step was seen whole, and again after a step in which none was called; from then on the class
is as it was, and each root carries its timed call in `_compiled_call_impl`, which torch looks for at each call and
leaves out of pickles and copies (torch/nn/modules/module.py, `_wrapped_call_impl` and `__getstate__`).

Under a compiler's tracing the call is the plain one. It does not know what a step is.
"""

from __future__ import annotations

import weakref
from _thread import get_ident

from goodput.sdk.automatic import FORWARD

ROOTS_MAX = 64
SLOT = "_compiled_call_impl"


class Roots:
    """The roots of one process; `seen` says whether one was called to train."""

    def __init__(self, auto, torch):
        self.auto, self.torch = auto, torch
        self.module = torch.nn.Module
        self.modules: weakref.WeakSet = weakref.WeakSet()
        self.is_compiling = torch.compiler.is_compiling
        self.grad_is_on = torch.is_grad_enabled
        self.seen, self.looking, self._plain = False, False, None
        # Called with (module, args, kwargs) at the first call of a root that trains.
        self.first_call: list = []
        auto.patches.undo(self.detach_all)

    # -- finding them

    def look(self) -> None:
        """Attach to whichever module is called outermost, until `settle`."""
        if self.looking or len(self.modules) >= ROOTS_MAX:
            return
        plain, attach, auto, is_compiling = self.module.__call__, self.attach, self.auto, self.is_compiling
        step_thread = auto.recorder

        def __call__(module, *args, **kwargs):
            if not is_compiling() and not step_thread.inside and step_thread.thread == get_ident():
                attach(module)
            return plain(module, *args, **kwargs)

        self._plain, self._looker = vars(self.module).get("__call__"), __call__
        self.module.__call__ = __call__
        self.looking = True

    def settle(self) -> None:
        """Leave the class as it was."""
        if self.looking:
            self.looking = False
            if vars(self.module).get("__call__") is self._looker:
                self.module.__call__ = self._plain

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

    # -- one root

    def attach(self, module) -> None:
        """Time the calls of this module from now on."""
        values = getattr(module, "__dict__", {})
        if SLOT in values and getattr(values[SLOT], "goodput", False):
            return None
        if len(self.modules) >= ROOTS_MAX:
            return self.settle()
        try:
            values[SLOT] = self._timed(module, values.get(SLOT))
            self.modules.add(module)
        except Exception as error:
            values.pop(SLOT, None)
            self.auto.session.say(f"automatic: {type(module).__name__}: {type(error).__name__}")

    def detach_all(self) -> None:
        self.settle()
        for module in list(self.modules):
            detach(module.__dict__)
        self.modules.clear()

    def _timed(self, module, compiled):
        """The timed call of a module. It holds the module weakly: deleting a model must free it at once."""
        auto, is_compiling, grad_is_on, forward = (
            self.auto,
            self.is_compiling,
            self.grad_is_on,
            self.auto.forward,
        )
        recorder, forward_word = auto.recorder, auto.forward_word
        me, roots, first = weakref.ref(module), self, True

        def call(*args, **kwargs):
            nonlocal first
            inner = compiled if compiled is not None else me()._call_impl
            if is_compiling() or recorder.inside or recorder.thread != get_ident():
                return inner(*args, **kwargs)
            grad = grad_is_on()
            if recorder.evaluating:
                if not grad or not me().training:
                    return inner(*args, **kwargs)
                auto.stop_evaluation()
            elif not grad and not recorder.fetched and not recorder.trained:
                auto.start_evaluation()
                if recorder.evaluating:
                    return inner(*args, **kwargs)
            if grad:
                recorder.trained = roots.seen = True
                if first:
                    first = False
                    roots.note(me(), args, kwargs)
            if not recorder.step_start_ns:
                auto.open_step()
            if recorder.after == FORWARD:
                recorder.gap = forward_word
            recorder.inside = True
            try:
                with forward:
                    return inner(*args, **kwargs)
            finally:
                recorder.inside = False
                recorder.after = FORWARD

        call.goodput, call.compiled = True, compiled
        return call

    def note(self, module, args, kwargs) -> None:
        for function in self.first_call:
            try:
                function(module, args, kwargs)
            except Exception as error:
                self.auto.session.say(f"automatic: {type(error).__name__}: {error}")


def detach(values: dict) -> None:
    """Take our call out of a module's attributes."""
    ours = values.get(SLOT)
    if getattr(ours, "goodput", False):
        if ours.compiled is None:
            del values[SLOT]
        else:
            values[SLOT] = ours.compiled
