"""Accelerate: wraps `Accelerator.save_state` as one checkpoint and `load_state` as a restore.

Accelerate's loaders copy a batch to the device in their own `__next__`, by a `Tensor.to` outside of the DataLoader's,
so that the copy is `h2d`. Its optimizer skips steps while gradients are accumulated, without calling torch's optimizer.
"""

from __future__ import annotations

from goodput.sdk.automatic.frameworks._checkpoint_calls import as_checkpoint, as_restore, commit_file

MODULE = "accelerate.accelerator"
RELIES_ON = """accelerate/accelerator.py: Accelerator.save_state has written the models in _models, their optimizers and more
when it returns; load_state reads them, and a file whose `step` counts the batches of an epoch."""


def apply(module, auto) -> None:
    accelerator = module.Accelerator

    def models_of(self, *_args, **_kwargs):
        return getattr(self, "_models", None)

    def directory_of(_self, directory=None, *_args, **_kwargs):
        return directory

    save = as_checkpoint(auto, accelerator.save_state, models_of, commit_file(directory_of))
    auto.patches.replace(accelerator, "save_state", save)
    auto.patches.replace(
        accelerator,
        "load_state",
        as_restore(
            auto, accelerator.load_state, lambda _result, self, *args, **kwargs: models_of(self), directory_of
        ),
    )
