"""Hooks in place of the functions that every step calls: compiled for the common case (recorder/_hooks.c), where the extension is there.

Dynamo can trace a Python function and not a compiled hook. So each hook also has a traceable Python function, which
calls the hook or, under tracing, the original; it replaces the hook before a compiler traces for the first time.

    replacement = hook(BACKWARD, training, phase, function, slow, test=grad_is_on, gap=word)
"""

from __future__ import annotations

import functools

from goodput.rank_page import page
from goodput.sdk.automatic.loader_stats import QUICK_NS, W
from goodput.sdk.automatic.overhead_budget import CHECK_STEPS
from goodput.sdk.recorder.hot_path import extension
from goodput.sdk.recorder.recorder import SAMPLES_MAX
from goodput.user_exceptions import drop_own_frames

NEXT = "next"  # an iterator's __next__
BACKWARD = "backward"
BEFORE_STEP, AFTER_STEP = "before step", "after step"  # of an optimizer
FORWARD = "forward"  # a root module's call; `function` is the compiled one or a weak reference to the module
ZERO_GRAD = "zero grad"
BATCH_DEPTH_MAX = 4  # nested containers of a batch that are searched for its first tensor

if extension is not None:
    extension.set_constants(
        check_steps=CHECK_STEPS,
        quick_ns=QUICK_NS,
        word_batches=W["batches"],
        word_inside=W["inside"],
        word_wait=W["wait_ns"],
        samples_max=SAMPLES_MAX,
        batch_depth_max=BATCH_DEPTH_MAX,
        word_forward=page.W_TOTALS + page.PHASES.index("forward"),
    )


def hook(kind: str, training, phase, function, slow, test=None, gap: int = -1):
    """The replacement of `function`. The case is common only if `test()` returns true.

    `slow` is the Python hook. `gap` is the word that the time before the phase may be charged to, -1 for none.
    """
    if extension is None:
        return slow
    made = extension.Hook(kind, training, phase, function, slow, test, gap)
    return made if kind == FORWARD else functools.update_wrapper(made, function)


def install_hook(auto, torch, owner, name: str, kind: str, phase, slow, gap: int) -> None:
    """Replace `owner.name` by a hook, and by a traceable function before a compiler traces for the first time."""
    original, is_compiling = getattr(owner, name), torch.compiler.is_dynamo_compiling
    fast = hook(kind, auto.training, phase, original, functools.update_wrapper(slow, original), gap=gap)

    @functools.wraps(original)
    def traceable(*args, **kwargs):
        if is_compiling():
            return original(*args, **kwargs)
        try:
            return fast(*args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise

    auto.patches.replace(owner, name, fast)
    auto.before_compiler.append(lambda: auto.patches.exchange(owner, name, fast, traceable))
