"""A run log as a file: plain or gzip, from a path or standard input, read as often as needed.

A truncated file yields its readable part. Lines are bounded in length: a longer one is yielded cut, which does not
parse.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from typing import IO

from goodput.runlog.lines import LINE_BYTES_MAX

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


class LogError(Exception):
    """A run log that cannot be used."""


class LogFile:
    """A log that can be read repeatedly. `size` and `position` are bytes of the file, compressed or not."""

    def __init__(self, path: str):
        self.name = "standard input" if path == "-" else path or "''"
        self.position, self.broken = 0, ""
        try:
            if path == "-":
                if sys.stdin is None:
                    raise LogError("standard input is closed")
                self._file = _spool(sys.stdin.buffer)
            else:
                self._file: IO[bytes] = open(path, "rb")  # noqa: SIM115 - kept open to be read twice
            if not self._file.seekable():
                with self._file as pipe:
                    self._file = _spool(pipe)
            self._file.seek(0, os.SEEK_END)
            self.size = self._file.tell()
            self._file.seek(0)
            self.packed = self._file.read(2) == _GZIP
        except OSError as error:
            raise LogError(f"{self.name}: {error.strerror or error}") from None

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """(number, bytes) of each line, from the start. Afterwards `broken` has the error that ended it early."""
        self._file.seek(0)
        file = gzip.GzipFile(fileobj=self._file) if self.packed else self._file
        number = 0
        try:
            while raw := file.readline(LINE_BYTES_MAX):
                number += 1
                if number == 1 and raw.startswith(_BOM):
                    raw = raw[3:]
                if len(raw) == LINE_BYTES_MAX and not raw.endswith(b"\n"):
                    while (rest := file.readline(LINE_BYTES_MAX)) and not rest.endswith(b"\n"):
                        pass
                if number % 1024 == 0:
                    self.position = self._file.tell()
                yield number, raw
        except (EOFError, zlib.error, gzip.BadGzipFile, OSError) as error:
            self.broken = f"the file cannot be read after line {number}: {error}"
        finally:
            self.position = self.size


def _spool(stream: IO[bytes]) -> IO[bytes]:
    """A seekable copy of a stream."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - kept open to be read twice
    shutil.copyfileobj(stream, file)
    return file
