"""File systems that training uses: availability, capacity, and the counters of NFS and Lustre clients.

Monitored are the mounts of network and parallel file systems and of FUSE, and the file systems of `Settings.paths`;
`mount` is the mount point, or the path as configured. Several mounts of one file system count once, by their
shortest path. Only a separate process touches a file system (filesystem_probe.py): a dead server costs no more than
`goodput_filesystem_up` 0. A file system that this user may not see has no such series. Mounts that only the node's
first process has (for an agent in a container) have NFS statistics and no sizes.

About 1 ms per scrape, and 10 ms of another process every 10 s.
"""

from __future__ import annotations

import errno
import logging
import os

from goodput_exporters.collector import NoData, Settings
from goodput_exporters.collectors.storage.filesystem_probe import (
    FilesystemProbe,
    FilesystemUsage,
    ProbeFailure,
)
from goodput_exporters.collectors.storage.lustre import Operation, read_lustre
from goodput_exporters.system.files import CounterFiles
from goodput_exporters.system.mounts import (
    Mount,
    NfsMount,
    host_path,
    label,
    parse_mountinfo,
    parse_mountstats,
)

log = logging.getLogger("goodput.node")

MOUNTS_MAX = 64
_FORBIDDEN = (os.strerror(errno.EACCES), os.strerror(errno.EPERM))
FILE_BYTES_MAX = 1 << 20
NFS_OPERATIONS = ("READ", "WRITE", "COMMIT", "OPEN", "LOOKUP", "GETATTR")
LUSTRE_OPERATIONS = ("read", "write", "open", "close", "getattr", "readdir", "fsync", "create", "unlink")


class Storage:
    name = "storage"

    def __init__(self, settings: Settings, probe: FilesystemProbe | None = None):
        self._procfs, self._sysfs = settings.procfs, settings.sysfs
        paths = [os.path.abspath(path) for path in settings.paths[:MOUNTS_MAX]]
        self._root = os.path.abspath(settings.rootfs)
        # By label, since two paths may have the same label after cleaning.
        self._paths = {label(path): path for path in paths}
        self._probe = probe or FilesystemProbe()
        self._down: set[str] = set()

    def collect(self, families) -> None:
        files = CounterFiles()
        mounts = self._read("self/mountinfo", parse_mountinfo, files) or []
        own = _remote(mounts)
        known = {mount.device for mount in own} | {self._label(mount.path) for mount in own}
        others = _remote(self._read("1/mountinfo", parse_mountinfo, files) or [])
        others = [mount for mount in others if known.isdisjoint((mount.device, label(mount.path)))]
        count = len(own) + len(others)
        if count > MOUNTS_MAX:
            files.problems.append(f"{count} file systems; only {MOUNTS_MAX} are monitored")
        own, others = own[:MOUNTS_MAX], others[: max(0, MOUNTS_MAX - len(own))]
        for mount in (*own, *others):
            if label(mount.path) not in self._paths:
                _add_info(families, self._label(mount.path), mount)
        self._add_usage(families, own, mounts)
        files.problems += self._probe.problems
        found = bool(own or others or self._paths)
        found |= self._add_nfs_mounts(families, own, others, files)
        lustre = read_lustre(self._procfs, self._sysfs, files)
        for name, operations in lustre.items():
            _add_lustre(families, label(name), operations)
        files.raise_problems()
        if not (found or lustre):
            raise NoData("no network file system, and no path was configured")

    def close(self) -> None:
        self._probe.close()

    def _label(self, path: str) -> str:
        """A mount's path on the host; a configured path stays as it was given."""
        return label(path if label(path) in self._paths else host_path(self._root, path))

    def _read(self, name: str, parse, files: CounterFiles):
        own = CounterFiles()
        found = own.read(os.path.join(self._procfs, name), parse, FILE_BYTES_MAX)
        # Only root may read the files of process 1 where procfs is mounted with hidepid: that is no problem.
        if not (name.startswith("1/") and own.problems[:1] and own.problems[0].endswith(_FORBIDDEN)):
            files.problems += own.problems
        return found

    def _add_usage(self, families, own: list[Mount], mounts: list[Mount]) -> None:
        remote = {mount.path: mount for mount in own if label(mount.path) not in self._paths}
        # /proc/self is a link to the reader; in a recorded tree the paths are those of another machine.
        is_live = os.path.islink(os.path.join(self._procfs, "self"))
        results = self._probe.poll([*self._paths.values(), *remote])
        self._down &= results.keys()
        for path, result in results.items():
            is_configured = path not in remote
            if isinstance(result, ProbeFailure):
                if not _is_hidden(result, is_configured):
                    self._add_up(families, path, result)
                if is_configured:
                    for mount in [mount for mount in mounts if mount.path == path][-1:]:
                        _add_info(families, label(path), mount)
            elif is_configured or is_live or result.device == remote[path].device:
                self._add_up(families, path, result)
                _add_sizes(families, self._label(path), result)
                if is_configured:
                    same = [mount for mount in mounts if mount.device == result.device]
                    _add_info(families, label(path), same[-1] if same else Mount(result.device, path, "", ""))

    def _add_up(self, families, path: str, result: FilesystemUsage | ProbeFailure) -> None:
        up = isinstance(result, FilesystemUsage)
        families.add("goodput_filesystem_up", {"mount": self._label(path)}, float(up))
        if up and path in self._down:
            self._down.discard(path)
            log.warning("file system %s answers again", label(path))
        elif not up and path not in self._down and len(self._down) < MOUNTS_MAX:
            self._down.add(path)
            why = "does not answer" if result.errno is None else os.strerror(result.errno)
            log.warning("file system %s: %s", label(path), why)

    def _add_nfs_mounts(self, families, own: list[Mount], others: list[Mount], files: CounterFiles) -> bool:
        found: dict[str, NfsMount] = {}
        for name, mounts in (("1/mountstats", others), ("self/mountstats", own)):
            stats = self._read(name, parse_mountstats, files) or {}
            found.update({mount.path: stats[mount.path] for mount in mounts if mount.path in stats})
        for path, mount in found.items():
            _add_nfs(families, self._label(path), mount)
        return bool(found)


