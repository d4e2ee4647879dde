"""Lightning's Trainer: its checkpoint, which is composed in memory and written by a plugin, maybe later."""

from __future__ import annotations

import functools
from _thread import get_ident

from goodput.sdk.automatic import checkpoint_detection

MODULE = "lightning.pytorch.trainer.trainer"
RELIES_ON = """lightning/pytorch/trainer/trainer.py: Trainer.save_checkpoint has written when it returns, but for the plugin
AsyncCheckpointIO of lightning/pytorch/plugins/io/async_plugin.py: that one has given the write to `_executor`, which
has one thread, and keeps what was raised there in `_error`."""
WRAPPED_MAX = 4


def apply(module, auto) -> None:
    trainer, recorder = module.Trainer, auto.recorder
    save = trainer.save_checkpoint

    @functools.wraps(save)
    def save_checkpoint(self, *args, **kwargs):
        if recorder.thread != get_ident() or recorder.current == auto.checkpoint.total:
            return save(self, *args, **kwargs)

        def saved():
            begun = _safely(checkpoint_detection.begin, auto, getattr(self, "lightning_module", None))
            result = save(self, *args, **kwargs)
            if begun is not None:
                _safely(commit_when_written, self, begun)
            return result

        auto.leave_step()
        return auto.checkpoint.run(saved)

    auto.patches.replace(trainer, "save_checkpoint", save_checkpoint)


def commit_when_written(trainer, begun) -> None:
    """Commit now, or behind the write if that was handed to the one thread of an executor."""
    plugin = trainer.strategy.checkpoint_io
    for _ in range(WRAPPED_MAX):
        executor = getattr(plugin, "_executor", None)
        if executor is not None:
            executor.submit(commit_unless_raised, plugin, begun)
            return
        plugin = getattr(plugin, "checkpoint_io", None)
    begun.commit()


def commit_unless_raised(plugin, begun) -> None:
    if plugin._error is None:
        begun.commit()


def _safely(function, *args):
    try:
        return function(*args)
    except Exception:
        return None
