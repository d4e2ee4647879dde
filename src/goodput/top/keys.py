"""Keys from a terminal in cbreak mode, by name: "up", "enter", "escape", or the character itself."""

from __future__ import annotations

import codecs
import os
import select

READ_BYTES = 1024
# How long the rest of an escape sequence may take over a slow line; without one the key was Escape.
SEQUENCE_SECONDS = 0.05
_SEQUENCES = {
    **{
        f"\x1b[{c}": name
        for c, name in zip("ABCDHF", ("up", "down", "right", "left", "home", "end"), strict=True)
    },
    **{
        f"\x1bO{c}": name
        for c, name in zip("ABCDHF", ("up", "down", "right", "left", "home", "end"), strict=True)
    },
    "\x1b[5~": "pageup",
    "\x1b[6~": "pagedown",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b[7~": "home",
    "\x1b[8~": "end",
}
_CONTROLS = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x03": "q", "\x04": "q"}


class KeyReader:
    """Reads a terminal's descriptor; `closed` once it has ended."""

    def __init__(self, fd: int):
        self._fd, self.closed = fd, False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self) -> list[str]:
        """The keys that are there; call it where the descriptor is readable."""
        text = self._text()
        while (
            text.endswith(("\x1b", "\x1b[", "\x1bO"))
            and select.select([self._fd], [], [], SEQUENCE_SECONDS)[0]
        ):
            more = self._text()
            if not more:
                break
            text += more
        return keys_of(text)

    def _text(self) -> str:
        try:
            raw = os.read(self._fd, READ_BYTES)
        except OSError:
            raw = b""
        self.closed = not raw
        return self._decoder.decode(raw)


def keys_of(text: str) -> list[str]:
    """The keys of these characters; unknown escape sequences are left out."""
    found, at = [], 0
    while at < len(text):
        if text[at] != "\x1b":
            found.append(_CONTROLS.get(text[at], text[at]))
            at += 1
            continue
        end = _sequence_end(text, at)
        sequence = text[at:end]
        if sequence in _SEQUENCES or sequence == "\x1b":
            found.append(_SEQUENCES.get(sequence, "escape"))
        at = end
    return [key for key in found if len(key) > 1 or key.isprintable()]


def _sequence_end(text: str, at: int) -> int:
    """Where an escape sequence that begins at `at` ends: CSI up to its final byte, SS3 with one more."""
    if text[at + 1 : at + 2] == "O":
        return min(at + 3, len(text))
    if text[at + 1 : at + 2] != "[":
        return at + 1
    end = at + 2
    while end < len(text) and not "\x40" <= text[end] <= "\x7e":
        end += 1
    return min(end + 1, len(text))
