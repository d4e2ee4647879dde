"""One agent per rank page directory: a flock on `.agent.lock`, which the kernel releases when its holder dies.

Two agents would both delete pages and push, each counting the other's deletions as gaps. In a read-only directory
nothing is deleted, so the agent runs without the lock.

    lock = DirectoryLock(directory); lock.hold(); ...; lock.release()
"""

from __future__ import annotations

import errno
import fcntl
import os

NAME = ".agent.lock"


class DirectoryInUse(Exception):
    """Another agent already uses the directory."""


class DirectoryLock:
    def __init__(self, directory: str):
        self._directory = directory
        self._fd = -1

    def hold(self) -> bool:
        """Acquire the lock or verify that it is held; False if that is impossible (missing or read-only directory).

        Raises DirectoryInUse if another agent holds it. Cheap enough for every poll.
        """
        if self._fd >= 0:
            # A directory that was deleted and recreated has another lock file.
            if os.fstat(self._fd).st_nlink:
                return True
            self.release()
        path = os.path.join(self._directory, NAME)
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
        except OSError:
            try:
                fd = os.open(path, os.O_RDONLY | flags)  # Created by another user's agent.
            except OSError:
                return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise DirectoryInUse(
                    f"another agent already uses {self._directory} (it holds {path})"
                ) from None
            return False
        self._fd = fd
        return True

    def release(self) -> None:
        """Release the lock. The file stays: deleting it would let two agents lock two different files."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
