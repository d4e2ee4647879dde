"""Which runs' pages an agent removed from a folder, and where it sent their figures: a small file beside the pages.

The newest RUNS_MAX runs are kept. A reader believes the file only if it is root's, the folder's owner's or its own.

    RemovedPages(directory).add(["run"], unix_ns, "http://head:9471"); read(directory)["run"].unix_ns
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable
from typing import NamedTuple

NAME = ".removed.json"
RUNS_MAX = 64
BYTES_MAX = 1 << 18
_RUN_MAX, _URL_MAX = 255, 255


class Removed(NamedTuple):
    """When the last page of a run was removed, and the aggregator that had acknowledged its figures, "" for none."""

    unix_ns: int
    sent_to: str


class RemovedPages:
    """The agent's side; what is kept survives its restart."""

    def __init__(self, directory: str):
        self._directory = directory
        self._runs: dict[str, Removed] | None = None

    def add(self, runs: Iterable[str], unix_ns: int, sent_to: str) -> None:
        """Note runs one of whose pages was removed, and write the file. Raises nothing."""
        if self._runs is None:
            self._runs = read(self._directory)
        for run in runs:
            self._runs.pop(run, None)
            self._runs[run] = Removed(unix_ns, sent_to[:_URL_MAX])
        while len(self._runs) > RUNS_MAX:
            self._runs.pop(next(iter(self._runs)))
        with contextlib.suppress(OSError):  # A folder that is read-only or full: the note is a convenience.
            _replace(os.path.join(self._directory, NAME), json.dumps(self._runs).encode())


def read(directory: str) -> dict[str, Removed]:
    """By run, the one removed last at the end; empty where there is no file or it cannot be believed. Raises nothing."""
    try:
        fd = os.open(
            os.path.join(directory, NAME), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except OSError:
        return {}
    with os.fdopen(fd, "rb") as file:
        try:
            info = os.fstat(fd)
            trusted = {0, os.geteuid(), os.stat(directory).st_uid}
            if not stat.S_ISREG(info.st_mode) or info.st_uid not in trusted or info.st_size > BYTES_MAX:
                return {}
            found = json.loads(file.read(BYTES_MAX))
        except (OSError, ValueError, RecursionError):
            return {}
    return _checked(found)


def _checked(found: object) -> dict[str, Removed]:
    runs: dict[str, Removed] = {}
    for run, value in list(found.items())[-RUNS_MAX:] if isinstance(found, dict) else ():
        if isinstance(value, list) and len(value) == 2 and len(run) <= _RUN_MAX:
            unix_ns, sent_to = value
            if type(unix_ns) is int and 0 <= unix_ns < 1 << 62 and isinstance(sent_to, str):
                runs[run] = Removed(unix_ns, sent_to[:_URL_MAX])
    return runs


def _replace(path: str, content: bytes) -> None:
    part = f"{path}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o644)
            file.write(content)
        os.rename(part, path)
    except OSError:
        os.unlink(part)
        raise
