"""Streams the events of a trace file, JSON or gzip, of any size.

At most one value (VALUE_MAX characters) and one chunk are in memory. Numbers with a fraction stay text, since a 64-bit
float has no nanoseconds left at 1.7e15 microseconds. A file that cannot be read raises TraceError with the file, the
byte and line of the unpacked text, and the reason. Of a file that is broken or cut off all that can be read is: `losses`
has the place and the reason of the first broken event or field, and of the end. Kineto has written `inf` and `nan` for
bandwidths, which JSON does not have; they are skipped."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from stat import S_ISREG
from typing import Any

from goodput.trace import foreign

CHUNK_BYTES = 1 << 20
VALUE_MAX = 1 << 24
FIELDS_MAX = 1000
_NEAR = 64  # An error this close to the end of the buffer may only mean that more must be read.
_decoder = json.JSONDecoder(strict=False, parse_float=str, parse_constant=str)
_scan: Callable[[str, int], tuple[Any, int]] = _decoder.scan_once  # pyright: ignore[reportAttributeAccessIssue] - not in the stub
_comma = re.compile(r"[ \t\r\n]*,[ \t\r\n]*").match
_space = re.compile(r"[ \t\r\n]*").match
_no_number = re.compile(r"[+-]?(inf(inity)?|nan(\([a-z]*\))?)(?=[\s,}\]])", re.IGNORECASE).match
# Where reading goes on after broken JSON: at the next event, at what Kineto writes after the last, or at the list of them.
_next_event = re.compile(
    r',\s*(?=\{\s*"(?:ph"|(?:name|cat)"[^{}]{0,300}?"ph")\s*:)'
    r'|\}\s*(?=\]\s*,\s*"(?:traceName|displayTimeUnit|distributedInfo)")'
).search
_event_list = re.compile(r'"traceEvents"\s*:\s*(?=\[)').search
_OVERLAP = 1024  # characters, in which each of the two fits
_KEPT = ("distributedInfo", "deviceProperties", "baseTimeNanoseconds")


class TraceError(Exception):
    """A file that cannot be analyzed; the message has the place and the reason."""


class _Broken(TraceError):
    """What a trace has at a place in place of JSON."""


class BrokenEvent:
    """Stands for an event that cannot be read."""


class Reader:
    """Iterates over the events of a file, once; `about` collects the fields around them, `losses` what is missing.

    `cut_off`: whether the end of the events is missing."""

    def __init__(self, path, progress: Callable[[float], None] | None = None):
        self.path, self.about, self.has_events = str(path), {}, False
        self._progress, self._chunk = progress, CHUNK_BYTES
        self.events, self.losses, self.cut_off = 0, [], False
        self._text, self._at, self._ended = "", 0, False
        self._failure = ""
        self._is_listed = False  # all events have been read
        self._bytes_dropped = self._lines_dropped = self._column_dropped = 0

    def __iter__(self) -> Iterator[object]:
        try:
            # Without waiting for the writer of a pipe.
            opener = lambda path, flags: os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # noqa: E731
            with open(self.path, "rb", opener=opener) as self._raw:
                about = os.fstat(self._raw.fileno())
                if not S_ISREG(about.st_mode):
                    raise TraceError(f"{self.path}: not a regular file")
                self._size = about.st_size or 1
                magic = self._raw.read(2)
                self._raw.seek(0)
                self._source = gzip.GzipFile(fileobj=self._raw) if magic == b"\x1f\x8b" else self._raw
                self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
                yield from self._document()
        except _Broken as error:
            if not self.events:
                raise
            self.cut_off = not self._is_listed
            self.losses.append(f"{error}; analyzed are the {self.events} events before it")
        except OSError as error:
            if isinstance(error, IsADirectoryError):
                why = "a directory, and no trace; give its files, or --flight with a directory of Flight Recorder dumps"
                raise TraceError(f"{self.path}: {why}") from None
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
            try:
                yield from self._fields()
            except _Broken as error:
                # All events of a file are in one list.
                if self.has_events or not self._skip_to(_event_list):
                    raise error from None
                self.losses.append(f"{error}; what follows it up to the events is left out")
                yield from self._events()
                yield from self._fields_after_one()
        else:
            found = foreign.by_beginning(self._text)
            if found:
                raise TraceError(f"{self.path}: {found}")
            raise self._error("not a trace: neither a JSON object nor a list begins here")
        if self._peek():
            raise self._error("there is more after the end of the trace")
        if not self.has_events:
            raise TraceError(f"{self.path}: not a trace: the JSON has no `traceEvents`")

    def _fields(self) -> Iterator[object]:
        self._at += 1
        if self._peek() == "}":
            self._at += 1
            return
        yield from self._further_fields()

    def _fields_after_one(self) -> Iterator[object]:
        if self._is_last():
            return
        yield from self._further_fields()

    def _further_fields(self) -> Iterator[object]:
        seen: set[str] = set()
        while True:
            if self._peek() != '"':
                raise self._error('want "name" of a field')
            name = str(self._value())
            found = foreign.by_fields(name, seen)
            if found:
                raise TraceError(f"{self.path}: {found}")
            if len(seen) < FIELDS_MAX:
                seen.add(name)
            if self._peek() != ":":
                raise self._error('want ":" after the name of a field')
            self._at += 1
            if self._peek() == "[" and name == "traceEvents":
                yield from self._events()
            elif name == "traceEvents":
                raise self._error("`traceEvents` is no list")
            else:
                value = self._value()
                if name in _KEPT:
                    self.about[name] = value
            if self._is_last():
                return

    def _is_last(self) -> bool:
        """Whether the object ends after a field, beyond what follows the field."""
        after = self._peek()
        if after not in ("}", ","):
            raise self._error('want "," or "}" after a field' if after else "the file ends in the middle")
        self._at += 1
        return after == "}"

    def _events(self) -> Iterator[object]:
        self.has_events = True
        self._at += 1
        while self._peek() != "]":
            yield from self._buffered_events()
            if self._peek() == "]":  # A trailing comma is not JSON, but has been written.
                break
            try:
                event = self._value()
            except _Broken as error:
                self._skip_event(error)
                yield BrokenEvent()
                continue
            self.events += 1
            yield event
            yield from self._separator()
        self._at += 1
        self._is_listed = True

    def _separator(self) -> Iterator[object]:
        """Pass what lies between two events; yields a broken one if that is more than a comma."""
        after = self._peek()
        if after == ",":
            self._at += 1
        elif after != "]":
            error = self._error('want "," or "]" after an event' if after else "the file ends in the middle")
            if after == "{":
                self.losses = self.losses or [str(error)]
                return
            self._skip_event(error)
            yield BrokenEvent()

    def _skip_event(self, error: _Broken) -> None:
        """Go to the event after a broken one. Raises `error` if there is none."""
        if not self._skip_to(_next_event):
            raise error
        self.events += 1
        # There are probably more, and each takes time by the length of the buffer before it.
        self._chunk = CHUNK_BYTES >> 6
        if self._at > self._chunk:
            self._drop_parsed()
        if not self.losses:
            self.losses.append(f"{error}; this event is left out")

    def _skip_to(self, find: Callable[[str, int], re.Match[str] | None]) -> bool:
        """Go beyond the next match; False if there is none."""
        while (found := find(self._text, self._at)) is None:
            self._at = max(self._at, len(self._text) - _OVERLAP)
            try:
                if not self._more():
                    return False
            except _Broken:
                return False
        self._at = found.end()
        return True

    def _buffered_events(self) -> Iterator[object]:
        """Complete events in the buffer; `_events` handles the one at its end."""
        text, at = self._text, self._at
        try:
            while True:
                event, end = _scan(text, at)
                found = _comma(text, end)
                if found is None:
                    return
                self._at = at = found.end()
                self.events += 1
                yield event
        except (StopIteration, ValueError, RecursionError):
            return

    def _peek(self) -> str:
        """The next character that is not white space, "" at the end."""
        while True:
            found = _space(self._text, self._at)
            self._at = found.end() if found else self._at
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
                raise self._error("a number with thousands of digits") from None
            except RecursionError:
                raise self._error("nested too deep") from None
            if self._skip_nonfinite(where):
                continue
            near = len(self._text) - where <= _NEAR or what.startswith("Unterminated")
            if not near:
                raise self._error(f"broken JSON: {what}", where)
            if len(self._text) - self._at > VALUE_MAX:
                raise self._error(f"a value of more than {VALUE_MAX >> 20} million characters")
            if not self._more():
                rest = self._text[where:].strip()
                begun = rest == "-" or any(word.startswith(rest) for word in ("true", "false", "null"))
                if not begun and not what.startswith("Unterminated"):
                    raise self._error(f"broken JSON: {what}", where)
                raise self._error("the file ends in the middle", len(self._text))

    def _skip_nonfinite(self, where: int) -> bool:
        """Replace `inf` or `nan` by an empty string of the same length."""
        found = _no_number(self._text, where)
        if found is None:
            return False
        filler = '""' + " " * (len(found[0]) - 2)
        self._text = self._text[:where] + filler + self._text[found.end() :]
        self._chunk = CHUNK_BYTES >> 4  # There are probably more, and each replacement copies the buffer.
        return True

    def _more(self) -> bool:
        """Read another chunk and drop the text that was parsed; False at the end of the file."""
        if self._ended:
            return False
        # Double the buffer for a long value, since it is parsed from its beginning each time.
        size = max(self._chunk, len(self._text) - self._at)
        data = self._unpacked(size)
        self._ended = not data
        self._drop_parsed()
        self._text += self._decoder.decode(data, self._ended)
        if self._progress is not None:
            self._progress(min(self._raw.tell() / self._size, 1.0))
        return not self._ended or bool(self._text)

    def _drop_parsed(self) -> None:
        used = self._text[: self._at]
        lines = used.count("\n")
        self._lines_dropped += lines
        self._column_dropped = len(used) - used.rfind("\n") - 1 + (0 if lines else self._column_dropped)
        self._bytes_dropped += _size(used)
        self._text = self._text[self._at :]
        self._at = 0

    def _unpacked(self, size: int) -> bytes:
        """The next bytes of the text; first those before a place where gzip is broken, then that is raised."""
        if self._failure:
            raise self._error(self._failure, len(self._text))
        parts, left = [], size
        try:
            while left > 0 and (part := self._source.read1(left)):
                parts.append(part)
                left -= len(part)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            cut_off = isinstance(error, EOFError)
            self._failure = "the gzip file is cut off" if cut_off else f"broken gzip: {error}"
            if not parts:
                raise self._error(self._failure, len(self._text)) from None
        return b"".join(parts)

    def _error(self, what: str, where: int | None = None) -> _Broken:
        used = self._text[: self._at if where is None else where]
        line = self._lines_dropped + used.count("\n") + 1
        column = len(used) - used.rfind("\n") + (0 if "\n" in used else self._column_dropped)
        return _Broken(
            f"{self.path}: byte {self._bytes_dropped + _size(used)} (line {line}, column {column}): {what}"
        )


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))
