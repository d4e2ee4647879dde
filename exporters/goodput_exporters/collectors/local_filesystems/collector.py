"""Space of the file systems on the host's own disks, of /dev/shm and of /tmp.

Watched are mounts of the types in DISK_TYPES, each file system once by its shortest path, of a ZFS pool one; not those
that container runtimes and the kubelet mount, nor `Settings.paths`, which the collector `storage` watches. statvfs is
called here: it answers from memory, as long as no part of the path is on a network file system, and such mounts are left out.
With `Settings.rootfs`, the mounts below that folder are watched, under their paths on the host.
"""

from __future__ import annotations

import errno
import os
import re
import time

from goodput_exporters.collector import NoData, Settings
from goodput_exporters.system.files import CounterFiles
from goodput_exporters.system.mounts import Mount, below, label, parse_mountinfo

FILESYSTEMS_MAX = 64
FILE_BYTES_MAX = 1 << 20
DISK_TYPES = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs"))
MEMORY_PATHS = ("/dev/shm", "/tmp")  # where a tmpfs is watched
# Of containers and pods, and the files that a container runtime mounts from the host's disk.
_NOT_HERE = re.compile(
    r"/(?:proc|sys|dev|run|snap|var/lib/(?:docker|containers|containerd|kubelet|rancher)|etc/(?:hosts|hostname|resolv\.conf))(?:/|$)"
)
# Not allowed to look, or unmounted meanwhile.
_HIDDEN = (errno.EACCES, errno.EPERM, errno.ENOENT)


class LocalFilesystems:
    name = "local_filesystems"

    def __init__(self, settings: Settings):
        self._mountinfo = os.path.join(settings.procfs, "self/mountinfo")
        self._root = os.path.abspath(settings.rootfs)
        self._others = {label(os.path.abspath(path)) for path in settings.paths}

    def collect(self, families) -> None:
        files = CounterFiles()
        mounts = below(self._root, files.read(self._mountinfo, parse_mountinfo, FILE_BYTES_MAX) or [])
        mounts = [mount for mount in local_mounts(mounts) if label(mount.path) not in self._others]
        if len(mounts) > FILESYSTEMS_MAX:
            files.problems.append(f"{len(mounts)} local file systems; only {FILESYSTEMS_MAX} are monitored")
        for mount in mounts[:FILESYSTEMS_MAX]:
            self._add(families, mount)
        files.raise_problems()
        if not mounts:
            raise NoData(f"{self._mountinfo}: no file system on a local disk")

    def _add(self, families, mount: Mount) -> None:
        path = self._root.rstrip("/") + mount.path
        labels, start_ns = {"mount": label(mount.path)}, time.monotonic_ns()
        try:
            found, device = os.statvfs(path), os.stat(path).st_dev
        except OSError as error:
            if error.errno not in _HIDDEN:
                families.add("goodput_filesystem_up", labels, 0)
            return
        except ValueError:  # a NUL in the path
            return
        if not self._is_same(mount, device):
            return
        seconds = (time.monotonic_ns() - start_ns) / 1e9
        info = {**labels, "fstype": label(mount.fstype), "source": label(mount.source)}
        families.add("goodput_filesystem_info", info, 1)
        families.add("goodput_filesystem_up", labels, 1)
        families.add("goodput_filesystem_readonly", labels, float(mount.is_readonly))
        families.add("goodput_filesystem_response_seconds", labels, seconds)
        families.add("goodput_filesystem_size_bytes", labels, found.f_blocks * found.f_frsize)
        families.add("goodput_filesystem_available_bytes", labels, found.f_bavail * found.f_frsize)
        if found.f_files:
            families.add("goodput_filesystem_inodes", {**labels, "kind": "total"}, found.f_files)
            families.add("goodput_filesystem_inodes", {**labels, "kind": "free"}, found.f_ffree)

    def _is_same(self, mount: Mount, device: int) -> bool:
        """Whether the path leads to the mount: not in a recorded tree, nor in a container without the host's root."""
        # btrfs gives each subvolume a number of its own.
        return mount.fstype == "btrfs" or mount.device == f"{os.major(device)}:{os.minor(device)}"


def local_mounts(mounts: list[Mount]) -> list[Mount]:
    """The local file systems, each once, by their shortest path."""
    at_path = {label(mount.path): mount for mount in mounts}  # of two at one path, the upper one
    remote = tuple(f"{mount.path}/" for mount in mounts if mount.is_remote and mount.path != "/")
    found: dict[str, Mount] = {}
    for mount in sorted(at_path.values(), key=lambda mount: (len(mount.path), mount.path)):
        is_memory = mount.fstype == "tmpfs" and mount.path in MEMORY_PATHS
        is_disk = mount.fstype in DISK_TYPES and not _NOT_HERE.match(mount.path)
        if (is_memory or is_disk) and not mount.path.startswith(remote):
            # The data sets of a ZFS pool share its space.
            pool = f"zfs {mount.source.partition('/')[0]}" if mount.fstype == "zfs" else ""
            found.setdefault(pool or mount.device, mount)
    return list(found.values())
