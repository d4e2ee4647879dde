"""Parsers of the kernel's lists of mounts: /proc/*/mountinfo and /proc/*/mountstats.

In: text. Out: `Mount`s, and for each NFS mount its bytes and its calls by operation. Raises ParseError and nothing
else. Mount options are never looked at. It does not know which mounts are worth watching beyond `is_remote`.

Formats: proc(5); fs/proc_namespace.c, fs/nfs/iostat.h and net/sunrpc/stats.c of the kernel.

    for mount in parse_mountinfo(text): ...
    parse_mountstats(text)["/data"].operations["READ"].completed
"""

from __future__ import annotations

import re
from typing import NamedTuple

from goodput.wire.identity import clean_text
from goodput_exporters.collector import ParseError, parse_count

TEXT_MAX = 255
_REMOTE = frozenset(
    "nfs nfs4 lustre beegfs gpfs wekafs ceph cifs smb3 panfs orangefs pvfs2 afs 9p virtiofs".split()  # noqa: SIM905
)
# FUSE of desktops, of packages and of container hosts, which holds no training data.
_LOCAL_FUSE = frozenset(("fuse.lxcfs", "fuse.gvfsd-fuse", "fuse.portal", "fuse.snapfuse", "fuse.squashfuse"))
_ESCAPED = re.compile(r"\\([0-7]{3})")
_SECRET = re.compile(r"//[^/@]*@")


class Mount(NamedTuple):
    """`device` is major:minor, the same for every mount of one file system; `path` is what to open."""

    device: str
    path: str
    fstype: str
    source: str

    @property
    def is_remote(self) -> bool:
        """Whether it is a file system of the network, or one in user space that may be."""
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
    """`read` and `written` are bytes: by programs, and over the network."""

    read: tuple[int, int]
    written: tuple[int, int]
    operations: dict[str, Calls]


def parse_mountinfo(text: str) -> list[Mount]:
    """Every mount, in the order in which they cover each other. Raises ParseError."""
    mounts = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields, (fstype, source, *_) = before.split(" "), (*after.split(" "), "", "")
        if not dash or len(fields) < 6 or not fstype:
            raise ParseError(f"no mount in {line[:60]!r}")
        mounts.append(Mount(fields[2], _plain(fields[4]), fstype, _SECRET.sub("//", _plain(source))))
    return mounts


def parse_mountstats(text: str) -> dict[str, NfsMount]:
    """The NFS mounts by mount point; of two at one point, the one on top. Raises ParseError."""
    found = {}
    path, read, written, operations, counting = None, (), (), {}, False
    for line in (*text.splitlines(), "device"):
        words = line.split()
        first = words[0] if words else ""
        if first == "device":
            if path is not None and read:
                found[path] = NfsMount(read, written, operations)
            path, read, written, operations, counting = _nfs_point(line), (), (), {}, False
        elif path is None or not words:
            continue
        elif first == "bytes:":
            read, written = _nfs_bytes(words[1:])
        elif line.strip() == "per-op statistics":
            counting = True
        elif counting and first.endswith(":"):
            operations[first[:-1]] = _nfs_calls(words[1:])
    return found


def _nfs_point(line: str) -> str | None:
    """The mount point in `device SOURCE mounted on POINT with fstype TYPE ...`, None where it is no NFS."""
    head, marker, tail = line.rpartition(" with fstype ")
    fstype = tail.split(" ")[0]
    if not marker or fstype not in ("nfs", "nfs4"):
        return None
    # Blanks in either name are escaped.
    words = head.split(" ")
    if len(words) != 5 or words[2:4] != ["mounted", "on"]:
        raise ParseError(f"no mount point in {line[:60]!r}")
    return _plain(words[4])


def _nfs_bytes(words: list[str]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Read and written, each by programs (through the page cache and around it) and over the network."""
    if len(words) < 6:
        raise ParseError(f"{len(words)} counts of bytes, want 6")
    read, write, direct_read, direct_write, server_read, server_write = map(parse_count, words[:6])
    return (read + direct_read, server_read), (write + direct_write, server_write)


def _nfs_calls(words: list[str]) -> Calls:
    """Operations, transmissions, timeouts, bytes sent and received, three times in ms, and errors."""
    if len(words) < 8:
        raise ParseError(f"{len(words)} counts of calls, want 8")
    numbers = [parse_count(word) for word in words[:9]]
    seconds = [number / 1000 for number in numbers[5:8]]
    return Calls(*numbers[:3], *seconds, numbers[8] if len(numbers) > 8 else None)


def _plain(escaped: str) -> str:
    """A name as it is: the kernel writes blanks, line ends and backslashes as octal numbers."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), escaped)


def label(text: str) -> str:
    """A name as the value of a label."""
    return clean_text(text, TEXT_MAX)
