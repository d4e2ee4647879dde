"""A run log as a file: plain or gzip, from a path or standard input, read as often as needed.

In: a path, or "-". Out: numbered lines as bytes. A file that is cut off gives what there is, and says so. Lines
are bounded in length; one that is longer is given cut, so that it cannot be parsed, and the next begins after it.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator

from goodput.runlog.lines import LINE_BYTES_MAX

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


class LogError(Exception):
    """A run log that cannot be used; the text says which and why."""


class Source:
    """A log that can be read again and again. `size` and `position` are of the file as it lies there, in bytes."""

    def __init__(self, path: str):
        self.name = "standard input" if path == "-" else path
        self.position, self.broken = 0, ""
        self._file = None
        try:
            if path == "-":
                if sys.stdin is None:
                    raise LogError("standard input is closed")
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - kept open to be read twice
                shutil.copyfileobj(sys.stdin.buffer, self._file)
            else:
                self._file = open(path, "rb")  # noqa: SIM115 - as above
            if not self._file.seekable():
                spooled = tempfile.TemporaryFile()  # noqa: SIM115 - as above
                shutil.copyfileobj(self._file, spooled)
                self._file.close()
                self._file = spooled
            self._file.seek(0, os.SEEK_END)
            self.size = self._file.tell()
            self._file.seek(0)
            self.packed = self._file.read(2) == _GZIP
        except OSError as error:
            raise LogError(f"{self.name}: {error.strerror or error}") from None

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_) -> None:
        self._file.close()

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """(number, bytes) of each line, from the beginning. What ended it early is in `broken` afterwards."""
        self._file.seek(0)
        file = gzip.GzipFile(fileobj=self._file) if self.packed else self._file
        number = 0
        try:
            while True:
                raw = file.readline(LINE_BYTES_MAX)
                if not raw:
                    return
                number += 1
                if number == 1 and raw.startswith(_BOM):
                    raw = raw[3:]
                if len(raw) == LINE_BYTES_MAX and not raw.endswith(b"\n"):
                    self._skip(file)
                if number % 1024 == 0:
                    self.position = self._file.tell()
                yield number, raw
        except (EOFError, zlib.error, gzip.BadGzipFile, OSError) as error:
            self.broken = f"after line {number}: the file cannot be read on: {error}"
        finally:
            self.position = self.size

    @staticmethod
    def _skip(file) -> None:
        while True:
            rest = file.readline(LINE_BYTES_MAX)
            if not rest or rest.endswith(b"\n"):
                return
