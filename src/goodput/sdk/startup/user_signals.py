"""Exceptions of signal handlers that come while our own code runs: they are the training's.

In: an exception that was caught in our code. Out: it is raised again if a handler of the user's, one for a time limit
say, has raised it. It does not know KeyboardInterrupt and the like, which our code never catches.

    except Exception as error:
        pass_on(error)
"""

from __future__ import annotations

import sys


def pass_on(error: BaseException) -> None:
    """Raise `error` again if its traceback goes through a signal handler that is installed."""
    signal = sys.modules.get("signal")
    if signal is None:
        return
    try:
        codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
        at, found = error.__traceback__, False
        while at is not None and not found:
            found = at.tb_frame.f_code in codes
            at = at.tb_next
    except Exception:
        return
    if found:
        raise error


def _code(handler):
    """The code that a handler runs, None where it is no Python function."""
    for _ in range(4):
        code = getattr(handler, "__code__", None)
        if code is not None:
            return code
        inner = getattr(handler, "__func__", None) or getattr(handler, "func", None)
        handler = inner if inner is not None else vars(type(handler)).get("__call__")
    return None
