"""A run log as a file: plain or gzip, from a path or standard input, read as often as needed.

A truncated file yields its readable part. Lines are bounded in length: a longer one is yielded cut, which does not
parse.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

from goodput.runlog.lines import LINE_BYTES_MAX

BLOCK_BYTES = 1 << 18  # at most LINE_BYTES_MAX
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
        for number, block in self.blocks():
            yield from enumerate(lines_of(block), number)

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """As `lines`, several at once: (number of the first, bytes of whole lines). A cut line is a block of its own."""
        self._file.seek(0)
        file: Any = gzip.GzipFile(fileobj=self._file) if self.packed else self._file
        number, left = 1, b""
        try:
            while part := file.read1(BLOCK_BYTES):
                self.position = self._file.tell()
                # Only the first line can be too long: the others end within one part.
                left += part
                first = left.find(b"\n") + 1
                if len(left[:first] or left) > LINE_BYTES_MAX:
                    yield number, _without_mark(number, left[:LINE_BYTES_MAX])
                    number += 1
                    left = left[first:] if first else _after_line(file)
                end = left.rfind(b"\n") + 1
                if end:
                    yield number, _without_mark(number, left[:end])
                    number += left.count(b"\n")
                    left = left[end:]
            if left:
                yield number, _without_mark(number, left)
        except (EOFError, zlib.error, gzip.BadGzipFile, OSError) as error:
            self.broken = f"the file cannot be read after line {number - 1}: {error}"
        finally:
            self.position = self.size


def lines_of(block: bytes) -> list[bytes]:
    """Each with its end."""
    return io.BytesIO(block).readlines()


def _without_mark(number: int, block: bytes) -> bytes:
    return block.removeprefix(_BOM) if number == 1 else block


def _after_line(file) -> bytes:
    """Skip the rest of a line."""
    while (rest := file.readline(LINE_BYTES_MAX)) and not rest.endswith(b"\n"):
        pass
    return b""


def _spool(stream: IO[bytes]) -> IO[bytes]:
    """A seekable copy of a stream."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - kept open to be read twice
    shutil.copyfileobj(stream, file)
    return file
