"""Registers callbacks with Dynamo that measure the phase `compile`: tracing, backends and recording of CUDA graphs.

The search for root modules pauses meanwhile, so that Dynamo traces what it would trace without goodput.
"""

from __future__ import annotations

import os
import sys
from types import CodeType, FunctionType

MODULE = "torch._dynamo"
RELIES_ON = """torch/_dynamo/callback.py: callback_handler.register_start_callback and register_end_callback, called once
around the outermost compilation, on the thread that compiles, also when it raises; torch._dynamo.reset calls its
clear. torch/_dynamo/eval_frame.py: skip_code(code) skips frames of this code, but neither frames that they call nor
code that is traced through."""


def apply(dynamo, auto) -> None:
    handler, roots = dynamo.callback.callback_handler, auto.roots
    paused = False

    def start(_arguments=None) -> None:
        nonlocal paused
        auto.before_compilation()
        auto.cancel_deep_look()
        auto.count("compilations", 1, add=True)
        paused = roots.searching
        roots.stop_search()
        auto.compile.__enter__()

    def end(_arguments=None) -> None:
        auto.compile.__exit__(None, None, None)
        if paused:
            roots.start_search()

    for code in our_code():
        dynamo.eval_frame.skip_code(code)

    def register() -> None:
        handler.register_start_callback(start)
        handler.register_end_callback(end)

    def clear() -> None:
        forget()
        register()

    register()
    forget = auto.patches.replace(handler, "clear", clear)
    auto.patches.undo(lambda: handler.remove_start_callback(start))
    auto.patches.undo(lambda: handler.remove_end_callback(end))


def our_code() -> set:
    """The code objects of the wrappers and what they call: frames that Dynamo must not compile."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("goodput.sdk.")]
    owners = [*modules, *(v for m in modules for v in vars(m).values() if isinstance(v, type))]
    todo = [f.__code__ for o in owners for f in list(vars(o).values()) if isinstance(f, FunctionType)]
    found = set()
    while todo:
        code = todo.pop()
        if code not in found and f"{os.sep}goodput{os.sep}" in code.co_filename:
            found.add(code)
            todo.extend(inner for inner in code.co_consts if isinstance(inner, CodeType))
    return found
