"""What `goodput run` prints at its end where no training step was seen: what was looked for, and what to add."""

from __future__ import annotations

import os
import sys

from goodput.rank_page import own_pages, page
from goodput.sdk.recorder.recorder import State
from goodput.sdk.startup import unranked

BY_HAND = (
    "mark the steps with `for batch in goodput.steps(batches)` or `with goodput.step()`, and what is in them with "
    "`with goodput.phase(name)`"
)
EARLY_NS = 10**9  # by which a process may seem to have started before its launch


def explanation(session, directory: str) -> str:
    """One line, "" where there is nothing to explain, or another process does it."""
    identity, environ = session.identity, session.environ
    has_raised = sys.exc_info()[1] is not None or hasattr(sys, "last_type")
    if session.recorder.state == State.DISABLED or has_raised or unranked.is_child() or identity.get("role"):
        return ""
    is_first = bool(identity) and not identity.get("worker") and identity["rank"] == 0
    pid, _, began = environ.get("GOODPUT_LAUNCH", "").partition("-")
    if not (is_first or pid == str(os.getpid())):
        return ""
    since_ns = int(began, 16) - EARLY_NS if began else 0
    others = [one for one in _newer_pages(directory, since_ns) if one.identity["pid"] != os.getpid()]
    if others and (not is_first or any(_has_steps(one.path) for one in others)):
        return ""
    return f"goodput: {_text(identity)}\n"


def _text(identity: dict) -> str:
    if identity:
        return (
            f"no training step was found in run {identity['run']}: steps end where an optimizer of PyTorch steps, or "
            f"where parameters are changed by hand after a backward pass. For another loop {BY_HAND}. Its time so far: "
            f"goodput report {identity['run']}"
        )
    if "jax" in sys.modules:
        what = "JAX was imported, whose steps are not found by themselves"
    elif "torch" in sys.modules:
        what = "PyTorch was imported, but no DataLoader was iterated, no process group made and no optimizer stepped"
    else:
        what = "PyTorch was not imported in this process, and no process that it started was measured"
    return f"nothing was measured: {what}, nor was anything marked by hand. To measure a loop, {BY_HAND}"


def _newer_pages(directory: str, since_ns: int) -> list:
    if not os.path.isdir(directory):
        return []
    return [one for one in own_pages.pages(directory) if one.identity["start_unix_ns"] >= since_ns]


def _has_steps(path: str) -> bool:
    from goodput.rank_page.reader import Reader  # Slow to import, needed only here.

    try:
        with Reader(path) as reader:
            return bool(reader.snapshot(page.NS_MAX, page.NS_MAX).steps_done)
    except page.PageError:
        return False
