"""Which saves are checkpoints, and which step they hold.

In: what a framework is asked to save or has loaded. Out: the phases `checkpoint` and `restore`, and for a checkpoint
its two events. A save is a checkpoint of the run if it holds at least half as many numbers as the anchor optimizer
trains, whichever way they were gathered; a save of anything else (metrics, a batch) is timed and promises nothing.
It does not know PyTorch; it asks values for `numel`.
"""

from __future__ import annotations

import os

from goodput.sdk.checkpoints import Checkpoint

LOOKED_AT_MAX = 20_000
DEPTH_MAX = 6
# Names under which training scripts keep how many steps were done.
STEP_NAMES = ("global_step", "step", "steps", "iteration", "iter", "iter_num", "global_steps")


def begin(auto, what) -> Checkpoint | None:
    """A checkpoint that was begun, if `what` holds the trained parameters."""
    recorder = auto.recorder
    if recorder.thread <= 0 or numbers_in(what) * 2 < max(trained_numbers(auto), 1):
        return None
    running = recorder.step_start_ns and auto.trained
    return Checkpoint(recorder, auto.checkpoint, recorder.step_next - (not running), wait=False)


def is_on_disk(file) -> bool:
    """Whether what is written there outlives the process when the call returns: no buffer in memory."""
    if isinstance(file, (str, os.PathLike)):
        return True
    try:
        return file.fileno() >= 0
    except Exception:
        return False


def trained_numbers(auto) -> int:
    """Numbers that the anchor optimizer trains, 0 before its first step."""
    optimizer = auto.anchor()
    try:
        return sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    except Exception:
        return 0


def numbers_in(what) -> int:
    """Numbers in the tensors of nested dictionaries, lists and modules; bounded in depth and count."""
    total, looked, todo = 0, 0, [(what, 0)]
    while todo and looked < LOOKED_AT_MAX:
        value, depth = todo.pop()
        looked += 1
        numel = getattr(value, "numel", None)
        if numel is not None:
            total += numel() if callable(numel) else 0
        elif depth < DEPTH_MAX:
            todo.extend((inner, depth + 1) for inner in _inside(value))
    return total


def _inside(value):
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return value
    parameters = getattr(value, "parameters", None)
    if callable(parameters):
        return list(parameters())
    # Not its state_dict(), which may copy everything, or wait for other ranks.
    return list(getattr(value, "__dict__", {}).values()) if not isinstance(value, type) else ()


def step_in(loaded) -> int | None:
    """Index of the last step that a loaded dictionary says was done, None where it says none."""
    if not isinstance(loaded, dict):
        return None
    for name in STEP_NAMES:
        done = loaded.get(name)
        if isinstance(done, int) and not isinstance(done, bool) and done > 0:
            return done - 1
    return None
