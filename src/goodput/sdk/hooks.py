"""A hook for what every step calls: compiled for the common case where `_hooks.c` was, else the Python hook alone.

In: the function that is timed, and the Python hook, which knows every case. Out: what stands in the function's
place. Both behave alike; the compiled one costs a tenth.

    replacement = hook(BACKWARD, phase, function, slow, test=grad_is_on, gap=word)
"""

from __future__ import annotations

import functools

from goodput.sdk.recorder import compiled

# The kinds of _hooks.c: an iterator's __next__, a backward pass, before and after an optimizer's step, and a function
# that is a phase wherever it is called but in an evaluation, and a root module's call, of which the function is the
# compiled one or a weak reference to the module.
NEXT, BACKWARD, BEFORE_STEP, AFTER_STEP, PLAIN, FORWARD = range(6)


def hook(kind: int, phase, function, slow, test=None, gap: int = -1):
    """What to put in the place of `function`; `test()` says, without an argument, whether the case is common.

    `gap` is the word that the time before the phase may go to, -1 for none.
    """
    if not compiled:
        return slow
    from goodput.sdk._fast import Hook

    made = Hook(kind, phase, function, slow, test, gap)
    return made if kind == FORWARD else functools.update_wrapper(made, function)
