"""torch.distributed.checkpoint: wraps `save` and `async_save` as checkpoints and `load` as a restore.

An async_save is committed when its future is done; waiting for that future is the phase `checkpoint`. The contents of
a save are read from the state dictionary that it makes itself, since calling `state_dict` again may be a collective.
"""

from __future__ import annotations

import functools
from _thread import get_ident

from goodput.sdk.automatic import checkpoint_detection

MODULE = "torch.distributed.checkpoint"
RELIES_ON = """torch/distributed/checkpoint/state_dict_saver.py: save(state_dict, ...) returns when all is written; async_save
returns a concurrent.futures.Future, or an AsyncSaveResponse whose upload_completion is one; both call
_stateful_to_state_dict by that name, on the caller's thread, and write what it returns.
torch/distributed/checkpoint/state_dict_loader.py: load(state_dict, ...) fills the dictionary in place."""


def apply(module, auto) -> None:
    recorder, saver, loader = auto.recorder, module.state_dict_saver, module.state_dict_loader
    load = loader.load

    @functools.wraps(load)
    def timed_load(state_dict, *args, **kwargs):
        if (
            auto.removed
            or not auto.on_step_thread()
            or recorder.evaluating
            or recorder.current == auto.restore.total
        ):
            return load(state_dict, *args, **kwargs)
        result = auto.restore.run(load, state_dict, *args, **kwargs)
        auto.resume_after(checkpoint_detection.resumed_step(auto, state_dict))
        return result

    current, commit_when_done = Saves(auto), functools.partial(_commit_when_done, _watched(auto))
    for owner, name, timed in (
        (saver, "save", current.timed(saver.save, _commit)),
        (saver, "async_save", current.timed(saver.async_save, commit_when_done)),
        (loader, "load", timed_load),
    ):
        auto.patches.replace(owner, name, timed)
        auto.patches.replace(module, name, timed)
    auto.patches.replace(saver, "_stateful_to_state_dict", current.seen(saver._stateful_to_state_dict))


class Saves:
    """The save in progress on the step thread, if any, and its begun checkpoint."""

    def __init__(self, auto):
        self.auto, self.is_open, self.begun = auto, False, None

    def timed(self, save, done):
        """Wrap a save as the phase `checkpoint`; at its end `done(result, begun)` is called."""
        auto, recorder = self.auto, self.auto.recorder

        def saved(args, kwargs):
            result = save(*args, **kwargs)
            done(result, self.begun)
            return result

        @functools.wraps(save)
        def call(*args, **kwargs):
            if recorder.thread != get_ident() or self.is_open or auto.removed:
                return save(*args, **kwargs)
            auto.leave_step()
            self.is_open, self.begun = True, None
            try:
                return auto.checkpoint.run(saved, args, kwargs)
            finally:
                self.is_open, self.begun = False, None

        return call

    def seen(self, convert):
        """Wrap the conversion to a state dictionary, whose result shows whether this is a checkpoint of the run."""
        auto = self.auto

        @functools.wraps(convert)
        def _stateful_to_state_dict(*args, **kwargs):
            state = convert(*args, **kwargs)
            if self.is_open and self.begun is None and auto.recorder.thread == get_ident():
                try:
                    self.begun = checkpoint_detection.begin(auto, state)
                except Exception:
                    pass
            return state

        return _stateful_to_state_dict


def _commit(_result, begun) -> None:
    if begun is not None:
        begun.commit()


def _commit_when_done(watched, response, begun) -> None:
    future = getattr(response, "upload_completion", response)

    def done(future) -> None:
        try:
            if begun is not None and not future.cancelled() and future.exception() is None:
                begun.commit()
        except Exception:
            pass

    try:
        future.add_done_callback(done)
        if type(future) is watched.__base__:
            future.__class__ = watched
    except Exception:
        pass


def _watched(auto) -> type:
    """A Future class that measures waiting for its result on the step thread as `checkpoint`."""
    # Imported late: the framework has already imported it.
    from concurrent.futures import Future

    class WatchedFuture(Future):
        def result(self, timeout=None):
            if auto.removed or auto.recorder.thread != get_ident() or self.done():
                return super().result(timeout)
            auto.leave_step()
            return auto.checkpoint.run(super().result, timeout)

    return WatchedFuture
