"""Progress of a command that takes long, on standard error."""

from __future__ import annotations

import sys
import time

from goodput.cli import message

SHOWN_AFTER, AGAIN_AFTER = 1.0, 0.2  # seconds, on a terminal
PLAIN_SECONDS = 10.0


class ProgressLine:
    """One line that changes on a terminal, from the second second on; it is gone when the work ends.

    With a `command` what is no terminal gets a message of that command every PLAIN_SECONDS, else nothing.

        with ProgressLine("reading") as progress:
            progress(0.4)              # reading: 40 %, 12 s left
            progress(1500, 3000)       # reading: 1,500 of 3,000, 50 %, 9 s left
            progress(1500, None)       # reading: 1,500
    """

    def __init__(self, doing: str, command: str | None = None):
        self._doing, self._command = doing, command
        self._began, self._is_open = time.monotonic(), False
        self._next = self._began + (SHOWN_AFTER if sys.stderr.isatty() else PLAIN_SECONDS)

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_) -> None:
        self.end()

    def __call__(self, done: float, of: float | None = 1.0) -> None:
        now, is_terminal = time.monotonic(), sys.stderr.isatty()
        if now < self._next or not (is_terminal or self._command):
            return
        self._next = now + (AGAIN_AFTER if is_terminal else PLAIN_SECONDS)
        text = f"{self._doing}: {_amount(done, of)}{self._left(now, done, of)}"
        if is_terminal:
            print(f"\r{text}\x1b[K", end="", flush=True, file=sys.stderr)
            self._is_open = True
        else:
            message(str(self._command), text)

    def end(self) -> None:
        if self._is_open:
            print("\r\x1b[K", end="", flush=True, file=sys.stderr)
            self._is_open = False

    def _left(self, now: float, done: float, of: float | None) -> str:
        if not of or done <= 0:
            return ""
        seconds = max((now - self._began) * (of - done) / done, 0)
        return f", {seconds:.0f} s left" if seconds < 120 else f", {seconds / 60:.0f} min left"


def _amount(done: float, of: float | None) -> str:
    if of is None:
        return f"{done:,.0f}"
    share = f"{100 * min(done / of, 1):.0f} %" if of else "100 %"
    return share if of == 1.0 else f"{done:,.0f} of {of:,.0f}, {share}"
