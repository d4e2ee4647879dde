"""Processes without a rank: several of one launch are numbered, so that all of them are in one run.

A process takes the next free number. It takes over the number of a process that is gone only if it is the same worker
again: of the same name and arguments, or of the same name in a later launch, which runs the whole program again. Two
launches that live at the same time never share a run.
"""

from __future__ import annotations

import os
import sys
from itertools import count

from goodput.rank_page import page
from goodput.rank_page.own_pages import Page, pages
from goodput.user_exceptions import reraise_from_handler
from goodput.wire.identity import clean_text

MAIN = "MainProcess"
_SIMPLE = (int, float, bool, str, bytes, type(None))
_NESTED_MAX = 3


def describe(environ) -> dict:
    """The fields of an identity that distinguish this process from others of its launch, and its launch from others."""
    child = _child()
    worker, about = MAIN, (sys.argv,)
    if child is not None:
        target = getattr(child, "_target", None)
        about = (
            getattr(target, "__qualname__", ""),
            getattr(child, "_args", ()),
            getattr(child, "_kwargs", {}),
        )
        worker = clean_text(child.name, 64)
    return {
        "worker": worker,
        "worker_arguments": _digest(about),
        "launch": _launch(environ),
        "root_pid": root_pid(),
    }


def related_run(directory: str) -> str | None:
    """The run of the process that started this one with multiprocessing, or of those that this one has started."""
    parent = _parent()
    if parent is None:
        return min(runs_of_children(directory), default=None)
    ticks = page.process_start_ticks(parent.pid)
    found = (one.identity for one in pages(directory) if one.alive)
    named = (one for one in found if one["pid"] == parent.pid and one.get("pid_start_ticks") in (None, ticks))
    return next((one["run"] for one in named if one.get("worker")), None)


def is_child() -> bool:
    """Whether multiprocessing started this process."""
    return _parent() is not None


def root_pid() -> int:
    """The process that started this one with multiprocessing, over all generations; this one if none did."""
    parent, child = _parent(), _child()
    if parent is None:
        return os.getpid()
    pid = parent.pid
    try:
        for _ in range(len(getattr(child, "_identity", ())) - 1):
            pid = _parent_pid(pid)
            if _is_fork_server(pid):
                pid = _parent_pid(pid)
    except (OSError, ValueError, IndexError) as error:
        reraise_from_handler(error)
    return pid


def _parent_pid(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def _is_fork_server(pid: int) -> bool:
    """Whether multiprocessing runs this process to fork others, which is the default from Python 3.14 on."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return b"multiprocessing.forkserver" in file.read()


def number(directory: str, identity: dict) -> int:
    """The number of a process of this identity. Raises Claimed if a live process of another launch has the run."""
    newest: dict[int, Page] = {}
    for one in pages(directory, identity["run"]):
        if one.alive and not _is_same_launch(one, identity):
            raise page.Claimed(one.path)
        known = newest.get(one.identity["rank"])
        if known is None or known.identity["attempt"] < one.identity["attempt"]:
            newest[one.identity["rank"]] = one
    again = [rank for rank, one in newest.items() if _is_again(one, identity)]
    taken = {rank for rank, one in newest.items() if one.alive or one.identity.get("worker")}
    return min(again) if again else next(rank for rank in count() if rank not in taken)


def runs_of_children(directory: str) -> set[str]:
    """The runs of processes without a rank that this program has started with multiprocessing."""
    if _parent() is not None or "multiprocessing.process" not in sys.modules:
        return set()
    found = (one.identity for one in pages(directory))
    pid = os.getpid()
    return {one["run"] for one in found if one.get("root_pid") == pid and one["pid"] != pid}


def is_last(directory: str, identity: dict) -> bool:
    """Whether this process has no parent that outlives it, and every other process of its run has ended."""
    if _parent() is not None:
        return False
    others = (one for one in pages(directory, identity["run"]) if one.identity["pid"] != os.getpid())
    return not any(one.alive and not one.ended for one in others)


def _is_same_launch(one: Page, identity: dict) -> bool:
    return one.identity.get("launch") == identity["launch"]


def _is_again(one: Page, identity: dict) -> bool:
    """Whether the process of this identity does the work of a page's process, which is gone, once more."""
    found = one.identity
    if one.alive or found.get("worker") != identity["worker"]:
        return False
    if not _is_same_launch(one, identity) or found.get("worker_arguments") == identity["worker_arguments"]:
        return True
    # A script that a launcher starts again after a failure, often with an option to resume.
    return identity["worker"] == MAIN and one.ended != "finished"


def _child():
    """The multiprocessing process that this one is; None if it is a program of its own."""
    return None if _parent() is None else sys.modules["multiprocessing.process"].current_process()


def _parent():
    processes = sys.modules.get("multiprocessing.process")
    return None if processes is None else processes.parent_process()


def _launch(environ) -> str:
    """`goodput run`'s own, else the shell's job, which all its processes share."""
    given = environ.get("GOODPUT_LAUNCH")
    if given:
        return clean_text(given, 64)
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError as error:
        reraise_from_handler(error)
        namespace = ""
    return f"{namespace}{os.getpgrp()}"


def _digest(about) -> str:
    """A digest of the simple values among the arguments: other objects differ between two starts of the same worker."""
    from zlib import crc32

    return f"{crc32(_simple(about).encode('utf-8', 'replace')):08x}"


def _simple(value, depth: int = 0) -> str:
    if type(value) in _SIMPLE:
        return repr(value)
    if depth < _NESTED_MAX and type(value) in (list, tuple):
        return f"({','.join(_simple(each, depth + 1) for each in value[:64])})"
    if depth < _NESTED_MAX and type(value) is dict:
        pairs = sorted((str(key), _simple(each, depth + 1)) for key, each in list(value.items())[:64])
        return repr(pairs)
    return type(value).__qualname__
