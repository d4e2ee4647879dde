"""Decides which saves are checkpoints and which step was restored.

A save is a checkpoint if the saved object holds at least half as many numbers (elements of tensors) as the anchor
optimizer trains: see `begin`, which frameworks/_checkpoint_calls.py calls for each save. Any other save is timed in the
phase `checkpoint` without events. The step of a loaded object comes from its entry named as in STEP_NAMES. Tensors
are recognised by their `numel`; PyTorch is not imported.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import islice
from typing import Any

from goodput.rank_page import page
from goodput.sdk.recorder.checkpoints import Checkpoint
from goodput.user_exceptions import reraise_from_handler

VALUES_MAX = 20_000  # that are searched for tensors
DEPTH_MAX = 6
ATTEMPTS_READ_MAX = 8  # earlier attempts whose pages are read
CHUNK = 64  # values of one container that are searched before the next container's
# A list longer than CHUNK that begins with this many plain values is taken for one without tensors.
PLAIN_PREFIX = 8
PLAIN = (bool, int, float, complex, str, bytes, bytearray, type(None))
# Names under which training scripts save the number of completed steps.
STEP_NAMES = ("global_step", "step_count", "step", "steps", "iteration", "iter", "iter_num", "global_steps")


def begin(auto, saved) -> Checkpoint | None:
    """Begin a checkpoint if `saved` holds the trained parameters, else return None."""
    recorder = auto.recorder
    try:
        anchor = recorder.anchor()
        groups = [{"params": anchor.parameters()}] if auto.by_hand else anchor.param_groups
        trained = sum(p.numel() for group in groups for p in group["params"])
    except Exception as error:
        reraise_from_handler(error)
        trained = 0  # There is no anchor before the first step.
    enough = max(trained / 2, 1)
    if not recorder.is_recording or numbers_in(saved, enough) < enough:
        return None
    running = recorder.step_start_ns and recorder.trained
    return Checkpoint(recorder, auto.checkpoint, recorder.step_next - (not running), wait=False)


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
        committed = committed_steps(auto.session)
    except Exception as error:
        reraise_from_handler(error)
        return last
    return last + 1 if last + 1 in committed and last not in committed else last


def committed_steps(session) -> set[int]:
    """Steps of the checkpoints that earlier attempts of this rank committed, from the pages that still exist."""
    from goodput.rank_page.reader import Reader  # Slow to import, needed only after a load.

    identity, directory = session.identity, os.path.dirname(session.writer.path)
    steps: set[int] = set()
    before = identity["attempt"] - 1
    for attempt in range(before, max(before - ATTEMPTS_READ_MAX, 0), -1):
        path = os.path.join(directory, page.file_name(identity["run"], identity["rank"], attempt))
        try:
            with Reader(path) as reader:
                events = reader.snapshot(since_step=page.NS_MAX, alive=False).events
        except page.PageError:
            continue
        steps.update(event.step for event in events if event.kind == "checkpoint_committed")
    return steps
