"""Exceptions of the user's that pass through the SDK: they are neither swallowed nor changed.

Those of the user's signal handlers (a time limit, say) pass when they arrive while our code runs. Tracebacks have no
frames of the wrappers, so they read as without goodput, and a debugger stops in the same frame; Python 3.10 adds the
frame of the wrapper itself again. A call that raises nothing pays nothing.

    try:
        return phase.run(function, *args)
    except BaseException as error:
        drop_own_frames(error)
        raise                       # Not `raise error`, which adds this frame again.
"""

from __future__ import annotations

import os
import sys

_OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sdk", "")


def reraise_from_handler(error: BaseException) -> None:
    """Raise `error` again if its traceback goes through an installed signal handler.

        except Exception as error:
            reraise_from_handler(error)

    A time limit is often a TimeoutError, which is an OSError. KeyboardInterrupt and SystemExit need no such call, since our
    code catches `Exception` only.
    """
    if is_from_handler(error):
        raise error


def is_from_handler(error: BaseException) -> bool:
    """Whether the traceback of `error` goes through an installed signal handler."""
    signal, traceback = sys.modules.get("signal"), error.__traceback__
    if signal is None or traceback is None or traceback.tb_next is None:
        return False  # Raised in the frame that caught it.
    try:
        handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
        while traceback is not None:
            if traceback.tb_frame.f_code in handlers:
                return True
            traceback = traceback.tb_next
    except Exception:
        pass  # A handler that refuses to be looked at.
    return False


def _code(handler):
    """The code object that a handler runs; None if it is not a Python function."""
    for _ in range(4):
        code = getattr(handler, "__code__", None)
        if code is not None:
            return code
        inner = getattr(handler, "__func__", None) or getattr(handler, "func", None)
        handler = inner if inner is not None else vars(type(handler)).get("__call__")
    return None


def drop_own_frames(error: BaseException) -> None:
    """Drop the outermost frames of `error.__traceback__` up to the first that is not of the SDK."""
    try:
        first = kept = error.__traceback__
        while kept is not None and kept.tb_frame.f_code.co_filename.startswith(_OWN):
            kept = kept.tb_next
        if sys.version_info >= (3, 11):
            error.__traceback__ = kept
        elif first is not None and first is not kept:
            # A bare `raise` takes the traceback as it was caught.
            first.tb_next = kept
    except Exception:
        pass  # An exception class of the user's that refuses its traceback.
