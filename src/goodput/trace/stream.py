"""The events of a trace file one by one, however large the file: JSON or gzip of it, by its first bytes.

In: a path. Out: dicts in the file's order, numbers with a fraction as the text that they are (a 64-bit float has no
nanoseconds left at 1.7e15 microseconds), and the few fields around the events that matter. At most one value, of
VALUE_MAX characters, and one chunk are in memory. What cannot be read raises TraceError with the file, the byte and
line (of the unpacked text) and what is wrong. It does not know what events mean.

Kineto has written `inf` and `nan` for bandwidths, which no JSON has: read as no number.
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from stat import S_ISREG

CHUNK_BYTES = 1 << 20
VALUE_MAX = 1 << 24
_NEAR = 64  # An error this close to the window's end may be nothing but the end.
_scan = json.JSONDecoder(strict=False, parse_float=str, parse_constant=str).scan_once
_comma = re.compile(r"[ \t\r\n]*,[ \t\r\n]*").match
_space = re.compile(r"[ \t\r\n]*").match
_no_number = re.compile(r"[+-]?(inf(inity)?|nan(\([a-z]*\))?)(?=[\s,}\]])", re.IGNORECASE).match
_KEPT = ("distributedInfo", "deviceProperties", "baseTimeNanoseconds", "displayTimeUnit", "schemaVersion")


class TraceError(Exception):
    """What is wrong with a file, and where."""


class Reader:
    """One pass over a file. `about` is filled as it goes."""

    def __init__(self, path, progress: Callable[[float], None] | None = None):
        self.path, self.about, self.has_events = str(path), {}, False
        self._progress, self._chunk = progress, CHUNK_BYTES
        self._text, self._at, self._ended = "", 0, False
        self._bytes_dropped = self._lines_dropped = self._column_dropped = 0

    def __iter__(self) -> Iterator[object]:
        try:
            with open(self.path, "rb", opener=_at_once) as self._raw:
                about = os.fstat(self._raw.fileno())
                if not S_ISREG(about.st_mode):
                    raise TraceError(f"{self.path}: not a regular file")
                self._size = about.st_size or 1
                magic = self._raw.read(2)
                self._raw.seek(0)
                self._source = gzip.GzipFile(fileobj=self._raw) if magic == b"\x1f\x8b" else self._raw
                self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
                yield from self._document()
        except OSError as error:
            if isinstance(error, gzip.BadGzipFile):
                raise self._wrong(f"broken gzip: {error}", len(self._text)) from None
            raise TraceError(f"{self.path}: {error.strerror or error}") from None

    def _document(self) -> Iterator[object]:
        first = self._peek()
        if first == "\ufeff":
            self._at += 1
            first = self._peek()
        if not first:
            raise TraceError(f"{self.path}: the file is empty")
        if first == "[":
            yield from self._events()
        elif first == "{":
            yield from self._fields()
        else:
            raise self._wrong("not a trace: neither a JSON object nor a list begins here")
        if self._peek():
            raise self._wrong("there is more after the end of the trace")
        if not self.has_events:
            raise TraceError(f"{self.path}: not a trace: the JSON has no `traceEvents`")

    def _fields(self) -> Iterator[object]:
        self._at += 1
        if self._peek() == "}":
            self._at += 1
            return
        while True:
            if self._peek() != '"':
                raise self._wrong('want "name" of a field')
            name = self._value()
            if self._peek() != ":":
                raise self._wrong('want ":" after the name of a field')
            self._at += 1
            if self._peek() == "[" and name == "traceEvents":
                yield from self._events()
            elif name == "traceEvents":
                raise self._wrong("`traceEvents` is no list")
            else:
                value = self._value()
                if name in _KEPT:
                    self.about[name] = value
            after = self._peek()
            self._at += 1
            if after == "}":
                return
            if after != ",":
                self._at -= 1
                raise self._wrong('want "," or "}" after a field' if after else "the file ends in the middle")

    def _events(self) -> Iterator[object]:
        self.has_events = True
        self._at += 1
        while self._peek() != "]":
            yield from self._window()
            if self._peek() == "]":  # A comma before it is no JSON, and was written nonetheless.
                break
            yield self._value()
            after = self._peek()
            if after == ",":
                self._at += 1
            elif after != "]":
                raise self._wrong(
                    'want "," or "]" after an event' if after else "the file ends in the middle"
                )
        self._at += 1

    def _window(self) -> Iterator[object]:
        """The events that lie whole in what has been read; the careful way above takes what is left."""
        text, at = self._text, self._at
        try:
            while True:
                event, end = _scan(text, at)
                found = _comma(text, end)
                if found is None:
                    return
                self._at = at = found.end()
                yield event
        except (StopIteration, ValueError, RecursionError):
            return

    def _peek(self) -> str:
        """The next character that is no white space, "" at the end."""
        while True:
            self._at = _space(self._text, self._at).end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _value(self) -> object:
        self._peek()
        while True:
            try:
                value, end = _scan(self._text, self._at)
                if end < len(self._text) or self._ended:
                    self._at = end
                    return value
                what, where = "a value that is too long", end
            except StopIteration as stop:
                what, where = "want a value", stop.value
            except json.JSONDecodeError as error:
                what, where = error.msg, error.pos
            except ValueError:
                raise self._wrong("a number with thousands of digits") from None
            except RecursionError:
                raise self._wrong("nested too deep") from None
            if self._forgive(where):
                continue
            near = len(self._text) - where <= _NEAR or what.startswith("Unterminated")
            if not near:
                raise self._wrong(f"broken JSON: {what}", where)
            if len(self._text) - self._at > VALUE_MAX:
                raise self._wrong(f"a value of more than {VALUE_MAX >> 20} million characters")
            if not self._more():
                rest = self._text[where:].strip()
                if rest and not what.startswith("Unterminated") and not _literal(rest):
                    raise self._wrong(f"broken JSON: {what}", where)
                raise self._wrong("the file ends in the middle", len(self._text))

    def _forgive(self, where: int) -> bool:
        """Put a text, which is no number either, in the place of `inf` or `nan`."""
        found = _no_number(self._text, where)
        if found is None:
            return False
        filler = '""' + " " * (len(found[0]) - 2)
        self._text = self._text[:where] + filler + self._text[found.end() :]
        self._chunk = CHUNK_BYTES >> 4  # Where one is there are more, and each copies the window.
        return True

    def _more(self) -> bool:
        """Read on, and let go of what has been used."""
        if self._ended:
            return False
        # Longer reads for a long value: it is decoded again from its beginning each time.
        wanted = max(self._chunk, len(self._text) - self._at)
        try:
            data = self._source.read(wanted)
        except EOFError:
            raise self._wrong("the gzip file is cut off", len(self._text)) from None
        except zlib.error as error:
            raise self._wrong(f"broken gzip: {error}", len(self._text)) from None
        self._ended = not data
        used = self._text[: self._at]
        lines = used.count("\n")
        self._lines_dropped += lines
        self._column_dropped = len(used) - used.rfind("\n") - 1 + (0 if lines else self._column_dropped)
        self._bytes_dropped += _size(used)
        self._text = self._text[self._at :] + self._decoder.decode(data, self._ended)
        self._at = 0
        if self._progress is not None:
            self._progress(min(self._raw.tell() / self._size, 1.0))
        return not self._ended or bool(self._text)

    def _wrong(self, what: str, where: int | None = None) -> TraceError:
        used = self._text[: self._at if where is None else where]
        line = self._lines_dropped + used.count("\n") + 1
        column = len(used) - used.rfind("\n") + (0 if "\n" in used else self._column_dropped)
        return TraceError(
            f"{self.path}: byte {self._bytes_dropped + _size(used)} (line {line}, column {column}): {what}"
        )


def _at_once(path, flags: int) -> int:
    """Opens a pipe that nobody writes to, too, without waiting for a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _literal(rest: str) -> bool:
    """Whether this could have become true, false, null or a number."""
    return rest == "-" or any(whole.startswith(rest) for whole in ("true", "false", "null"))


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))