def _remote(mounts: list[Mount]) -> list[Mount]:
    """The remote file systems, each once, by their shortest path."""
    at_path = {label(mount.path): mount for mount in mounts}  # of two at one path, the upper one
    found: dict[str, Mount] = {}
    for mount in sorted(at_path.values(), key=lambda mount: (len(mount.path), mount.path)):
        if mount.is_remote:
            found.setdefault(mount.device, mount)
    return list(found.values())


def _is_hidden(failure: ProbeFailure, is_configured: bool) -> bool:
    """Whether the error does not concern the file system: no permission, or unmounted meanwhile."""
    return failure.errno in (errno.EACCES, errno.EPERM) or (
        failure.errno == errno.ENOENT and not is_configured
    )


def _add_info(families, path: str, mount: Mount) -> None:
    labels = {"mount": path, "fstype": label(mount.fstype), "source": label(mount.source)}
    families.add("goodput_filesystem_info", labels, 1)
    if mount.fstype:
        families.add("goodput_filesystem_readonly", {"mount": path}, float(mount.is_readonly))


def _add_sizes(families, path: str, usage: FilesystemUsage) -> None:
    labels = {"mount": path}
    families.add("goodput_filesystem_response_seconds", labels, usage.seconds)
    families.add("goodput_filesystem_size_bytes", labels, usage.size_bytes)
    families.add("goodput_filesystem_available_bytes", labels, usage.available_bytes)
    if usage.inodes:
        families.add("goodput_filesystem_inodes", {**labels, "kind": "total"}, usage.inodes)
        families.add("goodput_filesystem_inodes", {**labels, "kind": "free"}, usage.inodes_free)


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
        families.add("goodput_nfs_errors_total", labels, calls.errors)
        for part in ("queue", "response", "total"):
            seconds = getattr(calls, f"{part}_seconds")
            families.add("goodput_nfs_operation_seconds_total", {**labels, "part": part}, seconds)


def _add_lustre(families, name: str, operations: dict[str, Operation]) -> None:
    for direction in ("read", "write"):
        moved = operations.get(f"{direction}_bytes")
        if moved is not None and moved.sum is not None:
            labels = {"filesystem": name, "direction": direction}
            families.add("goodput_lustre_bytes_total", labels, moved.sum)
    for operation in LUSTRE_OPERATIONS:
        # Before 2.14, reads and writes are counted only together with their bytes.
        counted = operations.get(operation) or operations.get(f"{operation}_bytes")
        if counted is None:
            continue
        labels = {"filesystem": name, "operation": operation}
        families.add("goodput_lustre_operations_total", labels, counted.count)
        if counted.unit == "usecs" and counted.sum is not None:
            families.add("goodput_lustre_operation_seconds_total", labels, counted.sum / 1e6)
