"""safetensors: wraps `save_file` as a checkpoint and `load_file` as the phase `restore`."""

from __future__ import annotations

from _thread import get_ident

from goodput.sdk.automatic.frameworks._checkpoint_calls import as_checkpoint
from goodput.user_exceptions import drop_own_frames

MODULE = "safetensors.torch"
RELIES_ON = """safetensors/torch.py: save_file(tensors, filename, ...) has written when it returns; load_file(filename, ...)."""


def apply(module, auto) -> None:
    recorder, load = auto.recorder, module.load_file

    @auto.patches.wrap("load_file", module)
    def load_file(*args, **kwargs):
        try:
            if (
                recorder.thread != get_ident()
                or recorder.current == auto.restore.total
                or recorder.evaluating
            ):
                return load(*args, **kwargs)
            return auto.restore.run(load, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise

    save = as_checkpoint(auto, module.save_file, lambda tensors, *args, **kwargs: tensors)
    auto.patches.replace(module, "save_file", save)
