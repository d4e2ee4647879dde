"""Reads procfs and sysfs files. An absent file is None; an unreadable one is an error that names its path."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from functools import lru_cache
from typing import BinaryIO, TypeVar

from goodput_exporters.collector import CollectorError, ParseError

T = TypeVar("T")

PROBLEMS_MAX = 8
# A counter file is one short line; a larger buffer costs more time than the file.
COUNTER_BYTES_MAX = 4096
LABEL_CHARACTERS_MAX = 64
_NUMBERS = re.compile(r"([0-9]+)")
_MEMINFO = re.compile(r"^(?:Node [0-9]+ )?([^\s:]+):[ \t]*(\S*)(.*)$", re.MULTILINE)
# No such file or device, a device without this value (sysfs), pressure accounting switched off at boot (procfs).
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.EINVAL, errno.EOPNOTSUPP)


def read_text(path: str, bytes_max: int = 1 << 20) -> str | None:
    """A file's text, None where it is absent. Raises CollectorError where it cannot be read."""
    body = read_bytes(path, bytes_max)
    return None if body is None else body.decode("utf-8", "replace")


def read_bytes(path: str, bytes_max: int = 1 << 20) -> bytes | None:
    """What is in a file, None where it is absent. Raises CollectorError where it cannot be read.

    A FIFO or a device in the file's place does not block; where there is nothing to read in it, that is an error.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            text = os.read(fd, min(1 << 16, bytes_max))
            # One read of a file of many records, such as vmstat or mountinfo, returns about 4 KiB at most. One of a file
            # of a single value returns it whole.
            while COUNTER_BYTES_MAX < bytes_max > len(text) and (
                part := os.read(fd, min(1 << 16, bytes_max - len(text)))
            ):
                text += part
            if not text and not stat.S_ISREG(os.fstat(fd).st_mode):
                raise CollectorError(f"{label(path)}: no regular file")
            return text
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise CollectorError(f"{label(path)}: {error.strerror}") from None


def open_regular(path: str) -> BinaryIO:
    """A file of a person or of another program, opened for reading. Raises OSError, also for what is no regular file.

    Opening a FIFO may wait forever, and reading it or a device takes what is there from others.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return open(fd, "rb")
    os.close(fd)
    is_folder = stat.S_ISDIR(mode)
    raise OSError(
        errno.EISDIR if is_folder else errno.EINVAL, "Is a directory" if is_folder else "no regular file"
    )


def list_names(path: str) -> list[str] | None:
    """A directory's names in natural order, None where it is absent. Raises CollectorError."""
    try:
        return sorted(os.listdir(path), key=natural_key)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise CollectorError(f"{label(path)}: {error.strerror}") from None


class CounterFiles:
    """Reads and parses files; what fails costs only its own value and is added to `problems`."""

    def __init__(self):
        self.problems: list[str] = []

    def read(self, path: str, parse: Callable[[str], T], bytes_max: int = COUNTER_BYTES_MAX) -> T | None:
        """The parsed text, None where the file is absent, unreadable or malformed."""
        try:
            text = read_text(path, bytes_max)
        except CollectorError as error:
            self.problems.append(str(error))
            return None
        return None if text is None else self.parse(path, text, parse)

    def parse(self, path: str, text: str, parse: Callable[[str], T]) -> T | None:
        """What a file's text says, None where it is malformed."""
        try:
            return parse(text)
        except ParseError as error:
            self.problems.append(label(f"{path}: {error}"))
        return None

    def names(self, path: str) -> list[str]:
        """A directory's names in natural order; none where it is absent or unreadable."""
        try:
            return list_names(path) or []
        except CollectorError as error:
            self.problems.append(str(error))
            return []

    def raise_problems(self) -> None:
        """Raises CollectorError with the first PROBLEMS_MAX problems, if there were any."""
        if self.problems:
            raise CollectorError("; ".join(self.problems[:PROBLEMS_MAX]))


def parse_count(text: str) -> int:
    """A non-negative decimal number as the kernel prints it. Raises ParseError."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) <= 20:
        return int(text)
    raise ParseError(f"{text[:40]!r} is not a count")


def parse_protocol(text: str, protocol: str, names: tuple[str, ...]) -> dict[str, int]:
    """Counters of one protocol in /proc/net/snmp or netstat, such as "Tcp"; those absent are left out.

    Each protocol has a line of names and a line of values (proc(5)). Raises ParseError.
    """
    lines = [line.split() for line in text.splitlines() if line.startswith(f"{protocol}:")]
    if len(lines) != 2:
        raise ParseError(f"{len(lines)} {protocol} lines, expected 2")
    columns = {name: at for at, name in enumerate(lines[0]) if name in names}
    if max(columns.values(), default=0) >= len(lines[1]):
        raise ParseError(f"the {protocol} line of values is shorter than the line of names")
    return {name: parse_count(lines[1][at]) for name, at in columns.items()}


def parse_meminfo(text: str, kinds: dict[str, str]) -> dict[str, int]:
    """Bytes by kind, for each name in `kinds` that is present, from lines such as `MemTotal: 1 kB`. Raises ParseError.

    The lines of a NUMA node begin with `Node 0`.
    """
    found = {}
    for name, number, rest in _MEMINFO.findall(text):
        if name in kinds:
            unit = rest.strip()
            if unit not in ("kB", ""):
                raise ParseError(f"{name} in {unit[:40]!r}")
            found[kinds[name]] = parse_count(number) * (1024 if unit else 1)
    if "total" not in found:
        raise ParseError("no MemTotal")
    return found


@lru_cache(4096)
def natural_key(name: str) -> tuple:
    """A sort key that puts mlx5_2 before mlx5_10."""
    parts = _NUMBERS.split(name)
    return tuple(
        (int(part) if len(part) < 20 else 0, part) if at % 2 else part for at, part in enumerate(parts)
    )


def label(name: str) -> str:
    """A file name as text that can be exposed: bytes that are not UTF-8 become escapes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def clean(text: str | None) -> str:
    """A file's text as a label value: one line, printable, bounded; empty where there is no file."""
    line = (text or "").strip()[: 4 * LABEL_CHARACTERS_MAX]
    return "".join(character for character in line if character.isprintable())[:LABEL_CHARACTERS_MAX]
