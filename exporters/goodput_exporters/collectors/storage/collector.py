"""File systems that training reads and writes: whether they answer, how full they are, what their clients count.

In: the mounts in procfs, `Settings.paths`, the statistics of NFS in procfs and of Lustre in procfs or sysfs. Out:
`goodput_filesystem_*`, `goodput_nfs_*`, `goodput_lustre_*`. Watched are the mounts of network and parallel file
systems, and FUSE, and the file system of each of `Settings.paths`; `mount` is the mount point, or the path as it
was given. Several mounts of one file system count as one, by their shortest path.

Guarantee: no file system is touched but by a process made for it (statvfs.py): a server that is dead costs no
more than its series `goodput_filesystem_up` at 0. One that this user may not see has no such series. Of mounts
that only the node's first process has (an agent in a container) there are the NFS statistics and no sizes. At most
MOUNTS_MAX are watched. A look takes about 1 ms, and every 10 s 10 ms of another process.

It does not know which rank uses which file system.
"""

from __future__ import annotations

import errno
import logging
import os

from goodput_exporters.collector import CollectorError, NoData, ParseError, Settings, read_text
from goodput_exporters.collectors.storage.filesystem_probe import Answer, Failed, FileSystems
from goodput_exporters.collectors.storage.lustre import Operation, read_lustre
from goodput_exporters.collectors.storage.mounts import (
    Mount,
    NfsMount,
    label,
    parse_mountinfo,
    parse_mountstats,
)

log = logging.getLogger("goodput.node")

MOUNTS_MAX = 64
PROBLEMS_MAX = 8
NFS_OPERATIONS = ("READ", "WRITE", "COMMIT", "OPEN", "LOOKUP", "GETATTR")
LUSTRE_OPERATIONS = ("read", "write", "open", "close", "getattr", "readdir", "fsync", "create", "unlink")


class Storage:
    name = "storage"

    def __init__(self, settings: Settings, file_systems: FileSystems | None = None):
        self._procfs, self._sysfs = settings.procfs, settings.sysfs
        paths = [os.path.abspath(path) for path in settings.paths[:MOUNTS_MAX]]
        # By label, which is what must be there once; a strange name may lose what tells it from another.
        self._paths = {label(path): path for path in paths}
        self._file_systems = file_systems or FileSystems()
        self._down: set[str] = set()
        self._problems: list[str] = []

    def collect(self, families) -> None:
        self._problems = []
        mounts = self._read("self/mountinfo", parse_mountinfo) or []
        own = _remote(mounts)
        others = [
            mount
            for mount in _remote(self._read("1/mountinfo", parse_mountinfo) or [])
            if _is_new(mount, own)
        ]
        if len(own) + len(others) > MOUNTS_MAX:
            self._problems.append(f"{len(own) + len(others)} file systems, of which {MOUNTS_MAX} are watched")
        own = own[:MOUNTS_MAX]
        others = others[: MOUNTS_MAX - len(own)]
        for mount in (*own, *others):
            if label(mount.path) not in self._paths:
                _add_info(families, mount.path, mount)
        self._ask(families, own, mounts)
        found = bool(own or others or self._paths)
        found |= self._nfs(families, own, others)
        found |= self._lustre(families)
        if self._problems:
            raise CollectorError("; ".join(self._problems[:PROBLEMS_MAX]))
        if not found:
            raise NoData("no file system of the network, and no path was given")

    def close(self) -> None:
        self._file_systems.close()

    def _read(self, name: str, parse):
        """The parsed file, None where it is absent or cannot be used."""
        path = os.path.join(self._procfs, name)
        try:
            text = read_text(path)
            return None if text is None else parse(text)
        except CollectorError as error:
            # Those of the first process are for root where procfs is mounted with hidepid.
            if not name.startswith("1/"):
                self._problems.append(str(error))
        except ParseError as error:
            self._problems.append(f"{path}: {error}")
        return None

    # -- capacity

    def _ask(self, families, own: list[Mount], mounts: list[Mount]) -> None:
        remote = {mount.path: mount for mount in own if label(mount.path) not in self._paths}
        # /proc/self is a link to the reader; in a recorded tree the paths are those of another machine.
        trusted = os.path.islink(os.path.join(self._procfs, "self"))
        answers = self._file_systems.look([*self._paths.values(), *remote])
        self._problems += self._file_systems.problems
        self._down &= answers.keys()
        for path, answer in answers.items():
            asked_for = path not in remote
            if isinstance(answer, Failed):
                if not _is_hidden(answer, asked_for):
                    self._add_up(families, path, answer)
                if asked_for:
                    _add_info_at(families, path, [mount for mount in mounts if mount.path == path])
            elif asked_for or trusted or answer.device == remote[path].device:
                self._add_up(families, path, answer)
                _add_sizes(families, path, answer)
                if asked_for:
                    same = [mount for mount in mounts if mount.device == answer.device]
                    _add_info_at(families, path, same or [Mount(answer.device, path, "", "")])

    def _add_up(self, families, path: str, answer: Answer | Failed) -> None:
        up = isinstance(answer, Answer)
        families.add("goodput_filesystem_up", {"mount": label(path)}, float(up))
        if up and path in self._down:
            self._down.discard(path)
            log.warning("file system %s: answers again", label(path))
        elif not up and path not in self._down and len(self._down) < MOUNTS_MAX:
            self._down.add(path)
            why = "does not answer" if answer.errno is None else os.strerror(answer.errno)
            log.warning("file system %s: %s", label(path), why)

    # -- clients

    def _nfs(self, families, own: list[Mount], others: list[Mount]) -> bool:
        found: dict[str, NfsMount] = {}
        for name, mounts in (("1/mountstats", others), ("self/mountstats", own)):
            stats = self._read(name, parse_mountstats) or {}
            wanted = {mount.path for mount in mounts}
            found.update({path: stats[path] for path in stats if path in wanted})
        for path, mount in found.items():
            _add_nfs(families, label(path), mount)
        return bool(found)

    def _lustre(self, families) -> bool:
        found, problems = read_lustre(self._procfs, self._sysfs)
        self._problems += problems
        for name, operations in found.items():
            _add_lustre(families, label(name), operations)
        return bool(found)


