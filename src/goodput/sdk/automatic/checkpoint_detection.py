"""Decides which saves are checkpoints and which step was restored.

A save is a checkpoint if the saved object holds at least half as many numbers (elements of tensors) as the anchor
optimizer trains: see `begin`, which frameworks/_checkpoint_calls.py calls for each save. Any other save is timed in the
phase `checkpoint` without events. The step of a loaded object comes from its entry named as in STEP_NAMES, else from the
commit of the file that it was loaded from (checkpoint_files.py). Tensors are recognised by their `numel`; PyTorch is not imported.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import islice
from time import perf_counter_ns
from typing import Any

from goodput.sdk.automatic.checkpoint_files import EarlierAttempts, fingerprint
from goodput.sdk.recorder.checkpoints import Checkpoint
from goodput.user_exceptions import reraise_from_handler

VALUES_MAX = 20_000  # that are searched for tensors
DEPTH_MAX = 6
RESTORED_MAX = 8  # files loaded before the first step whose steps are unknown, the largest
CHUNK = 64  # values of one container that are searched before the next container's
# A list longer than CHUNK that begins with this many plain values is taken for one without tensors.
PLAIN_PREFIX = 8
PLAIN = (bool, int, float, complex, str, bytes, bytearray, type(None))
# Names under which training scripts save the number of completed steps.
STEP_NAMES = ("global_step", "step_count", "step", "steps", "iteration", "iter", "iter_num", "global_steps")


def begin(auto, saved) -> Checkpoint | None:
    """Begin a checkpoint if `saved` holds the trained parameters, else return None."""
    recorder = auto.recorder
    enough = max(trained_numbers(auto) / 2, 1)
    if not recorder.is_recording or numbers_in(saved, enough) < enough:
        return None
    running = recorder.step_start_ns and auto.training.trained
    return Checkpoint(recorder, auto.checkpoint, recorder.step_next - (not running), wait=False)


def trained_numbers(auto) -> int:
    """How many numbers the anchor trains, 0 if that is unknown."""
    try:
        anchor = auto.training.anchor()
        groups = [{"params": anchor.parameters()}] if auto.by_hand else anchor.param_groups
        return sum(p.numel() for group in groups for p in group["params"])
    except Exception as error:
        reraise_from_handler(error)
        return 0  # There is no anchor before the first step.


def is_on_disk(file) -> bool:
    """Whether `file` is a path or a file object that is no buffer in memory."""
    if isinstance(file, (str, os.PathLike)):
        return True
    try:
        return hasattr(file, "write") and not (hasattr(file, "getbuffer") or hasattr(file, "getvalue"))
    except Exception as error:
        reraise_from_handler(error)
        return False


def numbers_in(saved, enough: float = float("inf")) -> int:
    """Elements of the tensors in nested dictionaries, lists and modules; stops when there are `enough`.

    Breadth first and round-robin, CHUNK values of a container at a time, so that a long container is not copied and does
    not hide the next one. At most VALUES_MAX values, DEPTH_MAX deep. Values that raise count 0.
    """
    total, count, todo = 0, 0, deque([(iter((saved,)), 0)])
    while todo and count < VALUES_MAX:
        values, depth = todo.popleft()
        try:
            chunk = list(islice(values, CHUNK))
        except Exception as error:
            reraise_from_handler(error)
            continue
        count += len(chunk)
        for value in chunk:
            try:
                numel = None if isinstance(value, type) else getattr(value, "numel", None)
                if numel is not None:
                    total += int(numel()) if callable(numel) else 0  # pyright: ignore[reportArgumentType] -- may raise
                    if total >= enough:
                        return total
                elif depth < DEPTH_MAX:
                    todo.append((iter(_inside(value)), depth + 1))
            except Exception as error:
                reraise_from_handler(error)
                continue
        if len(chunk) == CHUNK:
            todo.append((values, depth))
    return total


def _inside(value) -> Any:
    if isinstance(value, (type, *PLAIN)):
        return ()
    if isinstance(value, dict):
        return dict.values(value)
    if isinstance(value, (list, tuple)):
        is_plain = len(value) > CHUNK and all(isinstance(each, PLAIN) for each in value[:PLAIN_PREFIX])
        return () if is_plain else value
    parameters = getattr(value, "parameters", None)
    if callable(parameters):
        return parameters()
    # Not state_dict(), which may copy everything or wait for other ranks.
    return getattr(value, "__dict__", {}).values()


def step_in(loaded) -> int | None:
    """Index of the last completed step according to a loaded dictionary, None if it has no usable entry."""
    for name in STEP_NAMES:
        # Not its own `get` or `__class__`, which may raise.
        done = dict.get(loaded, name) if issubclass(type(loaded), dict) else None
        if type(done) is int and done > 0:
            return done - 1
    return None


def resumed_step(auto, loaded) -> int | None:
    """Index of the last step whose work was loaded, None if `loaded` has no usable entry.

    Some scripts save the number of completed steps, others the index of the last. If the number is the step of a
    checkpoint that an earlier attempt committed, and the number before it is not, it is an index.
    """
    last = step_in(loaded)
    if last is None:
        return None
    try:
        earlier = _earlier(auto)
    except Exception as error:
        reraise_from_handler(error)
        return last
    committed = set() if earlier is None else earlier.steps
    return last + 1 if last + 1 in committed and last not in committed else last


def resume_from(auto, loaded, file) -> None:
    """Continue after the step of what was loaded from `file`: the one that it holds, else the one it was saved at.

    Where both are unknown, that a checkpoint was loaded is recorded with the first step, if it holds enough numbers.
    """
    if auto.recorder.steps:
        return
    step = resumed_step(auto, loaded)
    if step is None and (numbers := numbers_in(loaded)):
        text = fingerprint(file)
        earlier = _earlier(auto)
        step = None if earlier is None else earlier.step_of(text)
        if step is None:
            _note_restored(auto, numbers, text)
    auto.resume_after(step)


def _earlier(auto) -> EarlierAttempts | None:
    """None without a page that another attempt could have beside its own."""
    writer = auto.session.writer
    return None if writer is None or writer.path is None else EarlierAttempts(auto.session)


def _note_restored(auto, numbers: int, text: str) -> None:
    if not auto.restored:
        auto.before_first_step.append(lambda: _record_restored(auto))
    auto.restored[text] = numbers
    while len(auto.restored) > RESTORED_MAX:
        del auto.restored[min(auto.restored, key=auto.restored.__getitem__)]


def _record_restored(auto) -> None:
    """The model is known now, and the page is open: record what holds the model's parameters."""
    enough, earlier = max(trained_numbers(auto) / 2, 1), _earlier(auto)
    for text, numbers in auto.restored.items():
        step = None if earlier is None else earlier.step_of(text)
        if step is not None:
            auto.resume_after(step)
        # What an earlier attempt began with, too, such as pretrained weights, is no checkpoint of its own.
        elif numbers >= enough and not (earlier and text in earlier.loaded):
            auto.recorder.event("restored", perf_counter_ns(), -1, text)
    auto.restored.clear()
