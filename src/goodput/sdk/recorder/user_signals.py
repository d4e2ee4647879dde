"""Lets exceptions of the user's signal handlers (a time limit, say) pass when they arrive while our code runs."""

from __future__ import annotations

import sys


def reraise_from_handler(error: BaseException) -> None:
    """Raise `error` again if its traceback goes through an installed signal handler.

        except Exception as error:
            reraise_from_handler(error)

    KeyboardInterrupt and SystemExit need no such call, since our code catches `Exception` only.
    """
    signal = sys.modules.get("signal")
    if signal is None:
        return
    try:
        handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
        traceback, found = error.__traceback__, False
        while traceback is not None and not found:
            found = traceback.tb_frame.f_code in handlers
            traceback = traceback.tb_next
    except Exception:
        return
    if found:
        raise error


def _code(handler):
    """The code object that a handler runs; None if it is not a Python function."""
    for _ in range(4):
        code = getattr(handler, "__code__", None)
        if code is not None:
            return code
        inner = getattr(handler, "__func__", None) or getattr(handler, "func", None)
        handler = inner if inner is not None else vars(type(handler)).get("__call__")
    return None
