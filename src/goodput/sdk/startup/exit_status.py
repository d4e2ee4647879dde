"""The status with which this process exits. It decides whether a page that ends with the process has failed.

Python calls its exit functions before anyone can read the status: SystemExit is gone by then, whether it was raised by
`sys.exit` or otherwise. The C library passes the status on later. Without the extension, or with another C library
than GNU's, it stays unknown, and only an exception that ended the program counts as a failure.
"""

from __future__ import annotations

from goodput.rank_page import page
from goodput.sdk.recorder.hot_path import extension
from goodput.sdk.startup.exit_text import ExitCall

_MAPPED_BYTES = (
    8 * page.W_STEP_RING
)  # from the file's start, since a mapping cannot begin in the middle of a 64 KiB page
_FINISHED, _FAILED = page.END_REASONS.index("finished"), page.END_REASONS.index("failed")


def fail_unless_zero(fd: int, words: memoryview, time_ns: int, last_exit: ExitCall) -> None:
    """Mark the finished page of this file as failed once the process exits with another status than 0.

    The event of it has the step and the text of the last call of `sys.exit` if that gives this status, else the step that
    is running or next now and the status.
    """
    if extension is not None and fd >= 0:
        text = last_exit.text.encode("utf-8", "replace")
        at, event = page.next_event(words, "failed", time_ns, last_exit.step, text)
        extension.fail_by_status(
            *(fd, _MAPPED_BYTES, page.W_ENDED, _FINISHED, _FAILED, page.W_EVENTS, at, event),
            *(last_exit.status, words[page.W_STEP_NEXT]),
        )


def will_wait(child: int, fd: int) -> bool:
    """Whether `fd`, the input of this child process, will be closed after that, and the child waited for."""
    return extension is not None and extension.wait_at_exit(child, fd)
