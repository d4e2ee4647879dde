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

from goodput.sdk.automatic import step_detection
from goodput.sdk.automatic.loader_stats import QUICK_NS
from goodput.sdk.automatic.overhead_budget import CHECK_STEPS
from goodput.sdk.recorder.recorder import SAMPLES_MAX, compiled

NEXT = "next"  # an iterator's __next__
BACKWARD = "backward"
BEFORE_STEP, AFTER_STEP = "before step", "after step"  # of an optimizer
PLAIN = "plain"  # a function that is a phase wherever it is called, but not in an evaluation
FORWARD = "forward"  # a root module's call; `function` is the compiled one or a weak reference to the module
ZERO_GRAD = "zero grad"

if compiled:
    from goodput.sdk.recorder._fast import Hook, set_constants

    set_constants(
        nothing=step_detection.NOTHING,
        after_forward=step_detection.FORWARD,
        after_backward=step_detection.BACKWARD,
        check_steps=CHECK_STEPS,
        quick_ns=QUICK_NS,
        samples_max=SAMPLES_MAX,
    )


def hook(kind: int, phase, function, slow, test=None, gap: int = -1):
    """What to put in the place of `function`; `test()` says, without an argument, whether the case is common.

    `gap` is the word that the time before the phase may go to, -1 for none.
    """
    if not compiled:
        return slow
    made = Hook(kind, phase, function, slow, test, gap)
    return made if kind == FORWARD else functools.update_wrapper(made, function)


def stand_in(auto, owner, name: str, fast, traceable) -> None:
    """Put a hook in the place of `owner.name`, until a compiler comes: then its traceable twin."""
    auto.patches.replace(owner, name, fast)
    auto.before_compiler.append(lambda: auto.patches.exchange(owner, name, fast, traceable))
