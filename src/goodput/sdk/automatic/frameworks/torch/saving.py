"""Wraps `torch.save` as a checkpoint and `torch.load` as the phase `restore`."""

from __future__ import annotations

import os

from goodput.sdk.automatic import checkpoint_detection
from goodput.sdk.automatic.checkpoint_files import fingerprint
from goodput.sdk.automatic.frameworks._checkpoint_calls import as_checkpoint, as_resuming_load

MODULE = "torch"
RELIES_ON = """torch/serialization.py: save(obj, f, ...) has written when it returns; load(f, ...) returns the object. Both are
also attributes of the package torch."""


def apply(torch, auto) -> None:
    module = torch.serialization

    def commit(begun, result, obj, f, *args, **kwargs) -> None:
        if checkpoint_detection.is_on_disk(f):
            begun.commit(
                fingerprint(f) if isinstance(f, (str, os.PathLike)) else ""
            )  # Else it is still open.

    save = as_checkpoint(auto, module.save, lambda obj, *args, **kwargs: obj, commit)
    load = as_resuming_load(
        auto, module.load, lambda result, *args, **kwargs: result, lambda f, *args, **kwargs: f
    )
    auto.patches.wrap("save", module, torch)(save)
    auto.patches.wrap("load", module, torch)(load)