def _remote(mounts: list[Mount]) -> list[Mount]:
    """The remote file systems, each once, those with short paths first."""
    at_path = {label(mount.path): mount for mount in mounts}  # Of two at one path, the one on top.
    found: dict[str, Mount] = {}
    for mount in sorted(at_path.values(), key=lambda mount: (len(mount.path), mount.path)):
        if mount.is_remote:
            found.setdefault(mount.device, mount)
    return list(found.values())


def _is_new(mount: Mount, own: list[Mount]) -> bool:
    return all(mount.device != at.device and label(mount.path) != label(at.path) for at in own)


def _is_hidden(failed: Failed, asked_for: bool) -> bool:
    """Whether it says nothing of the file system: not for this user, or unmounted meanwhile."""
    return failed.errno in (errno.EACCES, errno.EPERM) or (failed.errno == errno.ENOENT and not asked_for)


def _add_info(families, path: str, mount: Mount) -> None:
    labels = {"mount": label(path), "fstype": label(mount.fstype), "source": label(mount.source)}
    families.add("goodput_filesystem_info", labels, 1)


def _add_info_at(families, path: str, mounts: list[Mount]) -> None:
    """What lies at a path, by the last of the mounts that it may be; nothing where there is none."""
    for mount in mounts[-1:]:
        _add_info(families, path, mount)


def _add_sizes(families, path: str, answer: Answer) -> None:
    of_mount = {"mount": label(path)}
    families.add("goodput_filesystem_response_seconds", of_mount, answer.seconds)
    families.add("goodput_filesystem_size_bytes", of_mount, answer.size_bytes)
    families.add("goodput_filesystem_available_bytes", of_mount, answer.available_bytes)
    if answer.inodes:
        families.add("goodput_filesystem_inodes", {**of_mount, "kind": "total"}, answer.inodes)
        families.add("goodput_filesystem_inodes", {**of_mount, "kind": "free"}, answer.inodes_free)


def _add_nfs(families, path: str, mount: NfsMount) -> None:
    for direction, (application, server) in (("read", mount.read), ("write", mount.written)):
        labels = {"mount": path, "direction": direction}
        families.add("goodput_nfs_bytes_total", {**labels, "side": "application"}, application)
        families.add("goodput_nfs_bytes_total", {**labels, "side": "server"}, server)
    for operation in NFS_OPERATIONS:
        calls = mount.operations.get(operation)
        if calls is None:
            continue
        labels = {"mount": path, "operation": operation.lower()}
        families.add("goodput_nfs_operations_total", labels, calls.completed)
        families.add("goodput_nfs_transmissions_total", labels, calls.transmissions)
        families.add("goodput_nfs_timeouts_total", labels, calls.timeouts)
        if calls.errors is not None:
            families.add("goodput_nfs_errors_total", labels, calls.errors)
        seconds = (calls.queue_seconds, calls.response_seconds, calls.total_seconds)
        for part, value in zip(("queue", "response", "total"), seconds, strict=True):
            families.add("goodput_nfs_operation_seconds_total", {**labels, "part": part}, value)


def _add_lustre(families, name: str, operations: dict[str, Operation]) -> None:
    for direction in ("read", "write"):
        moved = operations.get(f"{direction}_bytes")
        if moved is not None and moved.sum is not None:
            families.add(
                "goodput_lustre_bytes_total", {"filesystem": name, "direction": direction}, moved.sum
            )
    for operation in LUSTRE_OPERATIONS:
        # Before 2.14 reads and writes are counted with their bytes alone.
        counted = operations.get(operation) or operations.get(f"{operation}_bytes")
        if counted is None:
            continue
        labels = {"filesystem": name, "operation": operation}
        families.add("goodput_lustre_operations_total", labels, counted.count)
        if counted.unit == "usecs" and counted.sum is not None:
            families.add("goodput_lustre_operation_seconds_total", labels, counted.sum / 1e6)
