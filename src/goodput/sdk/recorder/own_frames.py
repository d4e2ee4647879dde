"""Removes the frames of the SDK from the traceback of an exception that passes through one of its wrappers.

The traceback then reads as without goodput, and a debugger stops in the same frame. A call that raises nothing pays
nothing. Python 3.10 adds the frame of the wrapper itself again.

    try:
        return phase.run(function, *args)
    except BaseException as error:
        drop_own_frames(error)
        raise                       # Not `raise error`, which adds this frame again.
"""

from __future__ import annotations

import os
import sys

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


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
