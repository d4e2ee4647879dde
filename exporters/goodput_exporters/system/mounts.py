"""Parsers of the kernel's lists of mounts: /proc/*/mountinfo and /proc/*/mountstats.

Of the mount options only `ro` is read.

Formats: proc(5); fs/proc_namespace.c, fs/nfs/iostat.h and net/sunrpc/stats.c of the kernel.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from goodput.wire.identity import clean_text
from goodput_exporters.collector import ParseError
from goodput_exporters.system.files import parse_count

TEXT_MAX = 255
_REMOTE = frozenset(
    "nfs nfs4 lustre beegfs gpfs wekafs ceph cifs smb3 panfs orangefs pvfs2 afs 9p virtiofs".split()  # noqa: SIM905
)
# FUSE of desktops, packages and container hosts, which holds no training data.
_LOCAL_FUSE = frozenset(("fuse.lxcfs", "fuse.gvfsd-fuse", "fuse.portal", "fuse.snapfuse", "fuse.squashfuse"))
_ESCAPED = re.compile(r"\\([0-7]{3})")
_SECRET = re.compile(r"//[^/@]*@")


class Mount(NamedTuple):
    """`device` is major:minor, the same for every mount of one file system; `path` is the mount point.

    `is_readonly` is true of a file system that refuses writes, as after errors, not of a mount that does: to the agent all are
    read-only, where systemd or a container protects them from it. `root` is the folder of the file system that is mounted.
    """

    device: str
    path: str
    fstype: str
    source: str
    is_readonly: bool = False
    root: str = "/"

    @property
    def is_remote(self) -> bool:
        """Whether this is a network file system, or one in user space that may be."""
        fuse = self.fstype.startswith("fuse.") and self.fstype not in _LOCAL_FUSE
        return fuse or self.fstype in _REMOTE


class Calls(NamedTuple):
    """NFS calls of one operation. `errors` is None where the kernel does not count them."""

    completed: int
    transmissions: int
    timeouts: int
    queue_seconds: float
    response_seconds: float
    total_seconds: float
    errors: int | None


class NfsMount(NamedTuple):
    """`read` and `written` are bytes: (by applications, over the network)."""

    read: tuple[int, int]
    written: tuple[int, int]
    operations: dict[str, Calls]


def parse_mountinfo(text: str) -> list[Mount]:
    """All mounts; a later one covers an earlier one at the same path. Raises ParseError."""
    mounts = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields, (fstype, source, options, *_) = before.split(" "), (*after.split(" "), "", "", "")
        if not dash or len(fields) < 6 or not fstype:
            raise ParseError(f"no mount in {line[:60]!r}")
        source = _SECRET.sub("//", _unescape(source))
        is_readonly = "ro" in options.split(",")
        path, root = _unescape(fields[4]), _unescape(fields[3])
        mounts.append(Mount(fields[2], path, fstype, source, is_readonly, root))
    return mounts


def below(root: str, mounts: list[Mount]) -> list[Mount]:
    """The mounts at and below a folder, with their paths from there."""
    if root == "/":
        return mounts
    found = [mount for mount in mounts if mount.path == root or mount.path.startswith(f"{root}/")]
    return [mount._replace(path=host_path(root, mount.path)) for mount in found]


def host_path(root: str, path: str) -> str:
    """A path without `root`, the folder where the host's root is mounted; others stay as they are."""
    is_below = root != "/" and (path == root or path.startswith(f"{root}/"))
    return (path[len(root) :] or "/") if is_below else path


def parse_mountstats(text: str) -> dict[str, NfsMount]:
    """The NFS mounts by mount point; of two at one point, the upper one. Raises ParseError."""
    found = {}
    if text.strip() and not re.search("^(?:no )?device ", text, re.MULTILINE):
        raise ParseError(f"no mount in {text[:60]!r}")
    path, sizes, operations, counting = None, None, {}, False
    for line in (*text.splitlines(), "device"):
        words = line.split()
        first = words[0] if words else ""
        if first == "device":
            if path is not None and sizes is not None:
                found[path] = NfsMount(*sizes, operations)
            path, sizes, operations, counting = _nfs_mount_point(line), None, {}, False
        elif path is None or not words:
            continue
        elif first == "bytes:":
            sizes = _nfs_bytes(words[1:])
        elif line.strip() == "per-op statistics":
            counting = True
        elif counting and first.endswith(":"):
            operations[first[:-1]] = _nfs_calls(words[1:])
    return found


def _nfs_mount_point(line: str) -> str | None:
    """The mount point in `device SOURCE mounted on POINT with fstype TYPE ...`, None where it is not NFS."""
    head, marker, tail = line.rpartition(" with fstype ")
    fstype = tail.split(" ")[0]
    if not marker or fstype not in ("nfs", "nfs4"):
        return None
    # Blanks in the source and in the mount point are escaped.
    words = head.split(" ")
    if len(words) != 5 or words[2:4] != ["mounted", "on"]:
        raise ParseError(f"no mount point in {line[:60]!r}")
    return _unescape(words[4])


def _nfs_bytes(words: list[str]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Bytes read and written, each by applications (cached and direct) and over the network."""
    if len(words) < 6:
        raise ParseError(f"{len(words)} byte counts, expected 6")
    read, write, direct_read, direct_write, server_read, server_write = map(parse_count, words[:6])
    return (read + direct_read, server_read), (write + direct_write, server_write)


def _nfs_calls(words: list[str]) -> Calls:
    """Operations, transmissions, timeouts, bytes sent and received, three durations in ms, and errors."""
    if len(words) < 8:
        raise ParseError(f"{len(words)} call counts, expected 8")
    numbers = [parse_count(word) for word in words[:9]]
    completed, transmissions, timeouts, _, _, queue_ms, response_ms, total_ms = numbers[:8]
    errors = numbers[8] if len(numbers) > 8 else None
    return Calls(
        completed, transmissions, timeouts, queue_ms / 1000, response_ms / 1000, total_ms / 1000, errors
    )


def _unescape(escaped: str) -> str:
    """Undo the kernel's escapes: blanks, line ends and backslashes are written as octal numbers."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), escaped)


def label(text: str) -> str:
    """A name as a label value."""
    return clean_text(text, TEXT_MAX)
