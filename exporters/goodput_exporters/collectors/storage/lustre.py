"""Bytes and operations of each Lustre file system, from the client's llite/*/stats.

The files lie in debugfs (root only), in procfs or in /sys/fs, by version; the first place that has any is used.
Mounts of one file system are added up: their names differ only by a kernel address.

Format: lustre/llite/lproc_llite.c and lustre/obdclass/lprocfs_status.c of Lustre 2.10 to 2.16.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from goodput_exporters.collector import ParseError
from goodput_exporters.system.files import CounterFiles, parse_count

MOUNTS_MAX = 32
FILE_BYTES_MAX = 1 << 20
_ADDRESS = re.compile(r"-[0-9a-f]{8,16}$")


class Operation(NamedTuple):
    """`sum` is in `unit` (bytes, usecs); None where only the number of operations is counted (regs, reqs)."""

    count: int
    unit: str
    sum: int | None


def parse_llite(text: str) -> dict[str, Operation]:
    """llite/*/stats: `name count samples [unit] min max sum ...`. Raises ParseError."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4 or words[2] != "samples":
            continue  # snapshot_time, start_time
        unit = words[3].strip("[]")
        total = parse_count(words[6]) if len(words) > 6 else None
        found[words[0]] = Operation(parse_count(words[1]), "usecs" if unit == "usec" else unit, total)
    if not found and text.strip() and "snapshot_time" not in text:
        raise ParseError(f"no Lustre statistics in {text[:40]!r}")
    return found


def read_lustre(procfs: str, sysfs: str, files: CounterFiles) -> dict[str, dict[str, Operation]]:
    """The operations by file system."""
    for root in (f"{sysfs}/kernel/debug/lustre", f"{procfs}/fs/lustre", f"{sysfs}/fs/lustre"):
        found: dict[str, dict[str, Operation]] = {}
        problems = len(files.problems)
        # debugfs is only for root: that it cannot be listed is no problem.
        for name in CounterFiles().names(f"{root}/llite")[:MOUNTS_MAX]:
            operations = files.read(f"{root}/llite/{name}/stats", parse_llite, FILE_BYTES_MAX)
            if operations is not None:
                _add(found.setdefault(_ADDRESS.sub("", name), {}), operations)
        if found or len(files.problems) > problems:
            return found
    return {}


def _add(known: dict[str, Operation], more: dict[str, Operation]) -> None:
    for name, (count, unit, total) in more.items():
        before = known.get(name, Operation(0, unit, 0 if total is not None else None))
        both = None if total is None or before.sum is None else before.sum + total
        known[name] = Operation(before.count + count, unit, both)
