"""The terminal of `goodput top`: full screen, keys, sizes and signals; it is left as it was found, however it ends.

Signal handlers only wake the loop, which ends in order. SIGTSTP (Ctrl-Z) restores the terminal while the program is
stopped.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from contextlib import suppress

from rich.console import Console, ConsoleDimensions, Group
from rich.text import Text

from goodput.top.draw import body, header
from goodput.top.glyphs import Glyphs
from goodput.top.keys import KeyReader
from goodput.top.polling import Polling
from goodput.top.stacks import StackTaker
from goodput.top.view import OPEN, QUIT, RANK, RUNS, STACK, View

REDRAW_SECONDS = 1.0
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
HELP = """up down pgup pgdn home end  move (also k j g G)
enter right                 open the run or rank
esc left                    back; drop the filter
s r                         next order; reverse it
/                           filter by name, host, phase or trouble; a number
                            is a rank
t                           stack of the opened rank, by py-spy on this machine
q ctrl-c                    quit

STEP   the rank's last completed step; TIME is how long that took
PHASE  where it is now, and for how long if that is a second or more
bars   its time by state: of the last minute, once that was watched
ranks are sorted by trouble: hangs, then gone, then long in a phase, then slow,
then what a rank itself loses. Waiting for other ranks is no loss of its own.

any key closes this help"""


class Screen:
    """Draws what `polling` reads, until the user or a signal ends it."""

    def __init__(
        self, console: Console, polling: Polling, view: View, glyphs: Glyphs, keys_fd: int, stacks: StackTaker
    ):
        self._console, self._polling, self._view = console, polling, view
        self._glyphs, self._keys_fd, self._stacks = glyphs, keys_fd, stacks
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        self._signal = 0
        self._is_suspended = False
        self._frame = None

    def wake(self) -> None:
        """Draw soon; from any thread."""
        with suppress(BlockingIOError, OSError):  # It is full, so the loop wakes anyway.
            os.write(self._wake_write, b"\0")

    def run(self) -> int:
        """Show it; returns the exit status, 128 + the signal's number if one ended it."""
        before = {
            number: signal.signal(number, self._handle)
            for number in (*_ENDING, signal.SIGWINCH, signal.SIGTSTP)
        }
        old_fd = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._saved = termios.tcgetattr(self._keys_fd)
        try:
            self._enter()
            self._polling.start()
            self._loop()
        except OSError:
            self._signal = self._signal or signal.SIGHUP  # The terminal is gone.
        finally:
            with suppress(OSError, termios.error):
                self._leave()
            signal.set_wakeup_fd(old_fd)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._stacks.stop()
        return 128 + self._signal if self._signal else 0

    def _handle(self, number: int, _frame) -> None:
        if number in _ENDING:
            self._signal = number
        self._is_suspended = self._is_suspended or number == signal.SIGTSTP

    def _enter(self) -> None:
        tty.setcbreak(self._keys_fd)
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)

    def _leave(self) -> None:
        self._console.show_cursor(True)
        self._console.set_alt_screen(False)
        sys.stdout.flush()
        termios.tcsetattr(self._keys_fd, termios.TCSADRAIN, self._saved)

    def _suspend(self) -> None:
        self._is_suspended = False
        self._leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # Stopped here until SIGCONT.
        signal.signal(signal.SIGTSTP, self._handle)
        self._enter()

    def _loop(self) -> None:
        keys = KeyReader(self._keys_fd)
        while not self._signal and not keys.closed:
            if self._is_suspended:
                self._suspend()
            self._draw()
            ready, _, _ = select.select([self._keys_fd, self._wake_read], [], [], REDRAW_SECONDS)
            if self._wake_read in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            for key in keys.read() if self._keys_fd in ready else ():
                action = self._view.key(key, self._frame)
                if action == QUIT:
                    return
                if action == OPEN:
                    self._polling.open(self._view.run)
                elif action == STACK:
                    self._stacks.take(self._view.run or "", self._view.rank)

    def _draw(self) -> None:
        frame = self._polling.frame
        if frame is not None and frame is not self._frame and self._view.seen(frame) == OPEN:
            # Else a run that begins later would be the one that is read.
            self._polling.open(self._view.run)
        self._frame = frame
        width, height = self._console.size = self._size()
        lines = [header(frame, self._polling.source.title, self._glyphs)]
        problem = self._problem()
        room = max(height - 2 - len(problem), 1)
        if self._view.has_help:
            lines += [Text(line) for line in HELP.split("\n")][:room]
        elif frame is None:
            lines.append(Text("" if problem else "reading the runs"))
        else:
            self._add_stack(frame)
            lines += body(frame, self._view, width, self._glyphs, room)[:room]
        lines += [Text("")] * (height - 1 - len(problem) - len(lines)) + problem + [self._footer()]
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
        self._console.update_screen(Group(*lines[:height]))

    def _size(self) -> ConsoleDimensions:
        """The terminal's own: rich takes COLUMNS and LINES instead, which stay what they were when it is resized."""
        with suppress(OSError):
            columns, lines = os.get_terminal_size(self._keys_fd)
            if columns and lines:
                return ConsoleDimensions(columns, lines)
        return self._console.size

    def _problem(self) -> list[Text]:
        """Why there is nothing new, or what was left out."""
        if self._polling.problem:
            frame = self._polling.frame
            shown = " (shown: the last that was read)" if frame else ""
            return [Text(f"{self._polling.problem}{shown}", style="bold red")]
        return (
            [Text("; ".join(self._frame.notes), style="yellow")] if self._frame and self._frame.notes else []
        )

    def _add_stack(self, frame) -> None:
        row = self._view.opened_rank(frame) if self._view.level == RANK else None
        if row is not None:
            row.stack = self._stacks.text(self._view.run or "", row.rank) or row.stack

    def _footer(self) -> Text:
        view = self._view
        if view.is_typing:
            return Text(f"filter: {view.filter}_   enter keeps it, esc drops it", style="reverse")
        if view.level == RANK:
            return Text("q quit  esc back  t stack  up/down scroll  ? help", style="reverse")
        kept = view.filter
        back = "esc all  " if kept else "" if view.level == RUNS else "esc runs  "
        text = (
            f"q quit  {back}enter open  s order: {view.order}  / filter{f': {kept}' if kept else ''}  ? help"
        )
        return Text(text, style="reverse")
