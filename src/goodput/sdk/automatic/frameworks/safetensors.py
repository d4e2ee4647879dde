"""safetensors: `save_file` is a checkpoint too, `load_file` a restore."""

from __future__ import annotations

import functools
from _thread import get_ident

from goodput.sdk.automatic.frameworks.torch.saving import during

MODULE = "safetensors.torch"
RELIES_ON = """safetensors/torch.py: save_file(tensors, filename, ...) has written when it returns; load_file(filename, ...)."""


def apply(module, auto) -> None:
    recorder, save, load = auto.recorder, module.save_file, module.load_file

    @functools.wraps(save)
    def save_file(tensors, *args, **kwargs):
        if recorder.thread != get_ident() or recorder.current == auto.checkpoint.total:
            return save(tensors, *args, **kwargs)
        return during(auto, tensors, True, lambda: save(tensors, *args, **kwargs))

    @functools.wraps(load)
    def load_file(*args, **kwargs):
        if recorder.thread != get_ident() or recorder.current == auto.restore.total or recorder.evaluating:
            return load(*args, **kwargs)
        return auto.restore.run(load, *args, **kwargs)

    auto.patches.replace(module, "save_file", save_file)
    auto.patches.replace(module, "load_file", load_file)
