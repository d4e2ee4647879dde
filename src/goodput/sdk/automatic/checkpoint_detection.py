"""Which saves are checkpoints, and which step they hold.

In: what a framework is asked to save or has loaded. Out: the phases `checkpoint` and `restore`, and for a checkpoint
its two events. A save is a checkpoint of the run if it holds at least half as many numbers as the anchor optimizer
trains, whichever way they were gathered; a save of anything else (metrics, a batch) is timed and promises nothing.
It does not know PyTorch; it asks values for `numel`.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import islice

from goodput.rank_page import page
from goodput.sdk.recorder.checkpoints import Checkpoint

LOOKED_AT_MAX = 20_000
DEPTH_MAX = 6
# Earlier attempts, the newest first, whose pages are read for what they saved.
ATTEMPTS_READ_MAX = 8
TURN = 64
# A list longer than that which begins with so many plain values is taken for one without tensors.
PLAIN_LOOKED_AT = 8
PLAIN = (bool, int, float, complex, str, bytes, bytearray, type(None))
# Names under which training scripts keep how many steps were done.
STEP_NAMES = ("global_step", "step", "steps", "iteration", "iter", "iter_num", "global_steps")


def begin(auto, what) -> Checkpoint | None:
    """A checkpoint that was begun, if `what` holds the trained parameters."""
    recorder = auto.recorder
    wanted = max(trained_numbers(auto) / 2, 1)
    if not recorder.is_recording or numbers_in(what, wanted) < wanted:
        return None
    running = recorder.step_start_ns and recorder.trained
    return Checkpoint(recorder, auto.checkpoint, recorder.step_next - (not running), wait=False)


def is_on_disk(file) -> bool:
    """Whether what is written there outlives the process when the call returns: no buffer in memory."""
    if isinstance(file, (str, os.PathLike)):
        return True
    try:
        return hasattr(file, "write") and not (hasattr(file, "getbuffer") or hasattr(file, "getvalue"))
    except Exception:
        return False


def trained_numbers(auto) -> int:
    """Numbers that the anchor optimizer trains, 0 before its first step."""
    optimizer = auto.recorder.anchor()
    try:
        return sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    except Exception:
        return 0


def numbers_in(what, wanted: float = float("inf")) -> int:
    """Numbers in the tensors of nested dictionaries, lists and modules, until there are as many as `wanted`.

    Breadth first, a few values of each in turn: nothing long is copied, and none hides the next. At most
    LOOKED_AT_MAX values, DEPTH_MAX deep. What raises when it is asked counts nothing.
    """
    total, looked, todo = 0, 0, deque([(iter((what,)), 0)])
    while todo and looked < LOOKED_AT_MAX:
        values, depth = todo.popleft()
        turn = looked + TURN
        for value in _quiet(islice(values, TURN)):
            looked += 1
            try:
                numel = None if isinstance(value, type) else getattr(value, "numel", None)
                if numel is not None:
                    total += int(numel()) if callable(numel) else 0
                    if total >= wanted:
                        return total
                elif depth < DEPTH_MAX:
                    todo.append((iter(_inside(value)), depth + 1))
            except Exception:
                continue
        if looked == turn:
            todo.append((values, depth))
    return total


def _inside(value):
    """The values in this one, not yet looked at."""
    if isinstance(value, (type, *PLAIN)):
        return ()
    if isinstance(value, dict):
        return dict.values(value)
    if isinstance(value, (list, tuple)):
        is_plain = len(value) > TURN and all(isinstance(each, PLAIN) for each in value[:PLAIN_LOOKED_AT])
        return () if is_plain else value
    parameters = getattr(value, "parameters", None)
    if callable(parameters):
        return parameters()
    # Not its state_dict(), which may copy everything, or wait for other ranks.
    return getattr(value, "__dict__", {}).values()


def _quiet(values):
    try:
        yield from values
    except Exception:
        return


def step_in(loaded) -> int | None:
    """Index of the last step that a loaded dictionary says was done, None where it says none."""
    for name in STEP_NAMES:
        try:
            # Anything may have been loaded: a `get` of its own may raise, and so may the question for its class.
            done = dict.get(loaded, name) if isinstance(loaded, dict) else None
            if isinstance(done, int) and not isinstance(done, bool) and done > 0:
                return done - 1
        except Exception:
            continue
    return None


def resumed_step(auto, loaded) -> int | None:
    """Index of the last step whose work was loaded, None where `loaded` does not say.

    A script may keep how many steps were done, or the index of the last. What earlier attempts committed tells them
    apart: a number that is the index of such a step, while the one before it is not, is an index.
    """
    last = step_in(loaded)
    if last is None:
        return None
    try:
        committed = committed_steps(auto.session)
    except Exception:
        return last
    return last + 1 if last + 1 in committed and last not in committed else last


def committed_steps(session) -> set[int]:
    """Steps of the checkpoints that earlier attempts of this run and rank committed, as far as their pages still lie here."""
    from goodput.rank_page.reader import Reader  # Here, since a training that loads nothing never needs it.

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
