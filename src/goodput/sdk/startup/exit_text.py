"""The text that says why a program ends: of the exception that ends it, or of `sys.exit("text")`.

Python prints the argument of `sys.exit` and forgets it before exit functions run. So `sys.exit` is replaced by a
function that keeps the text and the step, which may count as done later, and calls the original. `raise SystemExit("text")` is not seen.
"""

from __future__ import annotations

import functools
import sys
from _thread import get_ident
from _weakref import ref
from collections import namedtuple

from goodput.rank_page import page
from goodput.user_exceptions import reraise_from_handler
from goodput.wire.identity import clean_text

TYPE_CHECKING = False  # `typing` is not imported: it takes longer than all of goodput.
if TYPE_CHECKING:
    from goodput.sdk.recorder.recorder import Recorder

_CUT = "..."  # at the end of a text that is too long


# A call of `sys.exit`: the status that it gives, -1 for none, the step that was running or next, and its text or "".
ExitCall = namedtuple("ExitCall", "status step text", defaults=(-1, -1, ""))

_last = [ExitCall()]
_original: list = []  # sys.exit, once it is replaced


def watch_exit_calls(recorder: Recorder) -> None:
    """Keep what `sys.exit` is given from now on, for the process's one recorder. Calling it again changes nothing."""
    if _original:
        return
    original, recorder_of = sys.exit, ref(recorder)
    _original.append(original)

    @functools.wraps(original)
    def exit(*arguments):
        known = recorder_of()
        if known is not None and _is_main_thread():
            _last[0] = _call_of(next_step(known), *arguments)
        return original(*arguments)

    sys.exit = exit


def next_step(recorder: Recorder) -> int:
    """The index of the step that is running or next, -1 if none is known."""
    return max(recorder.words[page.W_STEP_NEXT] - page.STEP_BIAS, -1)


def last_exit_call() -> ExitCall:
    """The last call of `sys.exit` in the main thread, which may have been caught."""
    return _last[0]


def raised_text() -> str:
    """The exception that ends the program, as much of it as an event holds; "" where none is known."""
    raised = sys.exc_info()[1] or getattr(sys, "last_value", None)
    return "" if raised is None else _described(type(raised).__name__, raised)


def _call_of(step: int, status=None, *_) -> ExitCall:
    if status is None or isinstance(status, (int, tuple)):
        return ExitCall(status & 0xFF if isinstance(status, int) else -1, step)
    return ExitCall(1, step, _described("SystemExit", status))


def _described(name: str, value) -> str:
    try:
        said = str(value)
    except Exception as error:
        reraise_from_handler(error)
        said = ""
    text = clean_text(f"{name}: {said}" if said else name, 500)
    raw = text.encode("utf-8", "replace")
    if len(raw) <= page.EVENT_TEXT_BYTES:
        return text
    return raw[: page.EVENT_TEXT_BYTES - len(_CUT)].decode("utf-8", "ignore") + _CUT


def _is_main_thread() -> bool:
    """`sys.exit` in another thread ends that thread alone."""
    threading = sys.modules.get("threading")
    return threading is None or threading.main_thread().ident == get_ident()
