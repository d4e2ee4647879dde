"""Accelerate: `save_state` is one checkpoint, not its files, and `load_state` restores.

Its loaders copy a batch to the device inside their own `__next__`; that is a `Tensor.to` outside of the DataLoader's,
so that the copy is h2d and not waiting. Its optimizer leaves steps out while gradients are accumulated, and then no
optimizer of torch has stepped.
"""

from __future__ import annotations

import functools
from _thread import get_ident

from goodput.sdk.automatic.frameworks.torch.saving import during
from goodput.sdk.automatic.frameworks.trainer import restores

MODULE = "accelerate.accelerator"
RELIES_ON = """accelerate/accelerator.py: Accelerator.save_state has written the models in _models, their optimizers and more
when it returns; load_state reads them, and a file with `step`, which counts batches of an epoch."""


def apply(module, auto) -> None:
    accelerator, recorder = module.Accelerator, auto.recorder
    save = accelerator.save_state

    @functools.wraps(save)
    def save_state(self, *args, **kwargs):
        if recorder.thread != get_ident() or recorder.current == auto.checkpoint.total:
            return save(self, *args, **kwargs)
        return during(auto, getattr(self, "_models", None), True, lambda: save(self, *args, **kwargs))

    auto.patches.replace(accelerator, "save_state", save_state)
    auto.patches.replace(accelerator, "load_state", restores(auto, accelerator.load_state))
