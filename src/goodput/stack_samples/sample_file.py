"""The samples of one rank process: a small file beside its page, `<page>.stacks.json`.

    {"start_ns": 1700000000000000000, "samples": 50, "places": {"dataloader.py:next_batch, line 41": 46}, "reason": ""}

`start_ns` is the start of the process, as in its page. `read` checks everything, since any user may write where pages
lie.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from contextlib import suppress

from goodput.wire.identity import clean_text
from goodput.wire.sampled_stacks import (
    NO_STACKS,
    PLACE_CHARACTERS_MAX,
    PLACES_MAX,
    SAMPLES_MAX,
    SampledStacks,
)

SUFFIX = ".stacks.json"
BYTES_MAX = 16 << 10


def path_of(page_path: str) -> str:
    return page_path + SUFFIX


def written_ns(page_path: str) -> int:
    """When the file was last written, in unix ns; 0 if there is none."""
    try:
        return os.lstat(path_of(page_path)).st_mtime_ns
    except OSError:
        return 0


def write(page_path: str, start_ns: int, sampled: SampledStacks) -> None:
    """Replace the file beside this page; the rarest places beyond a bound are left out. Raises OSError."""
    directory, name = os.path.split(page_path)
    # Named like a page's draft, which the agent removes if its process dies here.
    draft = os.path.join(directory, f".{os.getpid()}.stacks.{name}")
    with suppress(FileNotFoundError):
        os.unlink(draft)
    fields = sampled._asdict() | {"places": dict(Counter(sampled.places).most_common(PLACES_MAX))}
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with open(fd, "w") as file:
            json.dump({"start_ns": start_ns, **fields}, file)
        os.replace(draft, path_of(page_path))
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def read(page_path: str, start_ns: int) -> SampledStacks:
    """The samples of the process with this start; none for a missing, invalid or another user's file."""
    try:
        fd = os.open(path_of(page_path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            is_small = stat.S_ISREG(found.st_mode) and found.st_size <= BYTES_MAX
            if not is_small or found.st_uid not in _writers(page_path):
                return NO_STACKS
            fields = json.loads(file.read(BYTES_MAX))
        return _checked(fields) if fields["start_ns"] == start_ns else NO_STACKS
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return NO_STACKS


def _writers(page_path: str) -> set[int]:
    """Users whose samples count: the rank's own, and those of an agent."""
    return {0, os.geteuid(), os.stat(page_path).st_uid, os.stat(os.path.dirname(page_path) or ".").st_uid}


def _checked(fields: dict) -> SampledStacks:
    counts = {
        clean_text(place, PLACE_CHARACTERS_MAX): count
        for place, count in list(fields["places"].items())[:PLACES_MAX]
        if type(count) is int and 0 < count < SAMPLES_MAX
    }
    total = fields["samples"]
    total = max(total if type(total) is int and total < SAMPLES_MAX else 0, sum(counts.values()))
    return SampledStacks(counts, total, clean_text(fields["reason"], PLACE_CHARACTERS_MAX))
