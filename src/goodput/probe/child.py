"""Runs one part of a probe in a forked child: a driver that hangs or crashes costs its part, not the probe.

The parent must not have used PyTorch beyond importing it: its thread pools and CUDA do not survive a fork.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection

SECONDS_MAX = 300.0


class PartError(Exception):
    """A part of the probe failed; the message says why."""


def run(function: Callable, *arguments, seconds_max: float = SECONDS_MAX):
    """What the function returns. Raises PartError if it raises, dies, or takes longer."""
    return run_all([(function, arguments)], seconds_max)[0]


def run_all(calls: list[tuple[Callable, tuple]], seconds_max: float = SECONDS_MAX) -> list:
    """What functions return that run side by side, each in a child. Raises PartError if one fails, and ends all."""
    context = multiprocessing.get_context("fork")
    children = []
    try:
        for function, arguments in calls:
            receiver, sender = context.Pipe(duplex=False)
            child = context.Process(target=_call, args=(sender, function, arguments), daemon=True)
            with warnings.catch_warnings():
                # Of Python 3.12 and later, for threads that an import has started.
                warnings.simplefilter("ignore", DeprecationWarning)
                child.start()
            sender.close()
            children.append((child, receiver))
        return _results([receiver for _, receiver in children], seconds_max)
    finally:
        for child, receiver in children:
            receiver.close()
            child.join(0.5)
            if child.is_alive():
                child.kill()
                child.join(5)


def _call(sender: Connection, function: Callable, arguments: tuple) -> None:
    with contextlib.suppress(OSError):
        try:
            sender.send((function(*arguments), None))
        except Exception as error:
            text = error.strerror if isinstance(error, OSError) else None
            text = text or f"{type(error).__name__}: {' '.join(str(error).split())}"
            sender.send((None, text[:200]))
    sender.close()
    os._exit(0)  # The parent's own exit handlers are not this child's.


def _results(receivers: list[Connection], seconds_max: float) -> list:
    """In the order of the receivers. Raises PartError for the first child to fail: the others may wait for it."""
    found: list = [None] * len(receivers)
    pending = {receiver: at for at, receiver in enumerate(receivers)}
    end = time.monotonic() + seconds_max
    while pending:
        ready = multiprocessing.connection.wait(list(pending), max(0.0, end - time.monotonic()))
        if not ready:
            raise PartError(f"no answer within {seconds_max:.0f} s")
        for receiver in ready:
            assert isinstance(receiver, Connection)
            found[pending.pop(receiver)] = _result(receiver)
    return found


def _result(receiver: Connection):
    try:
        found, error = receiver.recv()
    except EOFError:
        raise PartError("its process died") from None
    if error:
        raise PartError(error)
    return found
