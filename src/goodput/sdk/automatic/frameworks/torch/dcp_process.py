"""The process that writes an asynchronous checkpoint joins a group as its rank does, and is no rank."""

from __future__ import annotations

import functools

from goodput.sdk.recorder.recorder import State

MODULE = "torch.distributed.checkpoint._async_process_executor"
RELIES_ON = """torch/distributed/checkpoint/_async_process_executor.py: a spawned process has the target
_AsyncCheckpointProcess._checkpointing_subprocess, which it finds by that name, and calls init_process_group there."""


def apply(module, auto) -> None:
    kind, name = module._AsyncCheckpointProcess, "_checkpointing_subprocess"
    serve = getattr(kind, name)

    @functools.wraps(serve)
    def _checkpointing_subprocess(*args, **kwargs):
        auto.recorder.set_state(State.DISABLED)
        return serve(*args, **kwargs)

    auto.patches.replace(kind, name, staticmethod(_checkpointing_subprocess))
