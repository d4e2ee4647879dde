"""torch.distributed.checkpoint: wraps `save` and `async_save` as checkpoints and `load` as a restore.

An async_save is committed when its future is done; waiting for that future is the phase `checkpoint`. The process that
writes it does not become a rank.
"""

from __future__ import annotations

import functools
from _thread import get_ident

from goodput.sdk.automatic.checkpoint_files import fingerprint
from goodput.sdk.automatic.frameworks._checkpoint_calls import (
    as_checkpoint,
    as_resuming_load,
    commit_file,
)
from goodput.sdk.recorder.recorder import State
from goodput.user_exceptions import drop_own_frames

MODULE = "torch.distributed.checkpoint"
RELIES_ON = """torch/distributed/checkpoint/state_dict_saver.py: save(state_dict, ...) returns when all is written; async_save
returns a concurrent.futures.Future, or an AsyncSaveResponse whose upload_completion is one.
torch/distributed/checkpoint/state_dict_loader.py: load(state_dict, ...) fills the dictionary in place.
torch/distributed/checkpoint/_async_process_executor.py: the target of a spawned process is
_AsyncCheckpointProcess._checkpointing_subprocess, looked up by that name, which calls init_process_group."""


def apply(module, auto) -> None:
    loader = module.state_dict_loader
    load = as_resuming_load(
        auto, loader.load, lambda _result, state_dict, *args, **kwargs: state_dict, directory_of
    )
    auto.patches.wrap("load", loader, module)(load)
    _wrap_saves(module, auto)
    process, name = module._async_process_executor._AsyncCheckpointProcess, "_checkpointing_subprocess"
    serve = getattr(process, name)

    @functools.wraps(serve)  # It is pickled by its name.
    def disabled(*args, **kwargs):
        auto.recorder.set_state(State.DISABLED)
        return serve(*args, **kwargs)

    auto.patches.replace(process, name, staticmethod(disabled))


def directory_of(*_args, checkpoint_id=None, storage_writer=None, storage_reader=None, **_kwargs):
    """The directory of a save or a load; None where it is no directory."""
    return checkpoint_id or getattr(storage_writer or storage_reader, "path", None)


def _wrap_saves(module, auto) -> None:
    from concurrent.futures import Future  # Slow to import; the framework has done so.

    class WatchedFuture(Future):
        def result(self, timeout=None):
            try:
                if auto.removed or auto.recorder.thread != get_ident() or self.done():
                    return super().result(timeout)
                auto.leave_step()
                return auto.checkpoint.run(super().result, timeout)
            except BaseException as error:
                drop_own_frames(error)
                raise

    def state_dict_of(state_dict, *args, **kwargs):
        # As it is passed, since calling the `state_dict` of what is in it may be a collective.
        return state_dict

    def commit_when_done(begun, response, *args, **kwargs) -> None:
        def done(future) -> None:
            if not future.cancelled() and future.exception() is None:
                auto.attempt(begun.commit, fingerprint(directory_of(*args, **kwargs)))

        getattr(response, "upload_completion", response).add_done_callback(done)

    saver = module.state_dict_saver
    save_later = as_checkpoint(auto, saver.async_save, state_dict_of, commit_when_done)
    auto.patches.wrap("save", saver, module)(
        as_checkpoint(auto, saver.save, state_dict_of, commit_file(directory_of))
    )

    @auto.patches.wrap("async_save", saver, module)
    def async_save(*args, **kwargs):
        try:
            response = save_later(*args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        future = getattr(response, "upload_completion", response)
        if type(future) is Future:
            future.__class__ = WatchedFuture
        return response
