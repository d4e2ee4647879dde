"""Whether the folder of rank pages is a mount of its own with bounds on its size and its number of files.

Any user may write there. In the system's own /run or /dev/shm one of them can fill what the machine needs to run.

    problems(directory, "/proc")    # {"mount": "is not a mount of its own, ..."}, empty where all is well
"""

from __future__ import annotations

import os
import stat

from goodput_exporters.collector import ParseError
from goodput_exporters.system.mounts import parse_mountinfo

KINDS = ("mount", "size", "inodes")
ADVICE = (
    "mount a tmpfs with size= and nr_inodes= there: systemctl enable --now run-goodput.mount "
    "(deploy/systemd/run-goodput.mount), see docs/deploy.md"
)


def problems(directory: str, procfs: str = "/proc") -> dict[str, str]:
    """What is wrong with the folder, by kind; empty where only its owner may write, and where it or mounts cannot be read."""
    path = os.path.realpath(directory)
    try:
        if not os.stat(path).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return {}
        sizes = os.statvfs(path)
        with open(os.path.join(procfs, "self", "mountinfo"), encoding="utf-8", errors="replace") as file:
            mounts = parse_mountinfo(file.read())
        if not mounts:
            return {}
    except (OSError, ParseError):
        return {}
    found = {}
    # The last one covers those before. A container's is a mount of a folder of the host's /run where the host has none.
    at = max((mount for mount in reversed(mounts) if _is_below(path, mount.path)), key=lambda m: len(m.path))
    if at.path != path or at.root != "/":
        shared = (
            at.path
            if at.path != path
            else f"{os.path.dirname(at.root) or '/'} of a file system of the host's"
        )
        found["mount"] = f"is not a mount of its own: any user can fill {shared}, which others need"
    if not sizes.f_blocks:
        found["size"] = "has no bound on its size: any user can fill the memory"
    if not sizes.f_files:
        found["inodes"] = "has no bound on its number of files"
    return found


def _is_below(path: str, mount: str) -> bool:
    return mount == "/" or path == mount or path.startswith(f"{mount}/")
