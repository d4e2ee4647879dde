"""safetensors: wraps `save_file` as a checkpoint and `load_file` as the phase `restore`."""

from __future__ import annotations

from _thread import get_ident

from goodput.sdk.automatic import checkpoint_detection
from goodput.sdk.automatic.frameworks._checkpoint_calls import as_checkpoint, commit_file
from goodput.sdk.recorder.recorder import State
from goodput.user_exceptions import drop_own_frames

MODULE = "safetensors.torch"
RELIES_ON = """safetensors/torch.py: save_file(tensors, filename, ...) has written when it returns; load_file(filename, ...)."""


def file_of_save(_tensors, filename, *_args, **_kwargs):
    return filename


def file_of_load(filename, *_args, **_kwargs):
    return filename


def apply(module, auto) -> None:
    recorder, load = auto.recorder, module.load_file

    @auto.patches.wrap("load_file", module)
    def load_file(*args, **kwargs):
        try:
            if recorder.state == State.NOT_STARTED and not auto.removed:
                # The page is opened by what trains, which then finds the file's step.
                result = load(*args, **kwargs)
                auto.attempt(checkpoint_detection.resume_from, auto, result, file_of_load(*args, **kwargs))
                return result
            if (
                recorder.thread != get_ident()
                or recorder.current == auto.restore.total
                or auto.training.evaluating
            ):
                return load(*args, **kwargs)
            result = auto.restore.run(load, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        if not auto.training.trained:
            auto.attempt(checkpoint_detection.resume_from, auto, result, file_of_load(*args, **kwargs))
        return result

    save = as_checkpoint(
        auto, module.save_file, lambda tensors, *args, **kwargs: tensors, commit_file(file_of_save)
    )
    auto.patches.replace(module, "save_file", save)
