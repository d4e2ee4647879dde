"""Compilation by torch.compile: Dynamo's tracing, the backends and the recording of CUDA graphs.

Looking for root modules pauses meanwhile, so that what is traced is what it would be without us.
"""

from __future__ import annotations

MODULE = "torch._dynamo"
RELIES_ON = """torch/_dynamo/callback.py: callback_handler.register_start_callback and register_end_callback, called once
around the outermost compilation, on the thread that compiles, also when it raises."""


def apply(dynamo, auto) -> None:
    handler, roots = dynamo.callback.callback_handler, auto.roots
    paused = False

    def start(_arguments=None) -> None:
        nonlocal paused
        paused = roots.looking
        roots.settle()
        auto.compile.__enter__()

    def end(_arguments=None) -> None:
        auto.compile.__exit__(None, None, None)
        if paused:
            roots.look()

    handler.register_start_callback(start)
    handler.register_end_callback(end)
    auto.patches.undo(lambda: handler.remove_start_callback(start))
    auto.patches.undo(lambda: handler.remove_end_callback(end))
