"""Wrappers for the functions of frameworks that save or load a checkpoint."""

from __future__ import annotations

import functools
from _thread import get_ident

from goodput.sdk.automatic import checkpoint_detection
from goodput.sdk.automatic.checkpoint_files import fingerprint
from goodput.user_exceptions import drop_own_frames


def commit(begun, *_args, **_kwargs) -> None:
    begun.commit()


def commit_file(file_of):
    """As `commit`, of a save to the file or directory `file_of(*args, **kwargs)`."""

    def done(begun, _result, *args, **kwargs) -> None:
        begun.commit(fingerprint(file_of(*args, **kwargs)))

    return done


def as_checkpoint(auto, save, contents, done=commit):
    """Wrap `save` as one checkpoint of `contents(*args, **kwargs)`.

    The call is the phase `checkpoint` on the step thread; saves inside it are part of it. Where the contents hold the
    trained parameters, `done(begun, result, *args, **kwargs)` commits the checkpoint after the call, unless that raised.
    """
    recorder = auto.recorder

    def saved(args, kwargs):
        begun = auto.attempt(lambda: checkpoint_detection.begin(auto, contents(*args, **kwargs)))
        result = save(*args, **kwargs)
        if begun is not None:
            auto.attempt(lambda: done(begun, result, *args, **kwargs))
        return result

    @functools.wraps(save)
    def call(*args, **kwargs):
        try:
            if auto.removed or recorder.thread != get_ident() or recorder.current == auto.checkpoint.total:
                return save(*args, **kwargs)
            auto.leave_step()
            return auto.checkpoint.run(saved, args, kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise

    return call


def as_resuming_load(auto, load, contents, file_of):
    """Wrap `load` as the phase `restore`, unless it is in an evaluation or in a step that has trained.

    `contents(result, *args, **kwargs)` may hold the number of completed steps, which this attempt then continues; else
    it continues after the step at which the file or directory `file_of(*args, **kwargs)` was saved.
    """
    recorder = auto.recorder

    @functools.wraps(load)
    def call(*args, **kwargs):
        try:
            is_inside = auto.removed or not auto.on_step_thread() or recorder.current == auto.restore.total
            if is_inside or auto.training.evaluating or auto.training.trained:
                return load(*args, **kwargs)
            result = auto.restore.run(load, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        auto.attempt(_resume, auto, contents, file_of, result, args, kwargs)
        return result

    return call


def as_restore(auto, load, contents=None, file_of=None):
    """Wrap `load` as the phase `restore`; loads inside it are part of it.

    With `contents` and `file_of` it is continued as in `as_resuming_load`.
    """
    recorder = auto.recorder

    @functools.wraps(load)
    def call(*args, **kwargs):
        try:
            if not auto.on_step_thread() or recorder.current == auto.restore.total:
                return load(*args, **kwargs)
            auto.leave_step()
            result = auto.restore.run(load, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        if contents is not None and not auto.removed:
            auto.attempt(_resume, auto, contents, file_of, result, args, kwargs)
        return result

    return call


def _resume(auto, contents, file_of, result, args, kwargs) -> None:
    loaded, file = contents(result, *args, **kwargs), file_of(*args, **kwargs)
    checkpoint_detection.resume_from(auto, loaded, file)
