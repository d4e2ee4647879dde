"""Wraps `torch.save` as a checkpoint and `torch.load` as the phase `restore`."""

from __future__ import annotations

from goodput.sdk.automatic import checkpoint_detection
from goodput.sdk.automatic.frameworks._checkpoint_calls import as_checkpoint

MODULE = "torch"
RELIES_ON = """torch/serialization.py: save(obj, f, ...) has written when it returns; load(f, ...) returns the object. Both are
also attributes of the package torch."""


def apply(torch, auto) -> None:
    module, recorder = torch.serialization, auto.recorder
    load = module.load

    def commit(begun, result, obj, f, *args, **kwargs) -> None:
        if checkpoint_detection.is_on_disk(f):
            begun.commit()

    @auto.patches.wrap("load", module, torch)
    def timed_load(*args, **kwargs):
        if (
            not auto.on_step_thread()
            or recorder.current == auto.restore.total
            or recorder.evaluating
            or recorder.trained
        ):
            return load(*args, **kwargs)
        loaded = auto.restore.run(load, *args, **kwargs)
        auto.resume_after(checkpoint_detection.resumed_step(auto, loaded))
        return loaded

    save = as_checkpoint(auto, module.save, lambda obj, *args, **kwargs: obj, commit)
    auto.patches.wrap("save", module, torch)(save)
