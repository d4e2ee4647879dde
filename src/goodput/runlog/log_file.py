"""A run log as a file: plain or gzip, from a path or standard input, read as often as needed.

A truncated file yields its readable part. A stream is copied first: its bytes are bounded, and how long it may be silent.
Lines are bounded in length: a longer one is yielded cut, which does not parse.
"""

from __future__ import annotations

import gzip
import io
import os
import select
import sys
import tempfile
import zlib
from collections.abc import Iterator
from stat import S_ISBLK, S_ISCHR, S_ISREG
from typing import IO, Any

from goodput.runlog.lines import LINE_BYTES_MAX

BLOCK_BYTES = 1 << 18  # at most LINE_BYTES_MAX
STREAM_BYTES_MAX = 16 << 30
DEVICE_BYTES_MAX = LINE_BYTES_MAX
SILENCE_SECONDS_MAX = 600
_GZIP = b"\x1f\x8b"
_OTHER_PACKERS = {b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2"}
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
                self._file = _copy(sys.stdin.fileno(), self.name)
            else:
                # A pipe without a writer is waited for in _copy, where the time is bounded.
                opener = lambda path, flags: os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # noqa: E731
                self._file: IO[bytes] = open(path, "rb", opener=opener)  # noqa: SIM115 - kept open to be read twice
            if not S_ISREG(os.fstat(self._file.fileno()).st_mode):
                with self._file as stream:
                    self._file = _copy(stream.fileno(), self.name)
            self._file.seek(0, os.SEEK_END)
            self.size = self._file.tell()
            self._file.seek(0)
            head = self._file.read(8)
            self.packed = head.startswith(_GZIP)
        except OSError as error:
            raise LogError(f"{self.name}: {error.strerror or error}") from None
        packer = next((name for magic, name in _OTHER_PACKERS.items() if head.startswith(magic)), None)
        if packer is not None:
            self.close()
            raise LogError(
                f"{self.name}: compressed with {packer}; unpack it first, or compress it with gzip"
            )

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
            why = getattr(error, "strerror", None) or error
            self.broken = f"the file cannot be read after line {number - 1}: {why}"
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


def _copy(fd: int, name: str) -> IO[bytes]:
    """A seekable copy of a stream, which has to end within STREAM_BYTES_MAX; a device such as /dev/zero is no log."""
    mode = os.fstat(fd).st_mode
    is_device = S_ISBLK(mode) or (S_ISCHR(mode) and not os.isatty(fd))
    bytes_max = DEVICE_BYTES_MAX if is_device else STREAM_BYTES_MAX
    wait_ms = None if os.isatty(fd) else SILENCE_SECONDS_MAX * 1000
    readable = select.poll()
    readable.register(fd, select.POLLIN)
    file = tempfile.TemporaryFile()  # noqa: SIM115 - kept open to be read twice
    try:
        while readable.poll(wait_ms):
            part = os.read(fd, BLOCK_BYTES)
            if not part:
                return file
            if file.tell() + len(part) > bytes_max and not S_ISREG(mode):
                what = "a device, not a log" if is_device else "if it ends, write it to a file first"
                raise LogError(f"{name}: more than {bytes_max} bytes: {what}")
            file.write(part)
        raise LogError(
            f"{name}: nothing to read for {SILENCE_SECONDS_MAX} s, and its writer has not closed it"
        )
    except BaseException:
        file.close()
        raise
