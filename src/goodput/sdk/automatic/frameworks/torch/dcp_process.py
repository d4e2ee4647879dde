"""torch.distributed.checkpoint: keeps the process that writes an async checkpoint from becoming a rank."""

from __future__ import annotations

import functools

from goodput.sdk.recorder.recorder import State

MODULE = "torch.distributed.checkpoint._async_process_executor"
RELIES_ON = """torch/distributed/checkpoint/_async_process_executor.py: the target of a spawned process is
_AsyncCheckpointProcess._checkpointing_subprocess, looked up by that name, which calls init_process_group."""


def apply(module, auto) -> None:
    kind, name = module._AsyncCheckpointProcess, "_checkpointing_subprocess"
    serve = getattr(kind, name)

    @functools.wraps(serve)
    def _checkpointing_subprocess(*args, **kwargs):
        auto.recorder.set_state(State.DISABLED)
        return serve(*args, **kwargs)

    auto.patches.replace(kind, name, staticmethod(_checkpointing_subprocess))
