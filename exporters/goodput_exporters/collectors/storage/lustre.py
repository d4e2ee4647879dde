"""What Lustre's client says of itself: bytes and operations of each file system that is mounted.

In: procfs and sysfs roots. Out: per file system its `Operation`s, read from llite/*/stats, which lies in debugfs
(root only), in procfs or in /sys/fs by version; the first of them that can be read is taken. Mounts of one file
system are added up: their names differ by a kernel address, which says nothing. Where none can be read the answer
is empty. It does not know the servers.

Format: lustre/llite/lproc_llite.c and lustre/obdclass/lprocfs_status.c of Lustre 2.10 to 2.16.

    found, problems = read_lustre("/proc", "/sys"); found["scratch"]["read_bytes"].sum
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from goodput_exporters.collector import CollectorError, ParseError, parse_count, read_text

MOUNTS_MAX = 32
_ADDRESS = re.compile(r"-[0-9a-f]{8,16}$")


class Operation(NamedTuple):
    """`sum` is in `unit` (bytes, usecs); None where only the times are counted (regs, reqs)."""

    count: int
    unit: str
    sum: int | None


def parse_llite(text: str) -> dict[str, Operation]:
    """llite/*/stats: `name count samples [unit] min max sum ...`. Raises ParseError."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4 or words[2] != "samples":
            continue  # Times of the snapshot, of the start.
        unit = words[3].strip("[]")
        total = parse_count(words[6]) if len(words) > 6 else None
        found[words[0]] = Operation(parse_count(words[1]), "usecs" if unit == "usec" else unit, total)
    if not found and text.strip() and "snapshot_time" not in text:
        raise ParseError(f"no Lustre statistics in {text[:40]!r}")
    return found


def read_lustre(procfs: str, sysfs: str) -> tuple[dict[str, dict[str, Operation]], list[str]]:
    """The operations by file system, and what could not be used."""
    problems: list[str] = []
    for root in (f"{sysfs}/kernel/debug/lustre", f"{procfs}/fs/lustre", f"{sysfs}/fs/lustre"):
        found: dict[str, dict[str, Operation]] = {}
        for name in _listed(f"{root}/llite"):
            path = f"{root}/llite/{name}/stats"
            try:
                text = read_text(path)
                if text is not None:
                    _add(found.setdefault(_ADDRESS.sub("", name), {}), parse_llite(text))
            except CollectorError as error:
                problems.append(str(error))
            except ParseError as error:
                problems.append(f"{path}: {error}")
        if found or problems:
            return found, problems
    return {}, []


def _listed(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))[:MOUNTS_MAX]
    except OSError:
        return []  # Not there, or not for this user.


def _add(known: dict[str, Operation], more: dict[str, Operation]) -> None:
    for name, (count, unit, total) in more.items():
        before = known.get(name, Operation(0, unit, 0 if total is not None else None))
        both = None if total is None or before.sum is None else before.sum + total
        known[name] = Operation(before.count + count, unit, both)
