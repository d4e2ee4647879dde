"""torch.distributed.checkpoint: save and load, and async_save, which is committed when its future is done."""

from __future__ import annotations

import functools
from _thread import get_ident

from goodput.sdk import saves
from goodput.sdk.patches.saving import during

MODULE = "torch.distributed.checkpoint"
RELIES_ON = """torch/distributed/checkpoint/state_dict_saver.py: save(state_dict, ...) returns when all is written; async_save
returns a concurrent.futures.Future, or an AsyncSaveResponse whose upload_completion is one.
torch/distributed/checkpoint/state_dict_loader.py: load(state_dict, ...) fills the dictionary in place."""


def apply(module, auto) -> None:
    recorder, saver, loader = auto.recorder, module.state_dict_saver, module.state_dict_loader
    save, async_save, load = saver.save, saver.async_save, loader.load

    @functools.wraps(save)
    def timed_save(state_dict, *args, **kwargs):
        if recorder.thread != get_ident():
            return save(state_dict, *args, **kwargs)
        return during(auto, state_dict, True, lambda: save(state_dict, *args, **kwargs))

    @functools.wraps(async_save)
    def timed_async_save(state_dict, *args, **kwargs):
        if recorder.thread != get_ident():
            return async_save(state_dict, *args, **kwargs)
        auto.leave_step()
        with auto.checkpoint:
            try:
                begun = saves.begin(auto, state_dict)
            except Exception:
                begun = None
            response = async_save(state_dict, *args, **kwargs)
        if begun is not None:
            _commit_when_done(getattr(response, "upload_completion", response), begun)
        return response

    @functools.wraps(load)
    def timed_load(state_dict, *args, **kwargs):
        if not auto.is_here() or auto.evaluating:
            return load(state_dict, *args, **kwargs)
        with auto.restore:
            result = load(state_dict, *args, **kwargs)
        auto.go_on_after(saves.step_in(state_dict))
        return result

    for owner, name, timed in (
        (saver, "save", timed_save),
        (saver, "async_save", timed_async_save),
        (loader, "load", timed_load),
    ):
        auto.patches.replace(owner, name, timed)
        auto.patches.replace(module, name, timed)


def _commit_when_done(future, begun) -> None:
    def done(future) -> None:
        try:
            if not future.cancelled() and future.exception() is None:
                begun.commit()
        except Exception:
            pass

    try:
        future.add_done_callback(done)
    except Exception:
        pass
