"""One agent per rank page directory: a flock on `.agent.lock`, which the kernel releases when its holder dies.

Two agents would both delete pages and push, each counting the other's deletions as gaps. In a read-only directory
nothing is deleted, so the agent runs without the lock.

Everybody may write to the directory, and who can open a file can lock it. So the file has mode 0600 and belongs to root,
the directory's owner or this user; whatever else lies under its name is replaced, locked or not. An agent that held such
a file (an older version's had mode 0644) finds it gone at its next poll, and ends.

    lock = DirectoryLock(directory); lock.hold(); ...; lock.release()
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat

NAME = ".agent.lock"
TRIES_MAX = 8
FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class DirectoryInUse(Exception):
    """Another agent already uses the directory."""


class DirectoryLock:
    def __init__(self, directory: str):
        self._directory = directory
        self._path = os.path.join(directory, NAME)
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
        with contextlib.suppress(OSError):
            for _ in range(TRIES_MAX):
                found = self._found()
                is_ours = found is not None and self._is_trusted(found)
                self._fd = self._lock_file(found) if found and is_ours else self._replace(found)
                if self._fd >= 0:
                    return True
        return False

    def holder(self) -> int:
        """The pid of the agent that holds it, in this PID namespace; 0 where there is none or it is unknown."""
        with contextlib.suppress(OSError):
            found = self._found()
            if found is not None and self._is_trusted(found):
                return _flock_holder(found.st_ino)
        return 0

    def release(self) -> None:
        """Release the lock. The file stays: deleting it would let two agents lock two different files."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _found(self) -> os.stat_result | None:
        try:
            return os.lstat(self._path)
        except FileNotFoundError:
            return None

    def _is_trusted(self, found: os.stat_result) -> bool:
        """Whether only an agent can have opened it."""
        owners = {0, os.geteuid(), os.stat(self._directory).st_uid}
        return stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077 and found.st_uid in owners

    def _lock_file(self, found: os.stat_result) -> int:
        """A descriptor that locks the file that is there; -1 if it is another one by now."""
        try:
            fd = os.open(self._path, FLAGS)
        except FileNotFoundError:
            return -1
        except PermissionError:
            # That of an agent of root or of the directory's owner: the kernel's list shows whether it runs.
            if _flock_holder(found.st_ino):
                raise self._in_use() from None
            return self._replace(found)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            opened = os.fstat(fd)
            if opened.st_nlink and opened.st_ino == found.st_ino:
                fd, kept = -1, fd
                return kept
            return -1
        except BlockingIOError:
            raise self._in_use() from None
        finally:
            if fd >= 0:
                os.close(fd)

    def _replace(self, found: os.stat_result | None) -> int:
        """A descriptor that locks a file of our own, put in the place of what is there; -1 if another was quicker."""
        draft = f"{self._path}.{os.urandom(8).hex()}"
        fd = os.open(draft, FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if found is None:
                os.link(draft, self._path)
            else:
                if stat.S_ISDIR(found.st_mode):
                    os.rename(self._path, f"{draft}.aside")
                os.rename(draft, self._path)
            fd, kept = -1, fd
            return kept
        except FileExistsError:
            return -1
        finally:
            if fd >= 0:
                os.close(fd)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)

    def _in_use(self) -> DirectoryInUse:
        return DirectoryInUse(f"another agent already uses {self._directory} (it holds {self._path})")


def _flock_holder(inode: int) -> int:
    try:
        with open("/proc/locks", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except (OSError, ValueError):
        return 0
    # 12: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF; the device number may differ from stat's, so only the inode is
    # compared.
    held = [row for row in rows if len(row) == 8 and row[1] == "FLOCK" and row[5].endswith(f":{inode}")]
    return max((int(row[4]) for row in held), default=0)
