"""One line at the bottom of a terminal that another program writes to: the last row is taken out of its scroll region.

Each change is one write, so the program's own output is not mixed into a control sequence. The cursor is put back where
it was (DECSC, DECRC; DECSTBM sets the region), as apt does for its progress bar.
"""

from __future__ import annotations

import os
import select

ROWS_MIN, COLUMNS_MIN = 5, 20


class TerminalLine:
    """The last row of the terminal at descriptor `fd`. Raises OSError where the terminal is gone."""

    def __init__(self, fd: int):
        self._fd = fd
        self._size: tuple[int, int] | None = None  # columns and rows while the row is taken
        self._text = ""

    @property
    def columns(self) -> int:
        return os.get_terminal_size(self._fd).columns

    def draw(self, text: str) -> None:
        """Show this text, which has at most `columns` characters, printable ones."""
        size = os.get_terminal_size(self._fd)
        columns, rows = size
        if rows < ROWS_MIN or columns < COLUMNS_MIN:
            return
        if text == self._text and self._size == (columns, rows):
            return
        sequence = ""
        if self._size != (columns, rows):
            if self._size is not None and self._size[1] < rows:
                sequence = f"\x1b7\x1b[{self._size[1]};1H\x1b[2K\x1b8"  # The row that was the last.
            # A new line first, so that the cursor is above the last row; then back up.
            sequence += f"\n\x1b7\x1b[1;{rows - 1}r\x1b8\x1b[1A"
        sequence += f"\x1b7\x1b[{rows};1H\x1b[2K\x1b[7m{text[:columns]}\x1b[0m\x1b8"
        if self._write(sequence):
            self._size, self._text = (columns, rows), text

    def redraw(self) -> None:
        """Move the line to the last row if the terminal has another size now."""
        if self._size is not None and self._size != tuple(os.get_terminal_size(self._fd)):
            self.draw(self._text[: self.columns])

    def clear(self) -> None:
        """Give the row back."""
        if self._size is None:
            return
        rows = {self._size[1], os.get_terminal_size(self._fd).lines}
        self._size, self._text = None, ""
        erased = "".join(f"\x1b[{row};1H\x1b[2K" for row in sorted(rows))
        self._write(f"\x1b7\x1b[r{erased}\x1b8")

    def _write(self, sequence: str) -> bool:
        """False where the terminal takes nothing now, as after Ctrl-S."""
        return write(self._fd, sequence)


def write(fd: int, text: str) -> bool:
    """Write a text of less than a pipe's 4096 bytes if that does not wait; False if it would."""
    if not select.select([], [fd], [], 0)[1]:
        return False
    os.write(fd, text.encode("utf-8", "replace"))
    return True
