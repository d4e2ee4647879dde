"""torch.save and torch.load: the phases `checkpoint` and `restore`, and what a checkpoint promises."""

from __future__ import annotations

import functools
from _thread import get_ident

from goodput.sdk.automatic import checkpoint_detection

MODULE = "torch"
RELIES_ON = """torch/serialization.py: save(obj, f, ...) has written when it returns; load(f, ...) returns the object. torch
carries both under the same names."""


def apply(torch, auto) -> None:
    module, recorder = torch.serialization, auto.recorder
    save, load = module.save, module.load

    @functools.wraps(save)
    def timed_save(obj, f, *args, **kwargs):
        if recorder.thread != get_ident() or recorder.current == auto.checkpoint.total:
            return save(obj, f, *args, **kwargs)
        return during(auto, obj, checkpoint_detection.is_on_disk(f), lambda: save(obj, f, *args, **kwargs))

    @functools.wraps(load)
    def timed_load(*args, **kwargs):
        if (
            not auto.is_here()
            or recorder.current == auto.restore.total
            or recorder.evaluating
            or recorder.trained
        ):
            return load(*args, **kwargs)
        loaded = auto.restore.run(load, *args, **kwargs)
        auto.go_on_after(checkpoint_detection.resumed_step(auto, loaded))
        return loaded

    for name, timed in (("save", timed_save), ("load", timed_load)):
        auto.patches.replace(module, name, timed)
        auto.patches.replace(torch, name, timed)


def during(auto, what, is_kept: bool, save):
    """Call `save()` as a checkpoint of `what`; it is committed if it is kept and nothing was raised."""

    def saved():
        begun = _safely(auto, what)
        result = save()
        if begun is not None and is_kept:
            begun.commit()
        return result

    auto.leave_step()
    return auto.checkpoint.run(saved)


def _safely(auto, what):
    try:
        return checkpoint_detection.begin(auto, what)
    except Exception:
        return None
