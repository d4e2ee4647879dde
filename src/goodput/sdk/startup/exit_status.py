"""The status with which this process exits. It decides whether a page that ends with the process has failed.

Python calls its exit functions before anyone can read the status: SystemExit is gone by then, whether it was raised by
`sys.exit` or otherwise. The C library passes the status on later. Without the compiled module, or with another C library
than GNU's, it stays unknown, and only an exception that ended the program counts as a failure.
"""

from __future__ import annotations

from goodput.rank_page import page
from goodput.sdk.recorder.recorder import compiled

try:
    if compiled:
        from goodput.sdk.recorder._fast import fail_by_status, wait_at_exit
except ImportError:
    compiled = False  # A module that was compiled from an earlier version.

_MAPPED_BYTES = (
    8 * 2 * page.LIVE
)  # from the file's start, since a mapping cannot begin in the middle of a 64 KiB page
_FINISHED, _FAILED = page.END_REASONS.index("finished"), page.END_REASONS.index("failed")


def fail_unless_zero(fd: int) -> None:
    """Mark the finished page of this file as failed once the process exits with another status than 0."""
    if compiled and fd >= 0:
        fail_by_status(fd, _MAPPED_BYTES, page.W_ENDED, _FINISHED, _FAILED)


def will_wait(child: int, fd: int) -> bool:
    """Whether `fd`, the input of this child process, will be closed after that, and the child waited for."""
    return compiled and wait_at_exit(child, fd)
