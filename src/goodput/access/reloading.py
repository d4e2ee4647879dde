"""Files that are in use and read again when they change on disk."""

from __future__ import annotations

import logging
import os

from goodput.access.token_file import permission_problem

log = logging.getLogger("goodput.access")


class ReloadedFiles:
    """Base of TokenCache and Certificate; subclasses implement `_load`, which raises ValueError or OSError.

    A changed file that cannot be used is counted and logged once and retried at every `reload`; until then the
    previous content stays in use and `is_failing` is true.
    """

    def __init__(self, *paths: str):
        self.errors, self.is_failing = 0, False
        self._paths = paths
        self._failure: tuple | None = None
        self._marks = self._current_marks()

    def reload(self, retry_failed: bool = True) -> None:
        """Read the files if they changed. Without `retry_failed` a known failure is not tried again."""
        marks = self._current_marks()
        if marks == self._marks and not self.is_failing:
            return
        if not retry_failed and self._failure is not None and self._failure[0] == marks:
            return
        try:
            self._load()
        except (OSError, ValueError) as error:
            failure = marks, str(error)
            if failure != self._failure:
                self.errors += 1
                log.error("%s; the previous version stays in use", error)
            self.is_failing, self._failure = True, failure
            return
        # Set only after a successful read: a transient failure (EMFILE, EIO) may hide a revocation.
        self._marks, self._failure = marks, None
        self._warn_of_permissions()
        if self.is_failing:
            self.is_failing = False
            # A warning, so that it shows wherever the error did.
            log.warning("%s: usable again and in use", self._paths[0])

    def _load(self) -> None:
        raise NotImplementedError

    def _warn_of_permissions(self) -> None:
        if problem := permission_problem(self._paths[-1]):
            log.warning("%s", problem)

    def _current_marks(self) -> tuple:
        return tuple(map(file_mark, self._paths))


def file_mark(path: str) -> tuple | None:
    """A value that changes with the file's content or identity; None if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
