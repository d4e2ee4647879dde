"""One agent per page directory: a flock on `.agent.lock` in it.

Two agents would both remove pages and both push, each counting the other's removals as gaps. The kernel
drops the lock with its holder, however that dies. Where the directory cannot be written (a read-only mount)
there is nothing to remove either, so the agent goes on without the lock.

    lock = DirectoryLock(directory); lock.hold(); ...; lock.release()
"""

from __future__ import annotations

import errno
import fcntl
import os

NAME = ".agent.lock"


class Refused(Exception):
    """Another agent already works on the directory."""


class DirectoryLock:
    def __init__(self, directory: str):
        self._directory = directory
        self._fd = -1

    def hold(self) -> bool:
        """Make sure that the lock is held; False where it cannot be (no directory yet, or a read-only one).

        Raises Refused when another agent has it. Cheap enough for every look.
        """
        if self._fd >= 0:
            # A directory that was removed and made again has another lock file.
            if os.fstat(self._fd).st_nlink:
                return True
            self.release()
        path = os.path.join(self._directory, NAME)
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
        except OSError:
            try:
                fd = os.open(path, os.O_RDONLY | flags)  # Another user's agent has made it.
            except OSError:
                return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise Refused(f"another agent already reads {self._directory} (it holds {path})") from None
            return False
        self._fd = fd
        return True

    def release(self) -> None:
        """Let go. The file stays: removing it would let two later agents lock two different files."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
