"""The root modules: those that the training loop itself calls. Only they are timed, so that a model of a thousand
layers costs no more than one of three.

In: calls of torch modules. Out: the phase `forward` around the outermost ones. They are found by looking at every
module's call until a step was seen whole, and again after a step in which none was called; from then on the class
is as it was, and each root carries its timed call in `_compiled_call_impl`, which torch looks for at each call and
leaves out of pickles and copies (torch/nn/modules/module.py, `_wrapped_call_impl` and `__getstate__`).

Under a compiler's tracing the call is the plain one. It does not know what a step is.
"""

from __future__ import annotations

import copy
import operator
import weakref
from _thread import get_ident
from sys import _getframe

from goodput.sdk import hooks
from goodput.sdk.automatic import FORWARD
from goodput.sdk.hooks import hook
from goodput.sdk.recorder import compiled as compiled_hooks

ROOTS_MAX = 64
SLOT = "_compiled_call_impl"


class Roots:
    """The roots of one process; `seen` says whether one was called to train."""

    def __init__(self, auto, torch):
        self.auto, self.torch = auto, torch
        self.module = torch.nn.Module
        self.modules: weakref.WeakSet = weakref.WeakSet()
        self.is_compiling = torch.compiler.is_dynamo_compiling
        self.grad_is_on = torch.is_grad_enabled
        self.seen, self.looking, self._plain, self.plain_call = False, False, None, None
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

        self._plain, self._looker, self.plain_call = vars(self.module).get("__call__"), __call__, plain
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
        if isinstance(values.get(SLOT), Timed):
            return None
        if len(self.modules) >= ROOTS_MAX:
            return self.settle()
        try:
            kind = TimedCopied if copies_itself(type(module)) else Timed
            values[SLOT] = kind(self, module, values.get(SLOT))
            self.modules.add(module)
        except Exception as error:
            values.pop(SLOT, None)
            self.auto.session.say(f"automatic: {type(module).__name__}: {type(error).__name__}")

    def detach_all(self) -> None:
        self.settle()
        for module in list(self.modules):
            detach(module.__dict__)
        self.modules.clear()

    def note(self, module, args, kwargs) -> None:
        for function in self.first_call:
            try:
                function(module, args, kwargs)
            except Exception as error:
                self.auto.session.say(f"automatic: {type(error).__name__}: {error}")


class Timed:
    """The timed call of a module. It holds the module weakly: deleting a model must free it at once.

    A module that says itself what is copied or pickled of it may take this along: then it becomes what stood here
    before. Taken as it is into another module's `__dict__`, it would call the first: torch does that for replicas
    alone (patches/forward.py). To ask the caller's frame whose call this is would cost 10 us: see TimedCopied.
    """

    __slots__ = ("auto", "compiled", "fast", "first", "is_compiling", "me", "recorder", "roots")

    def __init__(self, roots: Roots, module, compiled):
        self.roots, self.auto, self.recorder = roots, roots.auto, roots.auto.recorder
        self.me, self.compiled, self.first = weakref.ref(module), compiled, True
        self.is_compiling = roots.is_compiling
        function, word = self.me if compiled is None else compiled, roots.auto.forward_word
        slow = self.any_call if compiled_hooks else None
        self.fast = hook(hooks.FORWARD, roots.auto.forward, function, slow, roots.grad_is_on, word)

    def __call__(self, *args, **kwargs):
        if self.is_compiling():
            return (self.me()._call_impl if self.compiled is None else self.compiled)(*args, **kwargs)
        return (self.fast or self.any_call)(*args, **kwargs)

    def any_call(self, *args, **kwargs):
        module, recorder = self.me(), self.recorder
        inner = module._call_impl if self.compiled is None else self.compiled
        if recorder.inside or recorder.resting or recorder.thread != get_ident():
            return inner(*args, **kwargs)
        auto, grad = self.auto, self.roots.grad_is_on()
        if recorder.evaluating:
            if not grad or not module.training:
                return inner(*args, **kwargs)
            auto.stop_evaluation()
        elif not grad and not recorder.fetched and not recorder.trained:
            auto.start_evaluation()
            if recorder.evaluating:
                return inner(*args, **kwargs)
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
            with auto.forward:
                return inner(*args, **kwargs)
        finally:
            recorder.inside = False
            recorder.after = FORWARD

    def __deepcopy__(self, memo):
        return copy.deepcopy(self.compiled, memo)

    def __reduce__(self):
        return (type(None), ()) if self.compiled is None else (_first, ((self.compiled,),))


class TimedCopied(Timed):
    """That of a class which says itself how it is copied: another module may carry it, and calls itself."""

    __slots__ = ()

    def __call__(self, *args, **kwargs):
        module = self.me()
        caller = module if self.is_compiling() else _getframe(1).f_locals.get("self", module)
        if caller is module or getattr(caller, "__dict__", {}).get(SLOT) is not self:
            return super().__call__(*args, **kwargs)
        detach(caller.__dict__)
        return (caller._call_impl if self.compiled is None else self.compiled)(*args, **kwargs)


def copies_itself(kind: type) -> bool:
    """Whether a class of modules has its own way to be copied."""
    found = [
        getattr(kind, name, None) for name in ("__copy__", "__getstate__", "__reduce__", "__reduce_ex__")
    ]
    return any(
        (getattr(each, "__module__", "") or "torch").partition(".")[0] != "torch" for each in found if each
    )


_first = operator.itemgetter(0)


def detach(values: dict) -> None:
    """Take our call out of a module's attributes."""
    ours = values.get(SLOT)
    if isinstance(ours, Timed):
        if ours.compiled is None:
            del values[SLOT]
        else:
            values[SLOT] = ours.compiled
