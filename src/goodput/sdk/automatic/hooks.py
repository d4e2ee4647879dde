"""A hook for what every step calls: compiled for the common case where `_hooks.c` was, else the Python hook alone.

In: the function that is timed, and the Python hook, which knows every case. Out: what stands in the function's
place. Both behave alike.

A compiler that traces a step (Dynamo) can go through a Python function and not through a compiled hook. So each hook
has a traceable twin, a Python function that calls it or, under tracing, the original; it takes the hook's place
before a compiler traces for the first time. Most trainings never meet one and do not pay for the twin.

    replacement = hook(BACKWARD, phase, function, slow, test=grad_is_on, gap=word)
"""

from __future__ import annotations

import functools

from goodput.sdk.recorder.recorder import compiled

# The kinds of _hooks.c: an iterator's __next__, a backward pass, before and after an optimizer's step, and a function
# that is a phase wherever it is called but in an evaluation, a root module's call, of which the function is the
# compiled one or a weak reference to the module, and an optimizer's zero_grad.
NEXT, BACKWARD, BEFORE_STEP, AFTER_STEP, PLAIN, FORWARD, ZERO_GRAD = range(7)


def hook(kind: int, phase, function, slow, test=None, gap: int = -1):
    """What to put in the place of `function`; `test()` says, without an argument, whether the case is common.

    `gap` is the word that the time before the phase may go to, -1 for none.
    """
    if not compiled:
        return slow
    from goodput.sdk.recorder._fast import Hook

    made = Hook(kind, phase, function, slow, test, gap)
    return made if kind == FORWARD else functools.update_wrapper(made, function)


def stand_in(auto, owner, name: str, fast, traceable) -> None:
    """Put a hook in the place of `owner.name`, until a compiler comes: then its traceable twin."""
    auto.patches.replace(owner, name, fast)
    auto.before_compiler.append(lambda: auto.patches.exchange(owner, name, fast, traceable))
