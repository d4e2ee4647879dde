"""Lightning: wraps `Trainer.save_checkpoint` as one checkpoint, committed when its plugin has written it.

The beginning of a fit declares after how many steps it will end.
"""

from __future__ import annotations

from goodput.sdk.automatic.frameworks._checkpoint_calls import as_checkpoint
from goodput.sdk.automatic.trainer_progress import declare_total_steps

MODULE, ALIAS = "lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"
RELIES_ON = """lightning/pytorch/trainer/trainer.py: Trainer.save_checkpoint has written when it returns, except with the plugin
AsyncCheckpointIO of lightning/pytorch/plugins/io/async_plugin.py, which gives the write to `_executor`, a pool of one
thread, and keeps an exception of that thread in `_error`. lightning/pytorch/loops/fit_loop.py: _FitLoop.run calls
on_run_start once its loader is set up, so that Trainer.estimated_stepping_batches loads nothing."""
PLUGINS_NESTED_MAX = 4


def apply(module, auto) -> None:
    def model_of(trainer, *args, **kwargs):
        return getattr(trainer, "lightning_module", None)

    save = as_checkpoint(auto, module.Trainer.save_checkpoint, model_of, commit_when_written)
    auto.patches.replace(module.Trainer, "save_checkpoint", save)
    start = module._FitLoop.on_run_start

    @auto.patches.wrap("on_run_start", module._FitLoop)
    def on_run_start(loop):
        declare_total_steps(auto, loop.trainer, total_steps_of)
        return start(loop)


def total_steps_of(trainer) -> int | float:
    """The steps after which a fit will end. `max_steps` counts those of every optimizer, and a batch is one of each."""
    total, most = trainer.estimated_stepping_batches, trainer.max_steps
    return min(total, most // max(len(trainer.optimizers), 1)) if most > 0 else total


def commit_when_written(begun, result, trainer, *args, **kwargs) -> None:
    """Commit now, or after the write if the plugin gave that to its thread."""
    plugin = trainer.strategy.checkpoint_io
    for _ in range(PLUGINS_NESTED_MAX):
        executor = getattr(plugin, "_executor", None)
        if executor is not None:
            executor.submit(commit_unless_failed, plugin, begun)
            return
        plugin = getattr(plugin, "checkpoint_io", None)
    begun.commit()


def commit_unless_failed(plugin, begun) -> None:
    if plugin._error is None:
        begun.commit()
